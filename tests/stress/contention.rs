//! Several threads patch one site at the same time, each to its own value: one of them succeeds in
//! every round, the others get an error, and the site holds the value of the one that succeeded.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;

use wordpatch::{Error, patch, patch_all, start_patch};

use crate::defect;
use crate::executor;
use crate::run::{Kind, Run, Worker};
use crate::sites::{self, Change, Value, bytes_at};

const PATCHERS: usize = 4;
const SITES: usize = 10;

/// State that the patchers of a round share.
struct Round {
    meet: Barrier,
    continues: AtomicBool,
    /// The value of the site before the round.
    value: AtomicU8,
    number: AtomicU64,
    winners: Mutex<Vec<Value>>,
}

pub(crate) fn run(run: &Run) {
    let sites = sites::make(SITES);
    let round = Round {
        meet: Barrier::new(PATCHERS),
        continues: AtomicBool::new(true),
        value: AtomicU8::new(Value::FIRST.0),
        number: AtomicU64::new(0),
        winners: Mutex::default(),
    };
    thread::scope(|scope| {
        for number in 0..PATCHERS {
            let (round, sites) = (&round, &sites);
            scope.spawn(move || contend(run, round, number, sites));
        }
        scope.spawn(|| executor::run_all(run, "contention's executor".to_owned(), &sites));
        scope.spawn(|| defect::inject(run, &sites));
    });
}

/// A patcher's rounds. All sites start with the same value: a site that is patched in one round
/// keeps it in `left`.
fn contend(run: &Run, round: &Round, number: usize, sites: &[usize]) {
    let mut worker = run.worker(format!("rival {number}"));
    let mut left = vec![Value::FIRST; sites.len()];
    loop {
        if number == 0 {
            round.continues.store(worker.continues(), Ordering::Relaxed);
        }
        worker.beat();
        round.meet.wait();
        if !round.continues.load(Ordering::Relaxed) {
            return;
        }
        let turn = round.number.load(Ordering::Relaxed) as usize % sites.len();
        let (site, before) = (sites[turn], left[turn]);
        let wanted = Value((before.0 as usize + PATCHERS * worker.random.below(40) + number) as u8 % 255 + 1);
        match attempt(&mut worker, Change::new(site, before, wanted)) {
            Ok(()) => round.winners.lock().unwrap_or_else(|e| e.into_inner()).push(wanted),
            Err(Error::Contended { .. } | Error::Mismatch { .. }) => {}
            Err(error) => worker.found(Kind::Other, error),
        }
        round.meet.wait();
        if number == 0 {
            conclude(&worker, round, site, before);
        }
        round.meet.wait();
        left[turn] = Value(round.value.load(Ordering::Relaxed));
    }
}

/// Patches by one of the three interfaces.
fn attempt(worker: &mut Worker<'_>, change: Change) -> Result<(), Error> {
    let one = change.patch();
    match worker.random.below(3) {
        // SAFETY: the site is one instruction that may hold any value; no thread here blocks
        // SIGTRAP. The same holds below.
        0 => unsafe { patch(one.address, one.expected, one.replacement) },
        // SAFETY: as above.
        1 => unsafe { patch_all(&[one]) }.pop().expect("one result"),
        // SAFETY: as above.
        _ => unsafe { start_patch(one.address, one.expected, one.replacement) }?.finish(),
    }
}

/// Determines which patch succeeded.
fn conclude(worker: &Worker<'_>, round: &Round, site: usize, before: Value) {
    let winners = std::mem::take(&mut *round.winners.lock().unwrap_or_else(|e| e.into_inner()));
    let found = bytes_at(site);
    worker.check(winners.len() == 1, Kind::Lost, || {
        format!("of the patches of {site:#x}, {} have succeeded", winners.len())
    });
    let is_asked = winners.iter().any(|value| value.form() == found);
    worker.check(is_asked, Kind::Lost, || {
        format!("{found:02x?} at {site:#x}, which held {before:?}, after the patches to {winners:?}")
    });
    worker.toggled(winners.len() as u64);
    round.value.store(found[1], Ordering::Relaxed);
    round.number.fetch_add(1, Ordering::Relaxed);
}
