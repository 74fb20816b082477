//! What functions of probes may do, in which order they are called, and what others see of them.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use wasm_jit::probes::{
    Bound, Kind, Location, NativeFn, NativeFunction, Place, Probe, ProbeError, ProbeSpec, Scope, ValueError,
    Values,
};
use wasm_jit::{Config, Engine, Error, Instance, Linker, Module, ProbeSites, Store, Trap};

use super::threads::PROGRAM;
use super::{call_main, engine, location, outcome, probes_everywhere, reference};

fn native<F: NativeFunction>(function: F, values: impl Into<Values>) -> Kind {
    // SAFETY: the functions of this file do not unwind unless a test fails, and are part of the
    // program; what they refer to is static or leaked.
    let function = unsafe { NativeFn::new(function) };
    Kind::Native { function, values: values.into() }
}

fn at(offset: u32, kind: Kind) -> ProbeSpec {
    ProbeSpec { location: Location { function: 0, place: Place::Instruction { offset } }, kind }
}

fn entry(kind: Kind) -> ProbeSpec {
    ProbeSpec { location: Location { function: 0, place: Place::Entry }, kind }
}

/// Held by tests whose functions use statics.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the exported function `run` with an argument.
fn run(module: &Module, argument: i32) -> Result<i32, Error> {
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, module, &[]).unwrap();
    let run = instance.get_typed_func::<i32, i32>(&mut store, "run").unwrap();
    run.call(&mut store, argument)
}

thread_local! {
    static LOG: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    static ACTIONS: RefCell<Vec<Action>> = const { RefCell::new(Vec::new()) };
}

/// What the probe of this number does when it fires.
type Action = (u64, Box<dyn Fn()>);

extern "C" fn log(number: u64) {
    LOG.with_borrow_mut(|log| log.push(number));
    ACTIONS.with_borrow(|actions| {
        actions.iter().filter(|(of, _)| *of == number).for_each(|(_, act)| act());
    });
}

fn logged() -> Vec<u64> {
    LOG.take()
}

fn log_with(number: u64) -> Kind {
    native(log as extern "C" fn(u64), [Bound::Const(number)])
}

const IDENTITY: &str = "(module (func (export \"run\") (param i32) (result i32) (local.get 0)))";

#[test]
fn probes_of_one_place_fire_in_the_order_in_which_they_went_on() {
    let module = Module::new(&engine(), IDENTITY).unwrap();
    let probes: Vec<Probe> = (0..4).map(|number| module.probe(entry(log_with(number))).unwrap()).collect();
    let check = |expected: &[u64]| {
        run(&module, 1).unwrap();
        assert_eq!(logged(), expected);
    };
    check(&[]);
    for number in [2, 0, 3, 1] {
        probes[number].activate().unwrap();
    }
    check(&[2, 0, 3, 1]);
    probes[0].activate().unwrap();
    check(&[2, 0, 3, 1]);
    probes[0].deactivate().unwrap();
    check(&[2, 3, 1]);
    probes[0].activate().unwrap();
    check(&[2, 3, 1, 0]);
    drop(probes);
    check(&[]);
}

