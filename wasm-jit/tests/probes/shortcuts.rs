//! Probes whose stubs execute steps, and call a native function where these do not do.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use wasm_jit::probes::{
    Bound, Kind, Location, NativeFn, Operand, Place, Probe, ProbeError, ProbeSpec, Quadword, Relation, Scope,
    Shortcut, Step, Temp, ThreadWord, activate_all,
};
use wasm_jit::wasmparser::Operator;
use wasm_jit::{Engine, Error, Instance, Module, Store, Trap};

use super::native::clobber;
use super::{engine, location, outcome, programs, reference, seeds};

/// What the probe of a place changes.
#[derive(Default)]
#[repr(C)]
struct Cell {
    /// How many more times steps do before the function is called.
    left: AtomicU64,
    /// How often the steps were executed, and the function called.
    steps: AtomicU64,
    calls: AtomicU64,
    /// The time of the last steps.
    time: AtomicU64,
}

fn field(base: Temp, number: i32) -> Quadword {
    Quadword { base, offset: 8 * number }
}

impl Cell {
    fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    fn address(self: &Arc<Self>) -> u64 {
        Arc::as_ptr(self).expose_provenance() as u64
    }

    fn counted(&self) -> [u64; 2] {
        [&self.steps, &self.calls].map(|count| count.load(Ordering::Relaxed))
    }

    /// Steps that change all registers, and do nothing but count in the end, three times of four.
    fn kind(self: &Arc<Self>, values: &[Bound]) -> Kind {
        let steps = [
            Step::SetConst(Temp::A, self.address()),
            Step::CallIf(Operand::Memory(field(Temp::A, 0)), Relation::Equal, Operand::Const(0)),
            Step::SetClock(Temp::B),
            Step::Set(Temp::D, Operand::Memory(field(Temp::A, 3))),
            Step::CallIf(Operand::Temp(Temp::D), Relation::Above, Operand::Temp(Temp::B)),
            Step::Store(field(Temp::A, 3), Operand::Temp(Temp::B)),
            Step::SetConst(Temp::C, u64::MAX / 3),
            Step::SkipIf(
                Operand::Temp(Temp::B),
                Relation::BelowOrEqual,
                Operand::Temp(Temp::C),
                [Step::SubtractFrom(field(Temp::A, 1), Operand::Const(1000))].into(),
            ),
            Step::SubtractFrom(field(Temp::A, 0), Operand::Const(1)),
            Step::AddTo(field(Temp::A, 1), Operand::Const(1)),
            Step::Set(Temp::B, Operand::Const(-1)),
            Step::Add(Temp::D, Operand::Temp(Temp::B)),
        ];
        let kept = self.clone();
        // SAFETY: each cell is used by one thread, and kept; the function does not unwind, and is
        // part of the program.
        let (shortcut, function) = unsafe {
            (Shortcut::new(steps, kept).unwrap(), NativeFn::new(fire as extern "C" fn(u64, u64, u64)))
        };
        let mut all = [Bound::Const(self.address()), Bound::Const(0), Bound::Const(0)];
        all[1..].iter_mut().zip(values).for_each(|(to, from)| *to = *from);
        Kind::Shortcut { shortcut, function, values: all.into() }
    }
}

extern "C" fn fire(cell: u64, _: u64, _: u64) {
    clobber();
    // SAFETY: the probe passes the address of a cell, which its shortcut keeps.
    let cell = unsafe { &*std::ptr::with_exposed_provenance::<Cell>(cell as usize) };
    cell.left.store(3, Ordering::Relaxed);
    cell.calls.fetch_add(1, Ordering::Relaxed);
}

