//! The site table: threads that execute our INT3 look it up while others acquire, lock and release
//! sites.
//!
//! A site is two bytes of text, each an atomic; instruction fetch and the reads of the handler are
//! relaxed loads, so that the lookup must be correct by its own orderings. A copy of an instruction
//! is a byte that is set before the site is locked.

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread::{self, JoinHandle};

use super::explore;
use crate::Bytes;
use crate::primitive::{AtomicU8, Ordering};
use crate::protocol::INT3;
use crate::site_table::{self, Int3, OwnedSite, meaning_of_int3, settled};

/// Both bytes of the first instruction of a site; each patch increments them.
const FIRST: u8 = 1;
/// The maximum number of instructions of a site.
const INSTRUCTIONS: usize = 4;

/// A site and its copies.
struct Site {
    address: usize,
    front: AtomicU8,
    back: AtomicU8,
    /// 1 if the copy of that instruction is written.
    copies: [AtomicU8; INSTRUCTIONS],
    /// Instructions whose locks have begun. Not loom's atomics: they record what has happened, not
    /// what a thread may see.
    locked: [std::sync::atomic::AtomicBool; INSTRUCTIONS],
    /// Accessed by the site's owner: loom detects two owners at once.
    owner: UnsafeCell<()>,
}

impl Site {
    fn new(address: usize) -> Arc<Self> {
        Arc::new(Self {
            address,
            front: AtomicU8::new(FIRST),
            back: AtomicU8::new(FIRST),
            copies: std::array::from_fn(|_| AtomicU8::new(0)),
            locked: Default::default(),
            owner: UnsafeCell::new(()),
        })
    }

    fn on_a_thread<T: 'static>(self: &Arc<Self>, act: impl FnOnce(&Self) -> T + 'static) -> JoinHandle<T> {
        let site = Arc::clone(self);
        thread::spawn(move || act(&site))
    }

    fn copy_of(&self, instruction: u8) -> usize {
        self.address << 8 | usize::from(instruction)
    }

    /// Patches the site to the next instruction, both bytes or the first one only. Returns whether
    /// the site could be acquired.
    fn patch(&self, length: usize) -> bool {
        let Ok(mut owned) = OwnedSite::acquire(self.address) else { return false };
        self.owner.with_mut(|_| ());
        let old = self.front.load(Ordering::Relaxed);
        assert_ne!(old, INT3, "the site has another owner");
        let both = [old, self.back.load(Ordering::Relaxed)];
        self.copies[usize::from(old)].store(1, Ordering::Relaxed);
        owned.lock(self.copy_of(old), &Bytes::new(&both[..length]).unwrap());
        self.locked[usize::from(old)].store(true, std::sync::atomic::Ordering::Relaxed);
        let store = |byte: &AtomicU8, old, new| {
            byte.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed)
                .expect("only the owner stores");
        };
        store(&self.front, old, INT3);
        if length == 2 {
            store(&self.back, both[1], old + 1);
        }
        store(&self.front, INT3, old + 1);
        self.owner.with_mut(|_| ());
        true
    }

    fn is_int3(&self) -> bool {
        self.front.load(Ordering::Relaxed) == INT3
    }

    /// Executes the site once, and returns the instruction that was executed.
    fn execute(&self) -> u8 {
        loop {
            let fetched = self.front.load(Ordering::Relaxed);
            if fetched != INT3 {
                return fetched;
            }
            match meaning_of_int3(self.address, || self.is_int3()) {
                Int3::Locked { copy } => return self.execute_copy(copy),
                Int3::Gone => {}
                Int3::Foreign => panic!("our INT3 is considered foreign"),
            }
        }
    }

    fn execute_copy(&self, copy: usize) -> u8 {
        let instruction = (copy & 0xff) as u8;
        assert_eq!(copy, self.copy_of(instruction), "another site's copy, or none");
        let number = usize::from(instruction);
        assert!(self.locked[number].load(std::sync::atomic::Ordering::Relaxed), "a copy before its lock");
        assert_eq!(self.copies[number].load(Ordering::Relaxed), 1, "an empty copy");
        instruction
    }
}