/// A probe changes the probes of its own place: this event keeps its list, the next has the new
/// one.
#[test]
fn changes_at_the_place_of_a_firing_probe_begin_with_the_next_event() {
    let module = Module::new(&engine(), IDENTITY).unwrap();
    let make = |number| Arc::new(module.probe(entry(log_with(number))).unwrap());
    let probes: Vec<Arc<Probe>> = (0..4).map(make).collect();
    probes[..3].iter().for_each(|probe| probe.activate().unwrap());
    let (first, third, fourth) = (probes[0].clone(), probes[2].clone(), probes[3].clone());
    let act = Box::new(move || {
        first.deactivate().unwrap();
        third.deactivate().unwrap();
        fourth.activate().unwrap();
    });
    ACTIONS.with_borrow_mut(|actions| actions.push((0, act)));
    for expected in [&[0, 1, 2][..], &[1, 3]] {
        run(&module, 1).unwrap();
        assert_eq!(logged(), expected);
    }
    // It removes itself altogether, and makes a probe at another place of the function.
    let made: &'static OnceLock<Probe> = Box::leak(Box::default());
    let own: &'static Mutex<Vec<Arc<Probe>>> = Box::leak(Box::new(Mutex::new(probes)));
    let of_probe = module.clone();
    let act = Box::new(move || {
        own.lock().unwrap().clear();
        let body = of_probe.function(0).unwrap().body().unwrap();
        let last = body.instructions().last().unwrap().offset() - body.range().start;
        let probe = of_probe.probe(at(last as u32, log_with(9))).unwrap();
        probe.activate().unwrap();
        made.set(probe).unwrap();
    });
    ACTIONS.with_borrow_mut(|actions| actions.clear());
    ACTIONS.with_borrow_mut(|actions| actions.push((3, act)));
    run(&module, 1).unwrap();
    assert_eq!(logged(), [1, 3], "the frame is in the version without the new place");
    run(&module, 1).unwrap();
    assert_eq!(logged(), [9]);
    made.get().unwrap().deactivate().unwrap();
    ACTIONS.with_borrow_mut(|actions| actions.clear());
}

/// Likewise for counters, which count an event when it begins, in stubs and in functions that
/// count.
#[test]
fn counters_that_a_firing_probe_switches_begin_and_end_with_the_next_event() {
    for stubs in [0, u32::MAX] {
        let engine = Engine::new(super::config().counter_stubs(stubs)).unwrap();
        let module = Module::new(&engine, IDENTITY).unwrap();
        let make = |kind| Arc::new(module.probe(entry(kind)).unwrap());
        let (calling, others) = (make(log_with(0)), [(); 3].map(|()| make(Kind::Count)));
        let [ended, kept, begun] = others.clone();
        calling.activate().unwrap();
        ended.activate().unwrap();
        kept.activate().unwrap();
        let act = Box::new(move || {
            ended.deactivate().unwrap();
            begun.activate().unwrap();
        });
        ACTIONS.with_borrow_mut(|actions| actions.push((0, act)));
        for expected in [[1, 1, 0], [1, 2, 1]] {
            run(&module, 1).unwrap();
            assert_eq!(others.each_ref().map(|probe| probe.count()), expected, "{stubs}");
        }
        ACTIONS.with_borrow_mut(|actions| actions.clear());
        logged();
    }
}

/// Probes of one instance fire there only, and count there only; those of later instances are not
/// taken for it.
#[test]
fn probes_of_one_instance_do_not_fire_in_others() {
    let module = Module::new(&engine(), IDENTITY).unwrap();
    let instantiate = || {
        let mut store = Store::new(module.engine(), ());
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        (store, instance)
    };
    let mut both = [instantiate(), instantiate()];
    let ids = both.each_ref().map(|(store, instance)| instance.id(store));
    assert_ne!(ids[0], ids[1]);
    let scopes = [Scope::Instance(ids[0]), Scope::Instance(ids[1]), Scope::Module];
    let probes: Vec<[Probe; 2]> = scopes
        .iter()
        .zip(0..)
        .map(|(scope, number)| {
            let made = module.scoped_probes(*scope, &[entry(log_with(number)), entry(Kind::Count)]);
            let made: Vec<Probe> = made.into_iter().map(|made| made.unwrap()).collect();
            assert!(made.iter().all(|probe| probe.scope() == *scope));
            made.try_into().unwrap()
        })
        .collect();
    probes.iter().flatten().for_each(|probe| probe.activate().unwrap());
    let call = |both: &mut [(Store<()>, Instance); 2], number: usize, times: u32| {
        let (store, instance) = &mut both[number];
        let run = instance.get_typed_func::<i32, i32>(&mut *store, "run").unwrap();
        for _ in 0..times {
            run.call(&mut *store, 1).unwrap();
        }
    };
    let counts = |expected: [u64; 3]| {
        assert_eq!(probes.iter().map(|[_, count]| count.count()).collect::<Vec<_>>(), expected);
    };
    call(&mut both, 0, 1);
    assert_eq!(logged(), [0, 2]);
    counts([1, 0, 1]);
    call(&mut both, 1, 2);
    assert_eq!(logged(), [1, 2, 1, 2]);
    counts([1, 2, 3]);
    probes[1][1].deactivate().unwrap();
    call(&mut both, 1, 1);
    call(&mut both, 0, 1);
    counts([2, 2, 5]);
    // The instance ends, and others have its addresses.
    for _ in 0..20 {
        logged();
        both[0] = instantiate();
        assert!(!ids.contains(&both[0].1.id(&both[0].0)));
        call(&mut both, 0, 1);
        assert_eq!(logged(), [2]);
    }
    counts([2, 2, 25]);
    // It has ended; and the other one is of another module.
    let others = Module::new(module.engine(), IDENTITY).unwrap();
    for (module, id) in [(&module, ids[0]), (&others, ids[1])] {
        let made = module.scoped_probes(Scope::Instance(id), &[entry(Kind::Count)]).pop().unwrap();
        assert!(matches!(made, Err(ProbeError::NoInstance { instance }) if instance == id), "{made:?}");
    }
    probes[0][1].deactivate().unwrap();
    counts([2, 2, 25]);
}

