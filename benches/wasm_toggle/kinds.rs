//! Many probes of each kind in one call, and the memory that they take.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

use benches::clock;
use benches::options::Options;
use benches::report::Table;
use wasm_jit::probes::{
    Bound, Callback, GenericFn, Kind, NativeFn, Probe, ProbeSpec, Recorder, Values, WasmFn, activate_all,
    deactivate_all,
};
use wasm_jit::{Instance, Module, Store, TypedFunc, Val};

use crate::{engine, made, module_text, specs, switched};

/// WebAssembly functions that probes call. The first one has no call in it, so that stubs
/// execute it themselves.
const MONITOR: &str = r#"(module
    (global $count (export "count") (mut i64) (i64.const 0))
    (func $short (export "short") (global.set $count (i64.add (global.get $count) (i64.const 1))))
    (func (export "called") (call $short)))"#;

/// How often host functions were called.
static FIRED: AtomicU64 = AtomicU64::new(0);

extern "C" fn fire() {
    FIRED.fetch_add(1, Ordering::Relaxed);
}

/// An instance of a probed module and one of [`MONITOR`], in one store.
struct Program {
    store: Store<()>,
    first: TypedFunc<i32, i32>,
    monitor: Instance,
}

impl Program {
    fn new(module: &Module) -> Self {
        let monitor = Module::new(module.engine(), MONITOR).expect("a valid module");
        let mut store = Store::new(module.engine(), ());
        let monitor = Instance::new(&mut store, &monitor, &[]).expect("an instance");
        let instance = Instance::new(&mut store, module, &[]).expect("an instance");
        let first = instance.get_typed_func(&mut store, "0").expect("the first function");
        Self { store, first, monitor }
    }

    fn wasm(&mut self, name: &str) -> WasmFn {
        let function = self.monitor.get_func(&mut self.store, name).expect("it is exported");
        WasmFn::new(&self.store, function).expect("it has no results")
    }

    fn call(&mut self) {
        self.first.call(&mut self.store, 1).expect("it does not trap");
    }

    /// The number of firings of probes that count, or whose function counts.
    fn fired(&mut self, probes: &[Probe], recorder: &Recorder) -> u64 {
        recorder.flush();
        let count = self.monitor.get_global(&mut self.store, "count").expect("it is exported");
        let Val::I64(by_wasm) = count.get(&mut self.store) else { panic!("an i64") };
        let counted: u64 = probes.iter().map(Probe::count).sum();
        FIRED.load(Ordering::Relaxed) + by_wasm as u64 + counted
    }
}

/// Bytes: allocated and not freed; of the process in memory.
#[derive(Clone, Copy)]
struct Memory {
    heap: f64,
    resident: f64,
}

impl Memory {
    fn now() -> Self {
        // SAFETY: no arguments.
        let heap = unsafe {
            libc::malloc_trim(0);
            libc::mallinfo2()
        };
        let status = fs::read_to_string("/proc/self/status").expect("a process has a status");
        let field = |name: &str| -> f64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a field");
            line.trim_end_matches(" kB").trim().parse().expect("a number")
        };
        let resident = 1024.0 * (field("RssAnon:") + field("RssShmem:"));
        Self { heap: (heap.uordblks + heap.hblkhd) as f64, resident }
    }

    /// The increase since `earlier`, divided by this number.
    fn since(self, earlier: Self, count: usize) -> [f64; 2] {
        [self.heap - earlier.heap, self.resident - earlier.resident].map(|more| more / count as f64)
    }
}

pub(crate) fn table(options: &Options) -> Table {
    let mut table = Table::new(
        "Many probes of each kind",
        "Ticks for each probe: made; switched on the first time, with their stubs; off; on again, the median of some \
         rounds. Bytes for each probe, of the heap and of the memory in use: when they are made, and all that is there \
         when they are on.",
        &["kind", "probes", "made", "first on", "off", "on", "heap made", "made", "heap on", "on, all"],
    );
    for name in ["Empty", "Count", "Native", "Callback", "Generic", "Record", "Wasm, called", "Wasm, inlined"]
    {
        row(options, name, &mut table);
    }
    table
}

fn kind(name: &str, program: &mut Program, recorder: &Recorder) -> Kind {
    let none = || Values::from([]);
    match name {
        "Empty" => Kind::Empty,
        "Count" => Kind::Count,
        "Native" => {
            // SAFETY: the function does not unwind, and is part of the program.
            let function = unsafe { NativeFn::new(fire as extern "C" fn()) };
            Kind::Native { function, values: none() }
        }
        "Callback" => Kind::Callback { function: Callback::new(|_| fire()), values: none() },
        "Generic" => Kind::Generic(GenericFn::new(|_| {
            fire();
            Ok(())
        })),
        "Record" => Kind::Record { recorder: recorder.clone(), values: [Bound::Offset].into() },
        "Wasm, called" => Kind::Wasm { function: program.wasm("called"), values: none() },
        _ => Kind::Wasm { function: program.wasm("short"), values: none() },
    }
}

fn row(options: &Options, name: &str, table: &mut Table) {
    let engine = engine();
    let module = Module::new(&engine, module_text(options.either(547, 2))).expect("a valid module");
    let mut program = Program::new(&module);
    let recorder = Recorder::new(|_, records: &[[u64; 1]]| {
        FIRED.fetch_add(records.len() as u64, Ordering::Relaxed);
    });
    let recorder = recorder.expect("there are few recorders");
    let kind = kind(name, &mut program, &recorder);
    let specs: Vec<ProbeSpec> =
        specs(&module).into_iter().map(|spec| ProbeSpec { kind: kind.clone(), ..spec }).collect();
    // Each instruction of a function is executed once.
    let expected = match name {
        "Empty" => 0,
        _ => specs.iter().filter(|spec| spec.location.function == 0).count() as u64,
    };
    let before = Memory::now();
    let (ticks_made, probes) = clock::ticks(|| made(module.probes(&specs)));
    let when_made = Memory::now().since(before, probes.len());
    let (first, on) = clock::ticks(|| activate_all(&probes));
    switched(on);
    let when_on = Memory::now().since(before, probes.len());
    let fired = program.fired(&probes, &recorder);
    program.call();
    assert_eq!(program.fired(&probes, &recorder) - fired, expected, "{name}: each fires once");
    let mut times: [Vec<f64>; 2] = Default::default();
    for _ in 0..options.either(11, 1) {
        let (ticks, off) = clock::ticks(|| deactivate_all(&probes));
        switched(off);
        times[0].push(ticks);
        let (ticks, on) = clock::ticks(|| activate_all(&probes));
        switched(on);
        times[1].push(ticks);
    }
    let [off, on] = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    });
    let mut cells = vec![name.into(), probes.len().into()];
    cells.extend([ticks_made, first, off, on].map(|ticks| (ticks / probes.len() as f64).into()));
    cells.extend([when_made, when_on].concat().into_iter().map(Into::into));
    table.push(cells);
}
