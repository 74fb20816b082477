//! Detects whether, and for how long, a thread has been preempted, without a system call unless it
//! has.
//!
//! # Method
//! glibc (2.35 and later) registers an `rseq` area for each thread (rseq(2)). When the kernel
//! deschedules a thread for any reason, and `rseq_cs` in this area points to the descriptor of a
//! critical section in which the thread is not, the kernel sets it to null (Linux, kernel/rseq.c).
//! Therefore:
//!
//! 1. `rseq_cs` is set to a critical section in which no thread ever is: the thread is *armed*.
//! 2. If a probe finds the pointer unchanged, the thread has run since. This is one load and one
//!    comparison.
//! 3. If a probe finds it changed, it arms the thread again, and reads the thread's processor time
//!    (clock_gettime(2)) and its number of context switches (getrusage(2)). Elapsed time that was
//!    not processor time was spent waiting (a voluntary switch: a lock, a read), which belongs to
//!    the open calls, or preempted (an involuntary switch), which does not.
//!
//! If both kinds of switches have occurred since the last measurement, the time may be that of
//! either: [`Time`] has both limits. As an estimate, each involuntary switch counts as long as
//! those between other measurements were on average, and the rest is waiting: a thread that sleeps
//! for 50 ms and is preempted once has not been preempted for 25. (The kernel has the time for
//! which a thread was ready in `/proc/self/task/TID/schedstat`. A probe must not open files: the
//! program's filter of system calls may kill it for that. Nor would it be exact: a thread is also
//! ready after a wait until it gets a processor, which is part of the wait.) A program with its own
//! critical sections overwrites the pointer: then step 3 happens more often, without other effects.
//! Two measurements are at least [`BETWEEN_LOOKS`] apart; preemption between them is measured by
//! the second one. A measurement during which the thread was descheduled is repeated, because the
//! clock may have been read after the switch, and the switches before it.
//!
//! # Limits
//! Time that the host takes from a virtual processor is not detected, nor are interrupts and minor
//! page faults. If the C library has no `rseq`, or a system call filter refuses one of the two
//! calls, preemption is not detected. If a filter kills the process for one of these calls, the
//! process dies.

use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicU64, fence};

use nix::time::{ClockId, clock_gettime};
use wordpatch::tsc;

use crate::process::own_process;
use crate::processor_time;

/// Stands for no `rseq` area.
const NONE: isize = isize::MIN;

/// The offset of a thread's `rseq` area from its thread pointer.
static AREA: AtomicIsize = AtomicIsize::new(NONE);

/// The offset of `rseq_cs` in the area (Linux, include/uapi/linux/rseq.h).
const POINTER: isize = 8;

/// The rate of the TSC in ticks per nanosecond, as the bits of an f64.
static RATE: AtomicU64 = AtomicU64::new(0);

/// The minimum time between two measurements, in ticks: about 40 us, much less than a time slice.
/// Without it, probes would measure continuously if a measurement itself deschedules the thread
/// (under a tracer of system calls), or if the program overwrites the pointer very often.
const BETWEEN_LOOKS: u64 = 100_000;

/// Stands for the time of the last measurement while one is being made.
const MEASURING: u64 = u64::MAX;

/// How often another thread tries to read the figures of a thread that is measuring.
const ATTEMPTS: usize = 100;

/// How often a measurement is made if the thread is descheduled during each, as it is under a
/// tracer of system calls.
const READINGS: usize = 3;

/// A time without a processor, in nanoseconds, that may just be the distance between two readings
/// of clocks.
const MIN_OFF: i64 = 20_000;

// A critical section of one byte, after the signature that the kernel requires before the abort
// handler (RSEQ_SIG of glibc). No code ever jumps there.
std::arch::global_asm!(
    ".pushsection .text",
    ".long 0x53053053",
    "profiler_never_aborts: ud2",
    "profiler_never_executed: ud2",
    ".popsection",
    ".pushsection .data.rel.ro,\"aw\"",
    ".balign 32",
    ".globl profiler_never_in",
    ".hidden profiler_never_in",
    "profiler_never_in: .long 0, 0",
    ".quad profiler_never_executed, 1, profiler_never_aborts",
    ".popsection",
);

