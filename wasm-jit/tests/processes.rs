//! Signals, alarms and forks, each in a child process that they may kill.
//!
//! The only test of its process: a child of a process with other active threads could find a lock
//! that is never released.

use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use wasm_jit::probes::{
    Bound, Callback, FirstCallWatch, GenericFn, GlobalProbe, Kind, Location, NativeFn, Place, Probe,
    ProbeError, ProbeSpec, activate_all,
};
use wasm_jit::wasmparser::Operator;
use wasm_jit::{
    Config, Engine, Error, Instance, InterruptHandle, Linker, Module, Store, Trap, TypedFunc, Val,
};

const PROGRAM: &str = r#"(module
    (memory 4096)
    (func (export "endless") (loop $again (br $again)))
    (func (export "filling")
        (loop $again
            (memory.fill (i32.const 0) (i32.const 1) (i32.const 0x10000000))
            (br $again))))"#;

/// An endless loop that announces itself in its memory.
const ANNOUNCED: &str = r#"(module
    (memory (export "memory") 1 1 shared)
    (func (export "endless")
        (loop $again
            (i32.atomic.store (i32.const 0) (i32.const 1))
            (br $again))))"#;

/// The way in which a child ends.
#[derive(Debug, PartialEq)]
enum End {
    Exit(i32),
    Signal(i32),
}
use End::{Exit, Signal};

/// The way in which a child that calls `act` ends; the result of `act` is its exit code.
fn end_of(act: &mut dyn FnMut() -> bool) -> End {
    // SAFETY: this process has no other active thread. The child is killed if it hangs.
    let status = unsafe {
        match libc::fork() {
            0 => {
                libc::alarm(20);
                let good = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).unwrap_or(false);
                libc::_exit(i32::from(!good))
            }
            child => {
                let mut status = 0;
                assert_eq!(libc::waitpid(child, &mut status, 0), child);
                status
            }
        }
    };
    if libc::WIFSIGNALED(status) { Signal(libc::WTERMSIG(status)) } else { Exit(libc::WEXITSTATUS(status)) }
}

/// A program, and a handle to interrupt it.
fn program(signal: i32) -> (Store<()>, Instance, InterruptHandle) {
    let engine = Engine::new(Config::new().interrupt_signal(signal)).unwrap();
    let module = Module::new(&engine, PROGRAM).unwrap();
    let mut store = Store::new(&engine, ());
    let handle = store.interrupt_handle();
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    (store, instance, handle)
}

/// Whether a timeout stops an endless program.
fn is_stopped(name: &str, signal: i32) -> bool {
    is_stopped_in_time(name, signal, Duration::from_millis(50))
}

fn is_stopped_in_time(name: &str, signal: i32, time: Duration) -> bool {
    let (mut store, instance, handle) = program(signal);
    let _timeout = handle.interrupt_after(time).unwrap();
    let endless = instance.get_typed_func::<(), ()>(&mut store, name).unwrap();
    matches!(endless.call(&mut store, ()), Err(Error::Trap { trap: Trap::Interrupt, .. }))
}

/// Sends this thread a signal while it runs an endless loop.
fn send_into_loop(signal: i32) -> bool {
    let engine = Engine::default();
    let module = Module::new(&engine, ANNOUNCED).unwrap();
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let memory = instance.get_shared_memory(&store, "memory").unwrap();
    // SAFETY: the thread lives until the signal ends it.
    let this = unsafe { libc::pthread_self() };
    thread::spawn(move || {
        let mut announced = [0];
        while announced == [0] {
            thread::yield_now();
            memory.read(0, &mut announced).unwrap();
        }
        // SAFETY: as above.
        unsafe { libc::pthread_kill(this, signal) };
    });
    let endless = instance.get_typed_func::<(), ()>(&mut store, "endless").unwrap();
    endless.call(&mut store, ()).is_ok()
}

