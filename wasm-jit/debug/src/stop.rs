//! The reports of the debugger: stops and ends.

use std::sync::Arc;

use wasm_jit::Val;
use wasm_jit::probes::Location;

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
    /// The value of a watchpoint's expression has changed.
    Watch {
        /// Its number.
        number: u32,
        /// The expression.
        expression: String,
        /// The value before, or why there was none.
        old: Result<Value, String>,
        /// The value now.
        new: Result<Value, String>,
    },
    /// The frame of a watchpoint's expression has ended: the watchpoint is deleted.
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
}

impl Outcome {
    /// It has returned.
    pub fn returned(text: impl Into<String>) -> Self {
        Self { text: text.into(), has_failed: false, code: 0 }
    }

    /// It has exited with this code.
    pub fn exited(code: u8) -> Self {
        Self { text: format!("exit code {code}"), has_failed: false, code }
    }

    /// It has failed.
    pub fn failed(text: impl Into<String>, code: u8) -> Self {
        Self { text: text.into(), has_failed: true, code }
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
    /// It stops only if this is not 0.
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
