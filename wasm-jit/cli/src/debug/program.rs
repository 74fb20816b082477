//! Runs of the program that is debugged.

use std::borrow::Cow;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use wasm_jit::Module;
use wasm_jit_debug::{Debugger, Outcome, Repetition};
use wasm_jit_replay::{Event, Reader, Snapshots};

use crate::Failure;
use crate::execution::{self, Run, Stop};
use crate::monitors::Monitors;
use crate::program::{self, Program};
use crate::{replay, replayed};

/// Maximum time until a program that is killed has ended.
const PATIENCE: Duration = Duration::from_secs(2);
/// The time after which it is looked at again.
const POLL: Duration = Duration::from_millis(1);

/// Starts the program, any number of times.
#[derive(Debug)]
pub(super) struct Launcher {
    arguments: Arc<Run>,
    module: Module,
    debugger: Arc<Debugger>,
    monitors: Monitors,
    /// The thread of the last run.
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Where later runs begin, if this is a recorded run.
    snapshots: Arc<Snapshots>,
}

impl Launcher {
    pub(super) fn new(arguments: Run, module: Module, debugger: Arc<Debugger>, monitors: Monitors) -> Self {
        let arguments = Arc::new(arguments);
        debugger.exits_by(|error| execution::is_exit(error) || replayed::is_exit(error));
        let snapshots = Arc::new(Snapshots::new());
        if arguments.replay.is_some() {
            // The debugger keeps this closure.
            let (again, weak) = (arguments.clone(), Arc::downgrade(&debugger));
            let (module, snapshots) = (module.clone(), snapshots.clone());
            let start = move |run: Repetition| match weak.upgrade() {
                Some(debugger) => {
                    let from = (&snapshots, run.unobserved);
                    let started = start_recorded(&again, &module, &debugger, run.fuel, from);
                    started.map_err(|failure| failure.message)
                }
                None => Ok(()),
            };
            debugger.allow_reverse(arguments.given_fuel(), start);
        }
        Self { arguments, module, debugger, monitors, thread: Mutex::default(), snapshots }
    }

    /// The exported function that is called first, if it is known.
    pub(super) fn first_function(&self) -> Option<Cow<'_, str>> {
        let names = ["main", "__main_argc_argv", "__original_main", "__main_void", "_start"];
        let is_there = |name: &&&str| self.debugger.code().function(name).is_ok();
        let main = || names.iter().find(is_there).copied();
        let invoked = self.arguments.invoke.as_deref().or_else(main).map(Cow::from);
        invoked.or_else(|| self.arguments.replay.as_deref().and_then(first_call).map(Cow::from))
    }

    /// The function of the program that is executed first, if it is known: the start function, or
    /// the initialization of a library, precedes the one that is called.
    pub(super) fn initial_function(&self) -> Option<Cow<'_, str>> {
        // A recorded run begins with its first call.
        if self.arguments.replay.is_none() {
            let code = self.debugger.code();
            let start = self.module.start_function().filter(|start| start.body().is_some());
            if let Some(start) = start {
                return Some(format!("#{}", start.index()).into());
            }
            if code.function("_initialize").is_ok() && self.module.get_export("_initialize").is_some() {
                return Some("_initialize".into());
            }
        }
        self.first_function()
    }

    /// Starts the program on a thread, which tells the debugger how it has ended.
    pub(super) fn start(&self) -> Result<(), Failure> {
        self.debugger.begin();
        if self.arguments.replay.is_some() {
            let fuel = self.arguments.given_fuel();
            let from = (&self.snapshots, 0);
            return start_recorded(&self.arguments, &self.module, &self.debugger, fuel, from);
        }
        let (arguments, module) = (self.arguments.clone(), self.module.clone());
        let (debugger, monitors) = (self.debugger.clone(), self.monitors.clone());
        let run = move || {
            let outcome = run(&arguments, module, &monitors, &debugger);
            monitors.write();
            debugger.ended(outcome);
        };
        let thread = program::with_stack(self.arguments.limits.max_stack, run)?;
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(())
    }

    /// Ends the program if it runs, which writes the reports of its monitors, and then the
    /// monitors.
    pub(super) fn end(&self) {
        if !self.monitors.any() {
            return;
        }
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && !thread.is_finished()
        {
            self.debugger.kill();
            let begun = Instant::now();
            while !thread.is_finished() && begun.elapsed() < PATIENCE {
                std::thread::sleep(POLL);
            }
            if !thread.is_finished() {
                // It waits in a host function, and cannot be ended.
                self.monitors.finish();
                return;
            }
        }
        self.monitors.end();
    }
}

/// The first function that is called in a trace, by its index.
fn first_call(trace: &Path) -> Option<String> {
    // Defects of the trace are reported when it is replayed.
    Reader::new(replay::open(trace).ok()?).map_while(Result::ok).find_map(|event| match event {
        Event::Enter { function, .. } => Some(format!("#{function}")),
        _ => None,
    })
}

/// Starts a recorded run on a thread, which tells the debugger how it has ended.
fn start_recorded(
    arguments: &Arc<Run>,
    module: &Module,
    debugger: &Arc<Debugger>,
    fuel: u64,
    (snapshots, unobserved): (&Arc<Snapshots>, u64),
) -> Result<(), Failure> {
    let snapshots = snapshots.clone();
    let (arguments, module, debugger) = (arguments.clone(), module.clone(), debugger.clone());
    let stack = arguments.limits.max_stack;
    let run = move || {
        let from = (&snapshots, unobserved);
        let outcome = run_recorded(&arguments, &module, &debugger, fuel, from);
        debugger.ended(outcome);
    };
    program::with_stack(stack, run).map(drop)
}

fn run_recorded(
    arguments: &Run,
    module: &Module,
    debugger: &Debugger,
    fuel: u64,
    from: (&Arc<Snapshots>, u64),
) -> Outcome {
    let trace = arguments.replay.as_deref().expect("a replay has a trace");
    let mut replay = match replayed::open_later(arguments, module, trace, fuel, from) {
        Ok(replay) => replay,
        Err(failure) => return Outcome::failed(failure.message, failure.code),
    };
    debugger.add_thread(replay.interrupt_handle());
    let outcome = execution::outcome(&replayed::run(arguments, trace, &mut replay));
    match replay.fuel() {
        Ok(left) => outcome.with_fuel(left),
        Err(_) => outcome,
    }
}

fn run(arguments: &Run, module: Module, monitors: &Monitors, debugger: &Arc<Debugger>) -> Outcome {
    let done = || -> Result<(), Stop> {
        let wasi = execution::wasi_context(arguments).map_err(Stop::Failure)?;
        let imported = (wasi, arguments.imports(module.engine()).map_err(Stop::Failure)?);
        let observers = (monitors.clone(), Some(debugger.clone()), None);
        let program = Program::new(module, imported, observers, arguments.limits.of_threads())?;
        let mut store = program.main_store()?;
        debugger.add_thread(store.interrupt_handle());
        let started = program.instantiate(&mut store).map_err(Stop::Error);
        let done = started.and_then(|instance| execution::execute(arguments, &mut store, &instance));
        program.ended().map_or(done, |error| Err(Stop::Error(error)))
    };
    execution::outcome(&done())
}