/// Makes the kernel send SIGALRM shortly, and waits until it has arrived.
fn alarm() {
    let soon = libc::timeval { tv_sec: 0, tv_usec: 10_000 };
    let never = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let timer = libc::itimerval { it_interval: never, it_value: soon };
    // SAFETY: reads the timer.
    unsafe { libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut()) };
    let mut left = timer;
    // The timer is zero when the signal was sent; this thread takes it at the end of the system
    // call that observes that.
    while (left.it_value.tv_sec, left.it_value.tv_usec) != (0, 0) {
        thread::yield_now();
        // SAFETY: writes the timer's state.
        unsafe { libc::getitimer(libc::ITIMER_REAL, &mut left) };
    }
}

/// A module with a global probe, active, none of whose functions has run.
fn probed() -> (Module, GlobalProbe) {
    let text = "(module (func $f (param f64) (result f64) (local.get 0)) (func (export \"run\") (param f64) (result f64)
        (f64.add (call $f (local.get 0)) (f64.const 1))))";
    let module = Module::new(&Engine::default(), text).unwrap();
    let global = module.global_probe(Kind::Count).unwrap();
    global.activate().unwrap();
    (module, global)
}

/// A module whose function has an active counter, and is watched: it is reported when it is called
/// for the first time. It calls itself, three times in a run. Also returns how often it was
/// reported.
fn probed_before_first_calls() -> (Module, Probe, FirstCallWatch, Arc<AtomicU64>) {
    let text = "(module (func $f (export \"run\") (param f64) (result f64)
        (if (result f64) (f64.lt (local.get 0) (f64.const 1))
            (then (f64.const 3.5))
            (else (call $f (f64.sub (local.get 0) (f64.const 1)))))))";
    let module = Module::new(&Engine::default(), text).unwrap();
    let location = Location { function: 0, place: Place::Entry };
    let probe = module.probe(ProbeSpec { location, kind: Kind::Count }).unwrap();
    probe.activate().unwrap();
    let called = Arc::new(AtomicU64::new(0));
    let by_watch = called.clone();
    let watch = module.watch_first_calls(move |_| _ = by_watch.fetch_add(1, Ordering::Relaxed));
    (module, probe, watch.unwrap(), called)
}

/// Whether that module gives the right result.
fn runs(module: &Module) -> bool {
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, module, &[]).unwrap();
    let run = instance.get_typed_func::<f64, f64>(&mut store, "run").unwrap();
    run.call(&mut store, 2.5).unwrap() == 3.5
}

/// A loop with probes that count, call a native function, and call a closure.
struct Stubs {
    module: Module,
    location: Location,
    store: Store<()>,
    run: TypedFunc<i32, i32>,
    probes: Vec<Probe>,
    called: Arc<AtomicU64>,
}

static NATIVE: AtomicU64 = AtomicU64::new(0);

extern "C" fn count() {
    NATIVE.fetch_add(1, Ordering::Relaxed);
}

