//! The patcher of a trial: toggles the site at the rate of the spec until the trial is over.
//!
//! Every store is of eight bytes, in inline assembly so that it is a single store, and preserves
//! the bytes around the site:
//!
//! ```text
//! one store        [ .. f f f|b b .. ]           inside the cache line if the site is, else across
//! protocol         [ . . . . . F f f|            front: the aligned eight bytes before the boundary
//!                                   |b b . . . . . . ]   back: the aligned eight bytes after it
//! ```

use std::arch::asm;
use std::hint::spin_loop;
use std::time::Instant;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use wordpatch::tsc;

use super::code::Code;
use crate::error::Error;
use crate::trial::{LENGTH, Method, Spacing, Spec};

const WORD: usize = 8;
const CACHE_LINE: usize = 64;

/// The number of toggles between two readings of the clock.
const BATCH: u64 = 256;

/// Log2 of the longest pause, in ticks.
const MAX_PAUSE: u32 = 12;

/// Eight bytes at an address, in the site's two forms.
#[derive(Clone, Copy)]
struct Word {
    place: *mut u8,
    forms: [u64; 2],
}

/// Addresses and values of the stores.
pub(super) struct Patcher {
    whole: Word,
    front: Word,
    back: Word,
    /// The front with the lock.
    locked: [u64; 2],
    /// The address at which the site is executed.
    address: usize,
    forms: [[u8; LENGTH as usize]; 2],
}

// SAFETY: the addresses are in memory that outlives the trial, and only the thread that owns the
// patcher writes them.
unsafe impl Send for Patcher {}

/// Stores eight bytes with one instruction.
///
/// # Safety
/// They must be mapped writable. With `LOCKED`, they must not cross a cache line (that would be a
/// split lock).
#[inline(always)]
unsafe fn store<const LOCKED: bool>(place: *mut u8, value: u64) {
    // SAFETY: the caller's obligation. The compiler must not replace these two instructions.
    unsafe {
        if LOCKED {
            asm!("xchg qword ptr [{}], {}", in(reg) place, inout(reg) value => _, options(nostack));
        } else {
            asm!("mov qword ptr [{}], {}", in(reg) place, in(reg) value, options(nostack));
        }
    }
}

/// Waits until `ticks` after `start`.
#[inline(always)]
fn wait_from(start: u64, ticks: u64) {
    while tsc::now().wrapping_sub(start) < ticks {
        spin_loop();
    }
}

impl Patcher {
    /// For a site at offset `site`, both forms of which are in `code`, written through `view` and
    /// executed at `start`.
    pub(super) fn new(code: &Code, site: usize, spec: &Spec, view: *mut u8, start: usize) -> Self {
        let front = usize::from(spec.front);
        let word = |offset: usize| {
            let forms = [&code.old, &code.new].map(|form| {
                let mut bytes = code.bytes.clone();
                bytes.resize(bytes.len().max(offset + WORD), 0);
                bytes[site..site + form.len()].copy_from_slice(form);
                u64::from_le_bytes(bytes[offset..offset + WORD].try_into().expect("eight bytes"))
            });
            Word { place: view.wrapping_add(offset), forms }
        };
        let boundary = site + front;
        let end_of_line = (site & !(CACHE_LINE - 1)) + CACHE_LINE;
        let whole =
            if site + usize::from(LENGTH) <= end_of_line { site.min(end_of_line - WORD) } else { site };
        let front_word = word(boundary - WORD);
        let shift = (WORD - front) * 8;
        let lock = |form: u64| form & !(0xff << shift) | u64::from(code.lock) << shift;
        Self {
            whole: word(whole),
            front: front_word,
            back: word(boundary),
            locked: front_word.forms.map(lock),
            address: start + site,
            forms: [code.old, code.new],
        }
    }

    /// Toggles until the trial's number of toggles or `deadline` is reached, and returns their
    /// number. `progress` is called periodically.
    ///
    /// # Errors
    /// As `wordpatch::patch`.
    ///
    /// # Safety
    /// The site's memory must stay mapped, and only executors of it and this thread may use it.
    pub(super) unsafe fn toggle(
        &self,
        spec: &Spec,
        deadline: Instant,
        mut progress: impl FnMut(u64),
    ) -> Result<u64, Error> {
        let mut random = SmallRng::seed_from_u64(spec.seed);
        let mut toggles = 0;
        while toggles < spec.toggles && Instant::now() < deadline {
            for number in 0..BATCH {
                let to = usize::from(number % 2 == 0);
                // SAFETY: the words are in the site's memory; a locked store never crosses a line,
                // because plans use it inside lines only, which `store_once` checks.
                unsafe {
                    match spec.method {
                        Method::Store => store::<false>(self.whole.place, self.whole.forms[to]),
                        Method::LockedStore => self.store_locked(to),
                        Method::Protocol { wait } => self.protocol(to, u64::from(wait)),
                        Method::Wordpatch => {
                            wordpatch::patch(self.address, &self.forms[1 - to], &self.forms[to])?;
                        }
                    }
                }
                let breathe = match spec.spacing {
                    Spacing::BackToBack => false,
                    Spacing::Pairs => to == 0,
                    Spacing::Spread => true,
                };
                if breathe {
                    let longest = 1_u64 << random.random_range(0..=MAX_PAUSE);
                    wait_from(tsc::now(), random.random_range(0..longest));
                }
            }
            toggles += BATCH;
            progress(toggles);
        }
        Ok(toggles)
    }

    #[inline(always)]
    unsafe fn store_locked(&self, to: usize) {
        let place = self.whole.place as usize;
        assert_eq!(place / CACHE_LINE, (place + WORD - 1) / CACHE_LINE, "a split lock");
        // SAFETY: in the site's memory, by the caller's obligation; inside a line, as asserted.
        unsafe { store::<true>(self.whole.place, self.whole.forms[to]) };
    }

    /// Lock, wait, back, wait, front. A wait begins when the preceding store is globally visible.
    #[inline(always)]
    unsafe fn protocol(&self, to: usize, wait: u64) {
        // SAFETY: aligned words of the site's memory, by the caller's obligation.
        unsafe {
            store::<true>(self.front.place, self.locked[1 - to]);
            wait_from(tsc::now_after_all(), wait);
            store::<true>(self.back.place, self.back.forms[to]);
            wait_from(tsc::now_after_all(), wait);
            store::<true>(self.front.place, self.front.forms[to]);
        }
    }
}