unsafe extern "C" {
    static profiler_never_in: u8;
}

/// Finds the C library's registration. The TSC's rate is needed for the duration of preemptions
/// only, not for their detection.
pub(crate) fn start(ticks_per_ns: f64) {
    RATE.store(ticks_per_ns.to_bits(), Relaxed);
    let symbol = |name: &std::ffi::CStr| {
        // SAFETY: the name is a C string.
        unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
    };
    let (offset, size) = (symbol(c"__rseq_offset").cast::<isize>(), symbol(c"__rseq_size").cast::<u32>());
    // SAFETY: if the C library defines them, they have these types, and are constant (glibc manual,
    // "Restartable Sequences").
    if !offset.is_null() && !size.is_null() && unsafe { size.read() } > 0 {
        // SAFETY: as above.
        AREA.store(unsafe { offset.read() }, Relaxed);
    }
}

/// Whether preemption is detected.
pub(crate) fn is_available() -> bool {
    AREA.load(Relaxed) != NONE
}

/// `rseq_cs` of the calling thread.
#[inline(always)]
fn pointer() -> Option<&'static AtomicU64> {
    let area = AREA.load(Relaxed);
    if area == NONE {
        return None;
    }
    let base: usize;
    // SAFETY: reads the thread pointer, which x86-64 keeps at fs:0.
    unsafe {
        std::arch::asm!("mov {base}, qword ptr fs:[0]", base = out(reg) base, options(nostack, pure, readonly, preserves_flags));
    }
    let address = base.wrapping_add_signed(area + POINTER);
    // SAFETY: the thread's registered area, which lives as long as the thread and is aligned to 32
    // bytes. The kernel writes it only while this thread does not run.
    Some(unsafe { AtomicU64::from_ptr(std::ptr::with_exposed_provenance_mut(address)) })
}

fn armed() -> u64 {
    (&raw const profiler_never_in).addr() as u64
}

/// The elapsed time minus the processor time of a thread's clock, in nanoseconds.
fn off(clock: ClockId) -> nix::Result<u64> {
    let now =
        |clock| clock_gettime(clock).map(|time| time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64);
    let processor = now(clock)?;
    Ok(now(ClockId::CLOCK_MONOTONIC)?.wrapping_sub(processor))
}

/// The mean time without a processor for each involuntary switch, in nanoseconds, as the bits of an
/// f64, where no voluntary ones occurred. Recent measurements have more weight.
static TYPICAL: AtomicU64 = AtomicU64::new(FIRST_TYPICAL.to_bits());

/// The same until something is known: less than a time slice, because most threads that preempt for
/// a moment only, such as those of the kernel, take less.
const FIRST_TYPICAL: f64 = 500_000.0;

/// The weight of a measurement in [`TYPICAL`].
const NEWEST: f64 = 0.125;

/// The part of the time without a processor, in nanoseconds, for which a thread was preempted, if
/// it has made this number of context switches, and an involuntary one takes `typical` nanoseconds.
fn preempted(off: i64, voluntary: u64, involuntary: u64, typical: f64) -> Time {
    if off <= 0 || involuntary == 0 {
        return Time::default();
    }
    let off = off as f64;
    let ticks = |ns: f64| (ns * f64::from_bits(RATE.load(Relaxed))) as u64;
    let most = ticks(off);
    if voluntary == 0 {
        return Time { least: most, value: most, most };
    }
    Time { least: 0, value: ticks(off.min(involuntary as f64 * typical)), most }
}

/// Repeats a measurement that was disturbed, a few times.
fn undisturbed<T>(mut measure: impl FnMut() -> Option<T>, is_undisturbed: impl Fn() -> bool) -> Option<T> {
    let mut measured = measure()?;
    for _ in 1..READINGS {
        if is_undisturbed() {
            break;
        }
        measured = measure()?;
    }
    Some(measured)
}

fn typical() -> f64 {
    f64::from_bits(TYPICAL.load(Relaxed))
}

/// Records a time without a processor with this number of involuntary switches, and no others.
/// Threads may overwrite each other's records.
fn note_typical(off: i64, involuntary: u64) {
    let one = off as f64 / involuntary as f64;
    TYPICAL.store((typical() + NEWEST * (one - typical())).to_bits(), Relaxed);
}

