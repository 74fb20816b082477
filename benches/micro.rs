//! Costs of single operations: micro-benchmarks with Criterion, for its statistics and its
//! comparison with the last run.
//!
//! * `toggle`: a call site and a probe, switched off and on again.
//! * `patch`: one instruction inside a fetch window and across a boundary, and a batch, per
//!   instruction.
//! * `encode`: the code of a stub.
//! * `fire`: a call to an instrumented function with its probes off, with its probes on, and
//!   without probes.
//! * `compile`: WebAssembly to machine code.
//! * `crossbeam`: candidates to replace our own data structures; `CONTRIBUTING.md` says which are
//!   used.
//!
//! These are single operations in a loop, with everything in cache and no other thread involved.
//! The other benchmarks in this directory measure what needs ticks, alternating rounds, or another
//! thread.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use benches::compiled::{self, Library};
use benches::probes;
use benches::sites::{Case, Code, E8_NOP, SiteFunction, code_at, run};
use callpatch::{CallSite, Shape};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use crossbeam_queue::ArrayQueue;
use fastinst::provider::cyg_profile;
use fastinst::{ProbeFn, ProbeId};
use wasm_jit::{Engine, Module};
use wordpatch::{FetchModel, Patch, Split, serialize_all_cores};

static CALLS: AtomicU64 = AtomicU64::new(0);

/// The callee of the call sites.
extern "C" fn callee() {
    CALLS.fetch_add(1, Ordering::Relaxed);
}

/// Functions with a direct call, each at this offset in its fetch window.
fn functions(split: Split, count: usize) -> (Case, Vec<SiteFunction>) {
    let callee = callee as *const () as usize;
    let is_wanted = |case: &Case| case.shape == Shape::Call && case.split == split;
    let case =
        Case::all(FetchModel::in_force().window).into_iter().find(is_wanted).expect("every split is there");
    let mut code = Code::near(callee, count);
    let functions = (0..count).map(|_| code.function_with(&case, callee)).collect();
    code.finish();
    (case, functions)
}

const SPLITS: [(&str, Split); 2] =
    [("inside a window", Split::Inside), ("straddling 3|2", Split::Crossing { front: 3 })];

fn toggle(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("toggle");
    group.throughput(Throughput::Elements(2));
    for (name, split) in SPLITS {
        let (case, functions) = functions(split, 1);
        // SAFETY: a call in our own text, correct with and without it; from now on only callpatch
        // writes it.
        let site = unsafe { CallSite::decode(functions[0].site, case.clobbers) }.expect("a call site");
        let calls = |expected| {
            serialize_all_cores().expect("membarrier is allowed");
            CALLS.store(0, Ordering::Relaxed);
            run(functions[0]);
            assert_eq!(CALLS.load(Ordering::Relaxed), expected);
        };
        site.deactivate().expect("it is switched off");
        calls(0);
        site.activate().expect("it is switched on");
        calls(1);
        group.bench_function(format!("call site, {name}"), |bencher| {
            bencher.iter(|| {
                site.deactivate().expect("it is switched off");
                site.activate().expect("it is switched on");
            });
        });
    }
    group.finish();
}

fn patch(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("patch");
    for (name, split) in SPLITS {
        let (_, functions) = functions(split, 1);
        let site = functions[0].site;
        // SAFETY: the text stays mapped, and only this thread patches it.
        let call = unsafe { code_at::<5>(site) };
        let mut forms = [call, E8_NOP];
        group.throughput(Throughput::Elements(1));
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let [old, new] = forms;
                forms.swap(0, 1);
                // SAFETY: an instruction in our own text, correct with and without the call; no
                // thread blocks SIGTRAP.
                unsafe { wordpatch::patch(site, &old, &new) }.expect("it is patched");
            });
        });
    }

    const BATCH: usize = 100;
    let (_, functions) = functions(SPLITS[1].1, BATCH);
    // SAFETY: as above.
    let calls: Vec<[u8; 5]> = functions.iter().map(|function| unsafe { code_at(function.site) }).collect();
    let mut is_call = true;
    group.throughput(Throughput::Elements(BATCH as u64));
    group.bench_function(format!("a batch of {BATCH}, straddling 3|2"), |bencher| {
        bencher.iter(|| {
            let patches: Vec<Patch<'_>> = functions
                .iter()
                .zip(&calls)
                .map(|(function, call)| {
                    let [expected, replacement] = if is_call { [call, &E8_NOP] } else { [&E8_NOP, call] };
                    Patch { address: function.site, expected, replacement }
                })
                .collect();
            is_call = !is_call;
            // SAFETY: as above.
            let patched = unsafe { wordpatch::patch_all(&patches) };
            assert!(patched.iter().all(Result::is_ok), "{patched:?}");
        });
    });
    group.finish();
}

