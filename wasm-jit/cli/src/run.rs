//! `wasm-jit run`: runs a program.

use std::io::BufWriter;
use std::path::Path;
use std::process::ExitCode;

use tempfile::NamedTempFile;
use wasm_jit::{Error, Module, Trap};

use super::Failure;
use super::count::Counts;
use super::debug::Port;
use super::execution::{self, Run, Stop};
use super::monitor_modules::MonitorModules;
use super::monitors::{Monitors, Requests};
use super::program::{self, Program};
use super::recordings::Recording;
use super::replayed;
use super::signals::Signals;

/// Runs the program on a separate thread with the requested stack size.
pub(super) fn run(mut arguments: Run) -> Result<ExitCode, Failure> {
    arguments.monitors.is_replayed = arguments.replay.is_some();
    arguments.monitors.has_fuel = arguments.limits.fuel.is_some();
    let requests = arguments.monitors.requests()?;
    // Before there are threads: they must not get the signals.
    let signals = Signals::block(arguments.monitors.signals())?;
    let stack = arguments.limits.max_stack;
    program::run_with_stack(stack, move || run_here(&arguments, requests, &signals))
}

fn run_here(arguments: &Run, requests: Requests, signals: &Signals) -> Result<ExitCode, Failure> {
    let module = arguments.load()?;
    let _known_to_gdb = arguments.gdb.then(|| module.show_to_gdb());
    let counts = Counts::of(&module, &arguments.counts)?;
    let monitors = Monitors::start(&module, &arguments.inputs(), &arguments.monitors, requests)?;
    let of_signals = monitors.clone();
    signals.obey(move |signal| of_signals.act(signal));
    let done = run_observed(arguments, module, counts, monitors.clone());
    // If it has failed before the program could run.
    monitors.detach();
    done
}

fn run_observed(
    arguments: &Run,
    module: Module,
    counts: Counts,
    monitors: Monitors,
) -> Result<ExitCode, Failure> {
    let debug_port = arguments.debug_port.as_ref().map(|address| Port::open(&module, address)).transpose()?;
    if arguments.perf_map {
        // Includes the code that runs while there are probes.
        write_perf_map(&module)?;
    }
    let observers = Observers { module: module.clone(), counts, monitors, debug_port };
    let done = match &arguments.replay {
        Some(trace) => observers.run_recorded(arguments, trace),
        None => observers.run(arguments),
    };
    if arguments.perf_map {
        // Includes the code that was compiled since.
        write_perf_map(&module).unwrap_or_else(|failure| _ = failure.report());
    }
    done
}

/// What observes a program.
struct Observers {
    module: Module,
    counts: Counts,
    monitors: Monitors,
    debug_port: Option<Port>,
}

impl Observers {
    fn run_recorded(self, arguments: &Run, trace: &Path) -> Result<ExitCode, Failure> {
        let Self { module, counts, monitors, debug_port } = self;
        let mut replay = replayed::open(arguments, &module, trace, arguments.given_fuel())?;
        if let Some(port) = &debug_port {
            port.add_thread(replay.interrupt_handle());
        }
        let timeout = arguments.limits.timeout.map(|time| replay.interrupt_handle().interrupt_after(time));
        let timeout = timeout.transpose().map_err(Failure::new)?;
        let done = replayed::run(arguments, trace, &mut replay);
        counts.print();
        monitors.finish();
        if let Some(port) = &debug_port {
            port.ended(execution::outcome(&done));
        }
        let has_timed_out = timeout.is_some_and(|timeout| timeout.has_fired());
        exit_code(arguments, done, has_timed_out, None).map(ExitCode::from)
    }

