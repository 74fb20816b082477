//! Batches, outstanding patches and forks where text is made writable for the moment of each store.

mod common;

use common::{
    A, B, INSIDE, STRADDLING, call, check_two_forms, functions, mov_eax, patches, while_executing,
    with_window,
};
use nix::sys::wait::{WaitStatus, waitpid};
use wordpatch::text::{set_access, unshare};
use wordpatch::{FetchWindow, Finisher, State, TextAccess, patch, patch_all, start_patch};

#[test]
fn batches_and_outstanding_patches_while_executing() {
    set_access(TextAccess::Mprotect);
    let _model = with_window(FetchWindow::Bytes8);
    let sites = [functions(10, STRADDLING), functions(10, INSIDE)].concat();
    let (a, b) = (mov_eax(A), mov_eax(B));
    while_executing(&sites, |executor| {
        for _ in 0..20 {
            // SAFETY: each site is one instruction, and SIGTRAP is not blocked here.
            let results = unsafe { patch_all(&patches(&sites, &a, &b)) };
            assert!(results.iter().all(Result::is_ok), "{results:?}");
            executor.wait_for_calls(20);
            let finisher = Finisher::start().unwrap();
            for site in &sites {
                // SAFETY: as above.
                finisher.take_over(&unsafe { start_patch(*site, &b, &a) }.unwrap()).unwrap();
            }
        }
    });
    assert!(sites.iter().all(|site| call(*site) == A));
}

#[test]
fn a_child_that_is_forked_in_mid_patch_has_the_old_instruction() {
    set_access(TextAccess::Mprotect);
    let _model = with_window(FetchWindow::Bytes8);
    let site = functions(1, STRADDLING)[0];
    // SAFETY: the site is one instruction, and SIGTRAP is not blocked here; also below.
    let outstanding = unsafe { start_patch(site, &mov_eax(A), &mov_eax(B)) }.unwrap();
    assert_eq!(outstanding.try_finish().unwrap(), State::SecondWait);
    // SAFETY: the child uses nothing that another thread may hold, and ends by `_exit`.
    match unsafe { nix::unistd::fork() }.unwrap() {
        nix::unistd::ForkResult::Child => {
            let is_old = || call(site) == A;
            // SAFETY: as above; the child has one thread.
            let holds = is_old()
                && unsafe { unshare() }.is_ok()
                && is_old()
                && unsafe { patch(site, &mov_eax(A), &mov_eax(7)) }.is_ok()
                && call(site) == 7;
            // SAFETY: ends the child.
            unsafe { libc::_exit(if holds { 0 } else { 1 }) }
        }
        nix::unistd::ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
        }
    }
    outstanding.finish().unwrap();
    assert_eq!(call(site), B);
}

#[test]
fn two_forms_are_exchanged_and_nothing_else() {
    set_access(TextAccess::Mprotect);
    let _model = with_window(FetchWindow::Bytes8);
    check_two_forms(functions(1, INSIDE)[0]);
}
