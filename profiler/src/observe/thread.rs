//! Per-thread memory of the profiler: the open entries, and a ring of samples that the service
//! thread drains.
//!
//! A thread gets its block when its first probe fires: one of a thread that has ended, or a new
//! mapping ([`fastinst_sigsafe::blocks`]). The block is found through a thread-local pointer with
//! initial-exec access: no call to `__tls_get_addr`, which may allocate. Blocks are never unmapped.
//! The service thread reuses those of threads that have ended.

mod ring;
mod sample;

use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence, fence,
};

use fastinst_sigsafe::blocks::{Block, Blocks};
use wordpatch::tsc;

use self::ring::Ring;
pub(crate) use self::sample::{Duration, Limits, Sample};
use crate::observe::function::{FUNCTIONS, OwnTime, WindowNumber};
use crate::observe::pairing::{Entry, EntryStack};
use crate::observe::preemption::{self, Preemption};
use crate::observe::stack::{Number, Stack};
use crate::observe::{fire, governor, waking};
use crate::process::own_process;
use crate::processor_time;

/// A probe that takes longer than this, in ticks, was preempted: about 0.1 ms.
const MAX_PROBE_TIME: u64 = 250_000;

/// A sample for which there is no room waits for it for one in this number of the ticks of its
/// call, and at most for this number of ticks, about ten milliseconds.
const WAIT_FOR_ROOM: u64 = 64;
const LONGEST_WAIT_FOR_ROOM: u64 = 25_000_000;

/// A thread's block. Mapped zeroed; all zero is its initial state.
pub(crate) struct Thread {
    /// Kernel id of the thread that owns the block; 0 if it is free.
    owner: AtomicU32,
    next: AtomicPtr<Thread>,
    /// Whether the thread is in a probe function, and its stack pointer there.
    inside: AtomicBool,
    inside_at: AtomicUsize,
    /// Time that the thread has spent in probes, in ticks.
    pub(crate) overhead: AtomicU64,
    /// The part of it in which the thread was not running, as far as known.
    paused: AtomicU64,
    /// The part of it in which probes were made, or were still missing; without pauses.
    making: AtomicU64,
    /// The end of its last probe, in ticks.
    seen: AtomicU64,
    /// The time at which it was last found alive otherwise, in ticks.
    alive: AtomicU64,
    /// Samples lost because the ring was full, and entries lost because the stack was full.
    lost: AtomicU64,
    /// The time at which the thread got the block, in ticks.
    attached: AtomicU64,
    /// Its processor time at that time, and when it was last read, in nanoseconds.
    processor_before: AtomicU64,
    processor: AtomicU64,
    preemption: Preemption,
    stack: Stack,
    /// Written by [`note_processor_times`], and where it writes next.
    notes: [Note; NOTES],
    next_note: AtomicUsize,
    /// Number of first entries of windows that the thread has made.
    cold: AtomicU64,
    /// The windows in which it has made entries lately.
    windows: [EnteredWindow; WINDOWS],
    entries: EntryStack,
    ring: Ring,
}

// SAFETY: `ring` is accessed through its indices; the rest is atomic.
unsafe impl Sync for Thread {}

// SAFETY: 1. atomics, and samples of numbers and flags: zero is valid for all; 2. two fields;
// 3. aligned to a cache line at most.
unsafe impl Block for Thread {
    fn owner(&self) -> &AtomicU32 {
        &self.owner
    }

    fn next(&self) -> &AtomicPtr<Self> {
        &self.next
    }
}

/// The list of all blocks.
static BLOCKS: Blocks<Thread> = Blocks::new();

/// The number of threads that have begun since the last reclamation, and the number at which the
/// next one is due.
static BEGUN: AtomicUsize = AtomicUsize::new(0);
static MANY: AtomicUsize = AtomicUsize::new(FEW);

/// Reclamation is due if as many threads have begun as were left by the last one, plus this number.
const FEW: usize = 64;