fn encode(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("encode");
    group.bench_function("a stub", |bencher| {
        bencher.iter(|| callpatch::stub::stub(black_box(0x40_0000), black_box(0x40_1000)));
    });
    group.finish();
}

extern "C" fn nothing(_: ProbeId, _: usize, _: usize) {}

extern "C" fn count(_: ProbeId, _: usize, _: usize) {
    CALLS.fetch_add(1, Ordering::Relaxed);
}

const NOTHING: ProbeFn = nothing;
const COUNT: ProbeFn = count;

/// Calls to the function in one measurement.
const PASSES: u64 = 1_000;

const PROGRAM: &str = "
    __attribute__((noinline, noclone)) static unsigned leaf(unsigned x)
    { __asm__ volatile(\"\" : \"+r\"(x)); return x + 1; }
    __attribute__((no_instrument_function, noinline)) void run(unsigned long n)
    { while (n--) leaf(n); }
";

fn fire(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let load = |name: &str, flags: &[&str]| {
        let flags = [flags, &["-shared", "-fPIC"]].concat();
        Library::load(&compiled::compile(&folder, name, PROGRAM, &flags))
    };
    let plain = load("plain.so", &[]).procedure_of_number("run");
    let probed = load("probed.so", &["-finstrument-functions"]).procedure_of_number("run");
    cyg_profile::start().expect("the provider starts");
    let found = probes::discovered();
    let ids: Vec<ProbeId> =
        found.iter().filter(|probe| probe.function_name == c"leaf").map(|probe| probe.id).collect();
    assert_eq!(ids.len(), 2, "an entry and an exit");
    let switch = |function: Option<ProbeFn>| {
        for id in &ids {
            match function {
                // SAFETY: the functions are never unloaded, call nothing instrumented, and may run
                // anywhere.
                Some(function) => unsafe { fastinst::activate(*id, function) },
                None => fastinst::deactivate(*id),
            }
            .expect("the probe is switched");
        }
        serialize_all_cores().expect("membarrier is allowed");
    };
    let fired = |function| {
        switch(function);
        CALLS.store(0, Ordering::Relaxed);
        probed(100);
        CALLS.load(Ordering::Relaxed)
    };
    assert_eq!([fired(Some(COUNT)), fired(None), fired(Some(NOTHING))], [200, 0, 0]);

    let mut group = criterion.benchmark_group("fire");
    group.throughput(Throughput::Elements(PASSES));
    group.bench_function("no probes", |bencher| bencher.iter(|| plain(PASSES)));
    switch(None);
    group.bench_function("entry and exit, off", |bencher| bencher.iter(|| probed(PASSES)));
    switch(Some(NOTHING));
    group.bench_function("entry and exit, on", |bencher| bencher.iter(|| probed(PASSES)));
    switch(None);
    group.throughput(Throughput::Elements(2));
    group.bench_function("activate and deactivate", |bencher| {
        bencher.iter(|| {
            // SAFETY: as above.
            unsafe { fastinst::activate(ids[0], NOTHING) }.expect("the probe is switched");
            fastinst::deactivate(ids[0]).expect("the probe is switched");
        });
    });
    group.finish();
}

fn compile(criterion: &mut Criterion) {
    let function = |number: usize| {
        format!(
            "(func (export \"f{number}\") (param $a i32) (param $b i32) (result i32) (local $rest i32)
                (loop $again
                    (if (local.get $b) (then
                        (local.set $rest (i32.rem_u (local.get $a) (local.get $b)))
                        (local.set $a (i32.add (local.get $b) (i32.const {number})))
                        (local.set $b (local.get $rest))
                        (br $again))))
                (local.get $a))"
        )
    };
    let engine = Engine::default();
    let mut group = criterion.benchmark_group("compile");
    for functions in [1, 1_000] {
        let text: String = (0..functions).map(function).collect();
        let module = wat::parse_str(format!("(module {text})")).expect("it is a module");
        group.throughput(Throughput::Bytes(module.len() as u64));
        group.bench_function(format!("functions: {functions}"), |bencher| {
            bencher.iter(|| Module::new(&engine, &module).expect("it is compiled"));
        });
    }
    group.finish();
}

fn crossbeam(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("crossbeam");
    group.bench_function("epoch::pin", |bencher| bencher.iter(crossbeam_epoch::pin));
    let queue = ArrayQueue::new(1024);
    group.bench_function("ArrayQueue, push and pop", |bencher| {
        bencher.iter(|| {
            queue.push(black_box(7_u64)).expect("there is room");
            queue.pop()
        });
    });
    group.finish();
}

criterion_group!(all, toggle, patch, encode, fire, compile, crossbeam);
criterion_main!(all);