impl Stubs {
    fn new() -> Self {
        let text = r#"(module (func (export "run") (param i32) (result i32)
            (loop (br_if 0 (i32.gt_s (local.tee 0 (i32.sub (local.get 0) (i32.const 1))) (i32.const 0))))
            (local.get 0)))"#;
        let module = Module::new(&Engine::default(), text).unwrap();
        let called = Arc::new(AtomicU64::new(0));
        let of_probe = called.clone();
        let function = Callback::new(move |_| {
            of_probe.fetch_add(1, Ordering::Relaxed);
        });
        // SAFETY: the function does not unwind, and is part of the program.
        let native = unsafe { NativeFn::new(count as extern "C" fn()) };
        let kinds = [
            Kind::Count,
            Kind::Native { function: native, values: [].into() },
            Kind::Callback { function, values: [Bound::Local(0)].into() },
        ];
        // All at the last `local.get`, of two bytes, before the `end`.
        let body = module.function(0).unwrap().body().unwrap();
        let offset = (body.range().len() - 3) as u32;
        let location = Location { function: 0, place: Place::Instruction { offset } };
        let specs = kinds.map(|kind| ProbeSpec { location, kind });
        let probes: Vec<Probe> = module.probes(&specs).into_iter().map(Result::unwrap).collect();
        activate_all(&probes).into_iter().for_each(|on| on.unwrap());
        let mut store = Store::new(module.engine(), ());
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        let run = instance.get_typed_func(&mut store, "run").unwrap();
        Self { module, location, store, run, probes, called }
    }

    /// How often each probe fires in a run.
    fn run(&mut self) -> [u64; 3] {
        let counts = |of: &Self| {
            [of.probes[0].count(), NATIVE.load(Ordering::Relaxed), of.called.load(Ordering::Relaxed)]
        };
        let before = counts(self);
        assert_eq!(self.run.call(&mut self.store, 5).unwrap(), 0);
        let after = counts(self);
        [0, 1, 2].map(|probe| after[probe] - before[probe])
    }

    /// Whether changes are refused, and change nothing.
    fn is_refused(&mut self) -> bool {
        let is_refused = |probe: &Probe| matches!(probe.deactivate(), Err(ProbeError::Patch(_)));
        self.probes.iter().all(is_refused) && self.run() == [1, 1, 1]
    }

    /// Switches every set of the probes; whether those that are on fire.
    fn change(&mut self) -> bool {
        let sets = (0..8).chain([7]);
        sets.into_iter().all(|set| {
            let expected = [0, 1, 2].map(|probe| set >> probe & 1);
            for (probe, is_on) in self.probes.iter().zip(expected) {
                if is_on == 1 { probe.activate() } else { probe.deactivate() }.unwrap();
            }
            self.run() == expected
        })
    }
}

