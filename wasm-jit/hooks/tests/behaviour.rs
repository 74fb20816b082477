//! Single events: accesses of all kinds, callees, interrupts, loops, and threads.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use wasm_jit::probes::{
    AccessError, GenericFn, InstanceId, Kind, Location, Place, ProbeError, ProbeSpec, Scope,
};
use wasm_jit::wasmparser::Operator;
use wasm_jit::{Engine, Func, Instance, Module, Store, Table, Trap, Val};
use wasm_jit_hooks::{
    Access, AccessKind, After, Branch, BranchKind, Callee, FunctionEvent, FunctionEventKind, Hook, Site,
    after, blocks, branches, calls, functions, memory,
};

/// A program with calls, loops, branches, loads and stores.
const PROGRAM: &str = include_str!("../../tests/probes/hot.wat");

type Log<T> = Arc<Mutex<Vec<T>>>;

fn logging<T: Clone + Send + 'static>(log: &Log<T>) -> impl Fn(&T) + Send + Sync + 'static {
    let log = log.clone();
    move |event| log.lock().unwrap().push(event.clone())
}

/// Runs the export `run`, which has neither arguments nor results.
fn run(module: &Module) -> Result<(), Option<Trap>> {
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, module, &[]).unwrap();
    let run = instance.get_typed_func::<(), ()>(&mut store, "run").unwrap();
    run.call(&mut store, ()).map_err(|error| error.trap())
}

fn accesses(body: &str) -> Vec<(AccessKind, u64, u64, Option<u64>)> {
    let text = format!("(module (memory 1) (memory 1) (data $d \"abcdef\") (func (export \"run\") {body}))");
    let module = Module::new(&Engine::default(), text).unwrap();
    let log = Log::default();
    let _hook = memory(&module, |_| true, logging::<Access>(&log)).unwrap();
    let _ = run(&module);
    let log = log.lock().unwrap();
    log.iter().map(|access| (access.kind, access.address, access.size, access.value)).collect()
}

#[test]
fn accesses_of_every_kind_have_their_size_and_value() {
    use AccessKind::{Load, Notify, ReadModifyWrite, Store};
    let narrow = accesses(
        "(i64.store16 offset=2 (i32.const 8) (i64.const -1)) (drop (i32.load8_s (i32.const 10)))
        (drop (i64.load32_u (i32.const 8))) (f32.store (i32.const 16) (f32.const 1))
        (drop (f32.load (i32.const 16))) (drop (f64.load offset=12 (i32.const 4)))",
    );
    let one = u64::from(1_f32.to_bits());
    assert_eq!(
        narrow,
        [
            (Store, 10, 2, Some(0xffff)),
            (Load, 10, 1, Some(0xffff_ffff)),
            (Load, 8, 4, Some(0xffff_0000)),
            (Store, 16, 4, Some(one)),
            (Load, 16, 4, Some(one)),
            (Load, 16, 8, Some(one)),
        ]
    );
    let atomic = accesses(
        "(i32.atomic.store8 (i32.const 3) (i32.const 0x1ff)) (drop (i64.atomic.rmw8.add_u (i32.const 3) (i64.const 2)))
        (drop (i32.atomic.load8_u (i32.const 3))) (drop (memory.atomic.notify (i32.const 4) (i32.const 1)))
        (drop (i32.atomic.rmw.cmpxchg offset=4 (i32.const 0) (i32.const 0) (i32.const 9)))",
    );
    assert_eq!(
        atomic,
        [
            (Store, 3, 1, Some(0xff)),
            (ReadModifyWrite, 3, 1, Some(0xff)),
            (Load, 3, 1, Some(1)),
            (Notify, 4, 4, Some(0)),
            (ReadModifyWrite, 4, 4, Some(0)),
        ]
    );
    let bulk = accesses(
        "(memory.fill (i32.const 5) (i32.const 0x107) (i32.const 9)) (memory.copy (i32.const 1) (i32.const 6) (i32.const 4))
        (memory.init $d (i32.const 20) (i32.const 2) (i32.const 3)) (drop (i32.load8_u (i32.const 1)))",
    );
    assert_eq!(
        bulk,
        [
            (Store, 5, 9, Some(7)),
            (Load, 6, 4, None),
            (Store, 1, 4, None),
            (Store, 20, 3, None),
            (Load, 1, 1, Some(7)),
        ]
    );
    let of_vectors = accesses(
        "(local $v v128) (local.set $v (v128.load offset=2 (i32.const 8)))
        (v128.store (i32.const 3) (local.get $v)) (drop (v128.load8x8_s (i32.const 4)))
        (drop (v128.load16_splat (i32.const 5))) (drop (v128.load32_zero (i32.const 6)))
        (drop (v128.load8_lane offset=1 3 (i32.const 7) (local.get $v)))
        (v128.store64_lane 1 (i32.const 9) (local.get $v)) (drop (i32.load8_u (i32.const 8)))",
    );
    assert_eq!(
        of_vectors,
        [
            (Load, 10, 16, None),
            (Store, 3, 16, None),
            (Load, 4, 8, None),
            (Load, 5, 2, None),
            (Load, 6, 4, None),
            (Load, 8, 1, None),
            (Store, 9, 8, None),
            (Load, 8, 1, Some(0)),
        ]
    );
    assert_eq!(accesses("(drop (v128.load (i32.const -15)))"), []);
    // A store that traps is reported, a load is not.
    assert_eq!(accesses("(i32.store (i32.const -4) (i32.const 1))"), [(Store, 0xffff_fffc, 4, Some(1))]);
    assert_eq!(accesses("(drop (i32.load (i32.const -4)))"), []);
}

