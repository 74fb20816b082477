//! Asynchronous patches, several at once: advanced by polling, by address, and by a finisher's
//! rounds.

use std::time::{Duration, Instant};

use wordpatch_model::{Change, Job, Program, Scenario};

use super::{CALL, NOP, OTHER_CALL, Straddler, boundary, patch_of, wait};
use crate::finisher::advance_all;
use crate::{FetchWindow, Outstanding, Patch, State, finish_patch, start_patch, start_patch_all};

/// Two adjacent straddlers.
const WINDOW: FetchWindow = FetchWindow::Bytes8;
const PLACES: [usize; 2] = [boundary(WINDOW) - 4, boundary(WINDOW) + 4];

fn scenario() -> Scenario {
    let begin = Scenario::new(WINDOW.bytes(), boundary(WINDOW));
    PLACES.iter().fold(begin, |scenario, place| scenario.site(*place, &CALL, 1))
}

/// Starts the patches of both sites one by one, and finishes them by `finish`.
fn both(
    name: &str,
    (old, new): ([u8; 5], [u8; 5]),
    finish: impl Fn(Vec<Outstanding>) -> Vec<bool> + 'static,
) -> Job {
    Job::new(name, WINDOW.bytes(), [0, 1].map(|site| Change::new(site, &old, &new)), move || {
        // SAFETY: the model's text.
        let started: Vec<_> = PLACES.iter().map(|place| unsafe { start_patch(*place, &old, &new) }).collect();
        let failed: Vec<bool> = started.iter().map(Result::is_err).collect();
        let mut finished = finish(started.into_iter().flatten().collect()).into_iter();
        failed.iter().map(|failed| !failed && finished.next().expect("one for each")).collect()
    })
}

/// Polls them in turn.
fn by_polling(patches: Vec<Outstanding>) -> Vec<bool> {
    while patches.iter().any(|patch| patch.state() != State::Finished) {
        patches.iter().for_each(|patch| _ = patch.try_finish());
    }
    results(patches)
}

/// Finishes the first one while the wait of the second one continues.
fn by_finishing(patches: Vec<Outstanding>) -> Vec<bool> {
    results(patches)
}

fn by_address(patches: Vec<Outstanding>) -> Vec<bool> {
    let addresses: Vec<usize> = patches.iter().map(Outstanding::address).collect();
    patches.into_iter().for_each(Outstanding::detach);
    let finish = |address: usize| {
        loop {
            match finish_patch(address) {
                Ok(true) => return true,
                Ok(false) => {}
                Err(_) => return false,
            }
        }
    };
    addresses.into_iter().map(finish).collect()
}

fn by_rounds(patches: Vec<Outstanding>) -> Vec<bool> {
    let mut left: Vec<_> = patches.iter().filter_map(Outstanding::leave_to_finisher).collect();
    while !left.is_empty() {
        advance_all(&left);
        left.retain(|patch| patch.state() != State::Finished);
    }
    results(patches)
}

fn results(patches: Vec<Outstanding>) -> Vec<bool> {
    patches.into_iter().map(|patch| patch.finish().is_ok()).collect()
}

#[test]
fn two_at_once_however_they_are_finished() {
    type Finish = fn(Vec<Outstanding>) -> Vec<bool>;
    let ways: [(&str, Finish); 4] = [
        ("by polling", by_polling),
        ("by finishing", by_finishing),
        ("by address", by_address),
        ("by rounds", by_rounds),
    ];
    for (name, finish) in ways {
        let jobs = || [both(name, (CALL, NOP), finish), both(name, (NOP, CALL), finish), wait()];
        scenario().patcher(Program::new(jobs())).holds();
        scenario().patcher(Program::new(jobs()).polling()).holds();
        scenario().patcher(Program::new(jobs()).polling().refusable()).holds();
    }
}

/// The handle of the first is dropped while the second one is in flight.
#[test]
fn handles_that_are_dropped() {
    let dropped = |patches: Vec<Outstanding>| {
        let count = patches.len();
        drop(patches);
        vec![true; count]
    };
    let job = both("dropped", (CALL, NOP), dropped);
    scenario().patcher(Program::new([job, wait()])).holds();
}

#[test]
fn a_batch_with_a_deadline_in_the_past() {
    let job = Job::new("batch", WINDOW.bytes(), [0, 1].map(|site| Change::new(site, &CALL, &NOP)), || {
        let patches = PLACES.map(|address| Patch { address, expected: &CALL, replacement: &NOP });
        // SAFETY: the model's text.
        let batch = unsafe { start_patch_all(&patches) };
        while batch.wait(Instant::now() - Duration::from_secs(1)).is_ok_and(|state| state != State::Finished)
        {
        }
        batch.finish_all().iter().map(Result::is_ok).collect()
    });
    scenario().patcher(Program::new([job, wait()]).polling()).holds();
}

/// While the patch is in flight, another thread patches the site.
#[test]
fn an_outstanding_patch_and_another_patcher() {
    let site = Straddler::ANY;
    let (window, address) = (site.window, site.address());
    let start = Job::new("start", window.bytes(), [Change::new(0, &CALL, &NOP)], move || {
        // SAFETY: the model's text.
        let started = unsafe { start_patch(address, &CALL, &NOP) };
        vec![started.is_ok_and(|patch| patch.finish().is_ok())]
    });
    let other = patch_of(window, 0, address, &CALL, &OTHER_CALL);
    let scenario = site
        .scenario(&CALL, 1)
        .patcher(Program::new([start, wait()]).polling())
        .patcher(Program::new([other, wait()]));
    scenario.holds();
}