/// A program whose functions are compiled when they are first called.
fn lazily() -> (Store<()>, Instance) {
    let engine = Engine::new(Config::new().lazy_compilation(true)).unwrap();
    let text = "(module (func (export \"first\") (result i32) (i32.const 1))
        (func (export \"second\") (result i32) (i32.const 2)))";
    let module = Module::new(&engine, text).unwrap();
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    (store, instance)
}

/// Makes and drops probes, more than are kept. Returns how many of their closures there are, and
/// how many probes there were.
fn removed_probes() -> (usize, usize) {
    const ROUNDS: usize = 20;
    let nops = "(drop (local.get 0))".repeat(1000);
    let text = format!("(module (func (export \"f\") (param i32) {nops}))");
    let module = Module::new(&Engine::default(), text).unwrap();
    let start = module.function(0).unwrap().body().unwrap().range().start;
    let instructions: Vec<usize> =
        module.function(0).unwrap().body().unwrap().instructions().map(|it| it.offset() - start).collect();
    let closures = Arc::new(());
    for _ in 0..ROUNDS {
        let spec = |offset: &usize| {
            let of_closure = closures.clone();
            let function = Callback::new(move |_| drop(of_closure.clone()));
            ProbeSpec {
                location: Location { function: 0, place: Place::Instruction { offset: *offset as u32 } },
                kind: Kind::Callback { function, values: [Bound::Const(0)].into() },
            }
        };
        let specs: Vec<ProbeSpec> = instructions.iter().map(spec).collect();
        let probes: Vec<Probe> = module.probes(&specs).into_iter().map(Result::unwrap).collect();
        activate_all(&probes).into_iter().for_each(|on| on.unwrap());
    }
    (Arc::strong_count(&closures) - 1, ROUNDS * instructions.len())
}

/// How a child ends that waits for its parent in the middle of a loop, and then executes the rest
/// of the loop: meanwhile the parent changes the loop's code, from its original or from a version
/// with probes to one with probes that call closures which the child does not have, and makes more
/// versions.
fn end_of_a_child_whose_code_its_parent_changes(lazy: bool, probed: bool) -> End {
    let text = "(module (import \"h\" \"tick\" (func $tick))
        (func $add (param i32) (result i32) (i32.add (local.get 0) (i32.const 1)))
        (func (export \"run\") (result i32) (local i32)
            (loop $again
                (call $tick)
                (br_if $again (i32.lt_u (local.tee 0 (call $add (local.get 0))) (i32.const 1000))))
            (local.get 0)))";
    let engine = Engine::new(Config::new().lazy_compilation(lazy)).unwrap();
    let module = Module::new(&engine, text).unwrap();
    let (mut announced, mut announces) = std::io::pipe().unwrap();
    let (mut go_on, mut changed) = std::io::pipe().unwrap();
    let (ticks, parent) = (AtomicU32::new(0), std::process::id());
    let tick = move || {
        if std::process::id() != parent && ticks.fetch_add(1, Ordering::Relaxed) == 10 {
            announces.write_all(&[1]).unwrap();
            go_on.read_exact(&mut [0]).unwrap();
        }
    };
    let tick = std::sync::Mutex::new(tick);
    let mut linker = Linker::new(&engine);
    linker.func_wrap("h", "tick", move || tick.lock().unwrap()()).unwrap();
    let mut store = Store::new(&engine, ());
    let instance = linker.instantiate(&mut store, &module).unwrap();
    let run = instance.get_typed_func::<(), i32>(&mut store, "run").unwrap();
    assert_eq!(run.call(&mut store, ()).unwrap(), 1000);
    let fired = Arc::new(AtomicU64::new(0));
    let probes = |name: &str| -> Vec<Probe> {
        let fired = fired.clone();
        let function = Callback::new(move |_| {
            fired.fetch_add(1, Ordering::Relaxed);
        });
        let kind = Kind::Callback { function, values: [Bound::Const(0)].into() };
        let of = |function: u32| {
            let body = module.function(function).unwrap().body().unwrap();
            let start = body.range().start;
            let offsets: Vec<usize> = body.instructions().map(|it| it.offset() - start).collect();
            offsets.into_iter().map(move |offset| (function, offset as u32))
        };
        let spec = |(function, offset)| ProbeSpec {
            location: Location { function, place: Place::Instruction { offset } },
            kind: kind.clone(),
        };
        let specs: Vec<ProbeSpec> = [1, 2].into_iter().flat_map(of).map(spec).collect();
        let made: Vec<Probe> = module.probes(&specs).into_iter().flatten().collect();
        assert!(made.len() > 10, "{name}");
        made
    };
    // The functions have versions before the fork.
    let before = probes("before");
    if probed {
        activate_all(&before).into_iter().for_each(|on| on.unwrap());
    }
    // SAFETY: this process has no other active thread. The child is killed if it hangs.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: kills this process later.
            unsafe { libc::alarm(20) };
            let is_good = run.call(&mut store, ()).is_ok_and(|result| result == 1000)
                && (fired.load(Ordering::Relaxed) > 10_000) == probed;
            // SAFETY: ends this process.
            unsafe { libc::_exit(i32::from(!is_good)) }
        }
        child => {
            announced.read_exact(&mut [0]).unwrap();
            activate_all(&before).into_iter().for_each(|on| on.unwrap());
            let after = probes("after");
            activate_all(&after).into_iter().for_each(|on| on.unwrap());
            changed.write_all(&[1]).unwrap();
            let mut status = 0;
            // SAFETY: the child is ours.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(run.call(&mut store, ()).unwrap(), 1000);
            assert!(fired.load(Ordering::Relaxed) > 10_000);
            if libc::WIFSIGNALED(status) {
                Signal(libc::WTERMSIG(status))
            } else {
                Exit(libc::WEXITSTATUS(status))
            }
        }
    }
}

/// Forks while another thread switches and makes probes. Each child finds the code as it was
/// between two changes, with locks that nobody holds. Returns how many children did not end well.
fn children_of_changes() -> usize {
    let mut stubs = Stubs::new();
    let (module, location) = (stubs.module.clone(), stubs.location);
    let (ends, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let probes = std::mem::take(&mut stubs.probes);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                for probe in &probes {
                    probe.deactivate().unwrap();
                    probe.activate().unwrap();
                }
                let function = Callback::new(|_| {});
                let kind = Kind::Callback { function, values: [Bound::Local(0)].into() };
                let more = module.probe(ProbeSpec { location, kind }).unwrap();
                more.activate().unwrap();
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        });
        let bad = (0..25).filter(|_| {
            let before = rounds.load(Ordering::Relaxed);
            while rounds.load(Ordering::Relaxed) == before {
                thread::yield_now();
            }
            end_of(&mut || {
                let runs = (0..100).all(|_| stubs.run.call(&mut stubs.store, 5).unwrap() == 0);
                // SAFETY: the child has no other thread.
                runs && unsafe { wordpatch::text::unshare() }.is_ok()
                    && probes.iter().all(|probe| probe.deactivate().is_ok() && probe.activate().is_ok())
                    && stubs.run.call(&mut stubs.store, 5).unwrap() == 0
            }) != Exit(0)
        });
        let bad = bad.count();
        ends.store(true, Ordering::Relaxed);
        bad
    })
}