    fn run(self, arguments: &Run) -> Result<ExitCode, Failure> {
        let Self { module, counts, monitors, debug_port } = self;
        let wasi = execution::wasi_context(arguments)?;
        let imports = arguments.imports(module.engine())?;
        let recording = arguments.recorded.as_ref();
        let recording = recording.map(|recorded| {
            Recording::start(&module, (arguments.file(), &arguments.inputs()), &imports.preloads, recorded)
        });
        let recording = recording.transpose()?;
        let recorders = recording.as_ref().and_then(Recording::of_run);
        let (imported, limits) = ((wasi, imports), arguments.limits.of_threads());
        let observers = (monitors.clone(), debug_port.as_ref().map(Port::debugger), recorders);
        let program = Program::new(module.clone(), imported, observers, limits);
        let program = program.map_err(|error| Failure::of_file(arguments.file(), error))?;
        let mut store = program.main_store().map_err(Failure::new)?;
        if let Some(port) = &debug_port {
            port.add_thread(store.interrupt_handle());
        }
        let timeout = arguments.limits.timeout.map(|time| store.interrupt_handle().interrupt_after(time));
        let timeout = timeout.transpose().map_err(Failure::new)?;
        let directory = arguments.monitors.directory();
        let mut modules = MonitorModules::attach(monitors.modules(), directory, &mut store, &module)?;
        let started = program.instantiate(&mut store);
        let instance = started.as_ref().ok().copied();
        let done = started
            .map_err(Stop::Error)
            .and_then(|instance| execution::execute(arguments, &mut store, &instance));
        let of_thread = program.ended();
        let is_of_main = of_thread.is_none();
        let done = of_thread.map_or(done, |error| Err(Stop::Error(error)));
        let replayed = match (&done, instance) {
            (Err(Stop::Error(error)), Some(instance)) if is_of_main => {
                replayed::outcome_of_module(&mut store, instance, error)
            }
            _ => None,
        };
        counts.print();
        let culprit = match &done {
            Err(Stop::Error(error)) => modules.culprit(error, &mut store).map(Path::to_owned),
            _ => None,
        };
        let finished = modules.finish(&mut store);
        monitors.finish();
        finished.report(&module, &arguments.monitors);
        if let Some(port) = &debug_port {
            port.ended(execution::outcome(&done));
        }
        let has_timed_out = timeout.is_some_and(|timeout| timeout.has_fired());
        let recorded = recording.map_or(Ok(None), |recording| recording.finish(&mut store, arguments.file()));
        if let (Ok(Some(calls)), Some(wanted)) = (&recorded, &arguments.recorded)
            && let Some(message) = wanted.missing(*calls)
        {
            Failure::new(message).report();
        }
        let code = exit_code(arguments, done, has_timed_out, culprit.as_deref());
        if let Some(message) = replayed {
            Failure::new(message).about(arguments.file().display()).report();
        }
        match (code, recorded) {
            (Ok(0), Err(failure)) => Err(failure),
            (code, Err(failure)) => {
                // The program's exit code stays valid.
                failure.report();
                code.map(ExitCode::from)
            }
            (code, Ok(_)) => code.map(ExitCode::from),
        }
    }
}

/// Calls between the program and its host go through the recording, which has frames of its own.
const NEEDS_STACK: &str = "; recording needs more stack than `run`: --max-stack sets it";

/// What defines the functions of WasmProf.
const HAS_PROF: &str = "; it is defined with --monitors=profile, or --control";

/// The exit code of a program. `culprit` is the file of the monitor that has stopped it, if one
/// has.
fn exit_code(
    arguments: &Run,
    done: Result<(), Stop>,
    has_timed_out: bool,
    culprit: Option<&Path>,
) -> Result<u8, Failure> {
    match done {
        Ok(()) => Ok(0),
        Err(Stop::Failure(failure)) => Err(failure),
        Err(Stop::Error(error)) => {
            let ended = execution::ended(&error).map_err(|failure| match arguments.limits.timeout {
                // Time may also be up after the program has ended for another reason.
                Some(time) if has_timed_out && error.trap() == Some(Trap::Interrupt) => {
                    failure.about(format_args!("timed out after {time:?}"))
                }
                _ => failure,
            });
            let ended = ended.map_err(|failure| match error.trap() {
                Some(Trap::StackOverflow) if arguments.recorded.is_some() => failure.advise(NEEDS_STACK),
                _ => failure,
            });
            let ended = ended.map_err(|failure| match &error {
                Error::UnknownImport { module, .. } if module == "prof" => failure.advise(HAS_PROF),
                _ => failure,
            });
            let ended = ended.map_err(|failure| match culprit {
                Some(monitor) => failure.about(format_args!("in the monitor {}", monitor.display())),
                None => failure,
            });
            ended.map_err(|failure| failure.about(arguments.file().display()))
        }
    }
}

fn write_perf_map(module: &Module) -> Result<(), Failure> {
    let path = format!("/tmp/perf-{}.map", std::process::id());
    // The name can be predicted, so what is there may be another user's link or pipe.
    let written = NamedTempFile::new_in("/tmp").and_then(|file| {
        let mut out = BufWriter::new(file);
        module.write_perf_map(&mut out)?;
        Ok(out.into_inner()?.persist(&path)?)
    });
    written.map(drop).map_err(|error| Failure::new(error).about(path))
}
