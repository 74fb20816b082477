//! The actions that our entries cover, in the order of their installation.
//!
//! An entry is bound to its action when it is first installed, for the life of the process.
//! [`own_sigtrap`] examines the action in force:
//! 1. One of our entries: nothing is done. The program may have restored it.
//! 2. An action that an entry is bound to: that entry is installed again, and becomes the latest in
//!    the order.
//! 3. Another action: the next free entry is bound to it and installed.
//!
//! If the program changes the action at the same time, the installation returns another action than
//! the one examined, which is then covered as well. Therefore no action is lost, whichever comes
//! first. In between, for two system calls of the covering thread, the action that was examined
//! first receives the traps: the kernel has no compare-and-exchange for actions.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use super::action::Action;
use super::entry::{self, ENTRIES};
use crate::Error;

/// An entry, and the action to which it is bound.
pub(super) struct Entry {
    /// The position in the order of installations; 0 while the entry is free. Written last.
    rank: AtomicU64,
    function: AtomicUsize,
    flags: AtomicI32,
    mask: AtomicU64,
    /// The action was valid for one trap (SA_RESETHAND), and has received it.
    is_used_up: AtomicBool,
}

impl Entry {
    const fn free() -> Self {
        Self {
            rank: AtomicU64::new(0),
            function: AtomicUsize::new(0),
            flags: AtomicI32::new(0),
            mask: AtomicU64::new(0),
            is_used_up: AtomicBool::new(false),
        }
    }

    fn rank(&self) -> u64 {
        self.rank.load(Ordering::Acquire)
    }

    /// The action that is covered.
    pub(super) fn action(&self) -> Action {
        Action {
            function: self.function.load(Ordering::Relaxed),
            flags: self.flags.load(Ordering::Relaxed),
            mask: self.mask.load(Ordering::Relaxed),
        }
    }

    /// Whether the action's function may be called: always, or once if it has SA_RESETHAND.
    pub(super) fn use_up(&self) -> bool {
        self.action().flags & libc::SA_RESETHAND == 0 || !self.is_used_up.swap(true, Ordering::Relaxed)
    }
}

/// All entries.
struct Chain([Entry; ENTRIES]);

static CHAIN: Chain = Chain([const { Entry::free() }; ENTRIES]);

/// The action of the program for a trap that has reached entry `number`: that of this entry, or of
/// the latest entry installed before it, that is not in `passed` and whose function has not
/// received the trap. Adds the entries that it examines to `passed`.
pub(super) fn next(number: usize, passed: &mut u32) -> Option<&'static Entry> {
    CHAIN.next(number, passed)
}

/// The entries that a trap has passed when it reaches us from a handler that the kernel has called:
/// those bound to that handler, which is the one in force, unless a patch has just covered it.
pub(super) fn passed_by_handler() -> u32 {
    Action::current().map_or(0, |action| CHAIN.bound_to(action.function))
}

/// The action that is installed for an entry. SA_SIGINFO: the handler changes the context.
/// SA_ONSTACK: the site may run on a small stack. SA_NODEFER: a handler that we call may itself
/// execute a locked site. SA_RESTART if the covered handler has it, or if there is none: then
/// interrupted system calls must be restarted.
fn action_of(number: usize, covered: &Action) -> Action {
    let restart = if covered.is_function() { covered.flags & libc::SA_RESTART } else { libc::SA_RESTART };
    let flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER | restart;
    Action { function: entry::function(number), flags, mask: 0 }
}

impl Chain {
    fn next(&self, number: usize, passed: &mut u32) -> Option<&Entry> {
        let mut candidate = Some(number);
        while let Some(number) = candidate {
            let action = self.0[number].action();
            let has_passed = |passed: u32, other: usize| passed & 1 << other != 0;
            let has_had_it = has_passed(*passed, number)
                || action.is_function()
                    && (0..ENTRIES).any(|other| {
                        has_passed(*passed, other) && self.0[other].action().function == action.function
                    });
            *passed |= 1 << number;
            if !has_had_it {
                return Some(&self.0[number]);
            }
            let rank = self.0[number].rank();
            let is_before = |other: &usize| (1..rank).contains(&self.0[*other].rank());
            candidate = (0..ENTRIES).filter(is_before).max_by_key(|other| self.0[*other].rank());
        }
        None
    }

    /// The entries bound to this function, or, if it is an entry's, to the function that this entry
    /// is bound to; one bit each.
    fn bound_to(&self, function: usize) -> u32 {
        let function = entry::number(function).map_or(function, |number| self.0[number].action().function);
        let bits = self.0.iter().enumerate().map(|(number, entry)| {
            let action = entry.action();
            u32::from(action.is_function() && action.function == function) << number
        });
        bits.sum()
    }