#[test]
fn vectors_are_those_that_are_loaded_and_stored() {
    let text = "(module (memory 1) (func (export \"run\") (local $v v128)
        (v128.store (i32.const 16) (v128.const i64x2 0x0807060504030201 -2))
        (local.set $v (v128.load (i32.const 16))) (drop (v128.load32_zero (i32.const 17)))
        (drop (v128.load8_lane 15 (i32.const 18) (local.get $v)))
        (v128.store16_lane 1 (i32.const 1) (local.get $v)) (drop (i32.load (i32.const 0)))))";
    let module = Module::new(&Engine::default(), text).unwrap();
    let log = Log::default();
    let _hook = memory(&module, |_| true, logging::<Access>(&log)).unwrap();
    run(&module).unwrap();
    let seen: Vec<_> =
        log.lock().unwrap().iter().map(|access| (access.size, access.vector, access.value)).collect();
    let vector = 0xffff_ffff_ffff_fffe_0807_0605_0403_0201;
    assert_eq!(
        seen,
        [
            (16, Some(vector), None),
            (16, Some(vector), None),
            (4, Some(0x0504_0302), None),
            (1, Some(vector & !(0xff << 120) | 0x03 << 120), None),
            (2, Some(vector), None),
            (4, None, Some(0x0004_0300)),
        ]
    );
}

/// The instruction after a load is a loop: the load is reported once, not with each iteration.
#[test]
fn a_loop_after_a_load_does_not_repeat_it() {
    let loads = accesses(
        "(local $n i32) (i32.load (i32.const 8))
        (loop (br_if 0 (i32.lt_u (local.tee $n (i32.add (local.get $n) (i32.const 1))) (i32.const 5)))) drop",
    );
    assert_eq!(loads, [(AccessKind::Load, 8, 4, Some(0))]);
    let module = Module::new(
        &Engine::default(),
        "(module (func (export \"run\") (local $n i32) nop
            (loop (br_if 0 (i32.lt_u (local.tee $n (i32.add (local.get $n) (i32.const 1))) (i32.const 5))))))",
    )
    .unwrap();
    let log = Log::default();
    let is_nop =
        |site: &wasm_jit_hooks::Site<'_>| matches!(site.operator, wasm_jit::wasmparser::Operator::Nop);
    let _hook = after(&module, is_nop, logging(&log)).unwrap();
    let entries = Log::default();
    let _functions = functions(&module, |_| true, logging::<FunctionEvent>(&entries)).unwrap();
    run(&module).unwrap();
    assert_eq!(log.lock().unwrap().len(), 1);
    let kinds: Vec<FunctionEventKind> = entries.lock().unwrap().iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [FunctionEventKind::Entry, FunctionEventKind::Return]);
}

