//! The cost of a probe each time it fires, by kind: a loop with one probe, minus the loop.

use std::hint::black_box;
use std::time::Instant;

use benches::options::Options;
use benches::report::{Cell, Table};
use wasm_jit::probes::{
    Bound, Callback, GenericFn, Kind, Location, NativeFn, Place, Probe, ProbeSpec, WasmFn,
};
use wasm_jit::wasmparser::Operator;
use wasm_jit::{Engine, Func, Instance, Module, Store, TypedFunc};

/// Iterations of the loop: one firing each.
const FIRINGS: u32 = 2_000_000;

/// The probe is at the first addition, which has two operands.
const LOOP: &str = "(module (func (export \"run\") (param $n i32) (result i32) (local $sum i32)
    (loop $next
        (local.set $sum (i32.xor (i32.add (local.get $sum) (local.get $n)) (i32.const 0x5bd1)))
        (br_if $next (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
    (local.get $sum)))";

const MONITOR: &str = "(module (global $sum (mut i32) (i32.const 0)) (func (export \"nothing\"))
    (func (export \"add\") (param i32 i32)
        (global.set $sum (i32.add (global.get $sum) (i32.add (local.get 0) (local.get 1))))))";

extern "C" fn nothing() {}

extern "C" fn two(first: u64, second: u64) {
    black_box(first + second);
}

/// A program with one probe.
struct Loaded {
    what: &'static str,
    store: Store<u64>,
    run: TypedFunc<i32, i32>,
    probe: Option<Probe>,
    /// The least time of all turns, in nanoseconds.
    least: f64,
}

impl Loaded {
    fn new(what: &'static str, kind: impl FnOnce(&mut Store<u64>) -> Option<Kind>) -> Self {
        let engine = Engine::default();
        let module = Module::new(&engine, LOOP).expect("a valid module");
        let mut store = Store::new(&engine, 0);
        let body = module.function(0).and_then(|function| function.body()).expect("it has a function");
        let add = body.instructions().find(|instruction| matches!(instruction.operator(), Operator::I32Add));
        let offset = (add.expect("it has an addition").offset() - body.range().start) as u32;
        let location = Location { function: 0, place: Place::Instruction { offset } };
        let probe = kind(&mut store).map(|kind| {
            let probe = module.probe(ProbeSpec { location, kind }).expect("a probe can be made");
            probe.activate().expect("a probe can be switched on");
            probe
        });
        let instance = Instance::new(&mut store, &module, &[]).expect("no imports");
        let run = instance.get_typed_func(&mut store, "run").expect("it is exported");
        Self { what, store, run, probe, least: f64::INFINITY }
    }

    /// The sum that the program computes.
    fn run(&mut self) -> i32 {
        let start = Instant::now();
        let sum = self.run.call(&mut self.store, FIRINGS as i32).expect("no trap");
        self.least = self.least.min(start.elapsed().as_nanos() as f64);
        sum
    }
}

fn native(values: &[Bound]) -> Kind {
    // SAFETY: the functions do not unwind, and are part of the program.
    let function = unsafe {
        match values.len() {
            0 => NativeFn::new(nothing as extern "C" fn()),
            _ => NativeFn::new(two as extern "C" fn(u64, u64)),
        }
    };
    Kind::Native { function, values: values.into() }
}

fn wasm(store: &mut Store<u64>, name: &str, values: &[Bound]) -> Kind {
    let monitor = Module::new(store.engine(), MONITOR).expect("a valid module");
    let monitor = Instance::new(&mut *store, &monitor, &[]).expect("no imports");
    let function = monitor.get_func(&mut *store, name).expect("it is exported");
    let function = WasmFn::new(&*store, function).expect("it has no results");
    Kind::Wasm { function, values: values.into() }
}

fn host(store: &mut Store<u64>, values: &[Bound]) -> Kind {
    let add = |mut caller: wasm_jit::Caller<'_, u64>, first: i32, second: i32| {
        *caller.data_mut() += (first as u32 + second as u32) as u64;
    };
    let function = Func::wrap(&mut *store, add).expect("a function of the host");
    Kind::Wasm { function: WasmFn::new(&*store, function).expect("no results"), values: values.into() }
}

fn closure(values: &[Bound]) -> Kind {
    let function = Callback::new(|values| {
        black_box(values[0] + values[1]);
    });
    Kind::Callback { function, values: values.into() }
}

fn generic(reads: bool) -> Kind {
    Kind::Generic(GenericFn::new(move |frame| {
        if reads {
            black_box((frame.operand(1)?, frame.operand(0)?));
        }
        Ok(())
    }))
}

/// The table.
pub(crate) fn table(options: &Options) -> Table {
    const OPERANDS: [Bound; 2] = [Bound::Operand(1), Bound::Operand(0)];
    let mut all = vec![
        Loaded::new("no probe", |_| None),
        Loaded::new("off", |_| Some(Kind::Empty)),
        Loaded::new("empty", |_| Some(Kind::Empty)),
        Loaded::new("counter", |_| Some(Kind::Count)),
        Loaded::new("native function", |_| Some(native(&[]))),
        Loaded::new("native function, two operands", |_| Some(native(&OPERANDS))),
        Loaded::new("function of WebAssembly", |store| Some(wasm(store, "nothing", &[]))),
        Loaded::new("the same, which adds two operands to a global", |store| {
            Some(wasm(store, "add", &OPERANDS))
        }),
        Loaded::new("host function with the store, two operands", |store| Some(host(store, &OPERANDS))),
        Loaded::new("closure, two operands", |_| Some(closure(&OPERANDS))),
        Loaded::new("closure with the frame", |_| Some(generic(false))),
        Loaded::new("closure with the frame, which reads two operands", |_| Some(generic(true))),
    ];
    if let Some(probe) = &all[1].probe {
        probe.deactivate().expect("a probe can be switched off");
    }
    let expected = all[0].run();
    for _ in 0..options.runs(20) {
        for loaded in &mut all {
            assert_eq!(loaded.run(), expected, "{}", loaded.what);
        }
    }
    if let Some(counter) = &all[3].probe {
        assert_eq!(counter.count(), u64::from(FIRINGS) * u64::from(options.runs(20)));
    }
    let mut table = Table::new(
        "Firing",
        "Nanoseconds for each time that control comes to a probe: a loop of an addition, an XOR, a subtraction and a \
         branch, with a probe at the addition, less the loop without a probe; the least of all turns.",
        &["probe", "ns"],
    );
    for loaded in &all {
        let ns =
            (loaded.least - if loaded.what == "no probe" { 0.0 } else { all[0].least }) / f64::from(FIRINGS);
        table.push(vec![loaded.what.into(), Cell::from(ns)]);
    }
    table
}
