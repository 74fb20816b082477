//! Each monitor is activated and deactivated while threads run the program, in functions that run
//! all the time and in others. Afterwards the code is the original code again, and nothing more is
//! observed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use wasm_jit::{Engine, Linker, Module, Store, WasmResults};
use wasm_jit_monitors::control::{Control, request};
use wasm_jit_monitors::{ALL, Format, Output, Session};

/// A program that has something to observe for each monitor, and ends when the host says so.
const PROGRAM: &str = r#"(module
    (import "host" "go_on" (func $go_on (result i32)))
    (memory 1)
    (global $g (mut i32) (i32.const 0))
    (table funcref (elem $leaf))
    (func $malloc (export "malloc") (param i32) (result i32) (i32.const 64))
    (func $free (export "free") (param i32))
    (func $leaf (param i32) (result i32)
        (select (i32.mul (local.get 0) (i32.const 3)) (i32.const 1) (i32.and (local.get 0) (i32.const 1))))
    (func $work (param $n i32)
        (loop $again
            (i32.store (i32.const 16) (i32.add (i32.load (i32.const 16)) (call $leaf (local.get $n))))
            (memory.fill (i32.const 32) (i32.const 7) (i32.const 4))
            (global.set $g (i32.add (global.get $g) (i32.const 1)))
            (drop (call_indirect (param i32) (result i32) (local.get $n) (i32.const 0)))
            (call $free (call $malloc (i32.const 8)))
            (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1))))))
    (func (export "run") (result i32)
        (loop $again
            (call $work (i32.const 20))
            (br_if $again (call $go_on)))
        (global.get $g)))"#;

/// How often a thread has called the host.
#[derive(Default)]
pub(super) struct Progress {
    calls: Mutex<u64>,
    changed: Condvar,
    ends: AtomicBool,
}

impl Progress {
    /// The host function.
    fn go_on(&self) -> i32 {
        *self.calls.lock().unwrap() += 1;
        self.changed.notify_all();
        i32::from(!self.ends.load(Ordering::Relaxed))
    }

    /// Calls `run` of a program that imports the host function, and returns its result.
    pub(super) fn run<R: WasmResults>(self: Arc<Self>, module: &Module) -> R {
        let mut linker = Linker::new(module.engine());
        linker.func_wrap("host", "go_on", move || self.go_on()).unwrap();
        let mut store = Store::new(module.engine(), ());
        let instance = linker.instantiate(&mut store, module).unwrap();
        instance.get_typed_func::<(), R>(&mut store, "run").unwrap().call(&mut store, ()).unwrap()
    }

    /// Waits until the running code has been left, and the entire loop has been executed again.
    pub(super) fn wait(&self) {
        let calls = self.calls.lock().unwrap();
        let enough = *calls + 3;
        drop(self.changed.wait_while(calls, |calls| *calls < enough).unwrap());
    }
}

/// Ends the threads, even if a check fails.
pub(super) struct Ends<'a>(pub(super) &'a [Arc<Progress>]);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|progress| progress.ends.store(true, Ordering::Relaxed));
    }
}

fn listing(module: &Module) -> String {
    let mut text = Vec::new();
    module.write_objdump(|_, _| true, &mut text).unwrap();
    String::from_utf8(text).unwrap()
}

