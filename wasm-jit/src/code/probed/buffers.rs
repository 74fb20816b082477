//! Buffers to which the stubs of probes append records, and the closure that gets the records.
//!
//! # The algorithm
//! Each store has [`Cursors`]: for each recorder of the process, the address of the next record in
//! the [`Buffer`] that the recorder has for this store. It is a multiple of [`BUFFER_BYTES`] if
//! there is no room, or no buffer.
//! 1. A stub writes a record at the cursor, and then advances the cursor. Only the thread that runs
//!    the store does this; x86-64 processors make stores visible in program order.
//! 2. A stub that finds no room calls [`RecordBuffers::make_room`] on its thread, which passes all
//!    records of the buffer to the closure, and resets the cursor to the start.
//! 3. Any thread may pass the records before the cursors to the closure ([`RecordBuffers::flush`]).
//!    It notes in the buffer what was passed, and changes no cursor.
//!
//! Steps 2 and 3 hold a lock of the recorder. While it is held, the records between those already
//! passed and a cursor that was read do not change.
//!
//! The stubs' lists keep the recorder alive. When it is dropped, no stub uses its cursors any more:
//! they become 0, and its number may be reused.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::code::forks;
use crate::vmctx::{BUFFER_BYTES, MAX_RECORDERS};

/// A closure that gets the number of a store, and the words of some of its records.
type Consume = dyn FnMut(u64, &[u64]) + Send;

/// The cursors of a store, by the numbers of recorders. The store and its buffers share them.
pub(crate) struct Cursors {
    cursors: Box<[AtomicUsize]>,
    /// Whether the store has ended.
    has_ended: AtomicBool,
}

impl Cursors {
    pub(crate) fn new() -> Arc<Self> {
        let cursors = (0..MAX_RECORDERS).map(|_| AtomicUsize::new(0)).collect();
        Arc::new(Self { cursors, has_ended: AtomicBool::new(false) })
    }

    /// The address of the first cursor.
    pub(crate) fn start(&self) -> *const AtomicUsize {
        self.cursors.as_ptr()
    }

    /// Records that no code of the store runs any more.
    pub(crate) fn end(&self) {
        // Pairs with the acquire of `drain`: the cursors are final.
        self.has_ended.store(true, Ordering::Release);
    }
}

impl fmt::Debug for Cursors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cursors").field("has_ended", &self.has_ended).finish_non_exhaustive()
    }
}

/// A number that no other recorder has at the same time.
#[derive(Debug)]
struct Number(usize);

static NUMBERS: Mutex<Numbers> = Mutex::new(Numbers { used: 0, free: Vec::new() });

struct Numbers {
    used: usize,
    free: Vec<usize>,
}

impl Numbers {
    fn lock() -> forks::Locked<'static, Self> {
        forks::lock(&NUMBERS)
    }
}

impl Number {
    fn new() -> Option<Self> {
        let numbers = &mut *Numbers::lock();
        if let Some(number) = numbers.free.pop() {
            return Some(Self(number));
        }
        if numbers.used == MAX_RECORDERS {
            return None;
        }
        numbers.used += 1;
        Some(Self(numbers.used - 1))
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        Numbers::lock().free.push(self.0);
    }
}

/// The buffer of a store.
struct Buffer {
    /// The number of the store.
    store: u64,
    block: NonNull<u8>,
    /// The address of the first record that the closure has not received.
    rest: usize,
    cursors: Arc<Cursors>,
}

// SAFETY: the block belongs to the buffer. Only words before the cursor are accessed here, which no
// code writes while the recorder is locked.
unsafe impl Send for Buffer {}

impl Buffer {
    const BLOCK: Layout = match Layout::from_size_align(BUFFER_BYTES, BUFFER_BYTES) {
        Ok(layout) => layout,
        Err(_) => panic!("the size is a power of two"),
    };

    /// An empty buffer for records of this number of words.
    fn new(store: u64, words: usize, cursors: Arc<Cursors>) -> Self {
        // SAFETY: the size is not 0.
        let block = NonNull::new(unsafe { alloc_zeroed(Self::BLOCK) });
        let Some(block) = block else { handle_alloc_error(Self::BLOCK) };
        // Compiled code writes to it.
        block.as_ptr().expose_provenance();
        let mut buffer = Self { store, block, rest: 0, cursors };
        buffer.rest = buffer.start(words);
        buffer
    }

    /// The address of the first record.
    fn start(&self, words: usize) -> usize {
        let record = 8 * words;
        // No record begins at the start of the block.
        let bytes = (BUFFER_BYTES - 8) / record * record;
        self.block.addr().get() + BUFFER_BYTES - bytes
    }

    /// Passes the records up to the cursor of this number to the closure.
    fn drain(&mut self, number: usize, consume: &mut Consume) {
        // The stub has written the records before the cursor: pairs with its stores.
        let cursor = self.cursors.cursors[number].load(Ordering::Acquire);
        let rest = self.rest;
        if cursor <= rest {
            return;
        }
        // Before the closure is called, which may panic: it gets no record twice.
        self.rest = cursor;
        let (offset, words) = (rest - self.block.addr().get(), (cursor - rest) / 8);
        // SAFETY: both are in the block, at multiples of 8, and the words between them were written
        // by stubs, after zeros. The thread that runs the store writes at the cursor and after it
        // only; it returns to the start in `make_room` only, for which it needs the recorder's
        // lock.
        let records = unsafe { std::slice::from_raw_parts(self.block.add(offset).as_ptr().cast(), words) };
        consume(self.store, records);
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout; no stub writes to it (see above).
        unsafe { dealloc(self.block.as_ptr(), Self::BLOCK) };
    }
}

