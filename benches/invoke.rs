//! Costs of a probe for the code that executes it.
//!
//! 1. A site that is off (section 8.5 of the paper, "latent costs"), by shape, split and strategy,
//!    in a loop, compared with the same loop without the site; and the same site when it calls an
//!    empty function.
//! 2. A probe that is on and does nothing (Table 2, "invocation"), and one that is off, in a
//!    function compiled with `-finstrument-functions`, compared with the same function compiled
//!    without.
//! 3. The profiler's own probes, in a process under `libfastinst.so`.
//!
//! Compared cases are measured alternately, and subtracted within a round, so that changes of the
//! clock rate cancel out.

use std::fmt::Write;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use benches::clock::ticks;
use benches::compiled::{self, Library, PLAIN};
use benches::distribution::Distribution;
use benches::options::Options;
use benches::preload::{self, Under};
use benches::probes;
use benches::report::{Cell, DISTRIBUTION, Report, Table, cells};
use benches::sites::{Case, Code, LoopFunction};
use callpatch::CallSite;
use clap::Parser;
use fastinst::provider::cyg_profile;
use fastinst::{ProbeFn, ProbeId};
use serde_json::Value;
use wordpatch::{FetchModel, serialize_all_cores};

fn main() {
    let options = Options::parse();
    let mut report = Report::new("How many ticks does a probe cost the code that executes it?");
    options.progress("sites that are off");
    let cycles_per_tick = report.host().cycles_per_tick;
    report.push(latent(&options, cycles_per_tick));
    options.progress("probes that do nothing");
    report.push(invocation(&options));
    options.progress("the profiler's probes");
    report.push(profiler(&options));
    options.print(&report);
}

/// Iterations of a loop between two readings of the clock.
const ITERATIONS: u64 = 20_000;

fn latent(options: &Options, cycles_per_tick: f64) -> Table {
    let mut table = Table::new(
        "A call site in a loop (paper, section 8.5: off, 0 cycles inside a window, 1 to 2 with a jump, 4 with an island)",
        format!(
            "Ticks per iteration more than the same loop without the site; \"cycles\" is the median in core cycles ({cycles_per_tick} \
             per tick). A tail call is in a separate function, and is compared with a bare RET there. On: it calls an empty \
             function."
        ),
        &[
            "shape",
            "split",
            "strategy",
            "n",
            "off p10",
            "off median",
            "off p90",
            "off cycles",
            "on p10",
            "on median",
            "on p90",
            "on cycles",
            "loop",
        ],
    );
    for case in Case::all(FetchModel::in_force().window) {
        let mut code = Code::near(latent as *const () as usize, 10);
        let (empty, counting) = (code.empty(), code.counting());
        let bare = code.loop_around(&case, None);
        let [off, on] = [(); 2].map(|()| code.loop_around(&case, Some(empty)));
        let checked = code.loop_around(&case, Some(counting));
        code.finish();
        let [off_site, _, checked_site] = [off, on, checked].map(|function| {
            // SAFETY: a call in our own text, correct with and without it; from now on only
            // callpatch writes it.
            unsafe { CallSite::decode(function.site, case.clobbers) }.expect("a call site")
        });
        assert_eq!(checked.run(100), 100, "{checked_site:?} is on");
        checked_site.deactivate().expect("it is switched off");
        off_site.deactivate().expect("it is switched off");
        serialize_all_cores().expect("membarrier is allowed");
        assert_eq!(checked.run(100), 0, "{checked_site:?} is off");

        let time = |function: &LoopFunction| ticks(|| function.run(ITERATIONS)).0 / ITERATIONS as f64;
        let (mut with_off, mut with_on, mut without) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..options.either(410, 30) {
            let (before, off, on, after) = (time(&bare), time(&off), time(&on), time(&bare));
            // The first rounds warm up caches and predictors.
            if round >= 10 {
                let bare = (before + after) / 2.0;
                without.push(bare);
                with_off.push(off - bare);
                with_on.push(on - bare);
            }
        }
        let [off, on, bare] = [with_off, with_on, without].map(Distribution::of);
        let [count, _, off @ ..] = cells(&off);
        let [_, _, on @ ..] = cells(&on);
        let cycles = |median: &Cell| match median {
            Cell::Number(ticks) => (ticks * cycles_per_tick).into(),
            other => other.clone(),
        };
        let (off_cycles, on_cycles) = (cycles(&off[1]), cycles(&on[1]));
        let strategy = format!("{:?}", off_site.strategy());
        let mut row = vec![case.shape_name().into(), case.split_name().into(), strategy.into(), count];
        row.extend(off.into_iter().chain([off_cycles]).chain(on).chain([on_cycles, bare.median.into()]));
        table.push(row);
    }
    table
}