/// The numbers of voluntary and involuntary context switches of a thread of this process
/// (proc_pid_status(5)).
pub(crate) fn switches_of(thread: u32) -> Option<(u64, u64)> {
    let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).ok()?;
    let number = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    Some((number("voluntary_ctxt_switches:")?, number("nonvoluntary_ctxt_switches:")?))
}

/// A time of preemption, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Time {
    /// Waiting may have been the rest.
    pub(crate) least: u64,
    pub(crate) value: u64,
    pub(crate) most: u64,
}

impl Time {
    fn with(self, other: Self, both: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            least: both(self.least, other.least),
            value: both(self.value, other.value),
            most: both(self.most, other.most),
        }
    }

    /// The time since another total was known.
    pub(crate) fn since(self, before: Self) -> Self {
        self.with(before, u64::saturating_sub)
    }

    /// The rest if this many ticks of it were later.
    pub(crate) fn before_last(self, ticks: u64) -> Self {
        self.with(Self { least: ticks, value: ticks, most: ticks }, u64::saturating_sub)
    }

    /// The same, if it was not longer than this.
    pub(crate) fn within(self, ticks: u64) -> Self {
        self.with(Self { least: ticks, value: ticks, most: ticks }, u64::min)
    }
}

/// [`Time`] that one thread writes.
#[derive(Debug, Default)]
pub(crate) struct SharedTime {
    least: AtomicU64,
    value: AtomicU64,
    most: AtomicU64,
}

impl SharedTime {
    #[inline(always)]
    pub(crate) fn store(&self, time: Time) {
        self.least.store(time.least, Relaxed);
        self.value.store(time.value, Relaxed);
        self.most.store(time.most, Relaxed);
    }

    #[inline(always)]
    pub(crate) fn load(&self) -> Time {
        let [least, value, most] = [&self.least, &self.value, &self.most].map(|part| part.load(Relaxed));
        Time { least, value, most }
    }
}

/// The numbers of voluntary and involuntary context switches of the calling thread.
fn switches() -> Option<(u64, u64)> {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: memory of the right type; all zero is a valid value.
    let usage = unsafe {
        if libc::syscall(libc::SYS_getrusage, libc::RUSAGE_THREAD, usage.as_mut_ptr()) != 0 {
            return None;
        }
        usage.assume_init()
    };
    Some((usage.ru_nvcsw as u64, usage.ru_nivcsw as u64))
}

/// The preemption of one thread. Written only by that thread.
#[derive(Debug, Default)]
pub(crate) struct Preemption {
    /// The total time of preemption.
    time: SharedTime,
    /// Whether the other fields are set.
    has_looked: AtomicBool,
    /// The time at which the last measurement ended, in ticks, or [`MEASURING`].
    looked: AtomicU64,
    /// The time of the last measurement, minus the processor time at that time, in nanoseconds.
    off: AtomicU64,
    voluntary: AtomicU64,
    involuntary: AtomicU64,
}

impl Preemption {
    /// The total time for which the calling thread has been preempted, in ticks, relative to an
    /// arbitrary start.
    #[inline(always)]
    pub(crate) fn time(&self) -> u64 {
        if pointer().is_some_and(|pointer| pointer.load(Relaxed) != armed()) {
            self.look();
        }
        self.time.value.load(Relaxed)
    }

    /// The result of the last call of [`Preemption::time`], for other threads.
    pub(crate) fn known(&self) -> u64 {
        self.time.value.load(Relaxed)
    }

    /// The same with its limits.
    #[inline(always)]
    pub(crate) fn known_limits(&self) -> Time {
        self.time.load()
    }

    /// How often the thread had begun to wait at its last measurement, since it was created.
    pub(crate) fn waits(&self) -> u64 {
        self.voluntary.load(Relaxed)
    }