struct State {
    consume: Box<Consume>,
    /// The buffers of stores, by the stores' numbers.
    buffers: BTreeMap<u64, Buffer>,
}

impl State {
    /// Passes all records of the chosen stores, and of those that have ended, to the closure.
    fn drain(&mut self, number: usize, are_chosen: bool) {
        let Self { consume, buffers } = self;
        buffers.retain(|_, buffer| {
            // Read before the buffer is drained: a store may append records and then end. Pairs
            // with the release of `Cursors::end`.
            let has_ended = buffer.cursors.has_ended.load(Ordering::Acquire);
            if has_ended || are_chosen {
                buffer.drain(number, consume);
            }
            !has_ended
        });
    }
}

/// The buffers of a recorder.
pub(crate) struct RecordBuffers {
    /// Words of a record.
    words: usize,
    /// The thread that holds the lock, or 0.
    locked_by: AtomicUsize,
    state: Mutex<State>,
    /// Given back last.
    number: Number,
}

/// The state of a recorder, locked.
struct Locked<'a> {
    state: MutexGuard<'a, State>,
    locked_by: &'a AtomicUsize,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.locked_by.store(0, Ordering::Relaxed);
    }
}

/// Identifies the calling thread among those that exist.
fn this_thread() -> usize {
    thread_local! {
        static MARK: u8 = const { 0 };
    }
    MARK.with(|mark| std::ptr::from_ref(mark).addr())
}

impl RecordBuffers {
    /// Buffers for records of `words` words, which are passed to `consume`; `None` if there are too
    /// many recorders.
    pub(crate) fn new(words: usize, consume: Box<Consume>) -> Option<Self> {
        let state = Mutex::new(State { consume, buffers: BTreeMap::new() });
        Some(Self { words, locked_by: AtomicUsize::new(0), state, number: Number::new()? })
    }

    pub(crate) fn words(&self) -> usize {
        self.words
    }

    /// The index of the recorder's cursor.
    pub(crate) fn cursor(&self) -> u32 {
        self.number.0 as u32
    }

    /// # Panics
    /// If this thread is in the closure.
    fn lock(&self) -> Locked<'_> {
        let thread = this_thread();
        // Only this thread can have stored its own id.
        let is_inside = self.locked_by.load(Ordering::Relaxed) == thread;
        assert!(!is_inside, "the closure of a recorder uses the recorder, or runs its probes");
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.locked_by.store(thread, Ordering::Relaxed);
        Locked { state, locked_by: &self.locked_by }
    }

    /// Passes all records made so far to the closure.
    ///
    /// # Panics
    /// If this thread is in the closure, or it panics.
    pub(crate) fn flush(&self) {
        self.lock().state.drain(self.number.0, true);
    }

    /// Makes room for a record of the store of this number, on the thread that runs it.
    ///
    /// # Panics
    /// As [`RecordBuffers::flush`].
    pub(crate) fn make_room(&self, store: u64, cursors: &Arc<Cursors>) {
        let cursor = &cursors.cursors[self.number.0];
        if !cursor.load(Ordering::Relaxed).is_multiple_of(BUFFER_BYTES) {
            // Another instance of the store has allocated the buffer.
            return;
        }
        let mut locked = self.lock();
        let state = &mut *locked.state;
        if !state.buffers.contains_key(&store) {
            state.drain(self.number.0, false);
            let buffer = Buffer::new(store, self.words, cursors.clone());
            state.buffers.insert(store, buffer);
        }
        let State { consume, buffers } = state;
        let buffer = buffers.get_mut(&store).expect("it has been inserted");
        buffer.drain(self.number.0, consume);
        buffer.rest = buffer.start(self.words);
        cursor.store(buffer.rest, Ordering::Release);
    }
}

impl Drop for RecordBuffers {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        for buffer in state.buffers.values() {
            buffer.cursors.cursors[self.number.0].store(0, Ordering::Relaxed);
        }
    }
}

/// Each recorder has its own buffers.
impl PartialEq for RecordBuffers {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for RecordBuffers {}

impl Hash for RecordBuffers {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::ptr::from_ref(self).hash(state);
    }
}

impl fmt::Debug for RecordBuffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordBuffers").field("words", &self.words).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorder(words: usize) -> Option<RecordBuffers> {
        RecordBuffers::new(words, Box::new(|_, _| {}))
    }

    #[test]
    fn numbers_are_limited_and_used_again() {
        let mut all: Vec<RecordBuffers> = (0..MAX_RECORDERS).map_while(|_| recorder(1)).collect();
        assert!(recorder(1).is_none());
        let last = all.pop().unwrap().cursor();
        assert_eq!(recorder(1).unwrap().cursor(), last);
    }

    /// No record begins where there is no room, and the last one ends with the block.
    #[test]
    fn records_of_any_length_fit_exactly() {
        for words in 1..=64 {
            let buffer = Buffer::new(7, words, Cursors::new());
            let (start, end) = (buffer.start(words), buffer.block.addr().get() + BUFFER_BYTES);
            let mut records = (start..end).step_by(8 * words);
            assert!(
                records
                    .clone()
                    .all(|record| !record.is_multiple_of(BUFFER_BYTES) && record.is_multiple_of(8))
            );
            assert_eq!(records.next_back().unwrap() + 8 * words, end);
            assert!(start - buffer.block.addr().get() <= 8 * words);
        }
    }
}
