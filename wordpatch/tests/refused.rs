//! The kernel refuses `membarrier`. Each scenario runs in a separate process, with a seccomp
//! filter.
//!
//! With `--cfg fault_injection` (see `scripts/test.sh`).

#![cfg(fault_injection)]

mod common;

use std::sync::atomic::{AtomicU32, Ordering};

use common::alone::alone;
use common::refused::refuse_system_call;
use common::{A, B, INSIDE, STRADDLING, call, functions, mov_eax, patches, with_model, with_window};
use wordpatch::internal::fault::{Point, set_hook};
use wordpatch::{
    Error, FetchWindow, State, TMax, WaitPolicy, patch, patch_all, serialize_all_cores, start_patch, tsc,
    wait_for_visibility,
};

/// From now on, `membarrier` fails with EPERM in all threads.
fn refuse_membarrier() {
    refuse_system_call(libc::SYS_membarrier, None);
}

fn first_byte(site: usize) -> u8 {
    // SAFETY: text of the test, which stays mapped.
    unsafe { *(site as *const u8) }
}

fn start(site: usize) -> Result<wordpatch::Outstanding, Error> {
    // SAFETY: each site is one instruction, and SIGTRAP is not blocked here.
    unsafe { start_patch(site, &mov_eax(A), &mov_eax(B)) }
}

#[test]
fn straddlers_are_refused_unchanged_and_single_stores_are_made() {
    alone("straddlers_are_refused_unchanged_and_single_stores_are_made", || {
        let _model = with_window(FetchWindow::Bytes8);
        refuse_membarrier();
        let sites = [functions(1, STRADDLING), functions(2, INSIDE)].concat();
        // SAFETY: the text is not executed.
        let results = unsafe { patch_all(&patches(&sites, &mov_eax(A), &mov_eax(B))) };
        assert!(matches!(results[0], Err(Error::MembarrierRefused { .. })), "{:?}", results[0]);
        assert!(results[1].is_ok() && results[2].is_ok());
        assert_eq!((first_byte(sites[0]), call(sites[0]), call(sites[1])), (mov_eax(A)[0], A, B));
        assert!(matches!(start(sites[0]), Err(Error::MembarrierRefused { .. })));
        assert_eq!(first_byte(sites[0]), mov_eax(A)[0]);
    });
}

#[test]
fn t_max_replaces_it_if_it_is_known() {
    alone("t_max_replaces_it_if_it_is_known", || {
        const T_MAX: TMax = TMax(5_000_000);
        refuse_membarrier();
        for wait in [WaitPolicy::Membarrier, WaitPolicy::TMax] {
            let _model = with_model(FetchWindow::Bytes8, Some(T_MAX), wait);
            let site = functions(1, STRADDLING)[0];
            let before = tsc::now();
            // SAFETY: no other thread executes the text.
            unsafe { patch(site, &mov_eax(A), &mov_eax(B)) }.unwrap();
            assert!(tsc::now() - before >= 2 * u64::from(T_MAX.0));
            assert_eq!(call(site), B);
        }
        // A caller who trusts neither alone gets neither.
        let _model = with_model(FetchWindow::Bytes8, Some(T_MAX), WaitPolicy::Both);
        let site = functions(1, STRADDLING)[0];
        // SAFETY: as above.
        let refused = unsafe { patch(site, &mov_eax(A), &mov_eax(B)) };
        assert!(matches!(refused, Err(Error::MembarrierRefused { .. })), "{refused:?}");
        assert_eq!((first_byte(site), call(site)), (mov_eax(A)[0], A));
        assert!(matches!(wait_for_visibility(), Err(Error::MembarrierRefused { .. })));
    });
}

#[test]
fn a_refusal_in_the_first_wait_removes_the_lock() {
    alone("a_refusal_in_the_first_wait_removes_the_lock", || {
        let _model = with_window(FetchWindow::Bytes8);
        let site = functions(1, STRADDLING)[0];
        let outstanding = start(site).unwrap();
        refuse_membarrier();
        assert_eq!(outstanding.try_finish().unwrap(), State::Finished);
        assert!(matches!(outstanding.finish(), Err(Error::MembarrierRefused { .. })));
        assert_eq!((first_byte(site), call(site)), (mov_eax(A)[0], A));
    });
}

