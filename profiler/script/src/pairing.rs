//! Pairing of exits with entries, on one thread: the worker's copy of the thread's stack of calls.
//!
//! All entries and exits of the observed functions are known, so an exit belongs to the topmost
//! open entry with the same function and the same return address. What is above it has ended
//! without an exit: by `longjmp`, or by an exception in code that was not compiled to report it.
//! Two things can be said about such leftovers:
//!
//! - A call whose frame is below the stack pointer of a later entry has ended.
//! - At an exit that is a call in the function's own frame, the function's entry was made at the
//!   same stack pointer, or above if `alloca` has moved it. An entry below the exit is not its own.
//!   At an exit that is a tail call, the frame is gone, and this cannot be said.
//!
//! A signal handler on a stack of its own may be above or below the frames that it has interrupted.
//! Entries that are cut off for this reason leave exits without an entry, which are counted.

use crate::stacks::{self, Stacks};

/// An open call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Open {
    pub(crate) function: u32,
    /// The return address of the function.
    pub(crate) call_site: u64,
    pub(crate) stack_pointer: u64,
    pub(crate) ticks: u64,
    /// Its number among those of the script, if the script asks for stacks.
    pub(crate) stack: u32,
}

/// An exit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exit {
    pub(crate) function: u32,
    pub(crate) call_site: u64,
    pub(crate) stack_pointer: u64,
    /// Whether the frame is gone.
    pub(crate) is_tail: bool,
}

/// The open calls of a thread.
#[derive(Debug, Default)]
pub(crate) struct Calls(Vec<Open>);

/// Deeper recursion than this has entries without exits.
const MAX_DEPTH: usize = 1 << 20;

impl Calls {
    /// Adds a call; returns the number of open calls with it, and their stack, if there are stacks.
    pub(crate) fn enter(&mut self, mut call: Open, stacks: Option<&mut Stacks>) -> (u32, u32) {
        let is_over = |below: &Open| {
            below.stack_pointer < call.stack_pointer
                || below.stack_pointer == call.stack_pointer && below.function == call.function
        };
        while self.0.last().is_some_and(is_over) {
            self.0.pop();
        }
        if let Some(stacks) = stacks {
            let caller = self.0.last().map_or(stacks::EMPTY, |caller| caller.stack);
            call.stack = stacks.of_call(caller, call.function);
        }
        if self.0.len() < MAX_DEPTH {
            self.0.push(call);
        }
        (self.0.len() as u32, call.stack)
    }

    /// Removes the call of an exit, and what is above it; returns it with the number of open calls
    /// that there were with it. `None` if there is no such call.
    pub(crate) fn exit(&mut self, exit: Exit) -> Option<(Open, u32)> {
        let is_own = |call: &Open| {
            call.function == exit.function
                && call.call_site == exit.call_site
                && (exit.is_tail || call.stack_pointer >= exit.stack_pointer)
        };
        let at = self.0.iter().rposition(is_own)?;
        let call = self.0[at];
        self.0.truncate(at);
        Some((call, at as u32 + 1))
    }
}