/// Probes of one store fire and count in all of its instances, those included that are created
/// later, and in no others; also if code counts by itself, and once the store has ended.
#[test]
fn probes_of_one_store_do_not_fire_in_others() {
    for stubs in [0, 100] {
        let module =
            Module::new(&Engine::new(Config::new().counter_stubs(stubs)).unwrap(), IDENTITY).unwrap();
        let mut stores = [(); 2].map(|()| Store::new(module.engine(), ()));
        assert_ne!(stores[0].id(), stores[1].id());
        let old = stores.each_mut().map(|store| Instance::new(store, &module, &[]).unwrap());
        let scopes = [Scope::Store(stores[0].id()), Scope::Store(stores[1].id()), Scope::Module];
        let probes: Vec<[Probe; 2]> = scopes
            .iter()
            .zip(0..)
            .map(|(scope, number)| {
                let made = module.scoped_probes(*scope, &[entry(log_with(number)), entry(Kind::Count)]);
                made.into_iter().map(|made| made.unwrap()).collect::<Vec<Probe>>().try_into().unwrap()
            })
            .collect();
        probes.iter().flatten().for_each(|probe| probe.activate().unwrap());
        let new = stores.each_mut().map(|store| Instance::new(store, &module, &[]).unwrap());
        let call = |store: &mut Store<()>, instance: Instance| {
            let run = instance.get_typed_func::<i32, i32>(&mut *store, "run").unwrap();
            run.call(&mut *store, 1).unwrap();
        };
        let counts = |expected: [u64; 3]| {
            assert_eq!(probes.iter().map(|[_, count]| count.count()).collect::<Vec<_>>(), expected);
        };
        logged();
        call(&mut stores[0], old[0]);
        call(&mut stores[1], new[1]);
        assert_eq!(logged(), [0, 2, 1, 2]);
        counts([1, 1, 2]);
        call(&mut stores[0], new[0]);
        call(&mut stores[0], new[0]);
        assert_eq!(logged(), [0, 2, 0, 2]);
        counts([3, 1, 4]);
        drop(stores);
        counts([3, 1, 4]);
    }
}

