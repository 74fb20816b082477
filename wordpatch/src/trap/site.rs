//! Resuming a thread that has executed the INT3 of a locked site.

use std::ops::ControlFlow;

use super::frame::Context;
use crate::copies;
use crate::protocol::INT3;
use crate::site_table::{self, Int3, meaning_of_int3};
use crate::text::fork;

/// `si_code` of a trap by INT3 (sigaction(2)).
const SI_KERNEL: libc::c_int = 0x80;

/// Number of the exception that INT3 raises.
const BREAKPOINT_EXCEPTION: i64 = 3;

/// The number of times that a child checks for the end of its parent's patch, with a yield after
/// each check. Bounded, because the parent may be stopped or may have ended.
const LOOKS: usize = 1 << 20;

/// Sets the instruction pointer of a thread that has executed an INT3 of ours to the address where
/// it continues. `code` is the signal's code, if known. Breaks if the signal needs no further
/// handling.
pub(super) fn resume(context: &mut Context, code: Option<libc::c_int>) -> ControlFlow<()> {
    let registers = &mut context.machine.gregs;
    let site = (registers[libc::REG_RIP as usize] as usize).wrapping_sub(1);
    // A signal that arrives after any other instruction is not a trap of ours, even where a site is
    // locked: other code may have been mapped there.
    let executed_int3 =
        code == Some(SI_KERNEL) || registers[libc::REG_TRAPNO as usize] == BREAKPOINT_EXCEPTION;
    if !executed_int3 || !site_table::is_known(site) {
        return ControlFlow::Continue(());
    }
    let text = std::ptr::with_exposed_provenance::<u8>(site);
    // SAFETY: the thread has executed the byte at `site`, by the check above.
    let is_int3 = || unsafe { text.read_volatile() } == INT3;
    registers[libc::REG_RIP as usize] = match meaning_here(site, is_int3) {
        Int3::Locked { copy } => copy,
        Int3::Gone => site,
        Int3::Foreign => return ControlFlow::Continue(()),
    } as i64;
    // A sent signal that has absorbed the trap must still be passed on.
    let was_sent = code.is_some_and(|code| code <= 0);
    if was_sent { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
}

/// [`meaning_of_int3`], for a thread that has executed one. If the byte is no INT3 any more, the
/// thread continues in place, even if the site is locked: the last store of the patch has just been
/// made, or other code has been mapped there, to which the copy does not belong.
///
/// A forked child may execute an INT3 whose copy is in a page that its parent has mapped since the
/// fork. It then waits for the end of the patch.
fn meaning_here(site: usize, is_int3: impl Fn() -> bool) -> Int3 {
    for _ in 0..LOOKS {
        match meaning_of_int3(site, &is_int3) {
            Int3::Locked { copy } if fork::is_unprepared_child() && !copies::is_here(copy) => {
                // SAFETY: async-signal-safe, and touches no memory.
                unsafe { libc::sched_yield() };
            }
            Int3::Locked { .. } if !is_int3() => return Int3::Gone,
            meaning => return meaning,
        }
    }
    Int3::Foreign
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Bytes;
    use crate::site_table::OwnedSite;

    const SENT: Option<libc::c_int> = Some(libc::SI_TKILL);
    const TRAP: Option<libc::c_int> = Some(SI_KERNEL);

    /// Resumes a thread whose instruction pointer is after the first byte of `text`. Returns where
    /// it continues, relative to that byte, and whether the signal needs no further handling.
    fn resumed(text: &[u8; 2], code: Option<libc::c_int>, exception: i64) -> (isize, bool) {
        let site = text.as_ptr().expose_provenance();
        let mut context = Context::at(site + 1, exception);
        let flow = resume(&mut context, code);
        (context.machine.gregs[libc::REG_RIP as usize] as isize - site as isize, flow.is_break())
    }

    #[test]
    fn traps_at_sites_are_recognized() {
        let int3: &'static [u8; 2] = Box::leak(Box::new([INT3, 0x90]));
        let no_int3: &'static [u8; 2] = Box::leak(Box::new([0x90, 0x90]));
        for code in [TRAP, SENT, None] {
            assert_eq!(resumed(int3, code, 3), (1, false), "not a site: {code:?}");
            assert_eq!(resumed(no_int3, code, 3), (1, false), "not a site: {code:?}");
        }
        for (text, to) in [(int3, 100), (no_int3, 0)] {
            let site = text.as_ptr().addr();
            let mut owned = OwnedSite::acquire(site).unwrap();
            owned.lock(site + 100, &Bytes::new(&[1, 2]).unwrap());
            assert_eq!(resumed(text, TRAP, 3), (to, true));
            assert_eq!(resumed(text, None, 3), (to, true), "passed on by a handler without SA_SIGINFO");
            assert_eq!(resumed(text, SENT, 3), (to, false), "the sent signal must still be passed on");
            for code in [SENT, None, Some(libc::TRAP_TRACE)] {
                assert_eq!(resumed(text, code, 1), (1, false), "it has not executed INT3: {code:?}");
            }
        }
        for code in [TRAP, SENT, None] {
            assert_eq!(resumed(int3, code, 3), (1, false), "a foreign breakpoint: {code:?}");
        }
        assert_eq!(resumed(no_int3, TRAP, 0), (0, true), "the patch is complete");
        assert_eq!(resumed(no_int3, None, 3), (0, true));
        assert_eq!(resumed(no_int3, SENT, 3), (0, false));
        assert_eq!(resumed(no_int3, SENT, 14), (1, false), "it has not executed INT3");
        assert_eq!(resumed(no_int3, Some(libc::TRAP_TRACE), 1), (1, false));
    }

    #[test]
    fn the_lowest_addresses_are_not_sites() {
        for address in [0, 1] {
            let mut context = Context::at(address, 3);
            assert!(resume(&mut context, TRAP).is_continue());
        }
    }
}
