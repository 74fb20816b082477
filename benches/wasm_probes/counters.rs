//! Counters in stubs compared with counting versions, by the number of counters: where
//! `Config::counter_stubs` should switch from one to the other.

use std::fmt::Write as _;
use std::time::Instant;

use benches::options::Options;
use benches::report::{Cell, Table};
use wasm_jit::probes::{Kind, Location, Place, Probe, ProbeSpec, activate_all, deactivate_all};
use wasm_jit::wasmparser::Operator;
use wasm_jit::{Config, Engine, Instance, Module, Store, TypedFunc};

/// Statements of the loop.
const STATEMENTS: usize = 32;
/// Iterations of the loop in a turn.
const ITERATIONS: u32 = 20_000;
/// The numbers of counters.
const COUNTERS: [usize; 9] = [0, 1, 2, 3, 4, 5, 6, 8, 16];

/// A loop of statements that do not wait for each other, with a branch after each n-th one that is
/// never taken, and as many after the loop.
fn text(branch_after: usize) -> String {
    let statements = |text: &mut String| {
        for number in 0..STATEMENTS {
            let local = ["$a", "$b", "$c", "$d"][number % 4];
            // Writing to a String cannot fail.
            let _ = writeln!(text, "(local.set {local} (i32.xor (local.get {local}) (local.get $n)))");
            if (number + 1) % branch_after == 0 {
                *text += "(br_if $out (i32.eq (local.get $n) (i32.const -7)))\n";
            }
        }
    };
    let mut text = String::from(
        "(module (func (export \"run\") (param $n i32) (result i32) (local $a i32) (local $b i32) (local $c i32)
            (local $d i32) (block $out (loop $next\n",
    );
    statements(&mut text);
    text += "(br_if $next (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))\n";
    statements(&mut text);
    text + ") (i32.add (i32.add (local.get $a) (local.get $b)) (i32.sub (local.get $c) (local.get $d)))))"
}

/// Where the counters are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    /// In the loop.
    Hot,
    /// After the loop.
    Cold,
}

/// The program, with counters.
struct Loaded {
    store: Store<()>,
    run: TypedFunc<i32, i32>,
    probes: Vec<Probe>,
    /// The least time of all turns, in nanoseconds.
    least: f64,
}

impl Loaded {
    /// `is_on`: otherwise the counters are off, in the code that was made for them.
    fn new(text: &str, counter_stubs: u32, (counters, at, is_on): (usize, At, bool)) -> Self {
        let engine = Engine::new(Config::new().counter_stubs(counter_stubs)).expect("an engine");
        let module = Module::new(&engine, text).expect("a valid module");
        let body = module.function(0).and_then(|function| function.body()).expect("it has a function");
        let is_statement = |operator: &Operator<'_>| matches!(operator, Operator::I32Xor);
        let statements = body.instructions().filter(|instruction| is_statement(instruction.operator()));
        let skipped = if at == At::Hot { 0 } else { STATEMENTS };
        // Evenly distributed.
        let step = STATEMENTS / counters.max(1);
        let chosen = statements.skip(skipped).step_by(step.max(1)).take(counters);
        let specs: Vec<ProbeSpec> = chosen
            .map(|instruction| {
                let offset = (instruction.offset() - body.range().start) as u32;
                let location = Location { function: 0, place: Place::Instruction { offset } };
                ProbeSpec { location, kind: Kind::Count }
            })
            .collect();
        let probes: Vec<Probe> =
            module.probes(&specs).into_iter().map(|probe| probe.expect("a probe can be made")).collect();
        activate_all(&probes).into_iter().for_each(|on| on.expect("a probe can be switched on"));
        if !is_on {
            crate::leave_in_versions(&probes);
        }
        let mut store = Store::new(&engine, ());
        let instance = Instance::new(&mut store, &module, &[]).expect("no imports");
        let run = instance.get_typed_func(&mut store, "run").expect("it is exported");
        Self { store, run, probes, least: f64::INFINITY }
    }

    fn run(&mut self) -> i32 {
        let start = Instant::now();
        let sum = self.run.call(&mut self.store, ITERATIONS as i32).expect("no trap");
        self.least = self.least.min(start.elapsed().as_nanos() as f64);
        sum
    }
}

/// The table.
pub(crate) fn table(options: &Options) -> Table {
    let mut table = Table::new(
        "Counters in stubs, or in the code",
        format!(
            "Nanoseconds for each iteration of a loop of {STATEMENTS} statements, XORs of registers; the least of all turns. `run`: how many \
             statements there are between two branches. `stubs`: each counter has one; `code`: the function counts all its \
             runs itself. `off`: switched off, but in use; `cold`: at code that is not executed."
        ),
        &["run", "counters", "stubs", "code", "stubs, off", "code, off", "stubs, cold", "code, cold"],
    );
    for run in [STATEMENTS, 8, 2] {
        let text = text(run);
        for counters in COUNTERS {
            let ways = [(At::Hot, true), (At::Hot, false), (At::Cold, true)];
            let mut all: Vec<Loaded> = ways
                .iter()
                .flat_map(|(at, is_on)| {
                    [u32::MAX, 0].map(|stubs| Loaded::new(&text, stubs, (counters, *at, *is_on)))
                })
                .collect();
            let expected = all[0].run();
            let turns = options.runs(100);
            for _ in 0..turns {
                for loaded in &mut all {
                    assert_eq!(loaded.run(), expected);
                }
            }
            let times = u64::from(turns) + 1;
            for probe in &all[0].probes {
                assert_eq!(probe.count(), u64::from(ITERATIONS) * times, "a hot counter");
            }
            for loaded in &mut all {
                deactivate_all(&loaded.probes);
            }
            let mut row: Vec<Cell> = vec![(run as u64).into(), (counters as u64).into()];
            row.extend(all.iter().map(|loaded| Cell::from(loaded.least / f64::from(ITERATIONS))));
            table.push(row);
        }
    }
    table
}