#[test]
fn values_of_every_type_and_the_constants() {
    let _alone = alone();
    static SEEN: Mutex<Vec<[u64; 6]>> = Mutex::new(Vec::new());
    extern "C" fn see(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64) {
        SEEN.lock().unwrap().push([a, b, c, d, e, f]);
    }
    let text = "(module
        (import \"host\" \"f\" (func))
        (memory 1)
        (func (export \"run\") (param f32 f64 i64 i32)
            (local.set 0 (f32.sqrt (local.get 0)))
            (local.set 1 (f64.neg (local.get 1)))
            (i64.store offset=0xfffffff0 (i32.wrap_i64 (local.get 2)) (i64.const -2))
            (local.set 3 (i32.sub (local.get 3) (i32.const 1)))
            (f32.store offset=7 (local.get 3) (local.get 0))
            (i64.store (i32.const 16) (i64.reinterpret_f64 (local.get 1)))
            (block (br_if 0 (f64.eq (local.get 1) (local.get 1))))
            (block (br_if 0 (f64.ne (local.get 1) (local.get 1))))
            (block (br_if 0 (i32.and (local.get 3) (i32.const -16))))))";
    let module = Module::new(&engine(), text).unwrap();
    let body = module.function(1).unwrap().body().unwrap();
    use wasm_jit::wasmparser::Operator as O;
    let offsets = |is: fn(&O<'_>) -> bool| -> Vec<u32> {
        let found = body.instructions().filter(|instruction| is(instruction.operator()));
        found.map(|instruction| (instruction.offset() - body.range().start) as u32).collect()
    };
    let spec = |offset, kind| ProbeSpec {
        location: Location { function: 1, place: Place::Instruction { offset } },
        kind,
    };
    let see = see as extern "C" fn(u64, u64, u64, u64, u64, u64);
    use Bound::{Address, Const, Context, Function, Local, Offset, Operand};
    let stores = offsets(|operator| matches!(operator, O::I64Store { .. }));
    let float = offsets(|operator| matches!(operator, O::F32Store { .. }))[0];
    let branches = offsets(|operator| matches!(operator, O::BrIf { .. }));
    let probes = [
        spec(stores[0], native(see, [Function, Offset, Const(u64::MAX), Local(3), Operand(0), Address])),
        spec(float, native(see, [Local(0), Local(1), Local(3), Operand(0), Operand(1), Address])),
        spec(branches[0], native(see, [Operand(0), Local(1), Local(3), Context, Context, Const(0)])),
        spec(branches[1], native(see, [Operand(0), Const(1), Const(2), Const(3), Const(4), Const(1 << 40)])),
        spec(branches[2], native(see, [Operand(0), Const(0), Const(0), Const(0), Const(0), Const(0)])),
    ];
    let probes: Vec<Probe> = module.probes(&probes).into_iter().map(|made| made.unwrap()).collect();
    probes.iter().for_each(|probe| probe.activate().unwrap());
    let mut linker = Linker::new(module.engine());
    linker.func_wrap("host", "f", || {}).unwrap();
    let mut store = Store::new(module.engine(), ());
    let instance = linker.instantiate(&mut store, &module).unwrap();
    let run = instance.get_typed_func::<(f32, f64, i64, i32), ()>(&mut store, "run").unwrap();
    let error = run.call(&mut store, (2.25, 4.5, 16, 0x89)).unwrap_err();
    assert_eq!(error.trap(), Some(Trap::MemoryOutOfBounds), "after the probe has fired");
    let first = [1, u64::from(stores[0]), u64::MAX, 0x89, -2_i64 as u64, 0x1_0000_0000];
    assert_eq!(std::mem::take(&mut *SEEN.lock().unwrap()), [first]);
    drop(probes);
    let _ = run.call(&mut store, (2.25, 4.5, 16, 0x89)).unwrap_err();
    assert!(SEEN.lock().unwrap().is_empty());
    // Without the store that traps.
    let module = Module::new(&engine(), text.replace("offset=0xfffffff0", "offset=0x10")).unwrap();
    let shift = |offset: u32| offset - 4;
    let probes = [
        spec(shift(float), native(see, [Local(0), Local(1), Local(3), Operand(0), Operand(1), Address])),
        spec(shift(branches[0]), native(see, [Operand(0), Local(1), Local(3), Const(0), Const(0), Const(0)])),
        spec(
            shift(branches[1]),
            native(see, [Operand(0), Const(1), Const(2), Const(3), Const(4), Const(1 << 40)]),
        ),
        spec(shift(branches[2]), native(see, [Operand(0), Const(0), Const(0), Const(0), Const(0), Const(0)])),
    ];
    let probes: Vec<Probe> = module.probes(&probes).into_iter().map(|made| made.unwrap()).collect();
    probes.iter().for_each(|probe| probe.activate().unwrap());
    let mut store = Store::new(module.engine(), ());
    let mut linker = Linker::new(module.engine());
    linker.func_wrap("host", "f", || {}).unwrap();
    let instance = linker.instantiate(&mut store, &module).unwrap();
    let run = instance.get_typed_func::<(f32, f64, i64, i32), ()>(&mut store, "run").unwrap();
    run.call(&mut store, (2.25, 4.5, 16, 0x89)).unwrap();
    let (root, negative) = (u64::from(1.5_f32.to_bits()), (-4.5_f64).to_bits());
    assert_eq!(
        std::mem::take(&mut *SEEN.lock().unwrap()),
        [
            [root, negative, 0x88, root, 0x88, 0x8f],
            [1, negative, 0x88, 0, 0, 0],
            [0, 1, 2, 3, 4, 1 << 40],
            [0x80, 0, 0, 0, 0, 0],
        ]
    );
}

/// The program has the value that the probe was given, even if the memory changes meanwhile.
#[test]
fn a_load_is_done_once_for_the_probe_and_the_program() {
    let _alone = alone();
    static MEMORY: AtomicU64 = AtomicU64::new(0);
    static SEEN: AtomicU64 = AtomicU64::new(0);
    extern "C" fn change(value: u64) {
        SEEN.store(value, Ordering::Relaxed);
        // SAFETY: the address of a word in a memory that is shared between threads.
        unsafe { &*(MEMORY.load(Ordering::Relaxed) as usize as *const AtomicU32) }
            .store(1000, Ordering::Relaxed);
    }
    let text = "(module (memory (import \"env\" \"memory\") 1 1 shared)
        (func (export \"run\") (param i32) (result i32)
            (i32.add (local.get 0) (i32.load offset=8 (i32.const 0)))))";
    let engine = engine();
    let module = Module::new(&engine, text).unwrap();
    let body = module.function(0).unwrap().body().unwrap();
    let add = body.instructions().find(|at| matches!(at.operator(), wasm_jit::wasmparser::Operator::I32Add));
    let offset = (add.unwrap().offset() - body.range().start) as u32;
    let probe = module.probe(at(offset, native(change as extern "C" fn(u64), [Bound::Operand(0)]))).unwrap();
    let memory = wasm_jit::SharedMemory::new(wasm_jit::MemoryType::shared(1, 1)).unwrap();
    let word = memory.data_ptr().wrapping_add(8) as usize;
    MEMORY.store(word as u64, Ordering::Relaxed);
    let mut store = Store::new(&engine, ());
    let mut linker = Linker::new(&engine);
    linker.define(&store, "env", "memory", memory.clone()).unwrap();
    let instance = linker.instantiate(&mut store, &module).unwrap();
    let run = instance.get_typed_func::<i32, i32>(&mut store, "run").unwrap();
    // SAFETY: as above.
    unsafe { &*(word as *const AtomicU32) }.store(5, Ordering::Relaxed);
    probe.activate().unwrap();
    assert_eq!(run.call(&mut store, 10).unwrap(), 15);
    assert_eq!(SEEN.load(Ordering::Relaxed), 5);
    assert_eq!(run.call(&mut store, 10).unwrap(), 1010);
}

/// An interrupt that arrives while a probe's function runs takes effect when it has returned.
#[test]
fn interrupts_wait_for_functions_of_probes() {
    let _alone = alone();
    static HANDLE: Mutex<Option<wasm_jit::InterruptHandle>> = Mutex::new(None);
    static IS_SET: AtomicBool = AtomicBool::new(false);
    static STARTED: AtomicU64 = AtomicU64::new(0);
    static ENDED: AtomicU64 = AtomicU64::new(0);
    extern "C" fn interrupt() {
        STARTED.fetch_add(1, Ordering::Relaxed);
        if IS_SET.load(Ordering::Relaxed) {
            IS_SET.store(false, Ordering::Relaxed);
            // The signal is sent to this thread.
            HANDLE.lock().unwrap().take().unwrap().interrupt();
        }
        ENDED.fetch_add(1, Ordering::Relaxed);
    }
    let text = "(module (func $spin (export \"run\") (param i32) (result i32)
        (loop (br_if 0 (i32.ne (i32.const 1) (local.tee 0 (i32.add (local.get 0) (i32.const 2))))))
        (local.get 0)))";
    let module = Module::new(&engine(), text).unwrap();
    let body = module.function(0).unwrap().body().unwrap();
    let offsets: Vec<u32> = body.instructions().map(|at| (at.offset() - body.range().start) as u32).collect();
    let kind = || native(interrupt as extern "C" fn(), []);
    let places = offsets[..7].iter().map(|offset| (*offset, at(*offset, kind())));
    for (offset, spec) in [(0, entry(kind()))].into_iter().chain(places) {
        let probe = module.probe(spec).unwrap();
        probe.activate().unwrap();
        let mut store = Store::new(module.engine(), ());
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        let run = instance.get_typed_func::<i32, i32>(&mut store, "run").unwrap();
        for _ in 0..2 {
            *HANDLE.lock().unwrap() = Some(store.interrupt_handle());
            IS_SET.store(true, Ordering::Relaxed);
            let error = run.call(&mut store, 0).unwrap_err();
            let Error::Trap { backtrace, .. } = &error else { panic!("{error}") };
            assert_eq!(error.trap(), Some(Trap::Interrupt));
            assert!(HANDLE.lock().unwrap().is_none());
            let frames = backtrace.frames();
            assert_eq!(frames.len(), 1, "{backtrace}");
            let instruction = frames[0].func_offset().unwrap() as u32;
            assert_eq!(instruction, offset, "{backtrace}");
            assert_eq!(STARTED.load(Ordering::Relaxed), ENDED.load(Ordering::Relaxed));
        }
    }
}

