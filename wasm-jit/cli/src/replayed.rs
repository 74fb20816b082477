//! `wasm-jit run --replay` and `debug --replay`: recorded runs are run again.

use std::path::Path;
use std::sync::Arc;

use wasm_jit::{Error, Instance, Module, Store, Trap, Val};
use wasm_jit_debug::Killed;
use wasm_jit_replay::{
    DIFFERENCE, Ended, Error as ReplayError, HostFailed, INCOMPLETE, LAST, NEXT, POSITION, Reason, Replay,
    Snapshots,
};
use wasm_jit_wasi::Exit;

use super::Failure;
use super::execution::{Run, Stop, TRAPPED};
use super::host::Host;
use super::replay;

/// The message about a run whose end is not in its trace.
const TRACE_ENDED: &str = "the recording ends here, before the program does";

/// A recorded run before its start, with this much fuel.
pub(super) fn open(arguments: &Run, module: &Module, trace: &Path, fuel: u64) -> Result<Replay, Failure> {
    let about = |error| match error {
        // The recorded run has ended in the same way.
        ReplayError::Engine(error) if error.trap().is_some() => trapped(arguments, &error),
        error => replay::about(error, trace, arguments.file()),
    };
    let mut replay = Replay::new(module, replay::open(trace)?).map_err(about)?;
    match replay.set_fuel(fuel) {
        Ok(()) | Err(Error::NoFuel) => {}
        Err(error) => return Err(Failure::new(error)),
    }
    if let Some(limits) = arguments.limits.of_threads().of_store() {
        replay.set_limits(limits);
    }
    Ok(replay)
}

/// As [`open`], but the part of the run before this much fuel is consumed may be skipped.
pub(super) fn open_later(
    arguments: &Run,
    module: &Module,
    trace: &Path,
    fuel: u64,
    (snapshots, unobserved): (&Arc<Snapshots>, u64),
) -> Result<Replay, Failure> {
    let mut replay = open(arguments, module, trace, fuel)?;
    let begun = replay.use_snapshots(snapshots.clone(), unobserved);
    begun.map_err(|error| replay::about(error, trace, arguments.file()))?;
    Ok(replay)
}

/// Runs the replay to its end, which is where the program ended when it was recorded.
pub(super) fn run(arguments: &Run, trace: &Path, replay: &mut Replay) -> Result<(), Stop> {
    match replay.run() {
        Ok(Ended::Returned) => Ok(()),
        Ok(Ended::Failed(error)) => Err(failed(arguments, error)),
        Ok(Ended::Stopped(reason)) => {
            let again = match reason {
                Reason::Fuel(amount) => format!("; with --fuel {amount}, the replay ends there as well"),
                _ => String::new(),
            };
            let message = format!("the recorded run was stopped after this: {reason}{again}");
            Err(Stop::Failure(Failure { code: TRAPPED, ..Failure::of_file(trace, message) }))
        }
        Ok(_) => Err(Stop::Failure(Failure::of_file(trace, TRACE_ENDED))),
        // The run was stopped, or had other limits when it was recorded.
        Err(ReplayError::Failed { source, .. }) if is_ended(&source) => Err(Stop::Error(source)),
        Err(error) => Err(Stop::Failure(replay::about(error, trace, arguments.file()))),
    }
}

/// How the replay has ended with this error, if the module was made by `replay-gen` and reports it.
pub(super) fn outcome_of_module(
    store: &mut Store<Host>,
    instance: Instance,
    error: &Error,
) -> Option<String> {
    let mut value = |name| match instance.get_global(&mut *store, name)?.get(&mut *store) {
        Val::I32(value) => Some(value),
        _ => None,
    };
    let [difference, position, next] = [value(DIFFERENCE)?, value(POSITION)?, value(NEXT)?];
    let last = value(LAST)?;
    let differs = |event| format!("the replay differs from the recorded run at event {event} of the trace");
    // Modules without checks have no position. A run that was stopped may be like the recorded one.
    let is_trap = next != 0 && !is_ended(error) && error.trap() != Some(Trap::StackOverflow);
    match difference {
        0 if position == last && value(INCOMPLETE)? != 0 => Some(TRACE_ENDED.to_owned()),
        0 if position == last => Some("the replay has ended as the recorded run did".to_owned()),
        0 if is_trap => Some(differs(next)),
        0 => None,
        event => Some(differs(event)),
    }
}

fn is_ended(error: &Error) -> bool {
    error.downcast_ref::<Killed>().is_some()
        || matches!(error.trap(), Some(Trap::Interrupt | Trap::OutOfFuel))
}

/// Whether a program exits by this error in a replay, or the replay ends for another reason than an
/// error of the program.
pub(super) fn is_exit(error: &Error) -> bool {
    error.downcast_ref::<HostFailed>().is_some_and(|failed| {
        failed.name == "proc_exit"
            || match &failed.reason {
                // The replay has ended.
                None => true,
                Some(Reason::Exit(_)) => true,
                Some(Reason::Host(text)) => exit_of(text).is_some(),
                Some(_) => false,
            }
    })
}

/// The end of a program that failed as it did when it was recorded: it has trapped, or called a
/// host function that ended it.
fn failed(arguments: &Run, error: Error) -> Stop {
    use wasm_jit_replay::Value;
    match error.downcast_ref::<HostFailed>() {
        // Other modules, and functions of WASI that get an address outside of the memory.
        Some(HostFailed { reason: Some(Reason::Trap(_)), .. }) => Stop::Failure(trapped(arguments, &error)),
        Some(HostFailed { reason: Some(Reason::Exit(code)), .. }) => Stop::Error(Error::host(Exit(*code))),
        Some(HostFailed { name, arguments, .. }) if name == "proc_exit" => match arguments[..] {
            [Value::I32(code)] => Stop::Error(Error::host(Exit(code))),
            _ => Stop::Error(error),
        },
        Some(HostFailed { reason: Some(Reason::Host(text)), .. }) => match exit_of(text) {
            Some(exit) => Stop::Error(Error::host(exit)),
            None => Stop::Error(error),
        },
        _ => Stop::Error(error),
    }
}

/// The exit whose message this is: another module has ended the program. A trace up to version 5 of
/// the format has only the message.
fn exit_of(text: &str) -> Option<Exit> {
    let exit = Exit(text.rsplit(' ').next()?.parse().ok()?);
    (exit.to_string() == text).then_some(exit)
}

fn trapped(arguments: &Run, error: &Error) -> Failure {
    Failure { code: TRAPPED, ..Failure::of_file(arguments.file(), error) }
}
