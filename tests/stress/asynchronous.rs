//! Many outstanding patches, started by one thread and finished by whichever comes first: the
//! handle, [`finish_patch`] from any thread, a [`Finisher`], or the drop. In the end all of them
//! are finished, and no site is locked.

use std::thread;
use std::time::{Duration, Instant};

use wordpatch::{Finisher, Outstanding, State, finish_patch, start_patch, start_patch_all};

use crate::defect;
use crate::executor;
use crate::run::{Kind, Run, Worker};
use crate::sites::{self, Change, Value, bytes_at, holds};

const PATCHERS: usize = 3;
const EACH: usize = 40;
const EXECUTORS: usize = 2;

/// Time in which every patch must be finished.
const BOUND: Duration = Duration::from_secs(20);

pub(crate) fn run(run: &Run) {
    let sites = sites::make(PATCHERS * EACH);
    thread::scope(|scope| {
        for number in 0..PATCHERS {
            let sites = &sites;
            scope.spawn(move || storm(run, number, sites));
        }
        for number in 0..EXECUTORS {
            let sites = &sites;
            scope.spawn(move || executor::run_all(run, format!("storm's executor {number}"), sites));
        }
        scope.spawn(|| defect::inject(run, &sites));
    });
    for site in &sites {
        run.check(matches!(bytes_at(*site)[0], 0xb8 | 0xba), Kind::Lost, || {
            format!("{site:#x} was left locked")
        });
    }
}

/// A thread that patches its own sites, and advances patches of all threads.
fn storm(run: &Run, number: usize, all: &[usize]) {
    let mut worker = run.worker(format!("storm {number}"));
    let sites = &all[number * EACH..(number + 1) * EACH];
    let mut values = vec![Value::FIRST; sites.len()];
    let mut finisher = None;
    while worker.continues() {
        let finisher_now = finisher.get_or_insert_with(|| Finisher::start().expect("a finisher"));
        let mut waited_for = Vec::new();
        let mut changes = Vec::new();
        for (site, value) in sites.iter().zip(&mut values) {
            if worker.random.coin() {
                let next = value.other(&mut worker.random);
                changes.push(Change::new(*site, *value, next));
                *value = next;
            }
        }
        let (single, batch) = changes.split_at(worker.random.below(changes.len() + 1));
        for change in single {
            let patch = change.patch();
            // SAFETY: the site is one instruction that may hold any value, and stays mapped; no
            // thread here blocks the trap.
            match unsafe { start_patch(patch.address, patch.expected, patch.replacement) } {
                Ok(begun) => waited_for.extend(leave(&mut worker, begun, finisher_now)),
                Err(error) => worker.found(Kind::Lost, error),
            }
            let address = all[worker.random.below(all.len())];
            let furthered = finish_patch(address);
            worker.check(furthered.is_ok(), Kind::Lost, || format!("{furthered:?} at {address:#x}"));
        }
        let patches: Vec<_> = batch.iter().map(Change::patch).collect();
        // SAFETY: as above.
        let begun = unsafe { start_patch_all(&patches) };
        waited_for.extend(leave(&mut worker, begun, finisher_now));
        worker.toggled(changes.len() as u64);
        if worker.random.below(8) == 0 {
            // Finishes its patches before it ends.
            finisher = None;
        }
        settle(&worker, waited_for, sites, &values);
    }
}

/// Leaves a patch to one of the finishers; returns it if it is to be waited for.
fn leave(worker: &mut Worker<'_>, begun: Outstanding, finisher: &Finisher) -> Option<Outstanding> {
    let check = |worker: &Worker<'_>, result: Result<(), wordpatch::Error>| {
        worker.check(result.is_ok(), Kind::Lost, || format!("{result:?}"));
    };
    match worker.random.below(6) {
        0 => drop(begun),
        1 => {
            let results = begun.finish_all();
            results.into_iter().for_each(|result| check(worker, result));
        }
        2 => begun.detach(),
        3 => {
            check(worker, finisher.take_over(&begun));
            return Some(begun);
        }
        4 => {
            check(worker, finisher.take_over(&begun));
            drop(begun);
        }
        _ => {
            check(worker, begun.try_finish().map(drop));
            return Some(begun);
        }
    }
    None
}

/// Waits for all patches of these sites, and checks the final bytes.
fn settle(worker: &Worker<'_>, waited_for: Vec<Outstanding>, sites: &[usize], values: &[Value]) {
    let deadline = Instant::now() + BOUND;
    for begun in waited_for {
        let state = begun.wait(deadline);
        worker
            .check(matches!(state, Ok(State::Finished)), Kind::Hung, || format!("{state:?} after {BOUND:?}"));
        for result in begun.finish_all() {
            worker.check(result.is_ok(), Kind::Lost, || format!("{result:?}"));
        }
    }
    for (site, value) in sites.iter().zip(values) {
        loop {
            match finish_patch(*site) {
                Ok(true) => break,
                Ok(false) if Instant::now() < deadline => thread::yield_now(),
                other => {
                    return worker.found(Kind::Hung, format_args!("{other:?} at {site:#x} after {BOUND:?}"));
                }
            }
        }
        worker.check(holds(*site, *value), Kind::Lost, || {
            format!("{value:?} should stand at {site:#x}, not {:02x?}", bytes_at(*site))
        });
    }
}
