//! Outstanding patches and the finisher, on real text that is not executed: every patch is made
//! once, by whichever thread comes first.
//!
//! The clock advances with each read ([`crate::tsc`]), and a wait lasts for two ticks, so that
//! polls also find waits that are not over.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use loom::thread;

use super::explore;
use crate::fault::{self, Point};
use crate::near::NearBlock;
use crate::{
    Bytes, Error, FetchModel, FetchWindow, Finisher, Outstanding, State, TMax, TextRef, WaitPolicy,
    finish_patch, outstanding, start_patch,
};

/// `mov eax` of three values.
const OLD: [u8; 5] = [0xb8, 1, 1, 1, 1];
const NEW: [u8; 5] = [0xb9, 2, 2, 2, 2];
const NEWER: [u8; 5] = [0xba, 3, 3, 3, 3];

/// Bytes of the instructions before the window's end.
const FRONT: usize = 2;

/// The number of patches of each site that were made and have released it.
static MADE: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// The addresses of the two sites.
fn site(number: usize) -> usize {
    static TEXT: OnceLock<usize> = OnceLock::new();
    let text = TEXT.get_or_init(|| {
        let anchor = site as *const () as usize;
        NearBlock::allocate(&(anchor..anchor), 128, 0).unwrap().seal().unwrap().code
    });
    text + 64 * number + 8 - FRONT
}

fn text(number: usize) -> TextRef {
    // SAFETY: the block stays mapped.
    unsafe { TextRef::resolve(site(number), OLD.len()) }.unwrap()
}

fn bytes(number: usize) -> Bytes {
    // SAFETY: as above.
    unsafe { text(number).read(0, OLD.len()) }
}

/// Writes part of an instruction, regardless of its old bytes.
fn write(number: usize, offset: usize, new: &[u8]) {
    let text = text(number);
    // SAFETY: the block stays mapped, and is not executed.
    unsafe {
        let old = text.read(offset, new.len());
        text.compare_exchange(FetchWindow::Bytes8, offset, &old, &Bytes::new(new).unwrap()).unwrap();
    }
}

/// Explores a scenario with exclusive use of the text.
fn on_text(preemptions: usize, executions: usize, scenario: impl Fn() + Send + Sync + 'static) {
    static TEXT: Mutex<()> = Mutex::new(());
    let _text = TEXT.lock().unwrap_or_else(|e| e.into_inner());
    // Things that a process does once (mapping pages for text and copies, installing the signal
    // handler) would make the first execution different from the others.
    explore(0, 1, || {
        begin();
        for number in [0, 1] {
            start(number, &OLD, &NEW).unwrap().finish().unwrap();
            start(number, &NEW, &NEWER).unwrap().finish().unwrap();
        }
    });
    explore(preemptions, executions, move || {
        begin();
        scenario();
    });
}

/// At the start of each execution.
fn begin() {
    // SAFETY: the vendors' window; the text is not executed.
    unsafe { FetchModel::force(FetchWindow::Bytes8, Some(TMax(2)), WaitPolicy::TMax) };
    for (number, made) in MADE.iter().enumerate() {
        write(number, 0, &OLD[..FRONT]);
        write(number, FRONT, &OLD[FRONT..]);
        made.store(0, Ordering::Relaxed);
    }
    fault::set_hook(Some(|address, point| {
        if point == Point::Released {
            let number = (0..2).find(|number| site(*number) == address).expect("a site of the test");
            MADE[number].fetch_add(1, Ordering::Relaxed);
        }
    }));
}

fn start(number: usize, old: &[u8], new: &[u8]) -> Result<Outstanding, Error> {
    // SAFETY: text that stays mapped, and that is not executed.
    unsafe { start_patch(site(number), old, new) }
}

/// Checks the result: the number of patches made, the bytes of the last one, and that the table is
/// empty.
fn check(number: usize, made: usize, last: &[u8]) {
    assert!(finish_patch(site(number)).unwrap(), "not finished");
    assert_eq!(*bytes(number), *last);
    assert_eq!(MADE[number].load(Ordering::Relaxed), made);
    assert!(outstanding::hold().as_ref().is_none_or(|table| table.is_empty()), "still in the table");
}