std::arch::global_asm!(
    ".pushsection .tbss,\"awT\",@nobits",
    ".balign 8",
    ".globl profiler_thread_block",
    ".hidden profiler_thread_block",
    ".type profiler_thread_block, @object",
    ".size profiler_thread_block, 8",
    "profiler_thread_block: .zero 8",
    ".popsection",
);

/// The address of the thread control block.
#[inline(always)]
fn thread_pointer() -> usize {
    let base: usize;
    // SAFETY: x86-64 keeps the address at fs:0.
    unsafe {
        std::arch::asm!(
            "mov {base}, qword ptr fs:[0]",
            base = out(reg) base,
            options(nostack, pure, readonly, preserves_flags),
        );
    }
    base
}

/// The thread-local pointer to the block, null before the thread's first probe.
#[inline(always)]
fn thread_local() -> *mut *mut Thread {
    let offset: usize;
    // SAFETY: reads the offset of the variable above.
    unsafe {
        std::arch::asm!(
            "mov {offset}, qword ptr [rip + profiler_thread_block@GOTTPOFF]",
            offset = out(reg) offset,
            options(nostack, pure, readonly, preserves_flags),
        );
    }
    std::ptr::with_exposed_provenance_mut(thread_pointer().wrapping_add(offset))
}

fn kernel_id() -> u32 {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

fn blocks() -> impl Iterator<Item = &'static Thread> {
    BLOCKS.iter()
}

