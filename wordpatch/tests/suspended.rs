//! A patcher that is stopped at any step of the protocol does not block other threads.
//!
//! With `--cfg fault_injection` (see `scripts/test.sh`).

#![cfg(fault_injection)]

mod common;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use common::{A, B, STRADDLING, call, functions, mov_eax, patches, while_executing, with_model, with_window};
use wordpatch::internal::fault::{Point, set_hook};
use wordpatch::{Error, FetchWindow, TMax, WaitPolicy, patch, patch_all, tsc};

/// All points of the patch of a straddler.
const POINTS: [Point; 8] = [
    Point::Checked,
    Point::Acquired,
    Point::Made(1),
    Point::Made(2),
    Point::Made(3),
    Point::Made(4),
    Point::Made(5),
    Point::Released,
];

/// The site and point at which the hook stops the patcher until it is released.
static STOP_AT: Mutex<Option<(usize, Point)>> = Mutex::new(None);
static IS_STOPPED: AtomicBool = AtomicBool::new(false);
static GO_ON: AtomicBool = AtomicBool::new(false);
/// The result of a call of the site by the patching thread.
static SEEN_BY_PATCHER: AtomicU32 = AtomicU32::new(0);

fn stop(site: usize, point: Point) {
    if *STOP_AT.lock().unwrap_or_else(|e| e.into_inner()) != Some((site, point)) {
        return;
    }
    // As in a signal handler on this thread.
    SEEN_BY_PATCHER.store(call(site), Ordering::Relaxed);
    IS_STOPPED.store(true, Ordering::SeqCst);
    while !GO_ON.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
}

/// Releases the patcher, even if an assertion fails.
struct GoOn;

impl Drop for GoOn {
    fn drop(&mut self) {
        GO_ON.store(true, Ordering::SeqCst);
    }
}

/// Makes patches on a thread that stops at `site` and `point`, and runs `meanwhile` while it is
/// stopped.
fn stopped_at(site: usize, point: Point, work: impl FnOnce() + Send, meanwhile: impl FnOnce()) {
    *STOP_AT.lock().unwrap() = Some((site, point));
    IS_STOPPED.store(false, Ordering::SeqCst);
    GO_ON.store(false, Ordering::SeqCst);
    set_hook(Some(stop));
    std::thread::scope(|scope| {
        let _go_on = GoOn;
        scope.spawn(work);
        while !IS_STOPPED.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        meanwhile();
    });
    set_hook(None);
}

#[test]
fn executors_and_other_patchers_continue_at_whichever_step_the_patcher_is_stopped() {
    const CALLS: u64 = 2_000;
    let _model = with_window(FetchWindow::Bytes8);
    let sites = functions(2, STRADDLING);
    let (site, other) = (sites[0], sites[1]);
    for point in POINTS {
        while_executing(&[site], |executor| {
            let work = || {
                // SAFETY: the sites are one instruction each, and SIGTRAP is not blocked here.
                unsafe { patch(site, &mov_eax(A), &mov_eax(B)) }.unwrap();
            };
            stopped_at(site, point, work, || {
                executor.wait_for_calls(CALLS);
                let old_stands = matches!(point, Point::Checked | Point::Acquired | Point::Made(1..=4));
                let expected = if old_stands { A } else { B };
                assert_eq!(call(site), expected, "{point:?}");
                assert_eq!(
                    SEEN_BY_PATCHER.load(Ordering::Relaxed),
                    expected,
                    "{point:?}, the patcher itself"
                );
                // SAFETY: as above.
                unsafe {
                    patch(other, &mov_eax(A), &mov_eax(B)).unwrap();
                    patch(other, &mov_eax(B), &mov_eax(A)).unwrap();
                }
                if matches!(point, Point::Acquired | Point::Made(1..=4)) {
                    // SAFETY: as above.
                    let rival = unsafe { patch(site, &mov_eax(A), &mov_eax(7)) };
                    assert!(matches!(rival, Err(Error::Contended { .. })), "{point:?}: {rival:?}");
                }
            });
            assert_eq!(call(site), B);
            // SAFETY: as above.
            unsafe { patch(site, &mov_eax(B), &mov_eax(A)) }.unwrap();
        });
    }
}

#[test]
fn executors_of_a_batch_continue_while_one_of_its_sites_is_stopped() {
    let _model = with_window(FetchWindow::Bytes8);
    let sites = functions(40, STRADDLING);
    for point in POINTS {
        while_executing(&sites, |executor| {
            let work = || {
                // SAFETY: the sites are one instruction each, and SIGTRAP is not blocked here.
                let results = unsafe { patch_all(&patches(&sites, &mov_eax(A), &mov_eax(B))) };
                assert!(results.iter().all(Result::is_ok));
            };
            stopped_at(sites[20], point, work, || executor.wait_for_calls(50 * sites.len() as u64));
            // SAFETY: as above.
            let results = unsafe { patch_all(&patches(&sites, &mov_eax(B), &mov_eax(A))) };
            assert!(results.iter().all(Result::is_ok));
        });
    }
}

const T_MAX: u32 = 20_000_000;
static LAST: AtomicUsize = AtomicUsize::new(0);

/// Delays the last of the first stores by the duration of a wait.
fn dawdle(site: usize, point: Point) {
    if site == LAST.load(Ordering::Relaxed) && point == Point::Acquired {
        // All sites are acquired before the first store; this is the last of them.
        LAST.store(0, Ordering::Relaxed);
        set_hook(Some(delay_between_stores));
    }
}

fn delay_between_stores(_: usize, point: Point) {
    if point == Point::Made(1) {
        set_hook(None);
        let start = tsc::now();
        while tsc::now() - start < u64::from(T_MAX) {
            std::hint::spin_loop();
        }
    }
}

#[test]
fn t_max_counts_from_the_last_store_of_a_batch() {
    let _model = with_model(FetchWindow::Bytes8, Some(TMax(T_MAX)), WaitPolicy::TMax);
    let sites = functions(2, STRADDLING);
    LAST.store(sites[1], Ordering::Relaxed);
    set_hook(Some(dawdle));
    let start = tsc::now();
    // SAFETY: the text is not executed.
    let results = unsafe { patch_all(&patches(&sites, &mov_eax(A), &mov_eax(B))) };
    assert!(results.iter().all(Result::is_ok));
    assert!(tsc::now() - start >= 3 * u64::from(T_MAX), "the first wait began before the last store");
}

static DOOMED: AtomicUsize = AtomicUsize::new(0);

fn die_locked(site: usize, point: Point) {
    if site == DOOMED.load(Ordering::Relaxed) && point == Point::Made(1) {
        panic!("the patcher dies during the patch, as intended");
    }
}

#[test]
fn a_patcher_that_dies_during_a_patch_leaves_a_site_that_executes_the_old_instruction() {
    let _model = with_window(FetchWindow::Bytes8);
    let site = functions(1, STRADDLING)[0];
    DOOMED.store(site, Ordering::Relaxed);
    set_hook(Some(die_locked));
    // SAFETY: the site is one instruction, and SIGTRAP is not blocked here.
    let patcher = std::thread::spawn(move || unsafe { patch(site, &mov_eax(A), &mov_eax(B)) });
    assert!(patcher.join().is_err());
    set_hook(None);
    while_executing(&[site], |executor| executor.wait_for_calls(1_000));
    assert_eq!(call(site), A);
    // SAFETY: as above.
    assert!(matches!(unsafe { patch(site, &mov_eax(A), &mov_eax(B)) }, Err(Error::Contended { .. })));
}