/// 4 preemptions: 2,564 executions.
#[test]
fn a_patch_is_made_once_by_its_handle_and_other_threads() {
    on_text(4, 2_564, || {
        let patch = start(0, &OLD, &NEW).unwrap();
        let others = [0, 1].map(|_| thread::spawn(|| _ = finish_patch(site(0)).unwrap()));
        patch.finish().unwrap();
        for other in others {
            other.join().unwrap();
        }
        check(0, 1, &NEW);
    });
}

/// 4 preemptions: 70 executions.
#[test]
fn a_patch_that_is_dropped_is_made_by_then() {
    on_text(4, 70, || {
        let patch = start(0, &OLD, &NEW).unwrap();
        let other = thread::spawn(|| _ = finish_patch(site(0)).unwrap());
        drop(patch);
        assert_eq!(*bytes(0), NEW);
        other.join().unwrap();
        check(0, 1, &NEW);
    });
}

/// 3 preemptions: 26,272 executions.
#[test]
fn a_finisher_that_is_dropped_has_made_what_it_took_over() {
    on_text(3, 26_272, || {
        let finisher = Finisher::start().unwrap();
        let patches = [0, 1].map(|number| start(number, &OLD, &NEW).unwrap());
        let other = thread::spawn(|| _ = finish_patch(site(0)).unwrap());
        patches.iter().for_each(|patch| finisher.take_over(patch).unwrap());
        drop(patches);
        drop(finisher);
        check(1, 1, &NEW);
        other.join().unwrap();
        check(0, 1, &NEW);
    });
}

/// 3 preemptions: 2,307 executions.
#[test]
fn a_finisher_makes_a_patch_that_is_not_polled() {
    on_text(3, 2_307, || {
        let finisher = Finisher::start().unwrap();
        let patch = start(0, &OLD, &NEW).unwrap();
        finisher.take_over(&patch).unwrap();
        while patch.state() != State::Finished {
            thread::yield_now();
        }
        check(0, 1, &NEW);
    });
}

/// 2 preemptions: 4,276 executions.
#[test]
fn two_finishers_with_the_same_patches_share_them() {
    on_text(2, 4_276, || {
        let finishers = [Finisher::start().unwrap(), Finisher::start().unwrap()];
        let patches = [0, 1].map(|number| start(number, &OLD, &NEW).unwrap());
        finishers[0].take_over(&patches[0]).unwrap();
        finishers[1].take_over(&patches[1]).unwrap();
        finishers[1].take_over(&patches[0]).unwrap();
        finishers[0].take_over(&patches[1]).unwrap();
        drop(finishers);
        assert!(patches.iter().all(|patch| patch.state() == State::Finished));
        check(0, 1, &NEW);
        check(1, 1, &NEW);
    });
}

/// The back part contains a foreign byte. 4 preemptions: 27,640 executions.
#[test]
fn an_error_is_reported_once() {
    on_text(4, 27_640, || {
        let patch = start(0, &OLD, &NEW).unwrap();
        write(0, FRONT, &[9]);
        let others =
            [0, 1].map(|_| thread::spawn(|| (0..2).filter(|_| finish_patch(site(0)).is_err()).count()));
        let reported = patch.finish_all().iter().filter(|result| result.is_err()).count();
        let reported = others.map(|thread| thread.join().unwrap()).iter().sum::<usize>() + reported;
        assert_eq!(reported, 1);
        check(0, 0, &[OLD[0], OLD[1], 9, OLD[3], OLD[4]]);
    });
}

/// 4 preemptions: 10,998 executions.
#[test]
fn a_patch_that_follows_immediately_stays_in_the_table() {
    on_text(4, 10_998, || {
        let first = start(0, &OLD, &NEW).unwrap();
        let follower = thread::spawn(|| match start(0, &NEW, &NEWER) {
            Ok(second) => {
                second.detach();
                true
            }
            Err(Error::Contended { .. } | Error::Mismatch { .. }) => false,
            Err(error) => panic!("{error}"),
        });
        first.finish().unwrap();
        if follower.join().unwrap() {
            while !finish_patch(site(0)).unwrap() {}
            check(0, 2, &NEWER);
        } else {
            check(0, 1, &NEW);
        }
    });
}
