//! The thread that finishes outstanding patches: its waits, and its process.
//!
//! With `--cfg fault_injection` (see `scripts/test.sh`).

#![cfg(fault_injection)]

mod common;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use common::{A, B, STRADDLING, call, functions, mov_eax, with_model};
use wordpatch::internal::fault::{Point, set_hook};
use wordpatch::{FetchWindow, Finisher, State, TMax, WaitPolicy, start_patch, tsc};

/// A few milliseconds: long enough to begin the second patch during the first wait of the first
/// one.
const T_MAX: TMax = TMax(20_000_000);

static SITES: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
/// The time of each step of each site.
static MADE: [[AtomicU64; 6]; 2] = [const { [const { AtomicU64::new(0) }; 6] }; 2];

fn note_time(address: usize, point: Point) {
    let number = SITES.iter().position(|site| site.load(Ordering::Relaxed) == address);
    if let (Some(number), Point::Made(step)) = (number, point) {
        MADE[number][step].store(tsc::now(), Ordering::Relaxed);
    }
}

/// Patches that are handed over at different times are in different waits, none of which may be
/// shortened.
#[test]
fn every_patch_gets_its_full_waits() {
    let _model = with_model(FetchWindow::Bytes8, Some(T_MAX), WaitPolicy::TMax);
    let sites = functions(2, STRADDLING);
    SITES.iter().zip(&sites).for_each(|(place, site)| place.store(*site, Ordering::Relaxed));
    set_hook(Some(note_time));
    let finisher = Finisher::start().unwrap();
    for site in &sites {
        // SAFETY: the site is one instruction, and SIGTRAP is not blocked here.
        let patch = unsafe { start_patch(*site, &mov_eax(A), &mov_eax(B)) }.unwrap();
        finisher.take_over(&patch).unwrap();
    }
    // Ends when everything is finished.
    drop(finisher);
    set_hook(None);
    for (site, made) in sites.iter().zip(&MADE) {
        assert_eq!(call(*site), B);
        let at = |step: usize| made[step].load(Ordering::Relaxed);
        for (store, wait) in [(1, 2), (3, 4)] {
            let waited = at(wait) - at(store);
            assert!(waited >= u64::from(T_MAX.0), "waited {waited} ticks after step {store}");
        }
    }
}

/// The kernel's status of the finishers' threads, which are found by name after they have begun to
/// run.
fn finisher_threads() -> Vec<std::path::PathBuf> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten().map(|task| task.path());
    tasks
        .filter(|task| std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name == "wordpatch\n"))
        .collect()
}

/// The program's handlers never run on the thread, but it may execute a locked site itself.
#[test]
fn the_thread_blocks_every_signal_but_the_trap() {
    let _model = with_model(FetchWindow::Bytes8, Some(TMax(30_000)), WaitPolicy::TMax);
    let finisher = Finisher::start().unwrap();
    let thread = loop {
        if let Some(thread) = finisher_threads().pop() {
            break thread;
        }
        std::thread::yield_now();
    };
    let status = std::fs::read_to_string(thread.join("status")).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap().trim();
    let mask = u64::from_str_radix(mask, 16).unwrap();
    for signal in [libc::SIGUSR1, libc::SIGTERM, libc::SIGALRM, libc::SIGINT, libc::SIGPROF] {
        assert_ne!(mask & 1 << (signal - 1), 0, "signal {signal} is not blocked");
    }
    assert_eq!(mask & 1 << (libc::SIGTRAP - 1), 0, "the trap is blocked");
    drop(finisher);
}

/// The thread does not exist in a child, so dropping the finisher must not wait for it.
#[test]
fn a_finisher_is_dropped_in_a_child() {
    let _model = with_model(FetchWindow::Bytes8, Some(TMax(30_000)), WaitPolicy::TMax);
    let site = functions(1, STRADDLING)[0];
    let finisher = Finisher::start().unwrap();
    // SAFETY: the site is one instruction, and SIGTRAP is not blocked here.
    let patch = unsafe { start_patch(site, &mov_eax(A), &mov_eax(B)) }.unwrap();
    finisher.take_over(&patch).unwrap();
    let mut status = -1;
    // SAFETY: the child drops the finisher and ends; the kernel ends it if it hangs.
    unsafe {
        match libc::fork() {
            0 => {
                libc::alarm(20);
                let is_refused = matches!(finisher.take_over(&patch), Err(wordpatch::Error::Forked { .. }));
                drop(finisher);
                libc::_exit(i32::from(!is_refused))
            }
            child => assert_eq!(libc::waitpid(child, &mut status, 0), child),
        }
    }
    assert_eq!(status, 0);
    drop(finisher);
    assert_eq!(call(site), B);
}

#[test]
fn a_patch_that_was_taken_over_is_finished_without_its_handle() {
    let _model = with_model(FetchWindow::Bytes8, Some(TMax(30_000)), WaitPolicy::TMax);
    let site = functions(1, STRADDLING)[0];
    let finisher = Finisher::start().unwrap();
    // The thread sleeps until it is woken.
    let sleeps = |thread: &std::path::PathBuf| {
        let call = std::fs::read_to_string(thread.join("syscall")).unwrap_or_default();
        call.split(' ').next() == Some(&libc::SYS_futex.to_string())
    };
    while !finisher_threads().iter().any(sleeps) {
        std::thread::yield_now();
    }
    // SAFETY: the site is one instruction, and SIGTRAP is not blocked here.
    let patch = unsafe { start_patch(site, &mov_eax(A), &mov_eax(B)) }.unwrap();
    finisher.take_over(&patch).unwrap();
    // Handing it over a second time has no effect.
    finisher.take_over(&patch).unwrap();
    while patch.state() != State::Finished {
        std::thread::yield_now();
    }
    drop(patch);
    assert_eq!(call(site), B);
}