    /// The entry for an action that was found in force: the one already bound to it, or a free one.
    fn bind(&self, action: &Action) -> Option<usize> {
        let bound = |entry: &Entry| entry.rank() != 0;
        let old = self.0.iter().position(|entry| bound(entry) && entry.action() == *action);
        let number = old.or_else(|| self.0.iter().position(|entry| !bound(entry)))?;
        let entry = &self.0[number];
        entry.function.store(action.function, Ordering::Relaxed);
        entry.flags.store(action.flags, Ordering::Relaxed);
        entry.mask.store(action.mask, Ordering::Relaxed);
        // The program has installed it again, so it is valid for another trap.
        entry.is_used_up.store(false, Ordering::Relaxed);
        let latest = self.0.iter().map(Entry::rank).max().unwrap_or(0);
        // Release: a handler that finds the entry bound also reads its action.
        entry.rank.store(latest + 1, Ordering::Release);
        Some(number)
    }

    /// Covers the action in force, `found`, with an entry. One thread at a time: the one that holds
    /// the lock.
    fn cover(
        &self,
        _installing: &Hold,
        mut found: Action,
        mut install: impl FnMut(Action) -> io::Result<Action>,
    ) -> Result<(), Error> {
        let mut in_force = found;
        loop {
            let number = match entry::number(found.function) {
                Some(number) => number,
                None => match self.bind(&found) {
                    Some(number) => number,
                    None => {
                        if in_force != found {
                            install(found).map_err(|source| Error::TrapRefused { source })?;
                        }
                        return Err(Error::TrapHandlersExhausted { limit: ENTRIES });
                    }
                },
            };
            let ours = action_of(number, &self.0[number].action());
            if in_force == ours {
                return Ok(());
            }
            let replaced = install(ours).map_err(|source| Error::TrapRefused { source })?;
            if replaced == in_force {
                return Ok(());
            }
            // The program has installed another action in the meantime, which is covered next.
            (found, in_force) = (replaced, ours);
        }
    }
}

/// Held while an entry is installed.
static INSTALLING: Mutex<()> = Mutex::new(());

/// Prevents the installation of entries during a fork.
pub(crate) type Hold = MutexGuard<'static, ()>;

pub(crate) fn hold() -> Hold {
    INSTALLING.lock().unwrap_or_else(|e| e.into_inner())
}

fn current() -> Result<Action, Error> {
    Action::current().map_err(|source| Error::TrapRefused { source })
}

/// Whether the action is that of one of our entries, unchanged.
fn is_ours(action: &Action) -> bool {
    entry::number(action.function)
        .is_some_and(|number| *action == action_of(number, &CHAIN.0[number].action()))
}

