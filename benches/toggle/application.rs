//! Probes of an application that is generated for the run.

use std::fs;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use benches::clock::{self, ticks};
use benches::compiled::{self, Library};
use benches::distribution::Distribution;
use benches::executor::Executor;
use benches::options::Options;
use benches::probes;
use benches::report::{Cell, Table, cells};
use callpatch::{Clobbers, Shape, Strategy};
use fastinst::provider::cyg_profile;
use fastinst::{ProbeFn, ProbeId, ProbeKind, ProbeMetadata};
use wordpatch::{Split, serialize_all_cores};

use crate::peers::{LINE_TRANSFER, line_transfers};
use crate::{code_at, window};

static FIRED: AtomicU64 = AtomicU64::new(0);

extern "C" fn count(_: ProbeId, _: usize, _: usize) {
    FIRED.fetch_add(1, Ordering::Relaxed);
}

extern "C" fn nothing(_: ProbeId, _: usize, _: usize) {}

const COUNT: ProbeFn = count;
const NOTHING: ProbeFn = nothing;

/// A probe and the kind of its site.
struct Probe {
    metadata: ProbeMetadata<'static>,
    shape: Shape,
    straddles: bool,
    strategy: Strategy,
}

fn activate(id: ProbeId, function: ProbeFn) {
    // SAFETY: the functions are never unloaded, call nothing instrumented, and may run anywhere.
    unsafe { fastinst::activate(id, function) }.expect("the probe is switched on");
}

fn deactivate(id: ProbeId) {
    fastinst::deactivate(id).expect("the probe is switched off");
}

/// Discovers them, and toggles them in passes over all probes and one alone.
pub(crate) fn tables(options: &Options, ticks_per_ns: f64) -> Vec<Table> {
    let functions = options.either(10_000, 500);
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let source = compiled::application(functions);
    let path = compiled::compile(
        &folder,
        "application.so",
        &source,
        &["-finstrument-functions", "-shared", "-fPIC"],
    );
    // This leaves only the application to be discovered.
    cyg_profile::start().expect("the provider starts");
    let mut discovery = Vec::new();
    let mut last = None;
    for copy in 0..options.either(5, 2) {
        let copied = folder.path().join(format!("application{copy}.so"));
        fs::copy(&path, &copied).expect("a temporary file can be copied");
        let (library, already_there) = (Library::load(&copied), fastinst::probe_count());
        let begin = clock::thread_time_ns();
        cyg_profile::start().expect("the library is scanned");
        let time = clock::thread_time_ns() - begin;
        discovery.push(time * ticks_per_ns / (fastinst::probe_count() - already_there) as f64);
        last = Some((library, already_there));
    }
    let (library, already_there) = last.expect("more than no copies");
    let (telling, found) = ticks(probes::discovered);
    let metadata: Vec<_> = found.into_iter().filter(|probe| probe.id.0 as usize >= already_there).collect();
    let count = metadata.len();
    assert!(
        count >= 2 * functions,
        "{count} probes in {functions} functions; notes: {:?}",
        fastinst::provider::notes()
    );

    let run_all = library.procedure("run_all");
    let check = |expected: usize| {
        serialize_all_cores().expect("membarrier is allowed");
        FIRED.store(0, Ordering::Relaxed);
        run_all();
        assert_eq!(FIRED.load(Ordering::Relaxed), expected as u64, "probes that fired");
    };
    check(0);
    metadata.iter().for_each(|probe| activate(probe.id, COUNT));
    check(2 * functions);
    let probes: Vec<Probe> = metadata.into_iter().map(kind_of).collect();
    let entries = probes.iter().filter(|probe| probe.metadata.kind == ProbeKind::ENTRY).count();
    assert_eq!(entries, functions);

    let straddling = probes.iter().filter(|probe| probe.straddles).count();
    let mut discovered = Table::of_distributions(
        "Discovery of an application's probes (paper, section 8.2: about 18,000 ticks each)",
        format!(
            "Ticks per probe of processor time, for a library of {count} probes, of which {straddling} straddle. Each measurement is \
             of another copy of the library. Discovery: reading the file, decoding its code, making stubs, leading every site to its \
             stub."
        ),
    );
    discovered.push_distribution("discovery", discovery);
    discovered.push_distribution(
        "notifying a callback that is registered later",
        vec![telling / fastinst::probe_count() as f64],
    );

    let toggled = passes(&probes, options.either(20, 3));
    check(2 * functions);
    probes.iter().for_each(|probe| deactivate(probe.metadata.id));
    check(0);
    let one = one_probe(&library, &probes, options.either(5_000, 200));
    vec![discovered, splits(&probes), toggled, one]
}

/// The kind of an active probe's site.
fn kind_of(metadata: ProbeMetadata<'static>) -> Probe {
    let shape = match code_at::<2>(metadata.site_address) {
        [0xe8, _] => Shape::Call,
        [0xe9, _] => Shape::Jump,
        [0xff, 0x15] => Shape::IndirectCall,
        [0xff, 0x25] => Shape::IndirectJump,
        found => panic!("{metadata:?} is not an active site: {found:02x?}"),
    };
    let split = window().split(metadata.site_address, shape.len());
    let strategy = Strategy::choose(shape, window(), metadata.site_address, Clobbers::CallerSaved);
    Probe { metadata, shape, straddles: split != Split::Inside, strategy }
}