impl Thread {
    /// The block of the calling thread. `None` if it has none and gets none: no memory is
    /// available, or it is a vfork child, which has the thread-local storage of the thread that
    /// made it, and whose id would be that of a thread that has ended.
    #[inline(always)]
    pub(crate) fn current() -> Option<&'static Self> {
        Self::existing().or_else(Self::attach)
    }

    /// The block of the calling thread, if it has made a probe.
    #[inline(always)]
    pub(crate) fn existing() -> Option<&'static Self> {
        // SAFETY: the thread-local is this thread's own, and null or a block that this thread owns.
        unsafe { (*thread_local()).as_ref() }
    }

    #[cold]
    #[inline(never)]
    fn attach() -> Option<&'static Self> {
        if !own_process::may_be_this() {
            return None;
        }
        let block = BLOCKS.acquire(kernel_id())?;
        if BEGUN.fetch_add(1, Ordering::Relaxed) + 1 == MANY.load(Ordering::Relaxed) {
            waking::notify();
        }
        let now = tsc::now();
        block.attached.store(now, Ordering::Relaxed);
        block.seen.store(now, Ordering::Relaxed);
        block.alive.store(now, Ordering::Relaxed);
        block.begins_at(processor_time::of_thread() as u64);
        block.preemption.forget();
        block.notes.iter().for_each(|note| note.at.store(0, Ordering::Relaxed));
        block.stack.begin(thread_pointer());
        block.ring.begin();
        // SAFETY: as in `existing`.
        unsafe { *thread_local() = std::ptr::from_ref(block).cast_mut() };
        Some(block)
    }

    fn begins_at(&self, processor_time: u64) {
        self.processor_before.store(processor_time, Ordering::Relaxed);
        self.processor.store(processor_time, Ordering::Relaxed);
    }

    /// Runs `act` on the thread's open entries, unless this thread is already inside: a signal
    /// handler of the program may run instrumented code during a probe function. A longjmp out of
    /// such a handler leaves the flag set; this is detected by a stack pointer that has passed the
    /// recorded one. Returns whether `act` was executed.
    #[inline(always)]
    pub(crate) fn enter(&self, stack_pointer: usize, act: impl FnOnce(&EntryStack)) -> bool {
        if self.inside.load(Ordering::Relaxed) && stack_pointer < self.inside_at.load(Ordering::Relaxed) {
            self.lose();
            return false;
        }
        self.stack.used(stack_pointer);
        self.inside_at.store(stack_pointer, Ordering::Relaxed);
        self.inside.store(true, Ordering::Relaxed);
        // Partner: a signal handler on the same thread, for which program order is sufficient.
        compiler_fence(Ordering::SeqCst);
        act(&self.entries);
        compiler_fence(Ordering::SeqCst);
        self.inside.store(false, Ordering::Relaxed);
        true
    }

    /// Whether the thread is in a probe function, or has left one by a longjmp.
    pub(crate) fn is_inside(&self) -> bool {
        self.inside.load(Ordering::Relaxed)
    }

    /// Adds to the time that the thread has spent in probes, up to `now`. Only the thread itself
    /// writes.
    #[inline(always)]
    pub(crate) fn spend(&self, ticks: u64, now: u64) {
        self.seen.store(now, Ordering::Relaxed);
        if ticks > MAX_PROBE_TIME {
            // The clock has gone back.
            if ticks.cast_signed() < 0 {
                return;
            }
            self.pause(ticks);
        }
        self.overhead.store(self.overhead.load(Ordering::Relaxed).wrapping_add(ticks), Ordering::Relaxed);
    }

    #[cold]
    fn pause(&self, ticks: u64) {
        self.paused.store(self.paused.load(Ordering::Relaxed).wrapping_add(ticks), Ordering::Relaxed);
    }

    /// Time that the thread has spent in probes, in ticks. If the preemption of the thread is
    /// known, without that.
    #[inline(always)]
    pub(crate) fn overhead(&self) -> u64 {
        let overhead = self.overhead.load(Ordering::Relaxed);
        if preemption::is_available() {
            overhead.wrapping_sub(self.paused.load(Ordering::Relaxed))
        } else {
            overhead
        }
    }

    /// Adds a time for which this thread has not executed the program, because the probes of a
    /// function were made: to no open call. `ran` is the part of it for which the thread has run.
    pub(crate) fn exclude(&self, entries: &EntryStack, time: u64, ran: u64) {
        entries.own().exclude(time, ran);
        self.overhead.store(self.overhead.load(Ordering::Relaxed).wrapping_add(ran), Ordering::Relaxed);
        self.make(ran);
    }

    /// Adds the time of a call whose probes have not been made yet, up to `now`.
    pub(crate) fn spend_before_probes(&self, ticks: u64, now: u64) {
        self.spend(ticks, now);
        if ticks <= MAX_PROBE_TIME {
            self.make(ticks);
        }
    }

    fn make(&self, ticks: u64) {
        self.making.store(self.making.load(Ordering::Relaxed).wrapping_add(ticks), Ordering::Relaxed);
    }

    /// Duration of the thread's preemption since some moment, in ticks.
    #[inline(always)]
    pub(crate) fn preempted(&self) -> u64 {
        self.preemption.time()
    }

    /// The same with its limits.
    #[inline(always)]
    pub(crate) fn preempted_limits(&self) -> preemption::Time {
        self.preemption.time();
        self.preemption.known_limits()
    }

    /// The thread's own time at the time `now`: without probes and preemption, in ticks.
    #[inline(always)]
    pub(crate) fn own_time(&self, now: u64) -> u64 {
        now.saturating_sub(self.overhead()).saturating_sub(self.preemption.time())
    }

    /// Counts entries that executed code which was just rewritten.
    #[inline(always)]
    pub(crate) fn cold(&self, is_cold: bool) -> u64 {
        let cold = self.cold.load(Ordering::Relaxed);
        if is_cold {
            self.cold.store(cold + 1, Ordering::Relaxed);
        }
        cold
    }

    /// Counts a sample or an entry for which there was no space.
    #[cold]
    pub(crate) fn lose(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that an entry of the calling thread has ended without an observed exit.
    #[cold]
    pub(crate) fn discarded(&self, entry: &Entry) {
        self.ended_unseen(entry, self.preempted_limits());
    }

    /// The same for a thread that has been preempted for this time.
    fn ended_unseen(&self, entry: &Entry, preempted: preemption::Time) {
        let sample = self.unseen(entry, preempted);
        left(entry);
        sample.into_iter().for_each(|sample| self.record(sample));
    }

    /// What is known of an entry that has ended without an observed exit. If the exit was not
    /// missed, the call was left by an exception or a longjmp, at an unknown time, or by an exit
    /// whose function was not known yet. If the thread has several stacks, nothing is known about
    /// nesting: the call may even be open.
    fn unseen(&self, entry: &Entry, preempted: preemption::Time) -> Option<Sample> {
        let was_left = is_open(entry);
        let stacks = self.stack.number();
        if stacks == Number::NotKnownYet && !was_left {
            return None;
        }
        let Limits { least, most, was_cut_off, .. } = self.limits(entry, preempted, tsc::now());
        let (least, most) = match stacks {
            Number::One => (least, most),
            Number::NotKnownYet => (0, most),
            Number::Several => (0, Sample::ANY_TIME),
        };
        let ticks = most.max(1);
        let least = least.min(ticks - 1);
        let is_late = was_cut_off && !was_left;
        let &Entry { function, observation, weight, .. } = entry;
        Some(Sample {
            function,
            observation,
            weight,
            origin: entry.origin(),
            ticks,
            least,
            is_late,
            was_left,
            ..Sample::default()
        })
    }

    /// What is known by `now` of the time of a call that may have ended without an observed exit,
    /// if the thread has been preempted for this time.
    fn limits(&self, entry: &Entry, preempted: preemption::Time, now: u64) -> Limits {
        let preempted = preempted.since(entry.preempted);
        let overhead = self.overhead().saturating_sub(entry.overhead);
        let until = |time: u64| fire::duration(time.saturating_sub(entry.ticks), overhead, preempted);
        // Some of the lost time may be later than that, so the limit is a low one.
        let seen = FUNCTIONS
            .get(entry.function as usize)
            .and_then(|function| function.exits_seen_until(entry.period));
        let held = entry.held_for().saturating_sub(preempted.most - preempted.value);
        let time = until(now);
        Limits {
            least: held.max(seen.map_or(0, |seen| until(seen).least())),
            most: time.ticks + time.above,
            time,
            was_cut_off: seen.is_some(),
        }
    }

    /// As [`Thread::record`], of a thread whose ring is full. If every call is to be timed, the
    /// probe waits for the service thread, shorter than one that was preempted takes. It also waits
    /// for a small part of the time of a long call, which may be the only one of its function.
    #[cold]
    fn record_later(&self, sample: Sample) {
        let begin = tsc::now();
        let of_call = (sample.ticks / WAIT_FOR_ROOM).min(LONGEST_WAIT_FOR_ROOM);
        let most = if governor::is_exact() { of_call.max(MAX_PROBE_TIME / 2) } else { of_call };
        let mut waited = 0;
        let mut is_recorded = false;
        while !is_recorded && waited < most {
            std::hint::spin_loop();
            is_recorded = self.ring.push(sample);
            waited = tsc::now().saturating_sub(begin);
        }
        if !is_recorded {
            self.lose();
        }
        if waited > MAX_PROBE_TIME && preemption::is_available() {
            // The probe will be taken for one that was preempted, which the kernel does not
            // confirm.
            self.overhead
                .store(self.overhead.load(Ordering::Relaxed).wrapping_add(waited), Ordering::Relaxed);
        }
    }

    /// Passes a sample to the service thread. Called by the owning thread only.
    #[inline(always)]
    pub(crate) fn record(&self, sample: Sample) {
        if !self.ring.push(sample) {
            self.record_later(sample);
        }
    }
}