/// A probe's function runs a program of another store, which traps.
#[test]
fn functions_of_probes_run_other_stores() {
    let _alone = alone();
    static OTHER: Mutex<Option<(Store<()>, Instance)>> = Mutex::new(None);
    static TRAPS: AtomicU64 = AtomicU64::new(0);
    extern "C" fn other() {
        let mut other = OTHER.lock().unwrap();
        let (store, instance) = other.as_mut().unwrap();
        let run = instance.get_typed_func::<i32, i32>(&mut *store, "run").unwrap();
        let error = run.call(store, 0).unwrap_err();
        let Error::Trap { backtrace, .. } = &error else { panic!("{error}") };
        assert_eq!((error.trap(), backtrace.frames().len()), (Some(Trap::IntegerDivisionByZero), 1));
        TRAPS.fetch_add(1, Ordering::Relaxed);
    }
    let engine = engine();
    let text =
        "(module (func (export \"run\") (param i32) (result i32) (i32.div_u (i32.const 5) (local.get 0))))";
    let module = Module::new(&engine, text).unwrap();
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    *OTHER.lock().unwrap() = Some((store, instance));
    TRAPS.store(0, Ordering::Relaxed);
    let probed = Module::new(&engine, IDENTITY).unwrap();
    let probe = probed.probe(entry(native(other as extern "C" fn(), []))).unwrap();
    probe.activate().unwrap();
    for argument in 0..5 {
        assert_eq!(run(&probed, argument).unwrap(), argument);
    }
    assert_eq!(TRAPS.load(Ordering::Relaxed), 5);
    *OTHER.lock().unwrap() = None;
}

