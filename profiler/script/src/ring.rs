//! Events of a thread: a ring that the thread's probes write and the worker reads.
//!
//! Runs in probe functions, at any time in any thread, including in signal handlers that have
//! interrupted it. It therefore uses only atomics and its own memory; it makes system calls only
//! for a thread's first event, to wake the worker, and to wait for it.
//!
//! # Writing
//! 1. *Reserve*: the next position, by XADD on the thread's own counter. Without LOCK, since only
//!    this thread writes it; one instruction, so that a signal handler reserves either before or
//!    after it.
//! 2. *Wait*, if the worker has not yet taken the event that is one round older.
//! 3. *Fill* the slot; last, with Release, the word that identifies the probe and is 0 in an empty
//!    slot.
//!
//! # Reading
//! The worker takes the events from the oldest up to the first empty slot, empties their slots, and
//! then advances `read`. A slot that is reserved but not yet filled delays the events after it. It
//! may stay unfilled: if a signal handler interrupts the probe between the first and the third
//! step, and leaves by `longjmp`. If the ring is full, or the process ends, such a slot is given
//! up, and counts as a lost event.
//!
//! # Values
//! Arguments and results are in the slots after that of their event, three in each. All slots of an
//! event are reserved by one XADD, and filled before the event's own slot. If that is given up, the
//! slots of its values are discarded.
//!
//! # Blocks
//! A thread's block is found through a thread-local pointer with initial-exec access, which needs
//! no call to `__tls_get_addr`, a function that may allocate. Blocks are mapped when a thread needs
//! one, and reused when it has ended; they are never unmapped.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fastinst_sigsafe::blocks::{Block, Blocks};
use fastinst_sigsafe::futex;

/// The number of events in a ring. Unused pages are never allocated.
pub(crate) const RING: u64 = 2048;

/// A thread wakes the worker after this number of events since the last wake-up.
const WAKE_EVERY: u64 = RING / 4;

/// The maximum time for which a thread waits for a worker that takes no event.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// The same in a child that was made without `fork`: if it shares the memory, as after `vfork`, the
/// worker of its parent takes its events; otherwise nothing does.
const PATIENCE_OF_CHILDREN: Duration = Duration::from_secs(1);

/// A child, made without `fork`, for whose events no worker made room: it does not wait again.
static ALONE: AtomicU32 = AtomicU32::new(0);

/// Whether events are wanted.
static OBSERVING: AtomicBool = AtomicBool::new(false);

/// The process whose worker reads the rings.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// The number of events that were not written, in all threads.
static LOST: AtomicU64 = AtomicU64::new(0);

/// The futex on which the worker sleeps.
pub(crate) static NEWS: AtomicU32 = AtomicU32::new(0);

/// The number of times that the worker has made room; waiting threads sleep on it.
static ROUNDS: AtomicU32 = AtomicU32::new(0);

/// The number of threads that wait for room.
static WAITING: AtomicU32 = AtomicU32::new(0);

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// The number of the probe.
    pub(crate) probe: u32,
    /// The lower half of the address at which execution continues after the site.
    pub(crate) continues_at: u32,
    pub(crate) ticks: u64,
    /// The stack pointer at the probe.
    pub(crate) stack_pointer: u64,
    /// The return address of the function.
    pub(crate) call_site: u64,
}

/// The maximum number of values of an event.
pub(crate) const MAX_VALUES: usize = 12;

/// The number of values in a slot.
const VALUES: usize = 3;

/// The lower half of the word of a slot with values. No probe has this number.
const OF_VALUES: u32 = u32::MAX;

/// The values of an event: arguments, or a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Values {
    pub(crate) values: [u64; MAX_VALUES],
    /// The set of values that are known, as bits.
    pub(crate) known: u32,
}

impl Default for Values {
    fn default() -> Self {
        Self::NONE
    }
}

impl Values {
    pub(crate) const NONE: Self = Self { values: [0; MAX_VALUES], known: 0 };

    /// These values, completed by those of another event of the same call.
    pub(crate) fn with(mut self, other: &Self) -> Self {
        for number in (0..MAX_VALUES).filter(|number| other.known & 1 << number != 0) {
            self.values[number] = other.values[number];
        }
        self.known |= other.known;
        self
    }

    /// A value, if it is known.
    pub(crate) fn get(&self, number: u32) -> Option<u64> {
        (self.known & 1 << number != 0).then(|| self.values[number as usize])
    }
}