/// Activates and deactivates each monitor by `switch`, while a thread runs the program.
fn check(session: &Session, module: &Module, switch: impl Fn(&str, bool)) {
    let progress: [Arc<Progress>; 2] = Default::default();
    let of_text = |name: &str| Format::Json.print(&[session.report(name).unwrap()]);
    let counts = |name: &str| super::counts(session, name);
    let original = listing(module);
    thread::scope(|scope| {
        let run = |progress: Arc<Progress>| {
            scope.spawn(move || {
                let result: i32 = progress.clone().run(module);
                let calls = *progress.calls.lock().unwrap();
                assert_eq!(result as u64, 20 * calls, "the program computes what it always does");
            })
        };
        let threads = progress.clone().map(run);
        let ends = Ends(&progress);
        progress.iter().for_each(|progress| progress.wait());
        for monitor in ALL {
            let name = monitor.name;
            for round in 0..2 {
                switch(name, true);
                let before = of_text(name);
                assert_ne!(listing(module), original, "{name}: there is something on");
                progress.iter().for_each(|progress| progress.wait());
                // Coverage may already have seen everything.
                match name {
                    "coverage" => {
                        assert!(session.report(name).unwrap().get("instructions_covered") > Some(0))
                    }
                    _ => assert_ne!(of_text(name), before, "{name}, {round}: something is observed"),
                }
                switch(name, false);
                assert_eq!(listing(module), original, "{name}, {round}: the code is the original");
                progress.iter().for_each(|progress| progress.wait());
                let after = counts(name);
                progress.iter().for_each(|progress| progress.wait());
                assert_eq!(counts(name), after, "{name}, {round}: nothing is observed while it is off");
            }
        }
        drop(ends);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn each_monitor_goes_on_and_off_while_the_program_runs() {
    #[cfg(feature = "latency")]
    let _alone = super::latency::alone();
    let module = Module::new(&Engine::default(), PROGRAM).unwrap();
    let session = Session::new(&module, Output::none());
    check(&session, &module, |name, on| match on {
        true => session.enable(name.parse().unwrap()).unwrap(),
        false => session.disable(name).unwrap(),
    });
}

#[test]
fn each_monitor_is_switched_over_a_socket_while_the_program_runs() {
    #[cfg(feature = "latency")]
    let _alone = super::latency::alone();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let module = Module::new(&Engine::default(), PROGRAM).unwrap();
    let session = Arc::new(Session::new(&module, Output::none()));
    let _control = Control::listen(session.clone(), &path).unwrap();
    check(&session, &module, |name, on| {
        let line = format!("{} {name}", if on { "enable" } else { "disable" });
        assert_eq!(request(&path, &line).unwrap(), Ok(String::new()), "{line}");
    });
}

/// It takes long to make the probes of the function between the callee and the caller.
#[test]
fn calls_by_the_host_are_not_invented_when_calls_are_observed_later() {
    let calls = "(drop (call $leaf (i32.const 1)))".repeat(10_000);
    let text = format!(
        "(module (import \"host\" \"go_on\" (func $go_on (result i32)))
        (func $leaf (export \"leaf\") (param i32) (result i32) (local.get 0))
        (func $large {calls})
        (func (export \"run\") (local $n i32)
            (loop $again
                (local.set $n (i32.const 1000))
                (loop $inner
                    (drop (call $leaf (local.get $n)))
                    (br_if $inner (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
                (br_if $again (call $go_on)))))"
    );
    let module = Module::new(&Engine::default(), text).unwrap();
    let session = Session::new(&module, Output::none());
    let progress = Arc::new(Progress::default());
    thread::scope(|scope| {
        let program = scope.spawn(|| progress.clone().run::<()>(&module));
        let all = [progress.clone()];
        let ends = Ends(&all);
        for _ in 0..3 {
            progress.wait();
            session.enable("calls".parse().unwrap()).unwrap();
            progress.wait();
            session.disable("calls").unwrap();
        }
        drop(ends);
        program.join().unwrap();
    });
    let report = session.report("calls").unwrap();
    assert!(report.get("calls") >= Some(3000), "{report:?}");
    // The thread may have stopped before a call for as long as the probes were switched on.
    assert!(report.get("by_host") <= Some(3), "{report:?}");
}

/// Runs a program that calls `host.switch`: with 0 it switches the monitor off, with 1 on.
fn switched_by_itself(text: &str, request: &str, output: Output) -> Session {
    let module = Module::new(&Engine::default(), text).unwrap();
    let session = Arc::new(Session::new(&module, output));
    session.enable(request.parse().unwrap()).unwrap();
    let (of_host, request) = (session.clone(), request.to_owned());
    let monitor = request.split('{').next().unwrap().to_owned();
    let mut store = Store::new(module.engine(), ());
    let mut linker = Linker::new(module.engine());
    let switch = move |on: i32| match on {
        0 => of_host.disable(&monitor).unwrap(),
        1 => of_host.enable(request.parse().unwrap()).unwrap(),
        _ => {}
    };
    linker.func_wrap("host", "switch", switch).unwrap();
    let instance = linker.instantiate(&mut store, &module).unwrap();
    instance.get_typed_func::<(), ()>(&mut store, "run").unwrap().call(&mut store, ()).unwrap();
    drop((linker, store));
    Arc::into_inner(session).expect("the host's functions are gone")
}

#[test]
fn an_allocation_during_which_the_monitor_was_switched_off_hides_no_later_one() {
    let text = r#"(module (import "host" "switch" (func $switch (param i32)))
        (func $malloc (param $size i32) (result i32)
            (call $switch (i32.sub (local.get $size) (i32.const 8)))
            (i32.mul (local.get $size) (i32.const 64)))
        (func $deeper (param i32) (drop (call $malloc (local.get 0))))
        (func (export "run")
            (drop (call $malloc (i32.const 8)))
            (call $switch (i32.const 1))
            (call $deeper (i32.const 20))
            (call $deeper (i32.const 30))))"#;
    let session = switched_by_itself(text, "alloc", Output::none());
    let report = session.report("alloc").unwrap();
    assert_eq!(report.get("live bytes"), Some(50));
}

#[test]
fn a_call_of_the_host_that_began_before_an_interruption_is_not_a_later_one() {
    let text = r#"(module (import "host" "switch" (func $switch (param i32)))
        (func $calls (param i32) (call $switch (local.get 0)))
        (func (export "run") (call $calls (i32.const 0)) (call $calls (i32.const 1)) (call $calls (i32.const 2))))"#;
    let session = switched_by_itself(text, "hostcalls", Output::none());
    let report = session.report("hostcalls").unwrap();
    // The first, which has returned unseen, and the last.
    assert_eq!(super::integers(&report, "functions", "calls"), [2]);
    assert_eq!(super::integers(&report, "functions", "not returned"), [1]);
}

#[test]
fn frames_of_earlier_periods_have_no_depth() {
    let text = r#"(module (import "host" "switch" (func $switch (param i32)))
        (func $leaf (nop))
        (func $calls (call $leaf))
        (func (export "run") (call $switch (i32.const 0)) (call $switch (i32.const 1)) (call $calls)))"#;
    let directory = tempfile::tempdir().unwrap();
    let output = Output::directory(directory.path()).unwrap();
    let session = switched_by_itself(text, "trace{opcode=nop}", output);
    session.report("trace").unwrap();
    let lines = std::fs::read_to_string(directory.path().join("trace.log")).unwrap();
    let words: Vec<&str> = lines.split_whitespace().collect();
    assert_eq!((words[..2].to_vec(), words[3..].to_vec()), (vec!["1", "2"], vec!["leaf:", "nop"]));
}