/// Lists in ever different orders: their stubs are freed when they have reached the limit.
#[test]
fn lists_in_many_orders_do_not_exceed_the_memory_of_stubs() {
    extern "C" fn nothing(_: u64, _: u64, _: u64, _: u64, _: u64, _: u64) {}
    let module = Module::new(&engine(), IDENTITY).unwrap();
    let make = |number: u64| {
        let values = [number, 1 << 40, 2 << 40, 3 << 40, 4 << 40, 5 << 40].map(Bound::Const);
        let function = nothing as extern "C" fn(u64, u64, u64, u64, u64, u64);
        module.probe(entry(native(function, values))).unwrap()
    };
    let probes: Vec<Probe> = (0..12).map(make).collect();
    let mut random = SmallRng::seed_from_u64(5);
    // Several times as many orders as there is memory for.
    for _ in 0..60_000 {
        let chosen = &probes[random.random_range(0..probes.len())];
        chosen.deactivate().unwrap();
        chosen.activate().unwrap();
    }
    assert_eq!(run(&module, 3).unwrap(), 3);
}

#[test]
fn errors_say_which_value_does_not_exist() {
    let text = "(module (func (export \"run\") (param i32) (result i32) (local i64)
        (i32.add (local.get 0) (i32.const 1))))";
    let module = Module::new(&engine(), text).unwrap();
    let make = |offset, value| {
        let kind = native(log as extern "C" fn(u64), [value]);
        module.probe(if offset == 0 { entry(kind) } else { at(offset, kind) })
    };
    let body = module.function(0).unwrap().body().unwrap();
    let offsets: Vec<u32> = body.instructions().map(|at| (at.offset() - body.range().start) as u32).collect();
    let add = offsets[2];
    for (offset, value, expected) in [
        (0, Bound::Operand(0), ValueError::NoOperand),
        (add, Bound::Operand(2), ValueError::NoOperand),
        (add, Bound::Local(2), ValueError::NoLocal),
        (add, Bound::Address, ValueError::NoAccess),
    ] {
        let error = make(offset, value).map(|_| ()).unwrap_err();
        let ProbeError::Value { reason, function: 0, offset: place, .. } = &error else { panic!("{error}") };
        assert_eq!((*reason, *place), (expected, offset), "{error}");
    }
    assert!(make(add, Bound::Operand(1)).is_ok());
    assert!(make(add, Bound::Local(1)).is_ok(), "a local that nothing uses is 0");
    assert!(make(offsets[3], Bound::Local(0)).is_ok(), "a local that nothing uses any more is kept");
    let error = module.probe(entry(native(log as extern "C" fn(u64), []))).unwrap_err();
    assert!(matches!(error, ProbeError::Parameters { parameters: 1, values: 0 }), "{error}");
}