/// The word of a slot: in its upper half `continues_at`, in its lower half the number of the probe
/// plus one. In a slot with values, the other words are the values, and this one has the bits of
/// those that are known, then [`OF_VALUES`].
#[derive(Debug)]
struct Slot {
    word: AtomicU64,
    ticks: AtomicU64,
    stack_pointer: AtomicU64,
    call_site: AtomicU64,
}

/// A thread's block. Mapped zeroed; all zero is its initial state.
#[repr(C)]
pub(crate) struct Thread {
    /// The kernel's id of the thread that owns the block; 0 if it is free.
    owner: AtomicU32,
    next: AtomicPtr<Thread>,
    /// The number of positions that the thread has reserved.
    reserved: AtomicU64,
    /// The number of unfilled slots of events that are already counted as lost.
    abandoned: AtomicU64,
    /// Positions below this one are free again; on a separate cache line, since the worker writes
    /// it.
    read: Apart,
    slots: [Slot; RING as usize],
}

#[repr(align(64))]
struct Apart(AtomicU64);

// SAFETY: 1. atomics, for which zero is valid; 2. two fields; 3. aligned to a cache line.
unsafe impl Block for Thread {
    fn owner(&self) -> &AtomicU32 {
        &self.owner
    }

    fn next(&self) -> &AtomicPtr<Self> {
        &self.next
    }
}

static BLOCKS: Blocks<Thread> = Blocks::new();

std::arch::global_asm!(
    ".pushsection .tbss,\"awT\",@nobits",
    ".balign 8",
    ".globl fastinst_script_thread_block",
    ".hidden fastinst_script_thread_block",
    ".type fastinst_script_thread_block, @object",
    ".size fastinst_script_thread_block, 8",
    "fastinst_script_thread_block: .zero 8",
    ".popsection",
);

/// The thread-local pointer to the block, null before the thread's first event.
#[inline(always)]
fn thread_local() -> *mut *mut Thread {
    let offset: usize;
    let base: usize;
    // SAFETY: reads the offset of the variable above, and the thread pointer, which x86-64 keeps at
    // fs:0.
    unsafe {
        std::arch::asm!(
            "mov {offset}, qword ptr [rip + fastinst_script_thread_block@GOTTPOFF]",
            "mov {base}, qword ptr fs:[0]",
            offset = out(reg) offset,
            base = out(reg) base,
            options(nostack, pure, readonly, preserves_flags),
        );
    }
    std::ptr::with_exposed_provenance_mut(base.wrapping_add(offset))
}

fn kernel_id() -> u32 {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

/// Permits events to be written in this process.
pub(crate) fn begin() {
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    OBSERVING.store(true, Ordering::Release);
}

/// Events are discarded from now on.
pub(crate) fn end() {
    OBSERVING.store(false, Ordering::Release);
    made_room();
}

/// Wakes the threads that wait for room.
fn made_room() {
    ROUNDS.fetch_add(1, Ordering::SeqCst);
    // SeqCst: pairs with `wait`. A thread that is not counted yet reads the new number of rounds.
    if WAITING.load(Ordering::SeqCst) > 0 {
        futex::wake(&ROUNDS);
    }
}

pub(crate) fn is_observing() -> bool {
    OBSERVING.load(Ordering::Relaxed)
}

/// The number of events that were not written, or not read.
pub(crate) fn lost() -> u64 {
    LOST.load(Ordering::Relaxed)
}

pub(crate) fn wake_worker() {
    NEWS.fetch_add(1, Ordering::Release);
    futex::wake(&NEWS);
}

/// All blocks.
pub(crate) fn blocks() -> impl Iterator<Item = &'static Thread> {
    BLOCKS.iter()
}

/// Writes an event of the calling thread, without values.
#[inline(always)]
pub(crate) fn write(event: Event) {
    if !OBSERVING.load(Ordering::Relaxed) {
        return;
    }
    match Thread::current() {
        Some(thread) => thread.push(event, &Values::NONE, 0),
        None => lose(),
    }
}

/// Writes an event of the calling thread, with this number of values.
pub(crate) fn write_with(event: Event, values: &Values, count: usize) {
    if !OBSERVING.load(Ordering::Relaxed) {
        return;
    }
    match Thread::current() {
        Some(thread) => thread.push(event, values, count.min(MAX_VALUES).div_ceil(VALUES) as u64),
        None => lose(),
    }
}

#[cold]
fn lose() {
    LOST.fetch_add(1, Ordering::Relaxed);
}