static FIRED: AtomicU64 = AtomicU64::new(0);

extern "C" fn count(_: ProbeId, _: usize, _: usize) {
    FIRED.fetch_add(1, Ordering::Relaxed);
}

extern "C" fn nothing(_: ProbeId, _: usize, _: usize) {}

const COUNT: ProbeFn = count;
const NOTHING: ProbeFn = nothing;

/// Two small functions, and loops that call them. The exit of the first is a call, that of the
/// second a tail call.
fn leaves() -> String {
    format!(
        "#define LEAF __attribute__((noinline, noclone)) static\n\
         LEAF unsigned value_leaf(unsigned x) {{ __asm__ volatile(\"\" : \"+r\"(x)); return x + 1; }}\n\
         LEAF void void_leaf(unsigned x) {{ __asm__ volatile(\"\" : \"+r\"(x)); }}\n\
         {PLAIN} void run_value_leaf(unsigned long n) {{ while (n--) value_leaf(n); }}\n\
         {PLAIN} void run_void_leaf(unsigned long n) {{ while (n--) void_leaf(n); }}\n"
    )
}

/// Instrumentation functions that do nothing, local to the library. The compiler must not be able
/// to see that.
const EMPTY_CYG: &str = "#define EMPTY __attribute__((no_instrument_function, noinline, visibility(\"hidden\")))\n\
    EMPTY void __cyg_profile_func_enter(void *f, void *c) { __asm__ volatile(\"\" : : \"r\"(f), \"r\"(c)); }\n\
    EMPTY void __cyg_profile_func_exit(void *f, void *c) { __asm__ volatile(\"\" : : \"r\"(f), \"r\"(c)); }\n";

fn invocation(options: &Options) -> Table {
    let columns = [&["function", "what"][..], &DISTRIBUTION].concat();
    let mut table = Table::new(
        "A probe in an instrumented function (paper, Table 2: 35 per invocation)",
        "Ticks per probe: half of what a call of the function takes more than when it is compiled without instrumentation, \
         in a loop. That includes setting the arguments up.",
        &columns,
    );
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let load = |name: &str, source: &str, flags: &[&str]| {
        let flags = [flags, &["-shared", "-fPIC"]].concat();
        Library::load(&compiled::compile(&folder, name, source, &flags))
    };
    let plain = load("plain.so", &leaves(), &[]);
    let empty = load("empty.so", &(EMPTY_CYG.to_owned() + &leaves()), &["-finstrument-functions"]);
    let probed = load("probed.so", &leaves(), &["-finstrument-functions"]);
    cyg_profile::start().expect("the provider starts");
    let found = probes::discovered();

    for leaf in ["value_leaf", "void_leaf"] {
        let ids: Vec<_> = found
            .iter()
            .filter(|probe| probe.function_name.to_string_lossy() == leaf)
            .map(|probe| probe.id)
            .collect();
        assert_eq!(ids.len(), 2, "an entry and an exit of {leaf}");
        let switch = |function: Option<ProbeFn>| {
            for id in &ids {
                match function {
                    // SAFETY: the functions are never unloaded, call nothing instrumented, and may
                    // run anywhere.
                    Some(function) => unsafe { fastinst::activate(*id, function) },
                    None => fastinst::deactivate(*id),
                }
                .expect("the probe is switched");
            }
            serialize_all_cores().expect("membarrier is allowed");
        };
        let loops =
            [&plain, &empty, &probed].map(|library| library.procedure_of_number(&format!("run_{leaf}")));
        let fired = |function| {
            switch(function);
            FIRED.store(0, Ordering::Relaxed);
            loops[2](100);
            FIRED.load(Ordering::Relaxed)
        };
        assert_eq!([fired(Some(COUNT)), fired(None), fired(Some(NOTHING))], [200, 0, 0], "{leaf}");

        let time = |function: extern "C" fn(u64)| ticks(|| function(ITERATIONS)).0 / ITERATIONS as f64;
        let mut costs: [Vec<f64>; 3] = Default::default();
        for round in 0..options.either(1_010, 30) {
            let before = time(loops[0]);
            let empty = time(loops[1]);
            switch(None);
            let off = time(loops[2]);
            switch(Some(NOTHING));
            let on = time(loops[2]);
            let bare = (before + time(loops[0])) / 2.0;
            if round >= 10 {
                costs
                    .iter_mut()
                    .zip([off, on, empty])
                    .for_each(|(costs, time)| costs.push((time - bare) / 2.0));
            }
        }
        switch(None);
        let names = [
            "off",
            "on, calls an empty probe function",
            "not a probe: calls a do-nothing __cyg_profile_func_*",
        ];
        for (name, costs) in names.into_iter().zip(costs) {
            let mut row = vec![leaf.into(), name.into()];
            row.extend(cells(&Distribution::of(costs)));
            table.push(row);
        }
    }
    table
}