    /// What [`Preemption::time`] would return in the thread with this kernel id, with its limits,
    /// for other threads. Takes about ten microseconds if the thread was descheduled since its last
    /// measurement. If the thread has ended, or is measuring for long, as [`Preemption::known`].
    pub(crate) fn until_now(&self, thread: u32) -> Time {
        for _ in 0..ATTEMPTS {
            let looked = self.looked.load(Acquire);
            let (time, since) = (self.time.load(), self.since_measured(thread).unwrap_or_default());
            // Pairs with the fence in `look`: a thread that has read a change made by a measurement
            // does not then read the old time.
            fence(Acquire);
            if looked != MEASURING && self.looked.load(Relaxed) == looked {
                return time.with(since, u64::saturating_add);
            }
            std::thread::yield_now();
        }
        self.time.load()
    }

    /// The preemption since the last measurement; `None` if nothing is known of the thread.
    fn since_measured(&self, thread: u32) -> Option<Time> {
        if !self.has_looked.load(Relaxed) {
            return None;
        }
        let since = |now: u64, before: &AtomicU64| now.wrapping_sub(before.load(Relaxed));
        let off = since(off(processor_time::clock_of(thread)).ok()?, &self.off) as i64;
        if off <= MIN_OFF {
            return None;
        }
        let (voluntary, involuntary) = switches_of(thread)?;
        let (voluntary, involuntary) =
            (since(voluntary, &self.voluntary), since(involuntary, &self.involuntary));
        Some(preempted(off, voluntary, involuntary, typical()))
    }

    #[cold]
    fn look(&self) {
        let Some(pointer) = pointer() else { return };
        // The next probe tries again.
        if tsc::now().wrapping_sub(self.looked.load(Relaxed)) < BETWEEN_LOOKS {
            return;
        }
        // A vfork child has the memory of its parent, but different clocks and switches.
        if !own_process::may_be_this() {
            return;
        }
        self.looked.store(MEASURING, Relaxed);
        fence(Release);
        self.ask(pointer);
        // Release: pairs with the Acquire in `until_now`.
        self.looked.store(tsc::now(), Release);
    }

    fn ask(&self, pointer: &AtomicU64) {
        let measure = || {
            // Before the measurement, so that a later switch is detected.
            pointer.store(armed(), Relaxed);
            // Not from the usage, whose times are those of the last timer tick.
            Some((switches()?, off(ClockId::CLOCK_THREAD_CPUTIME_ID).ok()?))
        };
        let Some(((voluntary, involuntary), off)) = undisturbed(measure, || pointer.load(Relaxed) == armed())
        else {
            return;
        };
        let since = |place: &AtomicU64, now: u64| now.wrapping_sub(place.swap(now, Relaxed));
        let off = since(&self.off, off) as i64;
        let (voluntary, involuntary) =
            (since(&self.voluntary, voluntary), since(&self.involuntary, involuntary));
        if self.has_looked.swap(true, Relaxed) {
            let since = preempted(off, voluntary, involuntary, typical());
            self.time.store(self.time.load().with(since, u64::saturating_add));
            if voluntary == 0 && involuntary > 0 && off > MIN_OFF {
                note_typical(off, involuntary);
            }
        }
    }