fn splits(probes: &[Probe]) -> Table {
    let mut table = Table::new(
        "Sites of the application by shape and strategy",
        "How many, and which part of all that is.",
        &["shape", "strategy", "sites", "percent"],
    );
    for shape in [Shape::Call, Shape::Jump, Shape::IndirectCall, Shape::IndirectJump] {
        for strategy in [Strategy::Nop, Strategy::Load, Strategy::Ret] {
            let count =
                probes.iter().filter(|probe| probe.shape == shape && probe.strategy == strategy).count();
            if count > 0 {
                let percent = 100.0 * count as f64 / probes.len() as f64;
                table.push(vec![
                    format!("{shape:?}").into(),
                    format!("{strategy:?}").into(),
                    count.into(),
                    percent.into(),
                ]);
            }
        }
    }
    table
}

/// Passes over all probes, as in the paper: every probe is switched off, then every probe on again.
fn passes(probes: &[Probe], rounds: usize) -> Table {
    let mut table = Table::new(
        "fastinst::activate and deactivate by id, a pass over all probes (paper: 432 and 315 on average)",
        "Ticks. Each call timed on its own, the timer included; and complete passes without a timer, divided by their calls. \
         No thread executes the sites. All other probes are switched between two visits of a probe.",
        &["what", "sites", "n", "mean", "p10", "median", "p90"],
    );
    type Operation = fn(ProbeId);
    let operations: [(&str, Operation); 3] = [
        ("deactivate", deactivate),
        ("activate", |id| activate(id, COUNT)),
        ("activate again, with another function", |id| activate(id, NOTHING)),
    ];
    let mut single: [[Vec<f64>; 2]; 3] = Default::default();
    let mut whole: [Vec<f64>; 3] = Default::default();
    for _ in 0..rounds {
        for ((_, operation), single) in operations.iter().zip(&mut single) {
            for probe in probes {
                single[usize::from(probe.straddles)].push(ticks(|| operation(probe.metadata.id)).0);
            }
        }
        for ((_, operation), whole) in operations.iter().zip(&mut whole) {
            let (time, ()) = ticks(|| probes.iter().for_each(|probe| operation(probe.metadata.id)));
            whole.push(time / probes.len() as f64);
        }
    }
    probes.iter().for_each(|probe| activate(probe.metadata.id, COUNT));
    for (((name, _), [inside, straddling]), whole) in operations.iter().zip(single).zip(whole) {
        let all = [&inside[..], &straddling[..]].concat();
        for (sites, times) in
            [("inside", inside), ("straddling", straddling), ("all", all), ("complete passes", whole)]
        {
            if !times.is_empty() {
                let name = [Cell::from(*name), sites.into()];
                table.push(name.into_iter().chain(cells(&Distribution::of(times))).collect());
            }
        }
    }
    table
}

/// The entry probe of one function, toggled repeatedly.
fn one_probe(library: &Library, probes: &[Probe], rounds: usize) -> Table {
    let mut table = Table::of_distributions(
        "fastinst::activate and deactivate by id, one probe repeatedly",
        "Ticks per call. Not executed: measured in batches of 64 pairs, half of a pair. By another thread: each timed on its own, the \
             timer included, after the other thread has executed the site since the last toggle.",
    );
    const BATCH: usize = 64;
    let first = probes.iter().find(|probe| probe.metadata.function_name == c"f0");
    let id = first.expect("f0 has probes").metadata.id;
    let pairs = (0..rounds).map(|_| {
        let batch = || {
            for _ in 0..BATCH {
                activate(black_box(id), NOTHING);
                deactivate(black_box(id));
            }
        };
        ticks(batch).0 / (2 * BATCH) as f64
    });
    table.push_distribution("activate or deactivate, not executed", pairs.collect());
    activate(id, NOTHING);
    let retargets = (0..rounds).map(|_| {
        let batch = || {
            for _ in 0..BATCH {
                activate(black_box(id), COUNT);
                activate(black_box(id), NOTHING);
            }
        };
        ticks(batch).0 / (2 * BATCH) as f64
    });
    table.push_distribution("activate again, with another function", retargets.collect());
    let function = library.procedure("f0");
    Executor::during(
        || function(),
        |executor| {
            let timed = |act: &dyn Fn()| {
                executor.has_run();
                ticks(act).0
            };
            let (mut off, mut on) = (Vec::new(), Vec::new());
            for _ in 0..rounds {
                off.push(timed(&|| deactivate(id)));
                on.push(timed(&|| activate(id, NOTHING)));
            }
            table.push_distribution("activate, executed by another thread", on);
            table.push_distribution("deactivate, executed by another thread", off);
        },
    );
    deactivate(id);
    table.push_distribution(LINE_TRANSFER, line_transfers(rounds));
    table
}
