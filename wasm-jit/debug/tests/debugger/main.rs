//! The debugger through its API: every step stops where an observer of all instructions says, in
//! random programs and in written ones; values, breakpoints, watchpoints, pauses.

#[path = "../../../tests/frame_maps/programs.rs"]
mod programs;

mod breakpoints;
mod pauses;
mod release;
mod reverse;
mod steps;
mod values;
mod watches;

use std::sync::Arc;
use std::thread::JoinHandle;

use wasm_jit::probes::Location;
use wasm_jit::{Engine, Instance, Linker, Module, Store, Val};
use wasm_jit_debug::{Debugger, Event, Outcome, Reason, Resume, Stop};

/// A program that runs on a separate thread, in a debugger.
struct Debugged {
    debugger: Arc<Debugger>,
    thread: Option<JoinHandle<()>>,
}

/// Defines `host.call`, which calls the exported function `back`, and `host.print`.
fn instantiate(store: &mut Store<()>, module: &Module) -> Instance {
    let mut linker: Linker<()> = Linker::new(module.engine());
    let call = |mut caller: wasm_jit::Caller<'_, ()>, value: i32| -> Result<i32, wasm_jit::Error> {
        let back = caller.get_export("back").and_then(|export| export.into_func());
        let back = back.expect("the module exports it").typed::<i32, i32>(&caller)?;
        back.call(&mut caller, value)
    };
    linker.func_wrap("host", "call", call).unwrap();
    linker.func_wrap("host", "print", |_: i32| {}).unwrap();
    linker.instantiate(&mut *store, module).unwrap()
}

/// Calls `main`, and returns its results or its error as text.
fn call_main(store: &mut Store<()>, instance: &Instance, arguments: &[Val]) -> Result<String, String> {
    let main = instance.get_func(&mut *store, "main").unwrap();
    let mut results = vec![Val::I32(0); main.ty(&*store).results().len()];
    let done = main.call(&mut *store, arguments, &mut results);
    let shown =
        || results.iter().map(|value| wasm_jit_debug::Value::from(value).to_string()).collect::<Vec<_>>();
    done.map(|()| shown().join(" ")).map_err(|error| error.reason())
}

impl Debugged {
    fn new(text: &str) -> Self {
        let module = Module::new(&Engine::default(), text).unwrap();
        Self { debugger: Arc::new(Debugger::new(&module)), thread: None }
    }

    /// Starts `main`.
    fn start(&mut self, arguments: &[Val]) {
        self.start_as(arguments, true);
    }

    /// As [`Self::start`]; unless the thread is known, pauses do not look for it in compiled code.
    fn start_as(&mut self, arguments: &[Val], is_known: bool) {
        let (debugger, arguments) = (self.debugger.clone(), arguments.to_vec());
        self.thread = Some(std::thread::spawn(move || {
            let module = debugger.code().module().clone();
            let mut store = Store::new(module.engine(), ());
            if is_known {
                debugger.add_thread(store.interrupt_handle());
            }
            let instance = instantiate(&mut store, &module);
            let outcome = match call_main(&mut store, &instance, &arguments) {
                Ok(results) => Outcome::returned(results),
                Err(error) => Outcome::failed(error, 1),
            };
            debugger.ended(outcome);
        }));
    }

    fn begin(text: &str, place: &str, arguments: &[Val]) -> (Self, Stop) {
        let mut debugged = Self::new(text);
        debugged.debugger.add_breakpoint(place, None, true).unwrap();
        debugged.start(arguments);
        let stop = debugged.stop();
        (debugged, stop)
    }

    #[track_caller]
    fn stop(&self) -> Stop {
        match self.debugger.wait() {
            Event::Stopped(stop) => stop,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn end(&mut self) -> Outcome {
        let outcome = match self.debugger.wait() {
            Event::Ended(outcome) => outcome,
            other => panic!("{other:?}"),
        };
        self.thread.take().unwrap().join().unwrap();
        outcome
    }

    #[track_caller]
    fn go(&self, resume: Resume) -> Stop {
        self.debugger.resume(resume).unwrap();
        self.stop()
    }

    #[track_caller]
    fn finish(&mut self) -> Outcome {
        self.debugger.resume(Resume::Continue).unwrap();
        self.end()
    }

    /// The value of an expression in a frame, as text.
    fn value(&self, level: usize, expression: &str) -> String {
        let expression = wasm_jit_debug::Expression::parse(expression);
        let look = move |stopped: &mut wasm_jit_debug::Stopped<'_, '_>| {
            expression.and_then(|expression| expression.evaluate(&mut stopped.frame(level)?))
        };
        match self.debugger.inspect(look).unwrap() {
            Ok(value) => value.to_string(),
            Err(error) => format!("<{error}>"),
        }
    }

    fn assign(&self, level: usize, to: &str, value: &str) -> Result<(), wasm_jit_debug::Error> {
        let parse = wasm_jit_debug::Expression::parse;
        let (to, value) = (parse(to)?, parse(value)?);
        self.debugger.inspect(move |stopped| {
            let mut scope = stopped.frame(level)?;
            let value = value.evaluate(&mut scope)?;
            to.assign(&mut scope, &value)
        })?
    }

    fn locations(&self) -> Vec<Option<Location>> {
        self.debugger.inspect(|stopped| stopped.locations().to_vec()).unwrap()
    }

    /// The text of the instruction at which a thread has stopped.
    fn text(&self, stop: &Stop) -> String {
        self.debugger.code().text(stop.location).to_owned()
    }
}

impl Drop for Debugged {
    fn drop(&mut self) {
        // So that a failing test ends.
        self.debugger.kill();
    }
}

fn is_breakpoint(stop: &Stop, wanted: u32) -> bool {
    stop.reasons.iter().any(|reason| matches!(reason, Reason::Breakpoint { number, .. } if *number == wanted))
}