/// Calls to a function that are timed together, while the profiler samples each of them.
const TIMED: usize = 800;
/// Calls before the timed ones.
const WARMING: usize = 100;
/// Samples after which a function's probes switch themselves off: more than the timed calls.
const SAMPLES: usize = 1000;

/// A program that prints, for each of its functions, the ticks per call.
fn program(functions: usize) -> String {
    let mut source = String::from("#include <stdio.h>\n#include <unistd.h>\n#include <x86intrin.h>\n");
    for number in 0..functions {
        let _ = writeln!(
            source,
            "__attribute__((noinline, noclone)) static unsigned leaf{number}(unsigned x) \
             {{ __asm__ volatile(\"\" : \"+r\"(x)); return x + {number}; }}"
        );
    }
    let _ = writeln!(source, "{PLAIN} int main(void) {{\n    unsigned long begin, end;");
    for number in 0..functions {
        // During the pause, the profiler drains the samples of the last function from the thread's
        // buffer.
        let _ = writeln!(
            source,
            "    usleep(5000);\n\
             \x20   for (int i = 0; i < {WARMING}; i++) leaf{number}(i);\n\
             \x20   _mm_lfence(); begin = __rdtsc();\n\
             \x20   for (int i = 0; i < {TIMED}; i++) leaf{number}(i);\n\
             \x20   _mm_lfence(); end = __rdtsc();\n\
             \x20   for (int i = 0; i < {SAMPLES} - {WARMING} - {TIMED}; i++) leaf{number}(i);\n\
             \x20   printf(\"%.3f\\n\", (double)(end - begin) / {TIMED});"
        );
    }
    source.push_str("    return 0;\n}\n");
    source
}

fn profiler(options: &Options) -> Table {
    let functions = options.either(200, 20);
    let mut table = Table::of_distributions(
        "The profiler's probes (peers, per pair: XRay's empty handler 37 to 42 ticks, a fast tracer some 45)",
        format!(
            "Ticks per call of an instrumented leaf function: an entry and an exit. Each measurement is the mean of {TIMED} calls \
             in a row of another function, of all of which a sample is taken."
        ),
    );
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let binary = compiled::compile(&folder, "leaves", &program(functions), &["-finstrument-functions"]);
    let library = preload::library();
    let report = folder.path().join("report.json");
    let on_options = format!("output={}:budget=none", report.display());
    let (mut off, mut on) = (Vec::new(), Vec::new());
    for _ in 0..options.either(5, 1) {
        off.extend(ticks_printed_by(&binary, Under::Library(&library, "tool=none")));
        on.extend(ticks_printed_by(&binary, Under::Library(&library, &on_options)));
        let text = std::fs::read(&report).expect("the profiler has written its report");
        let read: Value = serde_json::from_slice(&text).expect("the report is JSON");
        assert_eq!(read["samples"], functions * SAMPLES, "samples, with {} lost", read["lost_samples"]);
    }
    table.push_distribution("probes off", off);
    table.push_distribution("a sample of every call", on);
    table
}

fn ticks_printed_by(binary: &Path, under: Under<'_>) -> Vec<f64> {
    let output = preload::command(binary, &[""; 0], under).output().expect("the program can be started");
    assert!(output.status.success(), "{}", output.status);
    let text = String::from_utf8(output.stdout).expect("numbers");
    text.lines().map(|line| line.parse().expect("a number")).collect()
}
