//! Clients of the GDB remote protocol.

use std::net::{Ipv4Addr, TcpListener};
use std::process::ExitCode;

use wasm_jit_debug::{Debugger, Event, GdbEnd, Outcome};

use super::program::Launcher;
use crate::Failure;

/// Waits for a client, and starts the program, which stops in its first function.
pub(super) fn serve_one(debugger: &Debugger, launcher: &Launcher, port: u16) -> Result<ExitCode, Failure> {
    let about = |error| Failure::new(error).about(format_args!("port {port}"));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(about)?;
    let address = listener.local_addr().map_err(about)?;
    // The reader may have gone.
    fastinst_command_line::say("wasm-jit", format_args!("waiting for a debugger at {address}"));
    let (connection, _) = listener.accept().map_err(about)?;
    match launcher.initial_function() {
        Some(first) => _ = debugger.add_breakpoint(&first, None, true).map_err(Failure::new)?,
        None => debugger.pause(),
    }
    launcher.start()?;
    match wasm_jit_debug::serve(debugger, connection) {
        Ok(GdbEnd::Ended(outcome)) => end(debugger, &outcome),
        Ok(GdbEnd::Killed) => Ok(ExitCode::SUCCESS),
        Ok(_) => run_on(debugger),
        Err(error) => {
            // The reader may have gone.
            let text = "the connection to the debugger has failed, and the program continues";
            fastinst_command_line::say("wasm-jit", format_args!("{text}: {error}"));
            run_on(debugger)
        }
    }
}

/// Waits for the end of a program that nothing stops any more.
fn run_on(debugger: &Debugger) -> Result<ExitCode, Failure> {
    loop {
        if let Event::Ended(outcome) = debugger.wait() {
            return end(debugger, &outcome);
        }
    }
}

fn end(debugger: &Debugger, outcome: &Outcome) -> Result<ExitCode, Failure> {
    if let Some(unwatched) = &outcome.unwatched {
        // The reader may have gone.
        fastinst_command_line::say("wasm-jit", unwatched.text(debugger.code()));
    }
    match outcome.has_failed {
        true => Err(Failure { code: outcome.code, message: outcome.text.clone() }),
        false => Ok(ExitCode::from(outcome.code)),
    }
}