/// A frame is left between the beginning of an instruction, which was recorded, and its completion.
/// The frame of the next call, which has the same number, comes to the next instruction in another
/// way.
#[test]
fn instructions_of_frames_that_were_left_do_not_complete_later() {
    let text = "(module (func (export \"run\") (param $first i32)
        (block $out
            (block $in (br_if $in (local.get $first)) (br_if $in (i32.eqz (local.get $first))) (br $out))
            (nop))))";
    let module = Module::new(&Engine::default(), text).unwrap();
    let body = module.function(0).unwrap().body().unwrap();
    let is_branch = |operator: &Operator<'_>| matches!(operator, Operator::BrIf { .. });
    let branches = body.instructions().filter(|instruction| is_branch(instruction.operator()));
    let second = (branches.last().unwrap().offset() - body.range().start) as u32;
    let log = Log::default();
    let _hook = after(&module, |site| site.offset == second, logging::<After>(&log)).unwrap();
    let location = Location { function: 0, place: Place::Instruction { offset: second } };
    let fails = Kind::Generic(GenericFn::new(|_| Err(AccessError::FrameGone.into())));
    let probe = module.probe(ProbeSpec { location, kind: fails }).unwrap();
    probe.activate().unwrap();
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let run = instance.get_typed_func::<i32, ()>(&mut store, "run").unwrap();
    run.call(&mut store, 0).unwrap_err();
    run.call(&mut store, 1).unwrap();
    assert_eq!(*log.lock().unwrap(), []);
    probe.deactivate().unwrap();
    run.call(&mut store, 0).unwrap();
    assert_eq!(log.lock().unwrap().len(), 1);
}

/// The filter chooses; what control never reaches has no events.
#[test]
fn filters_choose() {
    let module = Module::new(
        &Engine::default(),
        "(module (memory 1) (func $f (export \"run\")
            (i32.store (i32.const 0) (i32.const 1)) (i32.store (i32.const 4) (i32.const 2)) (call $g)
            return (i32.store (i32.const 8) (i32.const 3)))
            (func $g (i32.store (i32.const 12) (i32.const 4))))",
    )
    .unwrap();
    let addresses = |filter: &dyn Fn(&wasm_jit_hooks::Site<'_>) -> bool| {
        let log = Log::default();
        let hook = memory(&module, filter, logging::<Access>(&log)).unwrap();
        run(&module).unwrap();
        let addresses: Vec<u64> = log.lock().unwrap().iter().map(|access| access.address).collect();
        (hook.probes(), addresses)
    };
    assert_eq!(addresses(&|_| true), (3, vec![0, 4, 12]));
    assert_eq!(addresses(&|site| site.function == 1), (1, vec![12]));
    let first = module.function(0).unwrap().body().unwrap().range().len() as u32 / 4;
    assert_eq!(addresses(&|site| site.function == 0 && site.offset < first), (1, vec![0]));
    assert_eq!(addresses(&|_| false), (0, vec![]));
}

/// Callees of other instances, which the module does not import.
#[test]
fn callees_of_other_instances_have_no_index() {
    let engine = Engine::default();
    let module = Module::new(
        &engine,
        "(module (import \"host\" \"table\" (table 2 funcref)) (func (export \"run\") (call_indirect (i32.const 0))))",
    )
    .unwrap();
    let log = Log::default();
    let _hook = calls(&module, |_| true, logging(&log)).unwrap();
    let mut store = Store::new(&engine, ());
    let wasm_jit::ExternType::Table(ty) = module.imports().next().unwrap().ty().clone() else { panic!() };
    let table = Table::new(&mut store, ty, Val::FuncRef(None)).unwrap();
    let host = Func::wrap(&mut store, || {}).unwrap();
    table.set(&mut store, 0, Val::FuncRef(Some(host))).unwrap();
    let instance = Instance::new(&mut store, &module, &[table.into()]).unwrap();
    let run = instance.get_typed_func::<(), ()>(&mut store, "run").unwrap();
    run.call(&mut store, ()).unwrap();
    assert_eq!(log.lock().unwrap().iter().map(|call| call.callee).collect::<Vec<_>>(), [Callee::Other]);
}