impl Thread {
    /// The block of the calling thread. `None` if it has none and cannot get one: no memory is
    /// available, or the caller is a vfork child, which has the thread-local storage of the thread
    /// that made it, and whose id would be that of a thread that has ended.
    #[inline(always)]
    fn current() -> Option<&'static Self> {
        // SAFETY: the thread-local is this thread's own, and null or a block that this thread owns.
        unsafe { (*thread_local()).as_ref() }.or_else(Self::attach)
    }

    #[cold]
    #[inline(never)]
    fn attach() -> Option<&'static Self> {
        if PROCESS.load(Ordering::Relaxed) != std::process::id() {
            return None;
        }
        let block = BLOCKS.acquire(kernel_id())?;
        // SAFETY: as in `current`.
        unsafe { *thread_local() = std::ptr::from_ref(block).cast_mut() };
        Some(block)
    }

    /// Reserves positions; returns the first one (see the module).
    #[inline(always)]
    fn reserve(&self, count: u64) -> u64 {
        let mut position = count;
        // SAFETY: adds to the counter, which only this thread writes, in one instruction.
        unsafe {
            std::arch::asm!(
                "xadd qword ptr [{counter}], {position}",
                counter = in(reg) self.reserved.as_ptr(),
                position = inout(reg) position,
                options(nostack),
            );
        }
        position
    }

    fn slot(&self, position: u64) -> &Slot {
        &self.slots[(position % RING) as usize]
    }

    /// Writes an event, with values in this number of slots after its own.
    #[inline(always)]
    fn push(&self, event: Event, values: &Values, slots: u64) {
        let position = self.reserve(1 + slots);
        let last = position + slots;
        // Acquire: pairs with the Release of `take`, which has emptied the slots.
        if last.wrapping_sub(self.read.0.load(Ordering::Acquire)) >= RING && !self.wait(last) {
            self.abandoned.fetch_add(slots, Ordering::Relaxed);
            return lose();
        }
        // A signal handler has interrupted this function, and has filled the ring: the event is
        // given up, and counted.
        if self.is_given_up(position) {
            return;
        }
        for number in 0..slots {
            let slot = self.slot(position + 1 + number);
            let first = number as usize * VALUES;
            slot.ticks.store(values.values[first], Ordering::Relaxed);
            slot.stack_pointer.store(values.values[first + 1], Ordering::Relaxed);
            slot.call_site.store(values.values[first + 2], Ordering::Relaxed);
            let known = u64::from(values.known >> first & ((1 << VALUES) - 1));
            slot.word.store(known << 32 | u64::from(OF_VALUES), Ordering::Relaxed);
        }
        let slot = self.slot(position);
        slot.ticks.store(event.ticks, Ordering::Relaxed);
        slot.stack_pointer.store(event.stack_pointer, Ordering::Relaxed);
        slot.call_site.store(event.call_site, Ordering::Relaxed);
        let word = u64::from(event.continues_at) << 32 | u64::from(event.probe + 1);
        if self.is_given_up(position) {
            return;
        }
        // Release: pairs with the Acquire of `event`. The slots of the values are filled.
        slot.word.store(word, Ordering::Release);
        if position / WAKE_EVERY != (last + 1) / WAKE_EVERY {
            wake_worker();
        }
    }

    fn is_given_up(&self, position: u64) -> bool {
        self.read.0.load(Ordering::Relaxed) > position
    }

    /// Waits until the slot of a position is empty. Returns false if it will not be.
    #[cold]
    #[inline(never)]
    fn wait(&self, position: u64) -> bool {
        let process = std::process::id();
        let is_own = PROCESS.load(Ordering::Relaxed) == process;
        if !is_own && ALONE.load(Ordering::Relaxed) == process {
            return false;
        }
        WAITING.fetch_add(1, Ordering::SeqCst);
        let has_room = self.wait_counted(position, is_own);
        WAITING.fetch_sub(1, Ordering::SeqCst);
        if !has_room && !is_own {
            ALONE.store(process, Ordering::Relaxed);
        }
        has_room
    }

    fn wait_counted(&self, position: u64, is_own: bool) -> bool {
        let patience = if is_own { PATIENCE } else { PATIENCE_OF_CHILDREN };
        let mut seen = self.read.0.load(Ordering::Acquire);
        let mut deadline = Instant::now() + patience;
        loop {
            let round = ROUNDS.load(Ordering::SeqCst);
            let read = self.read.0.load(Ordering::Acquire);
            if position.wrapping_sub(read) < RING {
                return true;
            }
            if read != seen {
                seen = read;
                deadline = Instant::now() + patience;
            }
            if !is_observing() {
                return false;
            }
            if Instant::now() >= deadline {
                if is_own {
                    end();
                }
                return false;
            }
            wake_worker();
            futex::wait(&ROUNDS, round, deadline);
        }
    }

    /// The kernel's id of the thread that owns the block, or 0.
    pub(crate) fn owner(&self) -> u32 {
        self.owner.load(Ordering::Acquire)
    }

    /// The event at this distance from the oldest slot, if it and those before it are complete.
    /// Only for the worker, which takes events by [`Thread::advance`].
    pub(crate) fn event(&self, ahead: u64) -> Option<Event> {
        let position = self.read.0.load(Ordering::Relaxed).wrapping_add(ahead);
        // A push that a fork has interrupted fills a slot that is not reserved in the child.
        if position >= self.reserved.load(Ordering::Relaxed) {
            return None;
        }
        let slot = self.slot(position);
        // Acquire: pairs with the Release of `push`.
        let word = slot.word.load(Ordering::Acquire);
        (word != 0 && word as u32 != OF_VALUES).then(|| Event {
            probe: (word as u32).wrapping_sub(1),
            continues_at: (word >> 32) as u32,
            ticks: slot.ticks.load(Ordering::Relaxed),
            stack_pointer: slot.stack_pointer.load(Ordering::Relaxed),
            call_site: slot.call_site.load(Ordering::Relaxed),
        })
    }

    /// The values of the event at this distance from the oldest slot, and the number of slots that
    /// the event and its values occupy.
    pub(crate) fn values(&self, ahead: u64) -> (Values, u64) {
        let first = self.read.0.load(Ordering::Relaxed).wrapping_add(ahead) + 1;
        let mut found = Values::NONE;
        for number in 0..MAX_VALUES.div_ceil(VALUES) as u64 {
            let slot = self.slot(first + number);
            // `event` has read the event's own slot with Acquire, which was filled after these.
            let word = slot.word.load(Ordering::Relaxed);
            if first + number >= self.reserved.load(Ordering::Relaxed) || word as u32 != OF_VALUES {
                return (found, 1 + number);
            }
            let at = number as usize * VALUES;
            for (value, from) in
                found.values[at..].iter_mut().zip([&slot.ticks, &slot.stack_pointer, &slot.call_site])
            {
                *value = from.load(Ordering::Relaxed);
            }
            found.known |= ((word >> 32) as u32) << at;
        }
        (found, 1 + MAX_VALUES.div_ceil(VALUES) as u64)
    }

    /// Empties this number of slots, oldest first.
    pub(crate) fn advance(&self, count: u64) {
        let read = self.read.0.load(Ordering::Relaxed);
        for position in read..read + count {
            self.slot(position).word.store(0, Ordering::Relaxed);
        }
        self.read.0.store(read + count, Ordering::Release);
        made_room();
    }

    /// Gives up the oldest slot if it is reserved but not filled although the slots after it fill
    /// the ring; with `at_end`, if there is anything after it; and also if it has values of an
    /// event that was given up. Returns whether it did.
    pub(crate) fn skip_unfilled(&self, at_end: bool) -> bool {
        let read = self.read.0.load(Ordering::Relaxed);
        let reserved = self.reserved.load(Ordering::Relaxed);
        if read < reserved && self.slot(read).word.load(Ordering::Acquire) as u32 == OF_VALUES {
            self.advance(1);
            return true;
        }
        let is_stuck = reserved.saturating_sub(read) > if at_end { 1 } else { RING };
        if !is_stuck || self.slot(read).word.load(Ordering::Acquire) != 0 {
            return false;
        }
        let one_less = |abandoned: u64| abandoned.checked_sub(1);
        if self.abandoned.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_err() {
            lose();
        }
        self.advance(1);
        true
    }

    /// Frees the block of a thread that has ended.
    pub(crate) fn free(&self) {
        self.owner.store(0, Ordering::Release);
    }

    /// In a forked child: empties all blocks, which contain events of the parent, and frees those
    /// of other threads.
    pub(crate) fn reset_in_child() {
        // SAFETY: as in `current`.
        let own = unsafe { *thread_local() };
        for block in blocks() {
            let is_own = std::ptr::eq(block, own);
            block.owner.store(if is_own { kernel_id() } else { 0 }, Ordering::Relaxed);
            block.abandoned.store(0, Ordering::Relaxed);
            block.reserved.store(0, Ordering::Relaxed);
            block.read.0.store(0, Ordering::Relaxed);
            block.slots.iter().for_each(|slot| slot.word.store(0, Ordering::Relaxed));
        }
        LOST.store(0, Ordering::Relaxed);
    }
}