/// The patch can be neither completed nor rolled back: see `Error::MembarrierRefused`.
#[test]
fn a_refusal_in_the_second_wait_leaves_a_site_that_executes_the_old_instruction() {
    alone("a_refusal_in_the_second_wait_leaves_a_site_that_executes_the_old_instruction", || {
        let _model = with_window(FetchWindow::Bytes8);
        let site = functions(1, STRADDLING)[0];
        let outstanding = start(site).unwrap();
        assert_eq!(outstanding.try_finish().unwrap(), State::SecondWait);
        refuse_membarrier();
        assert!(matches!(outstanding.finish(), Err(Error::MembarrierRefused { .. })));
        assert_eq!((first_byte(site), call(site)), (0xcc, A));
        assert!(matches!(start(site), Err(Error::Contended { .. })));
    });
}

/// The patch is made, but cores may still have its old bytes when a patch of the other side is
/// made.
#[test]
fn a_refusal_in_the_last_wait_prevents_other_patches_of_the_site() {
    alone("a_refusal_in_the_last_wait_prevents_other_patches_of_the_site", || {
        let _model = with_window(FetchWindow::Bytes8);
        let site = functions(1, STRADDLING)[0];
        let (old, mut front) = (mov_eax(A), mov_eax(A));
        front[0] += 1;
        // SAFETY: the text is not executed.
        let outstanding = unsafe { start_patch(site, &old, &front) }.unwrap();
        assert_eq!(outstanding.state(), State::FirstWait);
        refuse_membarrier();
        outstanding.finish().unwrap();
        let mut back = front;
        back[4] += 1;
        // SAFETY: as above.
        let next = unsafe { start_patch(site, &front, &back) };
        assert!(matches!(next, Err(Error::Contended { .. })), "{next:?}");
        assert_eq!(first_byte(site), front[0]);
    });
}

/// The kernel allows registering for the command, but not executing it.
#[test]
fn a_process_that_may_register_but_not_synchronize_is_refused() {
    alone("a_process_that_may_register_but_not_synchronize_is_refused", || {
        refuse_system_call(libc::SYS_membarrier, Some(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE));
        for _ in 0..2 {
            assert!(matches!(serialize_all_cores(), Err(Error::MembarrierRefused { .. })));
        }
    });
}

#[test]
fn a_wait_that_will_be_refused_is_detected_before_the_first_store() {
    alone("a_wait_that_will_be_refused_is_detected_before_the_first_store", || {
        static STORES: AtomicU32 = AtomicU32::new(0);
        let _model = with_window(FetchWindow::Bytes8);
        refuse_membarrier();
        set_hook(Some(|_, point| {
            if matches!(point, Point::Made(_)) {
                STORES.fetch_add(1, Ordering::Relaxed);
            }
        }));
        let site = functions(1, STRADDLING)[0];
        for _ in 0..2 {
            // SAFETY: the text is not executed.
            let refused = unsafe { patch(site, &mov_eax(A), &mov_eax(B)) };
            assert!(matches!(refused, Err(Error::MembarrierRefused { .. })), "{refused:?}");
            assert!(start(site).is_err());
        }
        assert_eq!(STORES.load(Ordering::Relaxed), 0);
    });
}

/// A system call checks whether text is still mapped. If a filter refuses it, the text is
/// considered mapped.
#[test]
fn text_that_cannot_be_checked_is_considered_mapped() {
    alone("text_that_cannot_be_checked_is_considered_mapped", || {
        let _model = with_window(FetchWindow::Bytes8);
        refuse_system_call(libc::SYS_process_vm_readv, None);
        let site = functions(1, STRADDLING)[0];
        start(site).unwrap().finish().unwrap();
        assert_eq!(call(site), B);
    });
}
