//! The thread that finishes outstanding patches: how long it waits, and in whose process.

mod common;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use common::{A, B, STRADDLING, call, functions, mov_eax, with_model};
use wordpatch::fault::{Point, set_hook};
use wordpatch::{FetchWindow, Finisher, State, TMax, WaitPolicy, start_patch, tsc};

/// Some milliseconds: long enough for the second patch to be begun in the first one's first wait.
const T_MAX: TMax = TMax(20_000_000);

static SITES: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
/// When each site made each of its steps.
static MADE: [[AtomicU64; 6]; 2] = [const { [const { AtomicU64::new(0) }; 6] }; 2];

fn note_time(address: usize, point: Point) {
    let number = SITES.iter().position(|site| site.load(Ordering::Relaxed) == address);
    if let (Some(number), Point::Made(step)) = (number, point) {
        MADE[number][step].store(tsc::now(), Ordering::Relaxed);
    }
}

/// Patches that are handed over at different times are in different waits, and no wait is cut short for another's sake.
#[test]
fn every_patch_gets_its_whole_waits() {
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

#[test]
fn a_patch_that_was_taken_over_is_finished_without_its_handle() {
    let _model = with_model(FetchWindow::Bytes8, Some(TMax(30_000)), WaitPolicy::TMax);
    let site = functions(1, STRADDLING)[0];
    let finisher = Finisher::start().unwrap();
    // SAFETY: the site is one instruction, and SIGTRAP is not blocked here.
    let patch = unsafe { start_patch(site, &mov_eax(A), &mov_eax(B)) }.unwrap();
    finisher.take_over(&patch).unwrap();
    // Handing it over twice is handing it over once.
    finisher.take_over(&patch).unwrap();
    while patch.state() != State::Finished {
        std::thread::yield_now();
    }
    drop(patch);
    assert_eq!(call(site), B);
}