/// A window may wait for the thread while others are begun.
const NOTES: usize = 4;

/// A thread's figures at one moment.
#[derive(Clone, Copy)]
struct Figures {
    at: u64,
    /// The thread's processor time, in nanoseconds.
    processor: u64,
    /// The preemption that was known, in ticks.
    preempted: u64,
}

/// [`Figures`] that one thread writes and another thread reads.
#[derive(Default)]
struct Note {
    /// 0 for none, or while the other two are written.
    at: AtomicU64,
    processor: AtomicU64,
    preempted: AtomicU64,
}

impl Note {
    fn write(&self, figures: Figures) {
        self.at.store(0, Ordering::Relaxed);
        // Pairs with the fence in `read`: a thread that has read a new figure does not then read
        // the old time.
        fence(Ordering::Release);
        self.processor.store(figures.processor, Ordering::Relaxed);
        self.preempted.store(figures.preempted, Ordering::Relaxed);
        // Release: the figures first.
        self.at.store(figures.at, Ordering::Release);
    }

    fn forget(&self) {
        self.at.store(0, Ordering::Relaxed);
    }

    fn read(&self) -> Option<Figures> {
        // Acquire: pairs with the Release in `write`.
        let at = self.at.load(Ordering::Acquire);
        let [processor, preempted] =
            [&self.processor, &self.preempted].map(|figure| figure.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let is_whole = at != 0 && self.at.load(Ordering::Relaxed) == at;
        is_whole.then_some(Figures { at, processor, preempted })
    }
}

impl Thread {
    /// Notes the thread's figures at the time `at`. If it has not run since the last note, that one
    /// says more. For the service thread.
    fn note(&self, processor: u64, at: u64) {
        let next = self.next_note.load(Ordering::Relaxed);
        let last = self.notes[next.wrapping_sub(1) % NOTES].read();
        if last.is_some_and(|last| last.processor == processor) {
            return;
        }
        self.notes[next % NOTES].write(Figures { at, processor, preempted: self.preemption.known() });
        self.next_note.store(next.wrapping_add(1), Ordering::Relaxed);
    }
}

/// A thread may be in windows of several functions at a time.
const WINDOWS: usize = 16;

/// A thread's first entry in a window. Accessed by the thread only.
#[derive(Default)]
struct EnteredWindow {
    function: AtomicU32,
    /// 0 for none.
    observation: AtomicU32,
    /// The time that it had spent in probes.
    spent: AtomicU64,
}

impl EnteredWindow {
    fn is_of(&self, window: WindowNumber) -> bool {
        self.observation.load(Ordering::Relaxed) == window.observation
            && self.function.load(Ordering::Relaxed) == window.function
    }
}

impl OwnTime for Thread {
    #[inline(always)]
    fn enters_window(&self, window: WindowNumber) {
        let entered = &self.windows[window.function as usize % WINDOWS];
        if !entered.is_of(window) {
            entered.function.store(window.function, Ordering::Relaxed);
            entered.observation.store(window.observation, Ordering::Relaxed);
            entered.spent.store(self.spent(), Ordering::Relaxed);
        }
    }