/// Whether changes are refused as long as the process, which has forked, has no memory for a copy
/// of the code, and then work. Called in a child, since other threads would be refused memory, too.
fn changes_without_memory() -> bool {
    // SAFETY: the child has no other thread.
    unsafe { wordpatch::text::unshare() }.unwrap();
    let mut stubs = Stubs::new();
    let body = stubs.module.function(0).unwrap().body().unwrap();
    let is_branch = |operator: &Operator<'_>| matches!(operator, Operator::BrIf { .. });
    let branch = body.instructions().find(|it| is_branch(it.operator())).unwrap();
    let offset = (branch.offset() - body.range().start) as u32;
    let location = Location { function: 0, place: Place::Instruction { offset } };
    // Off, so that its version has not been the current one.
    stubs.probes.iter().for_each(|probe| probe.deactivate().unwrap());
    let branch = stubs.module.probe(ProbeSpec { location, kind: Kind::CountBranch }).unwrap();
    if end_of(&mut || true) != Exit(0) {
        return false;
    }
    let limit = |soft: libc::rlim_t| {
        let limit = libc::rlimit { rlim_cur: soft, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: reads the limit.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
    };
    let is_refused = |probe: &Probe| matches!(probe.activate(), Err(ProbeError::Patch(_)));
    limit(0);
    let all = stubs.probes.iter().chain([&branch]).all(is_refused);
    limit(libc::RLIM_INFINITY);
    let none = stubs.run() == [0, 0, 0] && branch.count() == 0;
    branch.activate().unwrap();
    all && none && stubs.run() == [0, 0, 0] && branch.count() > 0 && stubs.change()
}

/// Whether a probe that a child drops while it cannot change code is removed with the next change,
/// and its function returns to its original after the last one.
fn late_removals() -> bool {
    // SAFETY: the child has no other thread.
    unsafe { wordpatch::text::unshare() }.unwrap();
    let text = "(module (func (export \"run\") (param f64) (result f64)
        (f64.add (local.get 0) (f64.const 1)))
        (func))";
    let module = Module::new(&Engine::default(), text).unwrap();
    let fired = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
    let location = Location { function: 0, place: Place::Entry };
    let probe = |fired: &Arc<AtomicU64>| {
        let fired = fired.clone();
        let function = Callback::new(move |_| _ = fired.fetch_add(1, Ordering::Relaxed));
        let kind = Kind::Callback { function, values: [].into() };
        let probe = module.probe(ProbeSpec { location, kind }).unwrap();
        probe.activate().unwrap();
        probe
    };
    let mut probes = fired.each_ref().map(|fired| Some(probe(fired)));
    let fires = || {
        assert!(runs(&module));
        fired.each_ref().map(|fired| fired.swap(0, Ordering::Relaxed))
    };
    let change_another = || {
        let location = Location { function: 1, place: Place::Entry };
        drop(module.probe(ProbeSpec { location, kind: Kind::Count }).unwrap());
    };
    let end = end_of(&mut || {
        probes[1] = None;
        let stays = fires() == [1, 1];
        // SAFETY: as above.
        let is_unshared = unsafe { wordpatch::text::unshare() }.is_ok();
        change_another();
        let is_removed = fires() == [1, 0];
        probes[0] = None;
        stays && is_unshared && is_removed && fires() == [0, 0]
    });
    // Those of the last probes of a function.
    let all = end_of(&mut || {
        probes = [None, None];
        let stays = fires() == [1, 1];
        // SAFETY: as above.
        let is_unshared = unsafe { wordpatch::text::unshare() }.is_ok();
        change_another();
        stays && is_unshared && fires() == [0, 0]
    });
    (end, all) == (Exit(0), Exit(0))
}