    /// Resets the state for another thread. The total time stays.
    pub(crate) fn forget(&self) {
        self.has_looked.store(false, Relaxed);
        self.looked.store(0, Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn set_in_tests(&self, time: u64) {
        self.time.store(Time { least: time, value: time, most: time });
    }

    /// In a forked child, whose threads have not been preempted yet.
    pub(crate) fn restart(&self) {
        self.forget();
        self.time.store(Time::default());
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::observe::competitors_in_tests::with_competitors;

    /// Ticks per nanosecond, an arbitrary rate.
    const RATE: f64 = 2.0;

    #[test]
    fn a_long_wait_is_not_divided_among_switches() {
        start(RATE);
        let ms = |ms: f64| (ms * 1e6) as i64;
        let time = |least: f64, value: f64, most: f64| {
            let [least, value, most] = [least, value, most].map(|ms: f64| (ms * 1e6 * RATE) as u64);
            Time { least, value, most }
        };
        assert_eq!(preempted(ms(50.0), 1, 0, 1e6), Time::default(), "it has only waited");
        assert_eq!(preempted(ms(8.0), 0, 2, 1e6), time(8.0, 8.0, 8.0), "nothing else can have happened");
        assert_eq!(preempted(ms(54.0), 1, 2, 2e6), time(0.0, 4.0, 54.0), "both, for an unknown time each");
        assert_eq!(preempted(ms(3.0), 1, 2, 2e6), time(0.0, 3.0, 3.0), "not more than there is");
        assert_eq!(preempted(-5, 0, 1, 1e6), Time::default());
    }

    /// Between two figures, the thread is descheduled: the clock has advanced, but the switch is
    /// not in the number that was read before.
    #[test]
    fn a_measurement_that_was_disturbed_is_repeated() {
        let after = |disturbed: usize| {
            let number = std::cell::Cell::new(0);
            let measure = || {
                number.set(number.get() + 1);
                Some(number.get())
            };
            undisturbed(measure, || number.get() > disturbed)
        };
        assert_eq!((after(0), after(1)), (Some(1), Some(2)));
        assert_eq!(after(usize::MAX), Some(READINGS), "a tracer disturbs all of them");
        assert_eq!(undisturbed(|| None::<()>, || false), None);
    }

    /// Waiting is not preemption; competing with many threads for one processor is, and by about
    /// the time that the kernel reports.
    #[test]
    fn waiting_is_distinguished_from_preemption() {
        start(RATE);
        if !is_available() {
            println!("skipped: the C library has registered no rseq area");
            return;
        }
        let ticks = |time: Duration| time.as_nanos() as f64 * RATE;
        let preemption = Preemption::default();
        let mut waits = 0;
        // Another process may preempt this thread when it is about to sleep.
        while waits < 20 {
            let before = preemption.time();
            std::thread::sleep(Duration::from_millis(5));
            waits += 1;
            if preemption.time() == before {
                break;
            }
        }
        assert!(waits < 20, "each wait counts as preemption");

        let start = Instant::now();
        let before = preemption.time();
        with_competitors(|| {
            let mut most = 0;
            // Until it has been preempted for ten milliseconds, for which a minute is more than
            // enough.
            while most < ticks(Duration::from_millis(10)) as u64 && start.elapsed() < Duration::from_secs(60)
            {
                most = preemption.time() - before;
            }
            assert!(most >= ticks(Duration::from_millis(10)) as u64, "{most}");
            let slack = ticks(Duration::from_millis(20));
            assert!((most as f64) < ticks(start.elapsed()) + slack, "more than the time that passed");
        });
    }

    /// A report made while a thread is in a long call has the time that the thread would measure.
    #[test]
    fn preemption_since_the_last_measurement_is_known_to_other_threads() {
        start(RATE);
        if !is_available() {
            println!("skipped: the C library has registered no rseq area");
            return;
        }
        let (preemption, is_read) = (&Preemption::default(), &AtomicBool::new(false));
        let thread = nix::unistd::gettid().as_raw() as u32;
        let read = || {
            let start = Instant::now();
            let mut known = 0;
            while known < (50e6 * RATE) as u64 && start.elapsed() < Duration::from_secs(60) {
                known = preemption.until_now(thread).value;
            }
            is_read.store(true, Relaxed);
            known
        };
        with_competitors(|| {
            preemption.time();
            let known = std::thread::scope(|scope| {
                let reader = scope.spawn(read);
                while !is_read.load(Relaxed) {
                    std::hint::spin_loop();
                }
                let own = preemption.time();
                let known = reader.join().expect("it does not panic");
                assert!(own > known / 2, "{own} ticks in the thread itself, {known} before in another");
                known
            });
            assert!(known >= (50e6 * RATE) as u64, "{known}");
        });
    }

    /// A program that overwrites the pointer at every call causes few measurements.
    #[test]
    fn measurements_have_a_minimum_distance() {
        start(RATE);
        let Some(pointer) = pointer() else {
            println!("skipped: the C library has registered no rseq area");
            return;
        };
        let preemption = Preemption::default();
        let begin = tsc::now();
        let mut looks = std::collections::BTreeSet::new();
        for _ in 0..20_000 {
            pointer.store(0, Relaxed);
            preemption.time();
            looks.insert(preemption.looked.load(Relaxed));
        }
        let most = tsc::now().wrapping_sub(begin) / BETWEEN_LOOKS + 1;
        assert!(looks.len() as u64 <= most, "{} looks, {most} may be", looks.len());
    }
}