    fn spent_since_entry(&self, window: WindowNumber) -> Option<u64> {
        let entered = &self.windows[window.function as usize % WINDOWS];
        let before = entered.is_of(window).then(|| entered.spent.load(Ordering::Relaxed));
        before.map(|before| self.spent().saturating_sub(before))
    }

    fn number(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn spent(&self) -> u64 {
        self.overhead.load(Ordering::Relaxed).wrapping_sub(self.paused.load(Ordering::Relaxed))
    }

    #[inline(always)]
    fn preempted(&self) -> u64 {
        Thread::preempted(self)
    }

    #[cold]
    fn preempted_since(&self, since: u64) -> u64 {
        let notes = || self.notes.iter().filter_map(Note::read);
        let before = notes().filter(|note| note.at <= since).max_by_key(|note| note.at);
        // Without any, the thread is younger than the window.
        let Some(note) = before.or_else(|| notes().min_by_key(|note| note.at)) else { return 0 };
        let lately = Thread::preempted(self).saturating_sub(note.preempted);
        if lately == 0 {
            return 0;
        }
        let ran = processor_time::of_thread() - note.processor as f64;
        let ran = (ran * governor::ticks_per_ns()) as u64;
        lately.min(tsc::now().saturating_sub(note.at).saturating_sub(ran))
    }

    fn now(&self, _: u64) -> u64 {
        tsc::now()
    }

    fn is_alone(&self) -> bool {
        BLOCKS.is_only(self)
    }
}

/// Calls `take` with every recorded sample. Called by the service thread.
pub(crate) fn drain(mut take: impl FnMut(Sample)) {
    for block in blocks() {
        block.ring.drain(&mut take);
        block.give_back();
    }
}

/// Time of threads that have ended, in ticks.
static ENDED: AtomicU64 = AtomicU64::new(0);

/// Total time since their first probe of all threads that have executed a probe, in ticks.
pub(crate) fn lived() -> u64 {
    let now = tsc::now();
    let age = |block: &Thread| match block.owner.load(Ordering::Relaxed) {
        0 => 0,
        _ => now.saturating_sub(block.attached.load(Ordering::Relaxed)),
    };
    blocks().map(age).sum::<u64>() + ENDED.load(Ordering::Relaxed)
}

/// The part of [`spent`] in which probes were made, or were still missing, in ticks.
pub(crate) fn making() -> u64 {
    blocks().map(|block| block.making.load(Ordering::Relaxed)).sum()
}

/// Total time of all threads in probes so far, without interruptions there, in ticks.
pub(crate) fn spent() -> u64 {
    let spent = |block: &Thread| {
        let [overhead, paused] = [&block.overhead, &block.paused].map(|time| time.load(Ordering::Relaxed));
        overhead.saturating_sub(paused)
    };
    blocks().map(spent).sum()
}

/// Processor time since their first probe of threads that have ended, as far as it was read, in
/// nanoseconds.
static PROCESSOR_OF_ENDED: AtomicU64 = AtomicU64::new(0);

/// Total processor time since their first probe of all threads that have executed a probe, in
/// nanoseconds. One system call for each live thread. For the service thread.
pub(crate) fn processor_time() -> f64 {
    processor_times().map(|(_, time)| time).sum::<u64>() as f64 + processor_time_of_ended()
}

/// The same of threads that have ended.
pub(crate) fn processor_time_of_ended() -> f64 {
    PROCESSOR_OF_ENDED.load(Ordering::Relaxed) as f64
}

/// Processor times are read at most of this number of threads, which takes about half a microsecond
/// for each.
pub(crate) const MAX_READ: usize = 32;

/// Kernel ids of the live threads that have executed a probe, and their processor time since their
/// first probe, in nanoseconds. One system call for each. For the service thread.
pub(crate) fn processor_times() -> impl Iterator<Item = (u32, u64)> {
    blocks().filter_map(|block| {
        let owner = block.owner.load(Ordering::Relaxed);
        (owner != 0).then(|| {
            // The clock of a thread that has just ended cannot be read.
            let now = processor_time::of(owner) as u64;
            block.processor.fetch_max(now, Ordering::Relaxed);
            (owner, block.processor_since_attached())
        })
    })
}

/// Reads the processor time of the live threads, so that a thread can tell which part of its
/// preemption was after this moment. One system call for each. For the service thread.
pub(crate) fn note_processor_times() {
    for block in blocks() {
        let owner = block.owner.load(Ordering::Relaxed);
        if owner != 0 {
            let processor = processor_time::of(owner);
            block.note(processor as u64, tsc::now());
        }
    }
}

/// Kernel ids of the live threads that have executed a probe.
pub(crate) fn live() -> impl Iterator<Item = u32> {
    blocks().map(|block| block.owner.load(Ordering::Relaxed)).filter(|owner| *owner != 0)
}

/// Whether more than one live thread has executed a probe.
pub(crate) fn are_many() -> bool {
    blocks().filter(|block| block.owner.load(Ordering::Relaxed) != 0).nth(1).is_some()
}

/// Observed preemption. Times of all threads together, in ticks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    /// From each thread's first probe to its last.
    pub(crate) time: u64,
    pub(crate) preempted: u64,
    /// The part of it in threads that have ended.
    pub(crate) preempted_before_end: u64,
    /// How often the live threads have begun to wait.
    pub(crate) waits: u64,
    /// Live threads.
    pub(crate) threads: u32,
}

/// The observations so far. If the block of a thread that has ended was reused, some of its time is
/// missing.
pub(crate) fn seen() -> Seen {
    let mut seen = Seen { time: ENDED.load(Ordering::Relaxed), ..Seen::default() };
    for block in blocks() {
        let preempted = block.preemption.known();
        seen.preempted += preempted;
        if block.owner.load(Ordering::Relaxed) != 0 {
            let [first, last] = [&block.attached, &block.seen].map(|time| time.load(Ordering::Relaxed));
            seen.time += last.saturating_sub(first);
            seen.waits += block.preemption.waits();
            seen.threads += 1;
        } else {
            seen.preempted_before_end += preempted;
        }
    }
    seen
}

/// The open calls, with their thread and the time that they have taken so far; outer ones first.
pub(crate) fn open_calls(mut take: impl FnMut(&'static Thread, &Entry, Limits)) {
    for block in blocks() {
        let mut entries = block.entries.look().peekable();
        if entries.peek().is_some() {
            let preempted = match block.owner.load(Ordering::Relaxed) {
                0 => block.preemption.known_limits(),
                owner => block.preemption.until_now(owner),
            };
            let now = tsc::now();
            entries.for_each(|entry| take(block, &entry, block.limits(&entry, preempted, now)));
        }
    }
}

/// Finds the stack of a thread that needs it. Called by the service thread.
pub(crate) fn find_a_stack() {
    blocks().find(|block| block.owner.load(Ordering::Relaxed) != 0 && block.stack.find_if_wanted());
}

/// Whether a thread is in a probe function now.
pub(crate) fn is_any_inside() -> bool {
    blocks().any(|block| block.inside.load(Ordering::Acquire))
}

/// Resident memory of all blocks, in bytes: most of a block is never accessed.
pub(crate) fn memory() -> usize {
    const PAGE: usize = 4096;
    let resident = |block: &Thread| {
        let start = std::ptr::from_ref(block).addr() & !(PAGE - 1);
        let end = std::ptr::from_ref(block).addr() + size_of::<Thread>();
        let mut pages = vec![0_u8; (end - start).div_ceil(PAGE)];
        let address = std::ptr::with_exposed_provenance_mut(start);
        // SAFETY: reads nothing of the block; `pages` has a byte for each of its pages.
        let result = unsafe { libc::mincore(address, end - start, pages.as_mut_ptr()) };
        let number = pages.iter().filter(|page| **page & 1 == 1).count();
        if result == 0 { number * PAGE } else { size_of::<Thread>() }
    };
    blocks().map(resident).sum()
}

/// Whether the exit of an entry can still be observed and identified.
#[cold]
pub(crate) fn is_open(entry: &Entry) -> bool {
    FUNCTIONS.get(entry.function as usize).is_some_and(|function| function.is_exit_seen(entry.period))
}

/// Called when an entry has ended, or cannot be matched any more.
pub(crate) fn left(entry: &Entry) {
    FUNCTIONS.get(entry.function as usize).into_iter().for_each(|function| function.left(entry.period));
}

/// Number of samples and entries lost so far.
pub(crate) fn lost() -> u64 {
    blocks().map(|block| block.lost.load(Ordering::Relaxed)).sum()
}

/// The number of threads that have begun since the last reclamation.
pub(crate) fn begun() -> usize {
    BEGUN.load(Ordering::Relaxed)
}

/// Whether so many threads have begun that a tick is due, to reclaim the memory of those that have
/// ended.
pub(crate) fn have_many_begun() -> bool {
    BEGUN.load(Ordering::Relaxed) >= MANY.load(Ordering::Relaxed)
}

/// Frees the blocks of threads that have ended, after they were drained. For the service thread.
/// When a thread has ended is not known: it counts until its last probe, or until it was last found
/// alive here.
pub(crate) fn reclaim() {
    let process = std::process::id();
    for block in blocks() {
        let owner = block.owner.load(Ordering::Relaxed);
        // SAFETY: signal 0 only tests whether the thread exists.
        let has_ended = owner != 0
            && unsafe { libc::syscall(libc::SYS_tgkill, process, owner, 0) } != 0
            && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
        if !has_ended {
            block.alive.store(tsc::now(), Ordering::Relaxed);
        } else {
            block.entries.own().clear(|entry| block.ended_unseen(entry, block.preemption.known_limits()));
            release(block, block.ended());
        }
    }
    MANY.store(live().count() + FEW, Ordering::Relaxed);
    BEGUN.store(0, Ordering::Relaxed);
}

impl Thread {
    /// Whether all probes of a live thread have certainly fired on one stack. May take some tenths
    /// of a millisecond. For the service thread.
    pub(crate) fn has_one_stack(&self) -> bool {
        self.owner.load(Ordering::Relaxed) != 0 && self.stack.is_only_now()
    }

    /// The time at which the thread, which has ended, was last known to be alive.
    fn ended(&self) -> u64 {
        let [probed, alive] = [&self.seen, &self.alive].map(|time| time.load(Ordering::Relaxed));
        probed.max(alive)
    }

    fn processor_since_attached(&self) -> u64 {
        let [before, now] =
            [&self.processor_before, &self.processor].map(|time| time.load(Ordering::Relaxed));
        now.saturating_sub(before)
    }

    /// Returns the memory of samples to the system if the block is free. For the service thread.
    fn give_back(&self) {
        // No thread gets the block meanwhile.
        let take = || self.owner.compare_exchange(0, kernel_id(), Ordering::Acquire, Ordering::Relaxed);
        if self.owner.load(Ordering::Relaxed) == 0 && self.ring.has_memory() && take().is_ok() {
            self.ring.give_back();
            self.owner.store(0, Ordering::Release);
        }
    }
}

fn release(block: &Thread, end: u64) {
    PROCESSOR_OF_ENDED.fetch_add(block.processor_since_attached(), Ordering::Relaxed);
    let lived = end.saturating_sub(block.attached.load(Ordering::Relaxed));
    ENDED.fetch_add(lived, Ordering::Relaxed);
    // Its thread has ended, and the block is not reused before `owner` is zero.
    block.entries.own().clear(left);
    block.inside.store(false, Ordering::Relaxed);
    block.owner.store(0, Ordering::Release);
}

/// In a forked child: frees the blocks of the parent's threads, and discards their measurements.
pub(crate) fn after_fork_in_child() {
    let own = Thread::current().map(std::ptr::from_ref);
    for block in blocks() {
        block.ring.drain(&mut |_| {});
        block.lost.store(0, Ordering::Relaxed);
        block.overhead.store(0, Ordering::Relaxed);
        block.making.store(0, Ordering::Relaxed);
        block.paused.store(0, Ordering::Relaxed);
        block.preemption.restart();
        block.notes.iter().for_each(Note::forget);
        release(block, tsc::now());
        if own == Some(std::ptr::from_ref(block)) {
            block.owner.store(kernel_id(), Ordering::Relaxed);
            block.attached.store(tsc::now(), Ordering::Relaxed);
            block.begins_at(processor_time::of_thread() as u64);
        }
    }
    ENDED.store(0, Ordering::Relaxed);
    PROCESSOR_OF_ENDED.store(0, Ordering::Relaxed);
}

#[cfg(test)]
mod tests;