/// Four threads run the same functions, whose probes are switched at random by another thread, and
/// by the probes themselves. When it is quiet, each fires exactly.
#[test]
fn functions_fire_exactly_once_it_is_quiet() {
    let _alone = alone();
    const EXECUTORS: u64 = 4;
    const CHANGES: usize = 20_000;
    static PROBES: RwLock<&[(usize, Probe)]> = RwLock::new(&[]);
    static FIRED: [AtomicU64; 256] = [const { AtomicU64::new(0) }; 256];
    static QUIET: AtomicBool = AtomicBool::new(true);
    extern "C" fn fire(number: u64) {
        thread_local! {
            static RANDOM: RefCell<SmallRng> = RefCell::new(SmallRng::seed_from_u64(1));
        }
        let fired = &FIRED[number as usize];
        fired.fetch_add(1, Ordering::Relaxed);
        let random: u64 = RANDOM.with_borrow_mut(SmallRng::random);
        if !QUIET.load(Ordering::Relaxed) && random >> 54 == 0 {
            let probes = *PROBES.read().unwrap();
            let probe = &probes[(random >> 32) as usize % probes.len()].1;
            let _ = if random >> 20 & 1 == 0 { probe.activate() } else { probe.deactivate() };
        }
    }
    let engine = engine();
    let bytes = wat::parse_str(PROGRAM).unwrap();
    let (expected, counts, places) = reference(&engine, &bytes, 1);
    let module = Module::from_binary(&engine, &bytes).unwrap();
    // Two at each place, and a counter.
    let native_at = |number: usize| ProbeSpec {
        location: location(&module, places[number]),
        kind: native(fire as extern "C" fn(u64), [Bound::Const(number as u64)]),
    };
    let mut probes = probes_everywhere(&module, &places, Kind::Count);
    let numbers: Vec<usize> = probes.iter().map(|(number, _)| *number).collect();
    for _ in 0..2 {
        let specs: Vec<ProbeSpec> = numbers.iter().map(|number| native_at(*number)).collect();
        let made = module.probes(&specs).into_iter().map(|made| made.unwrap());
        probes.extend(numbers.iter().copied().zip(made));
    }
    assert!(places.len() <= FIRED.len());
    let probes: &'static [(usize, Probe)] = probes.leak();
    *PROBES.write().unwrap() = probes;
    let over = AtomicBool::new(false);
    QUIET.store(false, Ordering::Relaxed);
    std::thread::scope(|scope| {
        for _ in 0..EXECUTORS {
            scope.spawn(|| {
                while !over.load(Ordering::Acquire) {
                    assert_eq!(outcome(&module).0, expected);
                }
            });
        }
        let mut random = SmallRng::seed_from_u64(9);
        for _ in 0..CHANGES {
            let probe = &probes[random.random_range(0..probes.len())].1;
            let _ = if random.random() { probe.activate() } else { probe.deactivate() };
        }
        over.store(true, Ordering::Release);
    });
    QUIET.store(true, Ordering::Relaxed);
    for (_, probe) in probes {
        if let Err(error) = probe.activate() {
            assert!(matches!(error, ProbeError::StubMemory { .. }), "{error}");
            panic!("too few changes would have reached the limit: {error}");
        }
    }
    let before: Vec<u64> = FIRED.iter().map(|fired| fired.load(Ordering::Relaxed)).collect();
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    assert_eq!(call_main(&mut store, &instance), expected);
    for number in numbers {
        let fired = FIRED[number].load(Ordering::Relaxed) - before[number];
        assert_eq!(fired, 2 * counts[number], "{:x?}", places[number]);
    }
}

