//! The reports of the debugger: stops and ends.

use std::sync::Arc;

use wasm_jit::probes::{Location, UnwoundException};
use wasm_jit::{Trap, Val};

use crate::code::Code;
use crate::expression::Expression;
use crate::value::Value;

/// An event of the program.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A thread has stopped.
    Stopped(Stop),
    /// The program has ended.
    Ended(Outcome),
}

/// The stop of a thread before an instruction.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stop {
    /// The location of the instruction, in the innermost frame.
    pub location: Location,
    /// The number of frames outside of the innermost one.
    pub depth: usize,
    /// The reasons for the stop; there may be several at once.
    pub reasons: Vec<Reason>,
    /// The number of the thread: threads are numbered from 1 in the order of their first stops.
    pub thread: u32,
    /// The functions that the watchpoints did not observe so far, if there are watchpoints and such
    /// functions.
    pub unwatched: Option<Unwatched>,
}

/// Functions that run, or were probed, but whose instructions cannot be observed. If they change a
/// value, the thread stops later, at the next instruction of another function, or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unwatched {
    /// The indices of the functions, in ascending order; at least one.
    pub functions: Vec<u32>,
    /// The reason for the first of the functions.
    pub reason: String,
}

impl Unwatched {
    /// A description in one line, with the names of the functions.
    pub fn text(&self, code: &Code) -> String {
        let first = self.functions.first().map(|function| code.name(*function)).unwrap_or_default();
        let others = match self.functions.len() {
            0 | 1 => String::new(),
            2 => " and 1 other function".to_owned(),
            count => format!(" and {} other functions", count - 1),
        };
        format!("not watched: {first}{others}: {}", self.reason)
    }
}

/// The reason why a thread has stopped.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Reason {
    /// The thread has reached a breakpoint.
    Breakpoint {
        /// The number of the breakpoint.
        number: u32,
        /// Whether the breakpoint was for one stop, and is now deleted.
        once: bool,
        /// The reason why the breakpoint's condition has no value, if it has none.
        problem: Option<String>,
    },
    /// The value of a watchpoint's expression has changed. If the program goes back, it stops
    /// before the instruction that changes the value, and the two values are exchanged.
    Watch {
        /// The number of the watchpoint.
        number: u32,
        /// The watched expression.
        expression: String,
        /// The value before the change, or why there was none.
        old: Result<Value, String>,
        /// The value after the change, or why there is none.
        new: Result<Value, String>,
        /// The reason why the watchpoint's condition has no value, if it has none.
        problem: Option<String>,
    },
    /// The frame of a watchpoint's expression has ended or, if the program goes back, does not
    /// exist yet. The watchpoint is deleted.
    OutOfScope {
        /// The number of the watchpoint.
        number: u32,
        /// The watched expression.
        expression: String,
    },
    /// A step has completed.
    Step,
    /// The frame chosen by [`Resume::Finish`](crate::Resume::Finish) has returned.
    Finished {
        /// The results of the frame's function.
        results: Vec<Val>,
    },
    /// [`Debugger::pause`](crate::Debugger::pause) has stopped the thread.
    Pause,
    /// The instruction, or the host function that it has called, has trapped, and the program is
    /// about to end. See [`Debugger::catch_traps`](crate::Debugger::catch_traps).
    Trapped {
        /// The trap.
        trap: Trap,
    },
    /// The instruction, or the host function that it has called, has thrown an exception that the
    /// program does not catch, and the program is about to end.
    Thrown {
        /// The exception.
        exception: UnwoundException,
    },
    /// The host function that the instruction has called, or the engine, has failed with an error
    /// that is no trap, and the program is about to end.
    Failed {
        /// The error.
        error: String,
    },
    /// The program has gone back to the beginning of its run.
    HistoryStart,
    /// The program could not go back, and is where it was.
    NotReversed {
        /// The problem.
        problem: String,
    },
}

impl Reason {
    /// Whether the program is about to end for this reason.
    pub(crate) fn is_ending(&self) -> bool {
        matches!(self, Self::Trapped { .. } | Self::Thrown { .. } | Self::Failed { .. })
    }

    /// The number of the breakpoint or watchpoint.
    pub(crate) fn number(&self) -> Option<u32> {
        match self {
            Self::Breakpoint { number, .. }
            | Self::Watch { number, .. }
            | Self::OutOfScope { number, .. } => Some(*number),
            _ => None,
        }
    }
}

/// The end of a program.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// A description: results, exit code, or trap with its backtrace.
    pub text: String,
    /// Whether the program has trapped, or thrown an exception that it does not catch.
    pub has_failed: bool,
    /// The exit code.
    pub code: u8,
    /// The fuel that the store has left, if the run is repeatable.
    pub fuel: Option<u64>,
    /// The functions that the watchpoints did not observe: see [`Stop::unwatched`].
    pub unwatched: Option<Unwatched>,
}

impl Outcome {
    /// The outcome of a program that has returned.
    pub fn returned(text: impl Into<String>) -> Self {
        Self { text: text.into(), has_failed: false, code: 0, fuel: None, unwatched: None }
    }

    /// The outcome of a program that has exited with this code.
    pub fn exited(code: u8) -> Self {
        Self { text: format!("exit code {code}"), has_failed: false, code, fuel: None, unwatched: None }
    }

    /// The outcome of a program that has failed.
    pub fn failed(text: impl Into<String>, code: u8) -> Self {
        Self { text: text.into(), has_failed: true, code, fuel: None, unwatched: None }
    }

    /// Adds the fuel that the store has left: see
    /// [`Debugger::allow_reverse`](crate::Debugger::allow_reverse).
    pub fn with_fuel(self, left: u64) -> Self {
        Self { fuel: Some(left), ..self }
    }
}

/// A breakpoint or watchpoint, as in a list of them.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Breakpoint {
    /// The number of the breakpoint or watchpoint.
    pub number: u32,
    /// The request: a location, or a watched expression.
    pub text: String,
    /// Whether it is a watchpoint.
    pub is_watch: bool,
    /// The locations of a breakpoint; empty for a watchpoint.
    pub locations: Vec<Location>,
    /// It stops the program only if this is not 0; for a watchpoint, this is evaluated after the
    /// value has changed.
    pub condition: Option<Arc<Expression>>,
    /// Whether it is deleted once it has stopped the program.
    pub once: bool,
    /// Whether it is enabled.
    pub is_enabled: bool,
    /// The number of times that it has stopped the program, or would have stopped it without
    /// `ignore`.
    pub hits: u64,
    /// The number of further hits that are ignored.
    pub ignore: u64,
}

impl Breakpoint {
    /// Counts a hit. Returns whether it stops the program, because it is not ignored.
    pub(crate) fn hit(&mut self) -> bool {
        self.hits += 1;
        let stops = self.ignore == 0;
        self.ignore = self.ignore.saturating_sub(1);
        stops
    }
}
