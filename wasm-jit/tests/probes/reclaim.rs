//! Probes that are made and dropped again and again: their stubs are used again and their closures
//! dropped, but not while a thread is in them, or will return to them.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::thread;

use wasm_jit::probes::{Bound, Callback, GenericFn, Kind, Location, Place, Probe, ProbeSpec, activate_all};
use wasm_jit::{Instance, Linker, Module, Store};

use super::engine;

/// Additions in the function: each is some instructions with a stub each.
const ADDITIONS: usize = 400;

/// Enough to fill the memory for stubs several times, were none freed.
const ROUNDS: usize = 100;

/// A function with many instructions, alone, and called until the host ends it.
fn program() -> String {
    let additions = "(local.set 0 (i32.add (i32.xor (local.get 0) (i32.const 77)) (local.get 0)))\n";
    format!(
        r#"(module (import "host" "ends" (func $ends (result i32)))
            (func $work (export "work") (param i32) (result i32) {} (local.get 0))
            (func (export "forever") (result i32) (local i32)
                (loop $again
                    (local.set 0 (call $work (local.get 0)))
                    (br_if $again (i32.eqz (call $ends))))
                (local.get 0)))"#,
        additions.repeat(ADDITIONS)
    )
}

/// The places of all instructions of the function.
fn places(module: &Module) -> Vec<Location> {
    let function = module.functions().find(|function| function.index() == 1).unwrap();
    let body = function.body().unwrap();
    let start = body.range().start;
    let place = |offset| Location { function: 1, place: Place::Instruction { offset } };
    body.instructions().map(|instruction| place((instruction.offset() - start) as u32)).collect()
}

/// What the closures of a round own. It becomes invalid when the last of them is dropped.
struct Round {
    is_valid: AtomicBool,
    fired: AtomicU64,
}

impl Drop for Round {
    fn drop(&mut self) {
        self.is_valid.store(false, Ordering::SeqCst);
    }
}

/// Makes new probes everywhere, switches them on, lets `run` run the program, and drops them.
/// Returns what their closures own.
fn round(module: &Module, places: &[Location], run: impl FnOnce(&Round)) -> Weak<Round> {
    let round = Arc::new(Round { is_valid: AtomicBool::new(true), fired: AtomicU64::new(0) });
    let spec = |location: &Location| {
        let of_closure = round.clone();
        let function = Callback::new(move |_: &[u64]| {
            assert!(of_closure.is_valid.load(Ordering::SeqCst), "called after it was dropped");
            of_closure.fired.fetch_add(1, Ordering::SeqCst);
        });
        ProbeSpec { location: *location, kind: Kind::Callback { function, values: [Bound::Const(1)].into() } }
    };
    let specs: Vec<ProbeSpec> = places.iter().map(spec).collect();
    let probes: Vec<Probe> = module.probes(&specs).into_iter().map(Result::unwrap).collect();
    drop(specs);
    activate_all(&probes).into_iter().for_each(|on| on.unwrap());
    run(&round);
    drop(probes);
    Arc::downgrade(&round)
}

/// How many of the rounds have closures that were not dropped.
fn alive(rounds: &[Weak<Round>]) -> usize {
    rounds.iter().filter(|round| round.strong_count() > 0).count()
}

/// The module, and the places in it.
fn module() -> (Module, Vec<Location>) {
    let module = Module::new(&engine(), program()).unwrap();
    let places = places(&module);
    (module, places)
}

/// Rounds in which a program does its work, with this result.
fn rounds(
    count: usize,
    (module, places): (&Module, &[Location]),
    (program, expected): (&mut Program, i32),
) -> Vec<Weak<Round>> {
    (0..count).map(|_| round(module, places, |_| assert_eq!(program.work(), expected))).collect()
}

struct Program {
    store: Store<()>,
    instance: Instance,
}

impl Program {
    /// `ends` says when "forever" ends.
    fn new(module: &Module, ends: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        let mut linker = Linker::new(module.engine());
        linker.func_wrap("host", "ends", move || i32::from(ends())).unwrap();
        let mut store = Store::new(module.engine(), ());
        let instance = linker.instantiate(&mut store, module).unwrap();
        Self { store, instance }
    }

    fn work(&mut self) -> i32 {
        let work = self.instance.get_typed_func::<i32, i32>(&mut self.store, "work").unwrap();
        work.call(&mut self.store, 5).unwrap()
    }

    fn forever(&mut self) {
        let forever = self.instance.get_typed_func::<(), i32>(&mut self.store, "forever").unwrap();
        forever.call(&mut self.store, ()).unwrap();
    }
}

#[test]
fn stubs_of_dropped_probes_are_used_again() {
    let (module, places) = module();
    let mut program = Program::new(&module, || true);
    let expected = program.work();
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        rounds.push(round(&module, &places, |round| {
            assert_eq!(program.work(), expected);
            assert_eq!(round.fired.load(Ordering::SeqCst), places.len() as u64);
        }));
    }
    assert!(alive(&rounds) < 20, "{}", alive(&rounds));
}

/// Threads that never leave the program meanwhile.
#[test]
fn stubs_are_used_again_while_threads_run_the_program() {
    let (module, places) = module();
    let (ended, running) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    thread::scope(|scope| {
        for _ in 0..2 {
            let ended = ended.clone();
            let (module, running) = (&module, &running);
            scope.spawn(move || {
                let mut program = Program::new(module, move || ended.load(Ordering::SeqCst));
                running.fetch_add(1, Ordering::SeqCst);
                program.forever();
            });
        }
        while running.load(Ordering::SeqCst) < 2 {
            thread::yield_now();
        }
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            rounds.push(round(&module, &places, |round| {
                while round.fired.load(Ordering::SeqCst) < places.len() as u64 {
                    thread::yield_now();
                }
            }));
        }
        ended.store(true, Ordering::SeqCst);
        assert!(alive(&rounds) < 40, "{}", alive(&rounds));
    });
}