/// Functions at entries use the sites of originals. At other places they need a settled site, so
/// they have a version, also where the original has a site.
#[test]
fn functions_have_versions_except_at_entries_with_sites() {
    let text = "(module (func (export \"run\") (param i32) (result i32)
        (loop (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1))))) (local.get 0)))";
    for sites in [ProbeSites::None, ProbeSites::Functions, ProbeSites::Branches, ProbeSites::All] {
        let engine = Engine::new(Config::new().probe_sites(sites).counter_stubs(4)).unwrap();
        let module = Module::new(&engine, text).unwrap();
        let shown = module.show_to_gdb();
        let mapped = || {
            let mut map = Vec::new();
            module.write_perf_map(&mut map).unwrap();
            let map = String::from_utf8(map).unwrap();
            [" [probed]\n", " [stub]\n"].map(|kind| map.matches(kind).count())
        };
        let of_original = usize::from(sites != ProbeSites::None);
        let at_entry = module.probe(entry(log_with(1))).unwrap();
        let versions = 1 - of_original;
        assert_eq!(mapped(), [versions, 1], "{sites:?}");
        at_entry.activate().unwrap();
        // In each version with the site: here, one.
        assert_eq!(mapped(), [versions, 2], "{sites:?}");
        run(&module, 3).unwrap();
        assert_eq!(logged(), [1], "{sites:?}");
        let body = module.function(0).unwrap().body().unwrap();
        let first = body.instructions().next().unwrap().offset() - body.range().start;
        let at_loop = module.probe(at(first as u32, log_with(2))).unwrap();
        // The version, its stubs, and the stub of the list at the entry.
        assert_eq!(mapped(), [versions + 1, 4], "{sites:?}");
        let counter = module.probe(at(first as u32, Kind::Count)).unwrap();
        at_loop.activate().unwrap();
        counter.activate().unwrap();
        assert_eq!(mapped(), [versions + 1, 6], "{sites:?}");
        run(&module, 3).unwrap();
        assert_eq!((logged(), counter.count()), (vec![1, 2, 2, 2], 3), "{sites:?}");
        // Only the counter is left: the original could have it too, but calls stay in the version.
        at_loop.deactivate().unwrap();
        at_entry.deactivate().unwrap();
        run(&module, 4).unwrap();
        assert_eq!((logged(), counter.count()), (vec![], 7), "{sites:?}");
        drop(shown);
    }
}

/// All of these tests, for an engine with other settings.
pub(crate) fn test_all() {
    probes_of_one_place_fire_in_the_order_in_which_they_went_on();
    changes_at_the_place_of_a_firing_probe_begin_with_the_next_event();
    counters_that_a_firing_probe_switches_begin_and_end_with_the_next_event();
    probes_of_one_instance_do_not_fire_in_others();
    values_of_every_type_and_the_constants();
    a_load_is_done_once_for_the_probe_and_the_program();
    interrupts_wait_for_functions_of_probes();
    functions_of_probes_run_other_stores();
    lists_in_many_orders_do_not_exceed_the_memory_of_stubs();
    errors_say_which_value_does_not_exist();
    functions_fire_exactly_once_it_is_quiet();
}