/// A call of a function with another type traps, and its event says so.
#[test]
fn events_of_calls_that_trap_say_so() {
    let module = Module::new(
        &Engine::default(),
        "(module (type $super (sub (func))) (type $sub (sub $super (func)))
            (type $other (func (result i32)))
            (table $t 3 funcref) (elem (i32.const 0) func $f $g)
            (func $f (type $sub)) (func $g (result i32) (i32.const 1))
            (func (export \"run\") (param i32) (call_indirect (type $super) (local.get 0))))",
    )
    .unwrap();
    let log = Log::default();
    let _hook = calls(&module, |_| true, logging(&log)).unwrap();
    for index in 0..4 {
        let mut store = Store::new(module.engine(), ());
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        let run = instance.get_typed_func::<i32, ()>(&mut store, "run").unwrap();
        assert_eq!(run.call(&mut store, index).is_err(), index > 0);
    }
    let calls: Vec<_> = log.lock().unwrap().iter().map(|call| (call.callee, call.traps)).collect();
    let expected = [
        (Callee::Function(0), false),
        (Callee::Function(1), true),
        (Callee::None, true),
        (Callee::None, true),
    ];
    assert_eq!(calls, expected);
}

/// Events of all kinds say in which instance they happen, and a hook may be for one instance or for
/// those of a store.
#[test]
fn hooks_know_and_choose_instances() {
    let module = Module::new(
        &Engine::default(),
        "(module (memory 1) (table 1 funcref) (func $f)
            (func (export \"run\") (param i32)
                (i32.store (i32.const 8) (local.get 0)) (drop (i32.load (i32.const 8)))
                (block (br_if 0 (local.get 0)))
                (drop (ref.null func)) (call $f) (call_indirect (i32.const 0))))",
    )
    .unwrap();
    let mut stores = [0, 1].map(|_| Store::new(module.engine(), ()));
    let instances = [0, 0, 1].map(|store: usize| {
        let instance = Instance::new(&mut stores[store], &module, &[]).unwrap();
        (store, instance, instance.id(&stores[store]))
    });
    // All, the second one, and those of the first store.
    let scopes = [Scope::Module, Scope::Instance(instances[1].2), Scope::Store(stores[0].id())];
    for (scope, chosen) in scopes.into_iter().zip([[true; 3], [false, true, false], [true, true, false]]) {
        let log = Log::<(&str, InstanceId)>::default();
        let push = |name: &'static str| {
            let log = log.clone();
            move |instance| log.lock().unwrap().push((name, instance))
        };
        let (a, b, c, d, e, f) = (push("a"), push("b"), push("c"), push("d"), push("e"), push("f"));
        let of = (&module, scope);
        let _hooks = [
            memory(of, |_| true, move |event| a(event.instance)).unwrap(),
            branches(of, |_| true, move |event| b(event.instance)).unwrap(),
            calls(of, |_| true, move |event| c(event.instance)).unwrap(),
            blocks(of, |_| true, move |event| d(event.instance)).unwrap(),
            after(of, |site| site.offset < 9, move |event| e(event.instance)).unwrap(),
            functions(of, |_| true, move |event| f(event.instance)).unwrap(),
        ];
        for ((store, instance, id), is_chosen) in instances.into_iter().zip(chosen) {
            let store = &mut stores[store];
            let run = instance.get_typed_func::<i32, ()>(&mut *store, "run").unwrap();
            let error = run.call(&mut *store, 7).unwrap_err();
            assert!(error.trap().is_some(), "the table has no function: {error}");
            let events = std::mem::take(&mut *log.lock().unwrap());
            assert!(events.iter().all(|(_, instance)| *instance == id), "{scope:?} {id:?}: {events:?}");
            let count = |name: &str| events.iter().filter(|(of, _)| *of == name).count();
            // A load and a store; two calls; entries of both, a return, and a frame that a trap
            // leaves.
            let counts = ["a", "b", "c", "d", "f"].map(count);
            assert_eq!(counts, if is_chosen { [2, 1, 2, 1, 4] } else { [0; 5] }, "{scope:?} {id:?}");
            assert_eq!(count("e") > 0, is_chosen);
        }
    }
    let other = Module::new(module.engine(), "(module (func))").unwrap();
    let error = functions((&other, Scope::Instance(instances[0].2)), |_| true, |_| ()).unwrap_err();
    assert!(matches!(error, ProbeError::NoInstance { .. }), "{error}");
}

/// The hook interrupts the program when it is entered: every frame that was entered is left, once.
#[test]
fn frames_are_left_by_interrupts() {
    let module = Module::new(
        &Engine::default(),
        "(module (func $spin (loop (br 0))) (func $deep (param i32)
            (if (local.get 0) (then (call $deep (i32.sub (local.get 0) (i32.const 1)))) (else (call $spin))))
            (func (export \"run\") (call $deep (i32.const 5))))",
    )
    .unwrap();
    let mut store = Store::new(module.engine(), ());
    let handle = store.interrupt_handle();
    let log = Log::default();
    let of_hook = log.clone();
    let hook = functions(
        &module,
        |_| true,
        move |event| {
            of_hook.lock().unwrap().push(*event);
            if event.function == 0 && event.kind == FunctionEventKind::Entry {
                handle.interrupt();
            }
        },
    );
    let _hook = hook.unwrap();
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let run = instance.get_typed_func::<(), ()>(&mut store, "run").unwrap();
    for _ in 0..3 {
        let error = run.call(&mut store, ()).unwrap_err();
        assert_eq!(error.trap(), Some(Trap::Interrupt));
        let mut open = Vec::new();
        for FunctionEvent { function, frame, kind, .. } in log.lock().unwrap().drain(..) {
            match kind {
                FunctionEventKind::Entry => open.push((function, frame)),
                FunctionEventKind::Unwound => assert_eq!(open.pop(), Some((function, frame))),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(open, []);
    }
}

/// Calls `run` with 0, during which the hook is switched off, and with 1, during which it is
/// switched on again.
fn run_between(module: &Module, hook: Hook) -> [Result<(), Option<Trap>>; 2] {
    let hook = Arc::new(hook);
    let mut store = Store::new(module.engine(), ());
    let switch = Func::wrap(&mut store, move |on: i32| {
        let switched = if on == 0 { hook.deactivate() } else { hook.activate() };
        switched.unwrap();
    })
    .unwrap();
    let instance = Instance::new(&mut store, module, &[switch.into()]).unwrap();
    let run = instance.get_typed_func::<i32, ()>(&mut store, "run").unwrap();
    [0, 1].map(|on| run.call(&mut store, on).map_err(|error| error.trap()))
}

/// Both calls have frames at the same address.
#[test]
fn what_began_before_a_hook_was_switched_off_is_not_reported_when_it_is_on_again() {
    let module = |body: &str| {
        let text = format!(
            "(module (import \"\" \"\" (func $switch (param i32)))
                (func (export \"run\") (param i32) (call $switch (local.get 0)) {body}))"
        );
        Module::new(&Engine::default(), text).unwrap()
    };
    let entered = module("(if (local.get 0) (then unreachable))");
    let log = Log::default();
    let hook = functions(&entered, |_| true, logging::<FunctionEvent>(&log)).unwrap();
    assert_eq!(run_between(&entered, hook), [Ok(()), Err(Some(Trap::UnreachableCodeReached))]);
    let kinds: Vec<_> = log.lock().unwrap().iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [FunctionEventKind::Entry]);

    let began = module("nop");
    let log = Log::default();
    let is_call = |site: &Site<'_>| matches!(site.operator, Operator::Call { .. });
    let hook = after(&began, is_call, logging::<After>(&log)).unwrap();
    assert_eq!(run_between(&began, hook), [Ok(()), Ok(())]);
    assert_eq!(log.lock().unwrap().len(), 0);
}

fn main_of(module: &Module) -> i64 {
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, module, &[]).unwrap();
    instance.get_typed_func::<(), i64>(&mut store, "main").unwrap().call(&mut store, ()).unwrap()
}

/// Threads run a program while hooks of all kinds are made, switched and dropped; its results are
/// right. When it is quiet, each run has the same events.
#[test]
fn threads_are_not_disturbed_by_hooks() {
    let module = Module::new(&Engine::default(), PROGRAM).unwrap();
    let expected = main_of(&module);
    let events = Arc::new(AtomicU64::new(0));
    let depth = Arc::new(AtomicI64::new(0));
    let count = || {
        let events = events.clone();
        move || _ = events.fetch_add(1, Ordering::Relaxed)
    };
    let make = || {
        let (a, b, c, d, e, f) = (count(), count(), count(), count(), count(), count());
        let depth = depth.clone();
        let entered = move |event: &FunctionEvent| {
            let is_entry = event.kind == FunctionEventKind::Entry;
            depth.fetch_add(if is_entry { 1 } else { -1 }, Ordering::Relaxed);
            f();
        };
        [
            memory(&module, |_| true, move |_| a()).unwrap(),
            branches(&module, |_| true, move |_| b()).unwrap(),
            calls(&module, |_| true, move |_| c()).unwrap(),
            blocks(&module, |_| true, move |_| d()).unwrap(),
            after(&module, |site| site.offset % 3 == 0, move |_| e()).unwrap(),
            functions(&module, |_| true, entered).unwrap(),
        ]
    };
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                struct Ends<'a>(&'a AtomicBool);
                impl Drop for Ends<'_> {
                    fn drop(&mut self) {
                        self.0.store(true, Ordering::Release);
                    }
                }
                let _ends = Ends(&is_over);
                for _ in 0..20 {
                    assert_eq!(main_of(&module), expected);
                }
            });
        }
        while !is_over.load(Ordering::Acquire) {
            let hooks = make();
            for hook in hooks.iter().chain(&hooks) {
                hook.deactivate().unwrap();
                hook.activate().unwrap();
            }
        }
    });
    let _hooks = make();
    depth.store(0, Ordering::Relaxed);
    let run = || {
        let before = events.load(Ordering::Relaxed);
        assert_eq!(main_of(&module), expected);
        assert_eq!(depth.load(Ordering::Relaxed), 0, "entries and exits");
        events.load(Ordering::Relaxed) - before
    };
    let first = run();
    assert!(first > 10_000, "{first}");
    assert_eq!(run(), first);
}