/// One thread waits in a closure while the stubs of others are used again.
#[test]
fn a_stub_in_which_a_thread_waits_is_kept() {
    let (module, places) = module();
    let mut program = Program::new(&module, || true);
    let expected = program.work();
    let (arrives, arrived) = mpsc::channel();
    let (goes, may_go) = mpsc::channel();
    let may_go = Mutex::new(may_go);
    let waits = Arc::new(());
    let of_closure = waits.clone();
    let function = Callback::new(move |_: &[u64]| {
        let kept = Arc::strong_count(&of_closure);
        arrives.send(kept).unwrap();
        may_go.lock().unwrap().recv().unwrap();
    });
    let kind = Kind::Callback { function, values: [Bound::Const(2)].into() };
    let probe = module.probe(ProbeSpec { location: places[places.len() / 2], kind }).unwrap();
    probe.activate().unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| program.work());
        arrived.recv().unwrap();
        drop(probe);
        let mut other = Program::new(&module, || true);
        let rounds = rounds(ROUNDS, (&module, &places), (&mut other, expected));
        assert!(alive(&rounds) < 20, "{}", alive(&rounds));
        assert_eq!(Arc::strong_count(&waits), 2, "its closure is kept");
        goes.send(()).unwrap();
        assert_eq!(waiting.join().unwrap(), expected);
    });
    let mut other = Program::new(&module, || true);
    let _rounds = rounds(ROUNDS / 8, (&module, &places), (&mut other, expected));
    assert_eq!(Arc::strong_count(&waits), 1, "it is dropped when the thread has left");
}

/// The closure in which a thread is makes and drops the others itself.
#[test]
fn a_closure_that_makes_and_drops_probes_is_kept() {
    let (module, all) = module();
    let mut program = Program::new(&module, || true);
    let expected = program.work();
    let (is_first, owned) = (AtomicBool::new(true), Arc::new(AtomicUsize::new(0)));
    let mine: Arc<Mutex<Option<Probe>>> = Arc::default();
    let (of_closure, by_closure, its_module) = (owned.clone(), mine.clone(), module.clone());
    let other = Mutex::new(Program::new(&module, || true));
    let places = all.clone();
    let function = Callback::new(move |_: &[u64]| {
        if !is_first.swap(false, Ordering::SeqCst) {
            return;
        }
        by_closure.lock().unwrap().take();
        let mut other = other.lock().unwrap();
        let rounds = rounds(ROUNDS, (&its_module, &places), (&mut other, expected));
        of_closure.store(ROUNDS - alive(&rounds), Ordering::SeqCst);
    });
    let kind = Kind::Callback { function, values: [Bound::Const(3)].into() };
    let probe = module.probe(ProbeSpec { location: all[7], kind }).unwrap();
    probe.activate().unwrap();
    *mine.lock().unwrap() = Some(probe);
    assert_eq!(program.work(), expected);
    assert!(owned.load(Ordering::SeqCst) > ROUNDS - 20);
}

/// Frames that become plain go on in the stub of their own list, also where another list's stub
/// was before.
#[test]
fn frames_become_plain_in_stubs_that_are_used_again() {
    let (module, places) = module();
    let mut program = Program::new(&module, || true);
    let expected = program.work();
    let (writes_at, written) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    for round in 0..ROUNDS / 4 {
        let spec = |(number, location): (usize, &Location)| {
            let (writes_at, written) = (writes_at.clone(), written.clone());
            let writes = GenericFn::new(move |frame| {
                if writes_at.load(Ordering::Relaxed) == number && frame.operands() > 1 {
                    // One of them is an alias of the local or a constant, which has no place of its
                    // own.
                    for depth in 0..2 {
                        let value = frame.operand(depth)?;
                        frame.set_operand(depth, &value)?;
                    }
                    written.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            });
            ProbeSpec { location: *location, kind: Kind::Generic(writes) }
        };
        let specs: Vec<ProbeSpec> = places.iter().enumerate().map(spec).collect();
        let probes: Vec<Probe> = module.probes(&specs).into_iter().map(Result::unwrap).collect();
        activate_all(&probes).into_iter().for_each(|on| on.unwrap());
        for at in (round..places.len()).step_by(97) {
            writes_at.store(at, Ordering::Relaxed);
            assert_eq!(program.work(), expected);
        }
    }
    assert!(written.load(Ordering::Relaxed) > 200);
}

/// A backtrace from a stub that has been used again names the instruction nevertheless.
#[test]
fn backtraces_do_not_need_the_stubs() {
    let (module, places) = module();
    let mut program = Program::new(&module, || true);
    let expected = program.work();
    let at = places[places.len() / 3];
    let fails = GenericFn::new(|_| {
        Err(wasm_jit::Error::Trap {
            trap: wasm_jit::Trap::UnreachableCodeReached,
            backtrace: Default::default(),
        })
    });
    let probe = module.probe(ProbeSpec { location: at, kind: Kind::Generic(fails) }).unwrap();
    probe.activate().unwrap();
    let work = program.instance.get_typed_func::<i32, i32>(&mut program.store, "work").unwrap();
    let error = work.call(&mut program.store, 1).unwrap_err();
    drop(probe);
    rounds(ROUNDS / 4, (&module, &places), (&mut program, expected));
    let wasm_jit::Error::Trap { backtrace, .. } = error else { panic!("{error:?}") };
    let [frame] = backtrace.frames() else { panic!("{backtrace:?}") };
    let Place::Instruction { offset } = at.place else { unreachable!() };
    assert_eq!(frame.func_offset(), Some(offset as usize));
}