/// Ensures that SIGTRAP is delivered to one of our entries, even if the program has installed a
/// handler since the last call.
///
/// # Errors
/// [`Error::TrapRefused`], [`Error::TrapHandlersExhausted`]: the program's action stays in force.
pub(crate) fn own_sigtrap() -> Result<(), Error> {
    // All patches but the first make one system call and take no lock.
    if is_ours(&current()?) {
        return Ok(());
    }
    let installing = hold();
    // SAFETY: the entries have the signature that their flags select, and are async-signal-safe.
    // The other actions that are installed are the program's.
    CHAIN.cover(&installing, current()?, |action| unsafe { action.install() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const A: Action = Action { function: 0x1000, flags: 0, mask: 0 };
    const B: Action = Action { function: 0x2000, flags: 0, mask: 0 };
    const C: Action = Action { function: 0x3000, flags: 0, mask: 0 };

    /// A simulated process: the action in force, and those that another thread installs just before
    /// each of our calls.
    struct Process {
        chain: Chain,
        in_force: Cell<Action>,
        intruders: Cell<Vec<Action>>,
    }

    impl Process {
        fn new(action: Action) -> Self {
            let chain = Chain([const { Entry::free() }; ENTRIES]);
            Self { chain, in_force: Cell::new(action), intruders: Cell::default() }
        }

        fn cover(&self) -> Result<(), Error> {
            self.chain.cover(&hold(), self.in_force.get(), |action| {
                let mut intruders = self.intruders.take();
                if !intruders.is_empty() {
                    self.in_force.set(intruders.remove(0));
                }
                self.intruders.set(intruders);
                Ok(self.in_force.replace(action))
            })
        }

        /// The entry in force.
        fn top(&self) -> Option<usize> {
            entry::number(self.in_force.get().function)
        }

        /// Installs an action of the program and covers it. Returns the entry in force afterwards.
        fn install(&self, action: Action) -> usize {
            self.in_force.set(action);
            self.cover().unwrap();
            self.top().unwrap()
        }

        /// The actions taken for a trap that reaches these entries one after the other.
        fn actions(&self, entries: &[usize]) -> Vec<Option<Action>> {
            let mut passed = 0;
            entries.iter().map(|entry| self.chain.next(*entry, &mut passed).map(Entry::action)).collect()
        }
    }

    #[test]
    fn each_action_has_an_entry_and_keeps_it() {
        let process = Process::new(A);
        process.cover().unwrap();
        assert_eq!(process.top(), Some(0));
        process.cover().unwrap();
        assert_eq!(process.top(), Some(0), "already installed");
        assert_eq!(process.install(B), 1);
        assert_eq!(process.install(A), 0, "its previous entry");
        let other_flags = Action { flags: libc::SA_NODEFER, ..A };
        let other_mask = Action { mask: 2, ..A };
        assert_eq!((process.install(other_flags), process.install(other_mask)), (2, 3));
        assert_eq!(process.actions(&[0]), [Some(A)]);
        assert_eq!(process.actions(&[2]), [Some(other_flags)]);
        assert_eq!(process.actions(&[3]), [Some(other_mask)]);
    }

    #[test]
    fn an_entry_that_the_program_restores_stays_with_the_right_flags() {
        let process = Process::new(A);
        process.cover().unwrap();
        let ours = process.in_force.get();
        process.install(B);
        assert_eq!(process.install(ours), 0);
        // As signal(3) installs it.
        assert_eq!(process.install(Action { flags: libc::SA_RESTART, ..ours }), 0);
        assert_eq!(process.in_force.get(), ours);
        assert_eq!(process.actions(&[0]), [Some(A)]);
    }

    #[test]
    fn flags_of_the_action_that_is_installed() {
        let flags = |covered: Action| action_of(0, &covered).flags;
        let always = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        assert_eq!(flags(A), always);
        assert_eq!(
            flags(Action { flags: libc::SA_RESTART | libc::SA_RESETHAND, ..A }),
            always | libc::SA_RESTART
        );
        for none in [libc::SIG_DFL, libc::SIG_IGN] {
            assert_eq!(flags(Action { function: none, ..A }), always | libc::SA_RESTART);
        }
    }

    #[test]
    fn actions_installed_while_another_is_covered_are_covered_too() {
        let process = Process::new(A);
        process.intruders.set(vec![B, C]);
        process.cover().unwrap();
        assert_eq!(process.top(), Some(2));
        assert_eq!(process.actions(&[2]), [Some(C)]);
        // One of our entries, restored by the program in the meantime.
        let second = action_of(1, &B);
        process.in_force.set(Action { mask: 2, ..A });
        process.intruders.set(vec![second]);
        process.cover().unwrap();
        assert_eq!(process.in_force.get(), second);
    }

    #[test]
    fn an_action_beyond_the_limit_is_refused_and_stays_in_force() {
        let process = Process::new(A);
        for mask in 0..ENTRIES as u64 {
            process.install(Action { mask, ..A });
        }
        process.in_force.set(B);
        let limit_reached = |result| matches!(result, Err(Error::TrapHandlersExhausted { limit: ENTRIES }));
        assert!(limit_reached(process.cover()));
        assert_eq!(process.in_force.get(), B);
        process.in_force.set(A);
        process.intruders.set(vec![B]);
        assert!(limit_reached(process.cover()));
        assert_eq!(process.in_force.get(), B, "it is restored");
        assert_eq!(process.install(A), 0, "known ones can still be covered");
    }

    #[test]
    fn a_cycle_continues_with_the_action_installed_before() {
        let process = Process::new(A);
        process.cover().unwrap();
        process.install(B);
        process.install(C);
        assert_eq!(process.actions(&[2, 2, 2, 2]), [Some(C), Some(B), Some(A), None]);
        assert_eq!(process.actions(&[2, 0, 2, 2]), [Some(C), Some(A), Some(B), None]);
        // B is now the latest.
        process.install(B);
        assert_eq!(process.actions(&[1, 1, 1, 1]), [Some(B), Some(C), Some(A), None]);
        assert_eq!(process.actions(&[0, 0]), [Some(A), None], "later actions are not reached");
    }

    #[test]
    fn a_function_receives_a_trap_once_and_the_default_is_not_a_function() {
        let default = |mask| Action { function: libc::SIG_DFL, flags: 0, mask };
        let process = Process::new(default(0));
        process.cover().unwrap();
        process.install(default(2));
        process.install(A);
        process.install(Action { mask: 2, ..A });
        assert_eq!(
            process.actions(&[3, 2, 2]),
            [Some(Action { mask: 2, ..A }), Some(default(2)), Some(default(0))]
        );
    }

    #[test]
    fn entries_bound_to_the_handler_in_force_have_been_passed() {
        let process = Process::new(Action::DEFAULT);
        process.cover().unwrap();
        process.install(A);
        process.install(B);
        process.install(Action { mask: 2, ..A });
        assert_eq!(process.chain.bound_to(A.function), 0b1010);
        assert_eq!(process.chain.bound_to(entry::function(2)), 0b100);
        assert_eq!(process.chain.bound_to(C.function), 0);
        assert_eq!(process.chain.bound_to(libc::SIG_DFL), 0);
        let mut passed = 0b1010;
        assert_eq!(process.chain.next(1, &mut passed).map(Entry::action), Some(Action::DEFAULT));
    }

    #[test]
    fn a_one_shot_action_is_valid_again_after_it_is_installed_again() {
        let once = Action { flags: libc::SA_RESETHAND, ..A };
        let process = Process::new(once);
        for _ in 0..2 {
            process.install(once);
            let entry = &process.chain.0[0];
            assert!(entry.use_up() && !entry.use_up());
        }
        process.install(B);
        let entry = &process.chain.0[1];
        assert!(entry.use_up() && entry.use_up());
    }
}
