//! Recordings in the middle of a run: the speed of the program before, during and after the
//! recording, and the cost of the state with which it begins.

use std::num::NonZeroU64;
use std::time::Instant;

use benches::options::Options;
use benches::report::Table;
use wasm_jit::{Engine, Instance, Linker, Module, Store, TypedFunc};
use wasm_jit_replay::{CallRecorder, Calls, Recorder};

/// In each iteration, `work` calls a function with a few instructions, and `host` calls a host
/// function.
const PROGRAM: &str = r#"(module
    (import "h" "f" (func $f (param i32) (result i32)))
    (memory (export "memory") 1)
    (func $step (param $n i32) (result i32)
        (i32.store (i32.const 64) (i32.add (i32.load (i32.const 64)) (local.get $n)))
        (i32.xor (local.get $n) (i32.load (i32.const 64))))
    (func (export "work") (param $n i32) (result i32) (local $sum i32)
        (loop $again
            (local.set $sum (i32.add (local.get $sum) (call $step (local.get $n))))
            (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
        (local.get $sum))
    (func (export "host") (param $n i32) (result i32) (local $sum i32)
        (loop $again
            (local.set $sum (i32.add (local.get $sum) (call $f (local.get $n))))
            (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
        (local.get $sum)))"#;

/// The index of `step`.
const STEP: u32 = 1;

struct Program {
    module: Module,
    store: Store<()>,
    instance: Instance,
}

impl Program {
    fn new(text: &str) -> Self {
        let engine = Engine::default();
        let module = Module::new(&engine, text).expect("a valid module");
        let mut linker: Linker<()> = Linker::new(&engine);
        linker.func_wrap("h", "f", |value: i32| value ^ 1).expect("a new name");
        let mut store = Store::new(&engine, ());
        let instance = linker.instantiate(&mut store, &module).expect("its imports are defined");
        Self { module, store, instance }
    }

    fn export(&mut self, name: &str) -> TypedFunc<i32, i32> {
        self.instance.get_typed_func(&mut self.store, name).expect("it is exported")
    }

    /// Nanoseconds of an iteration: the least of the runs.
    fn time(&mut self, name: &str, runs: u32, iterations: i32) -> f64 {
        let function = self.export(name);
        let run = |_| {
            let start = Instant::now();
            function.call(&mut self.store, iterations).expect("it returns");
            start.elapsed().as_nanos() as f64 / f64::from(iterations)
        };
        (0..runs).map(run).fold(f64::INFINITY, f64::min)
    }

    fn recorder(&self) -> Recorder {
        let file = tempfile::tempfile().expect("a temporary file can be made");
        Recorder::to_file(&self.module, file).expect("it can be recorded")
    }

    fn calls(&self, number: u64) -> CallRecorder {
        let number = NonZeroU64::new(number).expect("some calls");
        let calls = Calls { function: STEP, skipped: 0, number };
        CallRecorder::start::<()>(&self.module, calls, std::io::sink()).expect("it can be recorded")
    }
}

/// How fast a program runs before, during and after a recording.
pub(super) fn speed(options: &Options) -> Table {
    let mut table = Table::new(
        "Speed before, during and after a recording in the middle of a run",
        "Nanoseconds of an iteration, with one call of a function of the program or of the host: least of the runs. \
         `during` is a recording of all calls between the program and its host; calls of one function are recorded 20 at \
         a time, and are over before the next run begins. Relative to the time before.",
        &["calls of", "recorded", "before ns", "during", "after"],
    );
    let (runs, iterations) = (options.runs(25), options.either(2_000_000, 2_000));
    for (of, name) in [("the program", "work"), ("the host", "host")] {
        options.progress(of);
        let mut program = Program::new(PROGRAM);
        let before = program.time(name, runs, iterations);
        let recorder = program.recorder();
        recorder.attach(&mut program.store, program.instance).expect("it can be recorded");
        let during = program.time(name, runs.min(3), iterations / 10);
        recorder.stop(&mut program.store).expect("a trace");
        let after = program.time(name, runs, iterations);
        let row = [of.into(), "all calls of the host".into(), before.into()];
        table.push(row.into_iter().chain([(during / before).into(), (after / before).into()]).collect());
    }
    let mut program = Program::new(PROGRAM);
    let before = program.time("work", runs, iterations);
    let recorder = program.calls(20);
    let during = program.time("work", 1, iterations);
    assert_eq!(recorder.stop().expect("a trace"), 20);
    let after = program.time("work", runs, iterations);
    let row = ["the program".into(), "20 calls of one function".into(), before.into()];
    table.push(row.into_iter().chain([(during / before).into(), (after / before).into()]).collect());
    table
}

/// What is in the memory.
#[derive(Clone, Copy)]
pub(super) enum Contents {
    Zeros,
    /// Small 32-bit numbers.
    Numbers,
    Random,
}

impl Contents {
    pub(super) fn fill(self, bytes: &mut [u8]) {
        let mut state = 1_u64;
        for (number, word) in bytes.chunks_exact_mut(4).enumerate() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let value = match self {
                Self::Zeros => 0,
                Self::Numbers => (number as u32 % 1000) ^ (state >> 60) as u32,
                Self::Random => (state >> 32) as u32,
            };
            word.copy_from_slice(&value.to_le_bytes());
        }
    }
}

/// What the state at the beginning costs.
pub(super) fn snapshots(options: &Options) -> Table {
    let mut table = Table::new(
        "The state at the beginning of a recording in the middle of a run",
        "Milliseconds for each MiB of memory, least of the runs: to write it, and to compare it with a copy and copy it \
         again, which each call of a function takes after the first one.",
        &["contents", "memory MiB", "write ms per MiB", "trace KiB per MiB", "next call ms per MiB"],
    );
    let size = options.either(64, 1);
    let text = PROGRAM.replace("(export \"memory\") 1", &format!("(export \"memory\") {}", size * 16));
    for (name, contents) in
        [("zeros", Contents::Zeros), ("small numbers", Contents::Numbers), ("random", Contents::Random)]
    {
        options.progress(name);
        let mut program = Program::new(&text);
        let memory = program.instance.get_memory(&program.store, "memory").expect("it is exported");
        contents.fill(memory.data_mut(&mut program.store));
        let per_mib = |milliseconds: f64| milliseconds / f64::from(size);
        let mut least = [f64::INFINITY; 2];
        let mut length = 0;
        for _ in 0..options.runs(5) {
            let trace = tempfile::NamedTempFile::new().expect("a file in the temporary folder");
            let recorder =
                Recorder::new(&program.module, trace.reopen().expect("the file")).expect("a recorder");
            let start = Instant::now();
            recorder.attach(&mut program.store, program.instance).expect("it can be recorded");
            least[0] = least[0].min(start.elapsed().as_secs_f64() * 1e3);
            recorder.stop(&mut program.store).expect("a trace");
            length = trace.as_file().metadata().expect("the file").len();

            let calls = program.calls(3);
            let work = program.export("work");
            work.call(&mut program.store, 1).expect("it returns");
            let start = Instant::now();
            work.call(&mut program.store, 1).expect("it returns");
            least[1] = least[1].min(start.elapsed().as_secs_f64() * 1e3);
            calls.stop().expect("a trace");
        }
        table.push(vec![
            name.into(),
            f64::from(size).into(),
            per_mib(least[0]).into(),
            per_mib(length as f64 / 1024.0).into(),
            per_mib(least[1]).into(),
        ]);
    }
    table
}