/// How many of a program's branches are wanted, and what they decide; they continue where they say.
fn decisions(module: &Module, is_wanted: fn(&Operator<'_>) -> bool) -> (usize, Vec<Branch>) {
    let (log, next) = (Log::default(), Log::default());
    let is_wanted = |site: &Site<'_>| is_wanted(site.operator);
    let hook = branches(module, is_wanted, logging::<Branch>(&log)).unwrap();
    let _after = after(module, is_wanted, logging::<After>(&next)).unwrap();
    run(module).unwrap();
    let (log, next) = (log.lock().unwrap().clone(), next.lock().unwrap());
    let next: Vec<u32> = next.iter().map(|after| after.next).collect();
    assert_eq!(log.iter().map(|branch| branch.target).collect::<Vec<_>>(), next);
    (hook.probes(), log)
}

#[test]
fn branches_of_references_decide() {
    let module = Module::new(&Engine::default(), include_str!("../../tests/probes/references.wat")).unwrap();
    let (probes, log) = decisions(&module, |operator| {
        matches!(operator, Operator::BrOnNull { .. } | Operator::BrOnNonNull { .. })
    });
    assert_eq!((probes, log.len()), (3, 20));
    for (number, branch) in log.iter().enumerate() {
        // Multiples of three are null: 9 to 1, then 3 and 4.
        let (kind, is_null) = match number {
            18 | 19 => (BranchKind::BrOnNull, number == 18),
            _ if number % 2 == 0 => (BranchKind::BrOnNull, (9 - number / 2) % 3 == 0),
            _ => (BranchKind::BrOnNonNull, (9 - number / 2) % 3 == 0),
        };
        let taken = is_null == (kind == BranchKind::BrOnNull);
        assert_eq!((branch.kind, branch.taken, branch.choice), (kind, taken, u32::from(taken)), "{number}");
    }
}

#[test]
fn branches_of_casts_decide() {
    // Of the numbers 9 to 0, multiples of three are null, of the others even ones an i31.
    let text = "(module
        (type $point (struct (field i32)))
        (func $make (param i32) (result anyref)
            (if (i32.eqz (i32.rem_u (local.get 0) (i32.const 3))) (then (return (ref.null any))))
            (if (result anyref) (i32.and (local.get 0) (i32.const 1))
                (then (struct.new $point (local.get 0)))
                (else (ref.i31 (local.get 0)))))
        (func (export \"run\") (local $at i32) (local $value anyref)
            (local.set $at (i32.const 9))
            (loop $more
                (local.set $value (call $make (local.get $at)))
                (block $point (result (ref $point))
                    (br_on_cast $point anyref (ref $point) (local.get $value))
                    (drop) (local.set $value (ref.null any))
                    (struct.new $point (i32.const 1)))
                (drop)
                (block $other (result anyref)
                    (br_on_cast_fail $other anyref (ref null i31) (local.get $value)))
                (drop)
                (local.set $at (i32.sub (local.get $at) (i32.const 1)))
                (br_if $more (i32.ge_s (local.get $at) (i32.const 0))))))";
    let module = Module::new(&Engine::default(), text).unwrap();
    let (probes, log) = decisions(&module, |operator| {
        matches!(operator, Operator::BrOnCast { .. } | Operator::BrOnCastFail { .. })
    });
    assert_eq!((probes, log.len()), (2, 20));
    for (number, branch) in log.iter().enumerate() {
        let at = 9 - number / 2;
        // The value remains only where it was a point, which is no i31.
        let taken = at % 3 != 0 && at % 2 == 1;
        let kind = if number % 2 == 0 { BranchKind::BrOnCast } else { BranchKind::BrOnCastFail };
        assert_eq!((branch.kind, branch.taken, branch.choice), (kind, taken, u32::from(taken)), "{number}");
    }
}
