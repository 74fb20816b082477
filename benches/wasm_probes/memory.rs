//! The memory of probes at all instructions of a large function.

use std::fmt::Write;
use std::fs;

use benches::options::Options;
use benches::report::{Cell, Table};
use wasm_jit::probes::{
    Bound, Callback, GenericFn, Kind, Location, NativeFn, Place, Probe, ProbeSpec, activate_all,
};
use wasm_jit::{Config, Engine, Module};

extern "C" fn one(_: u64) {}

fn kinds() -> [(&'static str, Kind); 4] {
    // SAFETY: the function does not unwind, and is part of the program.
    let function = unsafe { NativeFn::new(one as extern "C" fn(u64)) };
    let values = || [Bound::Offset].into();
    [
        ("count", Kind::Count),
        ("native", Kind::Native { function, values: values() }),
        ("callback", Kind::Callback { function: Callback::new(|_| {}), values: values() }),
        ("generic", Kind::Generic(GenericFn::new(|_| Ok(())))),
    ]
}

/// A function with this many locals that does a number of steps, each of which changes one.
fn function(locals: usize, steps: usize) -> String {
    let mut text = format!("(module (func (local{})\n", " i32".repeat(locals));
    for step in 0..steps {
        let [a, b, c] = [step, step * 7 + 1, step * 5 + 2].map(|index| index % locals);
        writeln!(text, "local.get {a} local.get {b} i32.add local.set {c}").expect("a string is writable");
    }
    text + "))"
}

/// The memory of this process, in bytes; a page that is mapped twice counts once.
fn memory() -> u64 {
    // SAFETY: it has no preconditions.
    unsafe { libc::malloc_trim(0) };
    let text = fs::read_to_string("/proc/self/smaps_rollup").expect("Linux has it");
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).expect("it has this line");
    let kib = line.trim().strip_suffix(" kB").and_then(|kib| kib.parse::<u64>().ok());
    1024 * kib.expect("a number of kB")
}

/// Probes of a kind, and the code that they are in.
struct Kept {
    module: Module,
    probes: Vec<Probe>,
}

impl Kept {
    fn new(text: &str) -> Self {
        let engine = Engine::new(Config::new().counter_stubs(u32::MAX)).expect("an engine");
        Self { module: Module::new(&engine, text).expect("a valid module"), probes: Vec::new() }
    }

    /// Makes a probe at each instruction, and switches it on.
    fn make(&mut self, kind: &Kind) {
        let body = self.module.function(0).and_then(|function| function.body()).expect("it has a function");
        let start = body.range().start;
        let spec = |offset| {
            let location = Location { function: 0, place: Place::Instruction { offset } };
            ProbeSpec { location, kind: kind.clone() }
        };
        let offsets = body.instructions().map(|instruction| (instruction.offset() - start) as u32);
        let made = self.module.probes(&offsets.map(spec).collect::<Vec<_>>());
        self.probes = made.into_iter().map(|probe| probe.expect("a probe can be made")).collect();
        let activated: Result<(), _> = activate_all(&self.probes).into_iter().collect();
        activated.expect("probes can be switched on");
    }
}

pub(crate) fn table(options: &Options) -> Table {
    let steps = options.either(20_000, 2_000);
    let locals = [10, 100, 650];
    let mut table = Table::new(
        "Memory",
        "Bytes that the process keeps for each probe, with probes at all instructions of a large function, by the \
         number of its locals. Versions of the code, stubs and handles are included.",
        &["kind", "10 locals", "100 locals", "650 locals"],
    );
    let texts = locals.map(|locals| function(locals, steps));
    // What was measured is kept, so that nothing reuses its memory.
    let mut all = Vec::new();
    for (name, kind) in kinds() {
        let bytes = texts.each_ref().map(|text| {
            let mut kept = Kept::new(text);
            let before = memory();
            kept.make(&kind);
            let bytes = memory().saturating_sub(before) as f64 / kept.probes.len() as f64;
            all.push(kept);
            Cell::from(bytes)
        });
        table.push([Cell::from(name)].into_iter().chain(bytes).collect());
    }
    table
}
