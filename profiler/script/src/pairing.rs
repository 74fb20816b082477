//! Pairs exits with entries, on one thread: the worker's copy of the thread's stack of calls.
//!
//! All entries and exits of the observed functions are known, so an exit belongs to the topmost
//! open entry with the same function and the same return address. Calls above it have ended without
//! an exit: by `longjmp`, or by an exception in code that was not compiled to report it. Such
//! leftovers are recognized by two rules:
//!
//! - A call whose frame is below the stack pointer of a later entry has ended.
//! - At an exit that is a call in the function's own frame, the function's entry was made at the
//!   same stack pointer, or above it if `alloca` has moved it. An entry below the exit is not its
//!   entry. At an exit that is a tail call, the frame is gone, and this rule does not apply.
//!
//! A function may be split ([`profiler::binary::parts`]): its entry is then in the frame of its
//! caller, and an exit in a part that was called from there, or entered by a jump. Such an exit
//! belongs to the topmost open entry of the function that is above the frame of the part, or has
//! the same return address.
//!
//! A signal handler on a separate stack may be above or below the frames that it has interrupted.
//! Entries that are removed for this reason leave exits without an entry, which are counted.

use wasm_jit_whamm::native::NativeFrame;

use crate::ring::Values;
use crate::stacks::{self, Stacks};

/// An open call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Open {
    pub(crate) function: u32,
    /// The return address of the function.
    pub(crate) call_site: u64,
    pub(crate) stack_pointer: u64,
    pub(crate) ticks: u64,
    /// The number of its stack for the script, if the script asks for stacks.
    pub(crate) stack: u32,
    /// The call's frame variables, once a rule has used some.
    pub(crate) frame: Option<NativeFrame>,
}

/// An exit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exit {
    pub(crate) function: u32,
    pub(crate) call_site: u64,
    pub(crate) stack_pointer: u64,
    /// Whether the frame of the call is gone.
    pub(crate) is_tail: bool,
    /// Whether it is in a part of the function that was split off.
    pub(crate) is_in_part: bool,
}

/// The open calls of a thread.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    /// The open calls, each with the number of values below it, and whether it has values itself.
    open: Vec<(Open, u32, bool)>,
    /// The arguments of calls that have some.
    values: Vec<Values>,
    /// The frame variables of calls that have ended without an exit.
    ended: Vec<NativeFrame>,
    /// The functions of calls that have ended without an exit.
    left: Vec<u32>,
}

/// A call that has begun.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entered {
    /// The number of open calls, including this one.
    pub(crate) depth: u32,
    /// The stack of open calls, if the script asks for stacks.
    pub(crate) stack: u32,
    /// Whether the call was added, so that its end is recognized.
    pub(crate) is_open: bool,
}

/// The maximum number of open calls: deeper recursion has entries without exits.
const MAX_DEPTH: usize = 1 << 20;

impl Calls {
    /// Adds a call with its arguments.
    pub(crate) fn enter(&mut self, mut call: Open, values: &Values, stacks: Option<&mut Stacks>) -> Entered {
        let is_over = |(below, ..): &&(Open, u32, bool)| {
            below.stack_pointer < call.stack_pointer
                || below.stack_pointer == call.stack_pointer && below.function == call.function
        };
        let ended = self.open.iter().rev().take_while(is_over).count();
        self.leave(self.open.len() - ended);
        if let Some(stacks) = stacks {
            let caller = self.open.last().map_or(stacks::EMPTY, |(caller, ..)| caller.stack);
            call.stack = stacks.of_call(caller, call.function);
        }
        let is_open = self.open.len() < MAX_DEPTH;
        if is_open {
            let has_values = values.known != 0;
            self.open.push((call, self.values.len() as u32, has_values));
            self.values.extend(has_values.then_some(*values));
        }
        Entered { depth: self.open.len() as u32, stack: call.stack, is_open }
    }

