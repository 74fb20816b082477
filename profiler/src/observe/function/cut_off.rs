//! Records when exit periods ended in which calls were open.
//!
//! The threads that made these calls need the time when the calls have ended, perhaps many windows
//! later. All functions share a table, in which a later note may replace an older one; then nothing
//! is known of the older one's calls.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};

use super::Function;

/// The note of one period.
#[derive(Debug)]
struct Note {
    /// The function and the period; [`NONE`] or [`BUSY`].
    key: AtomicU64,
    at: AtomicU64,
}

/// Nothing was noted yet.
const NONE: u64 = 0;

/// A thread is writing the note.
const BUSY: u64 = 1;

const NOTES: usize = 1024;

static TABLE: [Note; NOTES] = [const { Note { key: AtomicU64::new(NONE), at: AtomicU64::new(0) } }; NOTES];

/// The key of a function and an exit period, and its place in the table.
fn place(function: &Function, period: u32) -> (u64, &'static Note) {
    // Functions are aligned, so two functions have the same key only in periods that are far apart.
    let key = (std::ptr::from_ref(function) as u64) << 16 ^ u64::from(period);
    // Fibonacci hashing (Knuth, "The Art of Computer Programming", volume 3, section 6.4).
    let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - NOTES.trailing_zeros());
    (key, &TABLE[hash as usize])
}

/// Records the end of a period.
pub(super) fn note(function: &Function, period: u32, at: u64) {
    let (key, note) = place(function, period);
    // Two threads that write at the same time would mix their notes: one of the notes is lost.
    if note.key.swap(BUSY, Acquire) != BUSY {
        // Release: a thread that reads the note does not then read an earlier key.
        note.at.store(at, Release);
        note.key.store(key, Release);
    }
}

/// The recorded end of a period.
pub(super) fn noted(function: &Function, period: u32) -> Option<u64> {
    let (key, note) = place(function, period);
    let is_noted = || note.key.load(Acquire) == key;
    // Acquire: the second load of the key comes later.
    let at = is_noted().then(|| note.at.load(Acquire));
    at.filter(|_| is_noted())
}