/// At each place of random programs: they go on as without, and each execution is either.
#[test]
fn steps_and_calls_are_as_many_as_executions() {
    let mut all = [0, 0];
    for seed in seeds() {
        let bytes = wat::parse_str(programs::program(seed)).unwrap();
        let engine = engine();
        let (expected, reference, places) = reference(&engine, &bytes, 1);
        let module = Module::from_binary(&engine, &bytes).unwrap();
        let cells: Vec<Arc<Cell>> = places.iter().map(|_| Cell::new()).collect();
        // With others at the same place, for every third.
        let mut specs = Vec::new();
        for (number, (place, cell)) in places.iter().zip(&cells).enumerate() {
            let at = location(&module, *place);
            let mut add = |kind| specs.push(ProbeSpec { location: at, kind });
            if number % 3 == 0 {
                add(Kind::Count);
            }
            add(cell.kind(&[Bound::Frame, Bound::Context]));
        }
        let made: Vec<Probe> = module.probes(&specs).into_iter().flatten().collect();
        activate_all(&made).into_iter().for_each(|on| on.unwrap());
        assert_eq!(outcome(&module).0, expected, "seed {seed}");
        for (number, cell) in cells.iter().enumerate() {
            let [steps, calls] = cell.counted();
            assert_eq!(steps + calls, reference[number], "seed {seed}: {:x?}", places[number]);
            // At least one of four is a call.
            assert!(3 * calls >= steps, "{steps} {calls}");
            all[0] += steps;
            all[1] += calls;
        }
    }
    let [steps, calls] = all;
    assert!(steps > calls, "most sites have registers for the steps: {all:?}");
}

const LOOP: &str = "(module (func (export \"run\") (param i64) (result i64) (local i64)
    (loop $again
        (local.set 1 (i64.div_u (i64.add (local.get 1) (i64.const -77)) (i64.const 3)))
        (local.set 1 (i64.div_u (i64.add (local.get 1) (i64.const -99)) (i64.const 3)))
        (br_if $again (i64.ne (local.tee 0 (i64.sub (local.get 0) (i64.const 1))) (i64.const 0))))
    (local.get 1)))";

/// A probe in the loop of [`LOOP`].
fn in_loop(module: &Module, scope: Scope, kind: Kind) -> Probe {
    let body = module.function(0).unwrap().body().unwrap();
    let subtraction =
        body.instructions().find(|it| matches!(it.operator(), Operator::I64Sub)).unwrap().offset();
    let place = Place::Instruction { offset: (subtraction - body.range().start) as u32 };
    let spec = ProbeSpec { location: Location { function: 0, place }, kind };
    let probe = module.scoped_probes(scope, &[spec]).pop().unwrap().unwrap();
    probe.activate().unwrap();
    probe
}

fn run(store: &mut Store<()>, module: &Module, times: i64) -> Result<i64, Error> {
    let instance = Instance::new(&mut *store, module, &[]).unwrap();
    instance.get_typed_func::<i64, i64>(&mut *store, "run").unwrap().call(&mut *store, times)
}

/// However much of the time is spent there.
#[test]
fn interrupts_do_not_separate_steps_that_are_together() {
    const ROUNDS: u64 = 60;
    let module = Module::new(&engine(), LOOP).unwrap();
    let cell = Cell::new();
    let first = Step::AddTo(field(Temp::A, 0), Operand::Const(1));
    let (middle, last) = (
        Step::AddTo(field(Temp::A, 3), Operand::Const(1)),
        Step::AddTo(field(Temp::A, 1), Operand::Const(1)),
    );
    let together: Vec<Step> =
        std::iter::once(first).chain(std::iter::repeat_n(middle, 15)).chain([last]).collect();
    let steps = [Step::SetConst(Temp::A, cell.address()), Step::Together(together.into())];
    // SAFETY: as in `Cell::kind`.
    let (shortcut, function) = unsafe {
        let function = NativeFn::new(fire as extern "C" fn(u64, u64, u64));
        (Shortcut::new(steps, cell.clone()).unwrap(), function)
    };
    let values = [Bound::Const(cell.address()), Bound::Const(0), Bound::Const(0)].into();
    let _probe = in_loop(&module, Scope::Module, Kind::Shortcut { shortcut, function, values });
    let mut store = Store::new(module.engine(), ());
    let interrupt = store.interrupt_handle();
    for round in 0..ROUNDS {
        let timeout = interrupt.interrupt_after(Duration::from_micros(500 + 7 * round)).unwrap();
        let error = run(&mut store, &module, 0).unwrap_err();
        drop(timeout);
        assert_eq!(error.trap(), Some(Trap::Interrupt));
        let [first, last] = [&cell.left, &cell.steps].map(|count| count.load(Ordering::Relaxed));
        assert_eq!(first, last, "round {round}");
    }
    assert!(cell.steps.load(Ordering::Relaxed) > ROUNDS);
    assert_eq!(cell.counted()[1], 0, "no step calls the function");
}