/// A module whose code is executed in a file, the location of an instruction of its function, and
/// whether the module gives the right result.
fn in_a_file() -> (Module, Location) {
    let text = "(module (func (export \"run\") (param f64) (result f64)
        (f64.add (local.get 0) (f64.const 1))))";
    let stored = Module::new(&Engine::default(), text).unwrap().serialize().unwrap();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&stored).unwrap();
    // SAFETY: just serialized; nobody else knows the file, which is removed.
    let module = unsafe { Module::deserialize_file(&Engine::default(), file.path()) }.unwrap();
    (module, Location { function: 0, place: Place::Entry })
}

/// Makes a probe in a module in a file, in a forked child, in its parent, or in both, which are
/// then independent.
fn copies_of_parent_and_child(parent_first: bool) -> bool {
    let (module, location) = in_a_file();
    let probe = || {
        let probe = module.probe(ProbeSpec { location, kind: Kind::Count })?;
        probe.activate().map(|()| probe)
    };
    let counts = |probe: &Probe| {
        let before = probe.count();
        runs(&module) && probe.count() == before + 1
    };
    let of_parent = parent_first.then(|| probe().unwrap());
    let in_child = end_of(&mut || {
        // In the parent's copy, the function counts already: nothing is patched.
        let is_refused = parent_first || probe().is_err();
        // SAFETY: the child has no other thread.
        let is_unshared = unsafe { wordpatch::text::unshare() }.is_ok();
        is_refused && runs(&module) && is_unshared && probe().is_ok_and(|probe| counts(&probe))
    });
    let of_parent = of_parent.unwrap_or_else(|| probe().unwrap());
    in_child == Exit(0) && counts(&of_parent)
}

/// Forks while another thread calls functions for the first time, of which a global probe then
/// makes probes. The children call the same functions. Returns how many did not end well.
fn children_of_first_calls() -> usize {
    const FUNCTIONS: usize = 100;
    let text: String = (0..FUNCTIONS)
        .map(|number| format!("(func (export \"{number}\") (result i32) (i32.const {number}))"))
        .collect();
    let calls = AtomicUsize::new(0);
    let call_all = |module: &Module| {
        let mut store = Store::new(module.engine(), ());
        let instance = Instance::new(&mut store, module, &[]).unwrap();
        (0..FUNCTIONS).all(|number| {
            let function = instance.get_typed_func::<(), i32>(&mut store, &number.to_string()).unwrap();
            calls.fetch_add(1, Ordering::Release);
            function.call(&mut store, ()).unwrap() == number as i32
        })
    };
    let modules: Vec<(Module, GlobalProbe)> = (0..20)
        .map(|_| {
            let module = Module::new(&Engine::default(), format!("(module {text})")).unwrap();
            let global = module.global_probe(Kind::Count).unwrap();
            global.activate().unwrap();
            (module, global)
        })
        .collect();
    thread::scope(|scope| {
        let caller = scope.spawn(|| modules.iter().all(|(module, _)| call_all(module)));
        let bad = modules.iter().enumerate().filter(|(number, (module, global))| {
            while calls.load(Ordering::Acquire) < number * FUNCTIONS + 2 * number {
                thread::yield_now();
            }
            end_of(&mut || {
                let calls = call_all(module);
                // SAFETY: the child has no other thread.
                calls && unsafe { wordpatch::text::unshare() }.is_ok() && global.deactivate().is_ok()
            }) != Exit(0)
        });
        let bad = bad.count();
        assert!(caller.join().unwrap());
        bad
    })
}