    /// Sets the frame variables of the innermost open call.
    pub(crate) fn set_frame(&mut self, frame: NativeFrame) {
        if let Some((call, ..)) = self.open.last_mut() {
            call.frame = Some(frame);
        }
    }

    /// The frame variables of calls that have ended without an exit, since the last call to this
    /// function.
    pub(crate) fn take_ended(&mut self) -> impl Iterator<Item = NativeFrame> {
        self.ended.drain(..)
    }

    /// The functions of calls that have ended without an exit, since the last call to this
    /// function. Calls that were open when [all calls](Self::clear) were ended are not among them.
    pub(crate) fn take_left(&mut self) -> impl Iterator<Item = u32> {
        self.left.drain(..)
    }

    /// Ends all calls.
    pub(crate) fn clear(&mut self) {
        self.truncate(0);
    }

    /// Removes the call of an exit, and the calls above it; returns it with the number of open
    /// calls that there were, including it, and its arguments. `None` if there is no such call.
    pub(crate) fn exit(&mut self, exit: Exit) -> Option<(Open, u32, Values)> {
        let is_own = |(call, ..): &(Open, u32, bool)| {
            let has_call_site = call.call_site == exit.call_site;
            let is_its_frame = match exit.is_in_part {
                false => has_call_site && (exit.is_tail || call.stack_pointer >= exit.stack_pointer),
                // At a tail call, the frame of the part is gone.
                true if exit.is_tail => has_call_site || call.stack_pointer >= exit.stack_pointer,
                true => has_call_site || call.stack_pointer > exit.stack_pointer,
            };
            call.function == exit.function && is_its_frame
        };
        let at = self.open.iter().rposition(is_own)?;
        let (call, below, has_values) = self.open[at];
        let values = if has_values { self.values[below as usize] } else { Values::NONE };
        // The caller gets its frame variables.
        self.open[at].0.frame = None;
        self.leave(at + 1);
        self.truncate(at);
        Some((call, at as u32 + 1, values))
    }

    /// Removes calls that have ended without an exit.
    fn leave(&mut self, length: usize) {
        self.left.extend(self.open.iter().skip(length).map(|(call, ..)| call.function));
        self.truncate(length);
    }

    fn truncate(&mut self, length: usize) {
        if let Some((_, below, _)) = self.open.get(length) {
            self.values.truncate(*below as usize);
        }
        let ended = self.open.iter().skip(length);
        self.ended.extend(ended.filter_map(|(call, ..)| call.frame));
        self.open.truncate(length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_without_an_exit_are_known() {
        let mut calls = Calls::default();
        let enter = |calls: &mut Calls, function: u32, stack_pointer: u64| {
            let (call_site, ticks, stack, frame) = (function.into(), 0, stacks::EMPTY, None);
            let open = Open { function, call_site, stack_pointer, ticks, stack, frame };
            calls.enter(open, &Values::NONE, None);
        };
        let exit = |calls: &mut Calls, function: u32, stack_pointer: u64| {
            let (call_site, is_tail, is_in_part) = (function.into(), false, false);
            let exit = Exit { function, call_site, stack_pointer, is_tail, is_in_part };
            assert!(calls.exit(exit).is_some());
        };
        let left = |calls: &mut Calls| calls.take_left().collect::<Vec<_>>();
        (0..4).for_each(|function| enter(&mut calls, function, 1000 - 10 * u64::from(function)));
        exit(&mut calls, 3, 970);
        assert!(left(&mut calls).is_empty());
        // Calls 1 and 2 were left by an exception that call 0 has caught, which then calls 5.
        enter(&mut calls, 5, 995);
        enter(&mut calls, 6, 985);
        assert_eq!(left(&mut calls), [1, 2]);
        // Call 0 returns after the others were left.
        exit(&mut calls, 0, 1000);
        assert_eq!(left(&mut calls), [5, 6]);
        enter(&mut calls, 7, 1000);
        calls.clear();
        assert!(left(&mut calls).is_empty());
    }
}
