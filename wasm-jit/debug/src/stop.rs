//! The reports of the debugger: stops and ends.

use std::sync::Arc;

use wasm_jit::Val;
use wasm_jit::probes::Location;

use crate::code::Code;
use crate::expression::Expression;
use crate::value::Value;

/// An event in the program.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A thread has stopped.
    Stopped(Stop),
    /// The program has ended.
    Ended(Outcome),
}

/// A thread has stopped in front of an instruction.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stop {
    /// The location.
    pub location: Location,
    /// Number of frames outside of this one.
    pub depth: usize,
    /// Why; several reasons may come together.
    pub reasons: Vec<Reason>,
    /// A number of the thread, from 1, in the order in which threads have stopped first.
    pub thread: u32,
    /// What the watchpoints did not observe until now, if they observed anything.
    pub unwatched: Option<Unwatched>,
}

/// Functions that run, or were probed, but whose instructions cannot be observed. A value that they
/// change stops the thread later, at the next instruction of another function, or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unwatched {
    /// Their indices, in ascending order; at least one.
    pub functions: Vec<u32>,
    /// Why the first of them cannot.
    pub reason: String,
}

impl Unwatched {
    /// In one line, with the names of functions.
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

/// Why a thread has stopped.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Reason {
    /// A breakpoint.
    Breakpoint {
        /// Its number.
        number: u32,
        /// Whether it was for one stop, and is deleted now.
        once: bool,
        /// Why its condition has no value, if it has none.
        problem: Option<String>,
    },
    /// The value of a watchpoint's expression has changed. If the program goes back, it is in front
    /// of the instruction that changes it, and the two values are exchanged.
    Watch {
        /// Its number.
        number: u32,
        /// The expression.
        expression: String,
        /// The value before, or why there was none.
        old: Result<Value, String>,
        /// The value now.
        new: Result<Value, String>,
        /// Why its condition has no value, if it has none.
        problem: Option<String>,
    },
    /// The frame of a watchpoint's expression has ended, or does not exist yet if the program goes
    /// back: the watchpoint is deleted.
    OutOfScope {
        /// Its number.
        number: u32,
        /// The expression.
        expression: String,
    },
    /// A step has completed.
    Step,
    /// A frame has returned, after [`Resume::Finish`](crate::Resume::Finish).
    Finished {
        /// The function's results.
        results: Vec<Val>,
    },
    /// [`Debugger::pause`](crate::Debugger::pause).
    Pause,
    /// The program is where its run began: it does not go back any further.
    HistoryStart,
    /// The program could not go back: it is where it was.
    NotReversed {
        /// Why.
        problem: String,
    },
}

impl Reason {
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
    /// In words: results, exit code, trap with its backtrace.
    pub text: String,
    /// Whether it has trapped, or thrown an exception that it does not catch.
    pub has_failed: bool,
    /// The exit code.
    pub code: u8,
    /// The fuel that its store has left, if its run repeats.
    pub fuel: Option<u64>,
    /// As of a [`Stop`].
    pub unwatched: Option<Unwatched>,
}

impl Outcome {
    /// It has returned.
    pub fn returned(text: impl Into<String>) -> Self {
        Self { text: text.into(), has_failed: false, code: 0, fuel: None, unwatched: None }
    }

    /// It has exited with this code.
    pub fn exited(code: u8) -> Self {
        Self { text: format!("exit code {code}"), has_failed: false, code, fuel: None, unwatched: None }
    }

    /// It has failed.
    pub fn failed(text: impl Into<String>, code: u8) -> Self {
        Self { text: text.into(), has_failed: true, code, fuel: None, unwatched: None }
    }

    /// With the fuel that its store has left: see
    /// [`Debugger::allow_reverse`](crate::Debugger::allow_reverse).
    pub fn with_fuel(self, left: u64) -> Self {
        Self { fuel: Some(left), ..self }
    }
}

/// A breakpoint or watchpoint, as it is listed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Breakpoint {
    /// Its number.
    pub number: u32,
    /// The request: a place, or a watched expression.
    pub text: String,
    /// Whether it is a watchpoint.
    pub is_watch: bool,
    /// The locations at which it stops; empty for a watchpoint.
    pub locations: Vec<Location>,
    /// It stops only if this is not 0; a watchpoint, after the value has changed.
    pub condition: Option<Arc<Expression>>,
    /// Whether it is deleted when it has stopped the program.
    pub once: bool,
    /// Whether it stops the program.
    pub is_enabled: bool,
    /// Number of times that it has stopped the program, or would have if it were not ignored.
    pub hits: u64,
    /// Number of further hits that are ignored.
    pub ignore: u64,
}