/// Compiles, probes and runs a small program in an engine, with timeouts. A probe reads a reference
/// among the operands of its frame.
fn use_engine(engine: &Engine) -> bool {
    let text = r#"(module (func (export "f") (result i32)
        (ref.null extern) (drop (i32.const 1)) (ref.is_null)))"#;
    let module = Module::new(engine, text).unwrap();
    let _shown = module.show_to_gdb();
    let body = module.function(0).unwrap().body().unwrap();
    let drop = body.instructions().find(|it| matches!(it.operator(), Operator::Drop)).unwrap();
    let offset = (drop.offset() - body.range().start) as u32;
    let location = Location { function: 0, place: Place::Instruction { offset } };
    let nulls = Arc::new(AtomicU64::new(0));
    let by_probe = nulls.clone();
    let kind = Kind::Generic(GenericFn::new(move |frame| {
        let operand = frame.accessor()?.operand(frame, 1)?;
        by_probe.fetch_add(u64::from(matches!(operand, Val::ExternRef(None))), Ordering::Relaxed);
        Ok(())
    }));
    let probe = module.probe(ProbeSpec { location, kind }).unwrap();
    probe.activate().unwrap();
    let mut store = Store::new(engine, ());
    let interrupts = store.interrupt_handle();
    for _ in 0..100 {
        let _timeout = interrupts.interrupt_after(Duration::from_secs(1_000)).unwrap();
    }
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let f = instance.get_typed_func::<(), i32>(&mut store, "f").unwrap();
    f.call(&mut store, ()).unwrap() == 1 && nulls.load(Ordering::Relaxed) == 1
}

/// Forks while another thread compiles, probes and runs programs in an engine. The children do the
/// same in the same engine. Returns how many did not end well.
fn children_of_a_used_engine(lazy: bool) -> usize {
    let engine = Engine::new(Config::new().lazy_compilation(lazy)).unwrap();
    let (ends, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let user = scope.spawn(|| {
            let mut all = true;
            while !ends.load(Ordering::Relaxed) {
                all &= use_engine(&engine);
                rounds.fetch_add(1, Ordering::Relaxed);
            }
            all
        });
        let bad = (0..100).filter(|number| {
            let before = rounds.load(Ordering::Relaxed);
            while rounds.load(Ordering::Relaxed) == before {
                thread::yield_now();
            }
            // Each fork finds the other thread elsewhere.
            (0..100 * number).for_each(|_| std::hint::spin_loop());
            end_of(&mut || {
                // SAFETY: the child has no other thread.
                unsafe { wordpatch::text::unshare() }.is_ok() && use_engine(&engine)
            }) != Exit(0)
        });
        let bad = bad.count();
        ends.store(true, Ordering::Relaxed);
        assert!(user.join().unwrap());
        bad
    })
}