/// Steps find what belongs to the thread that executes them.
#[test]
fn each_thread_has_its_own_word() {
    let word = ThreadWord::new().unwrap();
    let module = Module::new(&engine(), LOOP).unwrap();
    let missing = Cell::new();
    let steps = [
        Step::SetOfThread(Temp::A, word.offset()),
        Step::CallIf(Operand::Temp(Temp::A), Relation::Equal, Operand::Const(0)),
        Step::AddTo(field(Temp::A, 1), Operand::Const(1)),
    ];
    // SAFETY: as in `Cell::kind`; the word is 0, or the address of a cell that lives longer than
    // the program runs.
    let (shortcut, function) = unsafe {
        let function = NativeFn::new(fire as extern "C" fn(u64, u64, u64));
        (Shortcut::new(steps, ()).unwrap(), function)
    };
    let values = [Bound::Const(missing.address()), Bound::Const(0), Bound::Const(0)].into();
    let _probe = in_loop(&module, Scope::Module, Kind::Shortcut { shortcut, function, values });
    std::thread::scope(|scope| {
        for thread in 1..=3 {
            let (module, word) = (&module, &word);
            scope.spawn(move || {
                let cell = Cell::new();
                word.set(cell.address());
                run(&mut Store::new(module.engine(), ()), module, 1000 * thread).unwrap();
                word.set(0);
                assert_eq!(cell.counted(), [1000 * thread as u64, 0]);
            });
        }
    });
    run(&mut Store::new(module.engine(), ()), &module, 10).unwrap();
    assert_eq!(missing.counted(), [0, 10]);
}

#[test]
fn shortcuts_are_taken_in_their_scope_only() {
    let module = Module::new(&engine(), LOOP).unwrap();
    let mut stores = [(); 2].map(|()| Store::new(module.engine(), ()));
    let [first, _] = &mut stores;
    let instance = Instance::new(&mut *first, &module, &[]).unwrap();
    let run_it = instance.get_typed_func::<i64, i64>(&mut *first, "run").unwrap();
    let of_instance = instance.id(&*first);
    let cells = [Cell::new(), Cell::new()];
    let _probes = [
        in_loop(&module, Scope::Instance(of_instance), cells[0].kind(&[])),
        in_loop(&module, Scope::Store(first.id()), cells[1].kind(&[])),
    ];
    run_it.call(&mut *first, 40).unwrap();
    let executed = |cell: &Arc<Cell>| cell.counted().iter().sum::<u64>();
    assert_eq!([&cells[0], &cells[1]].map(executed), [40, 40]);
    for store in &mut stores {
        run(store, &module, 7).unwrap();
    }
    assert_eq!([&cells[0], &cells[1]].map(executed), [40, 47]);
}

/// What they keep is dropped with the code.
#[test]
fn shortcuts_keep_what_they_lead_to() {
    let cell = Cell::new();
    let module = Module::new(&engine(), LOOP).unwrap();
    let probe = in_loop(&module, Scope::Module, cell.kind(&[]));
    let mut store = Store::new(module.engine(), ());
    run(&mut store, &module, 9).unwrap();
    drop(probe);
    assert_eq!(Arc::strong_count(&cell), 2, "a thread may be in the stub");
    run(&mut store, &module, 9).unwrap();
    drop((module, store));
    assert_eq!(Arc::strong_count(&cell), 1);
    assert_eq!(cell.counted().iter().sum::<u64>(), 9);
}

#[test]
fn functions_of_shortcuts_have_as_many_values_as_parameters() {
    let module = Module::new(&Engine::default(), LOOP).unwrap();
    let Kind::Shortcut { shortcut, function, .. } = Cell::new().kind(&[]) else { unreachable!() };
    let location = Location { function: 0, place: Place::Entry };
    let kind = Kind::Shortcut { shortcut, function, values: [Bound::Frame].into() };
    let error = module.probe(ProbeSpec { location, kind }).unwrap_err();
    assert!(matches!(error, ProbeError::Parameters { parameters: 3, values: 1 }), "{error}");
}

pub(crate) fn test_all() {
    steps_and_calls_are_as_many_as_executions();
    each_thread_has_its_own_word();
    shortcuts_are_taken_in_their_scope_only();
    shortcuts_keep_what_they_lead_to();
}