/// Sites that share a set in every segment, so that the second of them is in the second segment.
const SITE: usize = 0x1000;
const NEIGHBOUR: usize = 0x1001;

/// 2 preemptions: 5,204 executions.
#[test]
fn a_thread_continues_in_the_copy_of_the_lock_that_it_found() {
    explore(2, 5_204, || {
        let site = Site::new(SITE);
        let patcher = site.on_a_thread(|site| {
            assert!(site.patch(2));
            assert!(site.patch(2), "free again");
        });
        site.execute();
        patcher.join().unwrap();
        assert_eq!(site.execute(), FIRST + 2);
    });
}

/// 2 preemptions: 80,260 executions.
#[test]
fn one_of_two_patches_acquires_the_site_and_a_thread_executes_it() {
    explore(2, 80_260, || {
        site_table::reserve().unwrap();
        let site = Site::new(SITE);
        let patch = |site: &Site| u8::from(site.patch(1));
        let patchers = [site.on_a_thread(patch), site.on_a_thread(patch)];
        site.execute();
        let succeeded: u8 = patchers.map(|patcher| patcher.join().unwrap()).iter().sum();
        assert_ne!(succeeded, 0, "both have failed");
        assert_eq!(site.execute(), FIRST + succeeded);
        assert!(site.patch(1), "not free again");
    });
}

/// 2 preemptions: 51,885 executions.
#[test]
fn sites_of_one_set_are_appended_at_once_and_keep_their_copies() {
    explore(2, 51_885, || {
        site_table::reserve().unwrap();
        let sites = [Site::new(SITE), Site::new(NEIGHBOUR)];
        let patchers = [0, 1].map(|i: usize| sites[i].on_a_thread(|site| assert!(site.patch(1))));
        sites[0].execute();
        sites[1].execute();
        for patcher in patchers {
            patcher.join().unwrap();
        }
        assert!(sites.iter().all(|site| site.execute() == FIRST + 1));
    });
}

/// 2 preemptions: 1,749 executions.
#[test]
fn a_foreign_int3_stays_foreign_while_the_site_is_acquired_and_released() {
    explore(2, 1_749, || {
        let site = Site::new(SITE);
        site.front.store(INT3, Ordering::Relaxed);
        let taker = site.on_a_thread(|site| {
            for _ in 0..2 {
                drop(OwnedSite::acquire(site.address).expect("no other thread acquires it"));
            }
        });
        assert_eq!(meaning_of_int3(site.address, || site.is_int3()), Int3::Foreign);
        taker.join().unwrap();
    });
}

/// A child that makes its own copy of the text during a patch gets the bytes of one instruction,
/// before or after a patch. 2 preemptions: 3,860 executions.
#[test]
fn settled_bytes_are_those_of_one_instruction() {
    explore(2, 3_860, || {
        let site = Site::new(SITE);
        let patcher = site.on_a_thread(|site| assert!(site.patch(2) && site.patch(1)));
        let read = |_, length| {
            let both = [&site.front, &site.back].map(|byte| byte.load(Ordering::Relaxed));
            Bytes::new(&both[..length]).unwrap()
        };
        settled(&(SITE..SITE + 2), read, |_, bytes| {
            assert!(matches!(*bytes, [1, 1] | [2, 2] | [3, 2]), "a mixture: {bytes:?}");
        });
        patcher.join().unwrap();
    });
}

/// One execution. A new record in the first segment must not hide those of the second.
#[test]
fn sites_in_the_second_segment_are_found_after_one_is_added_to_the_first() {
    explore(0, 1, || {
        site_table::reserve().unwrap();
        let old = Bytes::new(&[FIRST]).unwrap();
        let mut locked = Vec::new();
        // Some of them are put into the first segment after others were put into the second.
        for address in [SITE, NEIGHBOUR].into_iter().chain(0x2000..0x2004) {
            let Ok(mut owned) = OwnedSite::acquire(address) else { continue };
            owned.lock(address + 1, &old);
            locked.push((address, owned));
            for (address, _) in &locked {
                assert_eq!(meaning_of_int3(*address, || true), Int3::Locked { copy: address + 1 });
            }
        }
        assert!(locked.len() >= 3, "both segments are in use");
    });
}