#[test]
fn signals_and_forks() {
    let mut wrong = Vec::new();
    let mut check = |what: &str, expected: End, act: &mut dyn FnMut() -> bool| {
        let end = end_of(act);
        if end != expected {
            wrong.push(format!("{what}: {end:?}, not {expected:?}"));
        }
    };

    // A signal that was sent is not a trap, whatever the thread executes. (Rust's own handler takes
    // SIGSEGV and SIGBUS for faults.)
    for signal in [libc::SIGFPE, libc::SIGILL, libc::SIGTERM] {
        check("sent", Signal(signal), &mut || send_into_loop(signal));
    }

    // If another process sends the signal of interrupts, it has its previous effect.
    check("default", Signal(libc::SIGALRM), &mut || {
        let _program = program(libc::SIGALRM);
        alarm();
        true
    });
    check("ignored", Exit(0), &mut || {
        // SAFETY: nothing else uses this signal.
        unsafe { libc::signal(libc::SIGALRM, libc::SIG_IGN) };
        let _program = program(libc::SIGALRM);
        (0..3).for_each(|_| alarm());
        is_stopped("endless", libc::SIGALRM)
    });
    check("ignored by default", Exit(0), &mut || {
        let _program = program(libc::SIGWINCH);
        // SAFETY: ignored by default.
        unsafe { libc::kill(libc::getpid(), libc::SIGWINCH) };
        is_stopped("endless", libc::SIGWINCH)
    });
    for signal in [1, 34, 63, 64] {
        check("any signal", Exit(0), &mut || is_stopped("endless", signal));
    }

    check("hardly ever in its own code", Exit(0), &mut || is_stopped("filling", libc::SIGURG));

    // A child enters functions whose entries lead to a stub, and cannot be changed.
    let (module, global) = probed();
    check("functions that wait for their first call", Exit(0), &mut || {
        let is_right = runs(&module) && global.count() == 0 && global.refused().len() == 2;
        is_right && global.deactivate().is_ok() && runs(&module)
    });
    assert!(runs(&module) && global.count() == 5 + 2, "{}", global.count());

    // Likewise, in functions that have versions.
    let (module, probe, _watch, called) = probed_before_first_calls();
    check("functions with versions that wait for their first call", Exit(0), &mut || {
        let has_run = runs(&module) && (called.load(Ordering::Relaxed), probe.count()) == (1, 3);
        has_run && runs(&module) && (called.load(Ordering::Relaxed), probe.count()) == (1, 6)
    });
    assert!(runs(&module) && (called.load(Ordering::Relaxed), probe.count()) == (1, 3), "in the parent");

    // A child inherits versions, stubs, and what they count, and changes them when it has pages of
    // its own. Then the parent's changes and its own are apart.
    let mut stubs = Stubs::new();
    check("stubs that parent and child change", Exit(0), &mut || {
        let is_inherited = stubs.run() == [1, 1, 1] && stubs.is_refused();
        // SAFETY: the child has no other thread.
        is_inherited && unsafe { wordpatch::text::unshare() }.is_ok() && stubs.change()
    });
    assert!(stubs.run() == [1, 1, 1] && stubs.change(), "after the child's changes");

    // A child executes code in a file as its parent does, and each copies it for its own probes.
    for parent_first in [false, true] {
        assert!(copies_of_parent_and_child(parent_first), "the parent first: {parent_first}");
    }

    // A child runs functions that its parent has compiled, and compiles none.
    let (mut store, instance) = lazily();
    let mut run = |name: &str| {
        let function = instance.get_typed_func::<(), i32>(&mut store, name).unwrap();
        function.call(&mut store, ())
    };
    assert_eq!(run("first").unwrap(), 1);
    check("functions that are compiled when they are called", Exit(0), &mut || {
        let is_refused = |result| matches!(result, Err(Error::Forked { function: 1 }));
        let is_right = run("first").is_ok_and(|result| result == 1) && is_refused(run("second"));
        // SAFETY: the child has no other thread.
        is_right && unsafe { wordpatch::text::unshare() }.is_ok() && is_refused(run("second"))
    });
    assert_eq!(run("second").unwrap(), 2, "in the parent");

    // The parent's changes are not the child's.
    for (lazy, probed) in [(false, false), (false, true), (true, false), (true, true)] {
        let end = end_of_a_child_whose_code_its_parent_changes(lazy, probed);
        assert_eq!(end, Exit(0), "lazy: {lazy}, probed: {probed}");
    }
    check("changes without memory for the code", Exit(0), &mut changes_without_memory);
    check("probes that are dropped while code cannot be changed", Exit(0), &mut late_removals);
    assert_eq!(children_of_first_calls(), 0, "children that did not end well");
    assert_eq!(children_of_changes(), 0, "children that did not end well");
    for lazy in [false, true] {
        assert_eq!(children_of_a_used_engine(lazy), 0, "children that did not end well, lazy: {lazy}");
    }

    // A child may be in a stub, but not in those of its parent's pages: they are used again.
    let (closures, removed) = removed_probes();
    assert!(closures < removed / 2, "{closures} of {removed} closures are kept");

    // The timer thread is not copied into a child.
    assert!(is_stopped("endless", libc::SIGURG));
    let (_store, _instance, handle) = program(libc::SIGURG);
    let mut timeout = Some(handle.interrupt_after(Duration::from_secs(1000)).unwrap());
    check("timeout in a child", Exit(0), &mut || {
        drop(timeout.take());
        is_stopped("endless", libc::SIGURG)
    });
    assert!(wrong.is_empty(), "{wrong:#?}");
}
