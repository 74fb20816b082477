//! The table of sites: threads that meet our INT3 look it up while others take, lock and release
//! sites.
//!
//! A site is two bytes of text here, each an atomic; the processor's fetch and the handler's look
//! are relaxed loads, so that the lookup must be right by its own orderings. A copy of an
//! instruction is a byte that is filled before the site is locked.

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread::{self, JoinHandle};

use super::explore;
use crate::Bytes;
use crate::primitive::{AtomicU8, Ordering};
use crate::protocol::INT3;
use crate::site_table::{self, Int3, OwnedSite, meaning_of_int3, settled};

/// The first instruction of a site is made of two of these; each patch makes the next.
const FIRST: u8 = 1;
/// As many instructions as a site may go through.
const INSTRUCTIONS: usize = 4;

/// A site and its copies.
struct Site {
    address: usize,
    front: AtomicU8,
    back: AtomicU8,
    /// 1 where the copy of that instruction is filled.
    copies: [AtomicU8; INSTRUCTIONS],
    /// Instructions whose locks have begun. Not loom's: what has happened, not what a thread may
    /// know of it.
    locked: [std::sync::atomic::AtomicBool; INSTRUCTIONS],
    /// Of whoever has taken the site: loom refuses two at once.
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

    /// Makes the next instruction of the one that stands there, of both its bytes or the first
    /// alone; says whether the site could be had.
    fn patch(&self, length: usize) -> bool {
        let Ok(mut owned) = OwnedSite::acquire(self.address) else { return false };
        self.owner.with_mut(|_| ());
        let old = self.front.load(Ordering::Relaxed);
        assert_ne!(old, INT3, "the site is another's");
        let both = [old, self.back.load(Ordering::Relaxed)];
        self.copies[usize::from(old)].store(1, Ordering::Relaxed);
        owned.lock(self.copy_of(old), &Bytes::new(&both[..length]).unwrap());
        self.locked[usize::from(old)].store(true, std::sync::atomic::Ordering::Relaxed);
        let store = |byte: &AtomicU8, old, new| {
            byte.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed)
                .expect("the site is its own");
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

    /// Executes the site once, and says which instruction that was.
    fn execute(&self) -> u8 {
        loop {
            let fetched = self.front.load(Ordering::Relaxed);
            if fetched != INT3 {
                return fetched;
            }
            match meaning_of_int3(self.address, || self.is_int3()) {
                Int3::Locked { copy } => return self.execute_copy(copy),
                Int3::Gone => {}
                Int3::Foreign => panic!("our INT3 is taken for somebody else's"),
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
fn a_thread_goes_on_in_the_copy_of_the_lock_that_it_met() {
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
fn one_of_two_patches_has_the_site_and_a_thread_passes_through() {
    explore(2, 80_260, || {
        site_table::reserve().unwrap();
        let site = Site::new(SITE);
        let patch = |site: &Site| u8::from(site.patch(1));
        let patchers = [site.on_a_thread(patch), site.on_a_thread(patch)];
        site.execute();
        let succeeded: u8 = patchers.map(|patcher| patcher.join().unwrap()).iter().sum();
        assert_ne!(succeeded, 0, "both were refused");
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
fn a_foreign_int3_stays_foreign_while_the_site_is_taken_and_given_back() {
    explore(2, 1_749, || {
        let site = Site::new(SITE);
        site.front.store(INT3, Ordering::Relaxed);
        let taker = site.on_a_thread(|site| {
            for _ in 0..2 {
                drop(OwnedSite::acquire(site.address).expect("nobody else takes it"));
            }
        });
        assert_eq!(meaning_of_int3(site.address, || site.is_int3()), Int3::Foreign);
        taker.join().unwrap();
    });
}

/// What a child gets that takes its own copy of the text meanwhile: the bytes of one instruction,
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
        settled(&(SITE..SITE + 1), read, |_, bytes| {
            assert!(matches!(*bytes, [1, 1] | [2, 2] | [3, 2]), "a mixture: {bytes:?}");
        });
        patcher.join().unwrap();
    });
}

/// One execution: a site that finds room in the first segment leaves those in the second known.
#[test]
fn a_site_in_the_first_segment_leaves_those_in_the_second_known() {
    explore(0, 1, || {
        site_table::reserve().unwrap();
        let old = Bytes::new(&[FIRST]).unwrap();
        let mut locked = Vec::new();
        // Some of them find room in the first segment after others had to go to the second.
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
