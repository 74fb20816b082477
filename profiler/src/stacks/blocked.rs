//! Samples the stacks of the program's waiting threads, from outside.
//!
//! The kernel's samples ([`super::events`]) show running threads only. A companion of the service
//! thread finds what threads wait for: at instants that do not depend on the program, it reads for
//! each thread whether it is blocked and where its stack is (`/proc/self/task/*/syscall`,
//! proc_pid_syscall(5)), and copies the stack from memory. No signal is sent, so no system call is
//! interrupted, and the thread does not notice. If the thread has moved or runs after the copy, the
//! copy is discarded. That happens to short waits more often than to long ones; therefore, it is
//! recorded where the thread was before ([`Spot`]), and for how long it has waited.
//!
//! How long a thread has waited is not estimated: the kernel knows how long it has run or was ready
//! to run (`schedstat`, Documentation/scheduler/sched-stats.rst), and it has waited for the rest of
//! the time. All waiting since the thread was last seen waiting is attributed to the stack in which
//! it is seen now. On a busy machine the companion often gets a processor just when a thread of the
//! program begins to wait, so merely counting the snapshots would overestimate waiting.
//!
//! A thread that is seen for the first time is charged the time since the last snapshot. On
//! average, this error is offset by the time between the thread's last snapshot and its end, which
//! is never charged.
//!
//! The companion has its own descriptor table (close_range(2), `CLOSE_RANGE_UNSHARE`): the program
//! cannot close the companion's descriptors, and its own are numbered as if there were no profiler.
//! Once the program has restricted system calls for all of its threads (seccomp(2)), the companion
//! opens nothing any more, and does not see threads that are created later.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{io, mem};

use fastinst::service::{self, Begun};
use fastinst_sigsafe::futex;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::events::{RawSample, STACK};
use super::waiting::ran_and_queued;
use crate::governor;

/// The assumed cost of a snapshot, and of each thread in it, unwinding included, in nanoseconds. It
/// determines how often snapshots are taken, with a factor that is measured ([`Costs`]).
const COST_OF_SNAPSHOT: f64 = 20_000.0;
const COST_OF_THREAD: f64 = 15_000.0;

/// The part of the cost of a thread that is not the companion's, but the service thread's: that of
/// unwinding.
const COST_OF_UNWINDING: f64 = 10_000.0;

/// The weight of the last snapshot in the measured costs.
const NEWEST: f64 = 0.2;

/// The part of the budget for snapshots.
const SHARE: f64 = 0.15;

/// Nanoseconds between two snapshots, on average.
const PERIODS: (f64, f64) = (5e6, 1e9);

/// At the start, snapshots are taken as often as if the program ran all the time and they cost what
/// is assumed, but at least every `PERIOD_AT_START` nanoseconds: short runs are measured, too.
/// `START` nanoseconds later, the time between two snapshots may begin to increase: for each second
/// by this part of a second.
const PERIOD_AT_START: f64 = 5e7;
const START: f64 = 2e9;
const INCREASE: f64 = 0.1;

/// The distance between two snapshots, relative to the average distance, so that a program that
/// waits in step with the snapshots does not stay in step.
const JITTER: std::ops::Range<f64> = 0.5..1.5;

/// Maximum number of threads in a snapshot.
const MAX_THREADS: usize = 512;

/// Maximum number of stacks that wait to be unwound: a megabyte.
const MAX_STACKS: usize = 64;

/// A value for the frame pointer, which no file of /proc shows for a blocked thread. It belongs to
/// no stack, so frames that need it are not found.
const NO_FRAME_POINTER: u64 = 1 << 63;

/// One snapshot of the threads.
#[derive(Debug)]
pub(super) struct Snapshot {
    /// Nanoseconds since the last snapshot.
    pub(super) span: f64,
    pub(super) stacks: Vec<Blocked>,
    /// The threads that moved while their stacks were copied.
    pub(super) moved: Vec<Moved>,
    /// Waiting time for which there is no stack, in nanoseconds.
    pub(super) unknown: f64,
    /// Waiting time so far that was not attributed to any stack, in nanoseconds.
    pub(super) unseen: f64,
    /// Threads that have ended since the last snapshot.
    pub(super) ended: Vec<u32>,
}

/// Where a thread waits: its kernel id and its registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Spot {
    pub(super) thread: u32,
    pub(super) ip: u64,
    pub(super) sp: u64,
}

/// A thread that was waiting, and moved while its stack was copied.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moved {
    pub(super) spot: Spot,
    /// How long the thread has waited since it was last seen waiting, in nanoseconds.
    pub(super) waited: f64,
}

/// A waiting thread.
#[derive(Debug)]
pub(super) struct Blocked {
    pub(super) spot: Spot,
    stack: Box<[u8]>,
    /// How long the thread has waited since it was last seen waiting, in nanoseconds.
    pub(super) waited: f64,
}

impl Blocked {
    pub(super) fn sample(&self) -> RawSample<'_> {
        RawSample { ip: self.spot.ip, sp: self.spot.sp, bp: NO_FRAME_POINTER, stack: &self.stack }
    }
}

/// State shared by the companion and the service thread.
#[derive(Debug, Default)]
struct Shared {
    snapshots: Mutex<Vec<Snapshot>>,
    /// Set to 1 to make the companion end; a futex on which it sleeps.
    stop: AtomicU32,
}

/// The thread that takes the snapshots.
#[derive(Debug)]
pub(super) struct Companion {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

impl Companion {
    /// Starts to take snapshots of the threads of this process. `budget` is the part of the
    /// processor time that profiling may take.
    pub(super) fn start(budget: f64) -> Result<Self, fastinst::Error> {
        let shared = Arc::new(Shared::default());
        let of_companion = Arc::clone(&shared);
        let thread = service::spawn_companion("fastinst-waits", move |begun| {
            // Without /proc, or with a kernel before 5.9, there are no snapshots.
            let _ = run(&of_companion, budget, begun);
        })?;
        Ok(Self { shared, thread })
    }

    /// Takes the snapshots since the last call.
    pub(super) fn take(&self) -> Vec<Snapshot> {
        mem::take(&mut *self.shared.snapshots.lock().unwrap_or_else(|e| e.into_inner()))
    }

    /// Ends the companion, and waits until it has ended.
    pub(super) fn stop(self) {
        self.shared.stop.store(1, Ordering::Release);
        futex::wake(&self.shared.stop);
        // A companion that has panicked has ended as well.
        let _ = self.thread.join();
    }

    /// To be called in a forked child, where the companion does not exist; it may have held the
    /// lock.
    pub(super) fn forget(self) {
        mem::forget(self);
    }
}

fn run(shared: &Shared, budget: f64, begun: Begun) -> io::Result<()> {
    own_descriptors()?;
    let mut threads = Threads::open()?;
    begun.now();
    let mut random = SmallRng::from_rng(&mut rand::rng());
    let start = Instant::now();
    let mut last = start;
    let mut costs = Costs::default();
    loop {
        // The budget is a part of the time for which the program runs.
        let allowed = budget * governor::part() * governor::load();
        let elapsed = start.elapsed().as_nanos() as f64;
        let number = threads.watched.len();
        let at_start = plan(number, budget, PERIOD_AT_START).0;
        let longest = at_start + INCREASE * (elapsed - START).max(0.0);
        let (period, most) = plan(number, (allowed / costs.factor).max(budget * at_start / longest), longest);
        let pause = Duration::from_nanos((period * random.random_range(JITTER)) as u64);
        let until = Instant::now() + pause;
        while shared.stop.load(Ordering::Acquire) == 0 && Instant::now() < until {
            futex::wait(&shared.stop, 0, until);
        }
        if shared.stop.load(Ordering::Acquire) != 0 {
            return Ok(());
        }
        threads.follow();
        let mut snapshot = threads.look(most, &mut last, &mut random);
        costs.add(governor::of_thread(), snapshot.stacks.len());
        let mut snapshots = shared.snapshots.lock().unwrap_or_else(|e| e.into_inner());
        let room = MAX_STACKS.saturating_sub(snapshots.iter().map(|snapshot| snapshot.stacks.len()).sum());
        for dropped in snapshot.stacks.drain(room.min(snapshot.stacks.len())..) {
            snapshot.unknown += dropped.waited;
        }
        snapshots.push(snapshot);
    }
}

/// The cost of snapshots. Being woken is a large part of it: most of it on a machine that is
/// otherwise idle, whose processors have to be woken, too.
#[derive(Debug)]
struct Costs {
    /// Relative to what is assumed.
    factor: f64,
    /// The companion's processor time after the last snapshot, in nanoseconds.
    until_now: Option<f64>,
}

impl Default for Costs {
    fn default() -> Self {
        Self { factor: 1.0, until_now: None }
    }
}

impl Costs {
    /// Adds a snapshot with this number of stacks, after which the companion has taken this
    /// processor time in all.
    fn add(&mut self, until_now: f64, stacks: usize) {
        if let Some(before) = self.until_now.replace(until_now) {
            let stacks = stacks as f64;
            let cost = until_now - before + stacks * COST_OF_UNWINDING;
            let factor = cost / (COST_OF_SNAPSHOT + stacks * COST_OF_THREAD);
            self.factor += NEWEST * (factor.clamp(0.5, 10.0) - self.factor);
        }
    }
}

/// The nanoseconds between two snapshots for this number of threads, and the number of threads in
/// each snapshot. Snapshots are at most `longest` nanoseconds apart.
fn plan(threads: usize, budget: f64, longest: f64) -> (f64, usize) {
    let threads = threads.max(1);
    let all = (COST_OF_SNAPSHOT + threads as f64 * COST_OF_THREAD) / (SHARE * budget);
    let period = all.clamp(PERIODS.0, longest.min(PERIODS.1));
    let most = (period * SHARE * budget - COST_OF_SNAPSHOT) / COST_OF_THREAD;
    (period, (most as usize).clamp(1, threads))
}

/// Leaves the descriptor table of the process for an empty one.
fn own_descriptors() -> io::Result<()> {
    // SAFETY: changes the descriptors of the calling thread only, which uses none.
    match unsafe { libc::syscall(libc::SYS_close_range, 0, u32::MAX, libc::CLOSE_RANGE_UNSHARE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The threads of the process, and the state needed to look at them.
struct Threads {
    folder: File,
    memory: File,
    status: File,
    /// The restrictions of system calls at the start, such as those of a container.
    restrictions: String,
    watched: Vec<Watched>,
    /// The number of threads when the directory was last read.
    known: u64,
    /// The number of threads that are not watched.
    others: usize,
    /// Waiting time of threads that have ended, not attributed to any stack, in nanoseconds.
    unseen: f64,
    /// Threads that have ended since the last snapshot.
    ended: Vec<u32>,
    /// Buffer for a copy of a stack.
    buffer: Vec<u8>,
}

struct Watched {
    id: u32,
    state: File,
    times: File,
    /// When the thread was last seen waiting, or first looked at, and how long it had been awake
    /// then.
    since: Option<(Instant, f64)>,
    /// The time for which the thread has waited since then, in nanoseconds.
    waited: f64,
    has_ended: bool,
}

/// The restrictions of system calls in a thread's status file.
fn restrictions(status: &File) -> String {
    let mut text = [0; 4096];
    let length = status.read_at(&mut text, 0).unwrap_or(0);
    let text = String::from_utf8_lossy(&text[..length]);
    // `Seccomp`, and since Linux 5.9 `Seccomp_filters`, their number.
    text.lines().filter(|line| line.starts_with("Seccomp")).collect()
}

const TASKS: &str = "/proc/self/task";

impl Threads {
    fn open() -> io::Result<Self> {
        let mut threads = Self {
            folder: File::open(TASKS)?,
            memory: File::open("/proc/self/mem")?,
            status: File::open("/proc/thread-self/status")?,
            restrictions: String::new(),
            watched: Vec::new(),
            known: 0,
            others: 0,
            unseen: 0.0,
            ended: Vec::new(),
            buffer: vec![0; STACK as usize],
        };
        threads.restrictions = restrictions(&threads.status);
        threads.follow();
        Ok(threads)
    }

    /// Starts to watch new threads, and stops watching those that have ended.
    fn follow(&mut self) {
        let number = self.folder.metadata().map_or(0, |folder| service::number_of_threads(&folder));
        let own = service::own_threads();
        // If there are several, a new one may have taken the place of one that has ended.
        let is_one = number <= 1 + service::own_thread_count() as u64;
        if is_one && number == self.known {
            return;
        }
        self.known = number;
        if restrictions(&self.status) != self.restrictions {
            self.others = (number as usize).saturating_sub(self.watched.len() + own.len());
            return;
        }
        let Ok(entries) = fs::read_dir(TASKS) else { return };
        let mut present: Vec<u32> = entries
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter(|id| !own.contains(id))
            .collect();
        present.sort_unstable();
        let has_ended = |id| present.binary_search(&id).is_err();
        self.watched.iter_mut().for_each(|thread| thread.has_ended |= has_ended(thread.id));
        self.remove_ended();
        self.others = 0;
        let mut watched: Vec<u32> = self.watched.iter().map(|thread| thread.id).collect();
        watched.sort_unstable();
        for id in present.into_iter().filter(|id| watched.binary_search(id).is_err()) {
            match Watched::open(id) {
                Ok(thread) if self.watched.len() < MAX_THREADS => self.watched.push(thread),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                _ => self.others += 1,
            }
        }
    }

    fn remove_ended(&mut self) {
        for thread in self.watched.extract_if(.., |thread| thread.has_ended) {
            self.unseen += thread.waited;
            self.ended.push(thread.id);
        }
    }

    /// Looks at `most` of the threads, and at all new ones, some time after the previous snapshot.
    fn look(&mut self, most: usize, last: &mut Instant, random: &mut SmallRng) -> Snapshot {
        let before = mem::replace(last, Instant::now());
        let span = last.duration_since(before).as_nanos() as f64;
        let mut snapshot = Snapshot {
            span,
            unknown: self.others as f64 * span,
            unseen: self.unseen,
            ended: mem::take(&mut self.ended),
            stacks: Vec::new(),
            moved: Vec::new(),
        };
        let number = self.watched.len();
        self.watched.sort_by_key(|thread| thread.since.is_some());
        let new = self.watched.iter().take_while(|thread| thread.since.is_none()).count();
        for at in 0..most.clamp(new, number) {
            if at >= new {
                // A random subset, as in the first steps of a shuffle.
                self.watched.swap(at, random.random_range(at..number));
            }
            let thread = &mut self.watched[at];
            match thread.look(span, &self.memory, &mut self.buffer) {
                Look::Awake => {}
                Look::Blocked(blocked) => snapshot.stacks.push(blocked),
                Look::Moved(moved) => snapshot.moved.push(moved),
                Look::Ended => thread.has_ended = true,
            }
        }
        self.remove_ended();
        snapshot.unseen += self.watched.iter().map(|thread| thread.waited).sum::<f64>();
        snapshot
    }
}

impl Watched {
    fn open(id: u32) -> io::Result<Self> {
        let state = File::open(format!("{TASKS}/{id}/syscall"))?;
        let times = File::open(format!("{TASKS}/{id}/schedstat"))?;
        Ok(Self { id, state, times, since: None, waited: 0.0, has_ended: false })
    }

    /// Looks at the thread; the last snapshot was `span` nanoseconds ago.
    fn look(&mut self, span: f64, memory: &File, buffer: &mut [u8]) -> Look {
        let before = State::of(&self.state);
        if before == State::Ended {
            return Look::Ended;
        }
        // If the thread has run in between, the copy may mix two moments.
        let copied = match before {
            State::Blocked { sp, .. } => memory.read_at(buffer, sp).ok(),
            _ => None,
        };
        let copied = copied.filter(|_| State::of(&self.state) == before);
        let now = Instant::now();
        let Some(awake) = awake(&self.times) else { return Look::Ended };
        self.waited = match self.since {
            Some((since, then)) => (now.duration_since(since).as_nanos() as f64 - (awake - then)).max(0.0),
            None => span,
        };
        let State::Blocked { sp, ip } = before else {
            if self.since.is_none() {
                (self.since, self.waited) = (Some((now, awake)), 0.0);
            }
            return Look::Awake;
        };
        self.since = Some((now, awake));
        let waited = mem::take(&mut self.waited);
        let spot = Spot { thread: self.id, ip, sp };
        match copied {
            Some(length) => Look::Blocked(Blocked { spot, stack: buffer[..length].into(), waited }),
            None => Look::Moved(Moved { spot, waited }),
        }
    }
}

/// What a thread was found to do.
enum Look {
    /// It runs, or is ready to run.
    Awake,
    Blocked(Blocked),
    Moved(Moved),
    Ended,
}

/// How long a thread has run, or was ready to run, in nanoseconds.
fn awake(times: &File) -> Option<f64> {
    let mut line = [0; 128];
    let length = times.read_at(&mut line, 0).ok()?;
    let (ran, queued) = ran_and_queued(&String::from_utf8_lossy(&line[..length]))?;
    Some(ran + queued)
}

/// The state of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It runs, or is ready to run.
    Running,
    /// It is blocked, with these registers.
    Blocked {
        sp: u64,
        ip: u64,
    },
    Ended,
}

impl State {
    fn of(state: &File) -> Self {
        // A number and eight addresses.
        let mut line = [0; 256];
        match state.read_at(&mut line, 0) {
            Ok(length) => Self::parse(&line[..length]),
            Err(_) => Self::Ended,
        }
    }

    fn parse(line: &[u8]) -> Self {
        let line = String::from_utf8_lossy(line);
        let mut last = line.split_ascii_whitespace().rev();
        let mut address = || u64::from_str_radix(last.next()?.strip_prefix("0x")?, 16).ok();
        match (address(), address()) {
            // The main thread, if it has ended before others.
            (_, Some(0)) => Self::Ended,
            (Some(ip), Some(sp)) => Self::Blocked { sp, ip },
            _ => Self::Running,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn states_are_those_of_the_manual() {
        assert_eq!(State::parse(b"running\n"), State::Running);
        let blocked = State::Blocked { sp: 0x7ffc10, ip: 0x7f01 };
        assert_eq!(State::parse(b"202 0x1 0x2 0x3 0x4 0x5 0x6 0x7ffc10 0x7f01\n"), blocked);
        // In a page fault.
        assert_eq!(State::parse(b"-1 0x7ffc10 0x7f01\n"), blocked);
        assert_eq!(State::parse(b"-1 0x0 0x0\n"), State::Ended);
        assert_eq!(State::parse(b""), State::Running);
    }

    #[test]
    fn few_threads_are_looked_at_often_and_a_part_of_many_seldom() {
        let plan = |threads, budget| super::plan(threads, budget, 5e7);
        let (period, most) = plan(2, 0.02);
        assert!((1.6e7..1.7e7).contains(&period) && most == 2, "{period} {most}");
        assert_eq!(plan(0, 0.02), plan(1, 0.02));
        assert_eq!(plan(1, 0.1), (PERIODS.0, 1));
        assert_eq!(plan(100, 0.05), (5e7, 23));
        assert_eq!(plan(100, 0.0001), (5e7, 1));
        assert_eq!(super::plan(1, 1e-9, 1e10), (PERIODS.1, 1));
    }

    #[test]
    fn snapshots_that_cost_more_are_taken_less_often() {
        let mut costs = Costs::default();
        // The first one includes the start.
        costs.add(5e6, 1);
        assert_eq!(costs.factor, 1.0);
        for number in 1..100 {
            costs.add(5e6 + f64::from(number) * 95_000.0, 1);
        }
        assert!((costs.factor - 3.0).abs() < 1e-6, "{costs:?}");
        assert!(plan(1, 0.01 / costs.factor, 1e9).0 > 2.9 * plan(1, 0.01, 1e9).0);
    }

    /// A thread that reads from a pipe.
    struct Waiter {
        id: u32,
        writer: io::PipeWriter,
        thread: JoinHandle<()>,
    }

    impl Waiter {
        fn new() -> Self {
            let (mut reader, writer) = io::pipe().expect("a pipe can be made");
            let (send, receive) = std::sync::mpsc::channel();
            let thread = std::thread::spawn(move || {
                send.send(nix::unistd::gettid().as_raw() as u32).expect("the test waits for it");
                reader.read_exact(&mut [0]).expect("a byte is written");
            });
            Self { id: receive.recv().expect("the thread sends it"), writer, thread }
        }

        fn end(mut self) {
            self.writer.write_all(&[1]).expect("the thread reads it");
            self.thread.join().expect("the thread ends");
        }
    }

    /// The threads, once this one is seen: if the thread before it in the directory ends while that
    /// is read, the kernel skips it.
    fn open_with(id: u32) -> Threads {
        let mut threads = Threads::open().expect("there is /proc");
        assert!(sees(&mut threads, id), "it is there");
        threads
    }

    /// Whether the thread is watched after at most a few more looks at the directory.
    fn sees(threads: &mut Threads, id: u32) -> bool {
        (0..5).any(|_| {
            threads.follow();
            threads.watched.iter().any(|thread| thread.id == id)
        })
    }

    /// A thread that reads from a pipe is found there until it gets something, and has waited for
    /// the time in between.
    #[test]
    fn a_thread_that_waits_is_seen_with_its_stack() {
        let waiter = Waiter::new();
        let id = waiter.id;
        let mut threads = open_with(id);
        threads.watched.retain(|thread| thread.id == id);
        let mut random = SmallRng::seed_from_u64(1);
        let (start, mut last) = (Instant::now(), Instant::now());
        let is_late = || start.elapsed() > Duration::from_secs(60);
        let mut waited = Vec::new();
        while waited.len() < 10 {
            assert!(!is_late(), "it is seldom blocked");
            let snapshot = threads.look(1, &mut last, &mut random);
            waited.extend(snapshot.stacks.iter().map(|blocked| blocked.waited));
            assert!(snapshot.stacks.iter().all(|blocked| blocked.stack.len() > 512), "frames of a thread");
            assert!(snapshot.moved.is_empty(), "it does not move");
        }
        let all = start.elapsed().as_nanos() as f64;
        assert!(waited.iter().sum::<f64>() <= all, "{waited:?} of {all}");
        waiter.end();
        while threads.ended.is_empty() {
            assert!(!is_late(), "its end is not seen");
            threads.look(1, &mut last, &mut random);
        }
        threads.follow();
        assert!(threads.watched.iter().all(|thread| thread.id != id), "it has ended");
    }

    /// A thread that waits for a few microseconds at a time is often awake after its stack was
    /// copied. It is seen, and its waiting is not attributed to where it is seen next.
    #[test]
    fn a_thread_that_moves_while_it_is_looked_at_is_seen() {
        let (send, receive) = std::sync::mpsc::channel();
        let stop = Arc::new(AtomicU32::new(0));
        let is_stopped = Arc::clone(&stop);
        let sleeper = std::thread::spawn(move || {
            send.send(nix::unistd::gettid().as_raw() as u32).expect("the test waits for it");
            while is_stopped.load(Ordering::Relaxed) == 0 {
                std::thread::sleep(Duration::from_micros(1));
            }
        });
        let id = receive.recv().expect("the thread sends it");
        let mut threads = open_with(id);
        threads.watched.retain(|thread| thread.id == id);
        let mut random = SmallRng::seed_from_u64(1);
        let (start, mut last) = (Instant::now(), Instant::now());
        let (mut seen, mut moved) = (0.0, 0.0);
        while moved == 0.0 || seen == 0.0 {
            assert!(start.elapsed() < Duration::from_secs(60), "{seen} {moved}");
            let snapshot = threads.look(1, &mut last, &mut random);
            seen += snapshot.stacks.iter().map(|blocked| blocked.waited).sum::<f64>();
            moved += snapshot.moved.iter().map(|moved| moved.waited).sum::<f64>();
        }
        assert!(seen + moved <= start.elapsed().as_nanos() as f64);
        stop.store(1, Ordering::Relaxed);
        sleeper.join().expect("the thread ends");
    }

    /// As in a container: what was forbidden before the start does not matter.
    #[test]
    fn new_threads_are_seen_unless_system_calls_were_forbidden_since() {
        let mut threads = Threads::open().expect("there is /proc");
        let waiter = Waiter::new();
        let is_seen = |threads: &Threads| threads.watched.iter().any(|thread| thread.id == waiter.id);
        let now = mem::replace(&mut threads.restrictions, "Seccomp:\t1".into());
        threads.follow();
        assert!(!is_seen(&threads));
        threads.restrictions = now;
        assert!(sees(&mut threads, waiter.id));
        waiter.end();
    }

    /// A program that starts a thread whenever one has ended always has the same number of them.
    #[test]
    fn a_thread_that_takes_the_place_of_another_is_seen() {
        let mut threads = Threads::open().expect("there is /proc");
        for _ in 0..20 {
            let waiter = Waiter::new();
            threads.known = service::number_of_threads(&threads.folder.metadata().expect("it is open"));
            assert!(sees(&mut threads, waiter.id));
            waiter.end();
        }
    }

    /// Time that a thread has waited between two looks is attributed to the stack in which it is
    /// seen.
    #[test]
    fn time_that_was_waited_unseen_is_not_lost() {
        let waiter = Waiter::new();
        let mut threads = open_with(waiter.id);
        threads.watched.retain(|thread| thread.id == waiter.id);
        let mut random = SmallRng::seed_from_u64(1);
        // The last snapshot was a moment ago.
        let mut next = |threads: &mut Threads| {
            loop {
                if let Some(blocked) = threads.look(1, &mut Instant::now(), &mut random).stacks.pop() {
                    return blocked.waited;
                }
            }
        };
        let between = Instant::now();
        next(&mut threads);
        std::thread::sleep(Duration::from_millis(30));
        let waited = next(&mut threads);
        assert!(waited >= 29e6, "{waited}: it has waited for 30 ms");
        assert!(waited <= between.elapsed().as_nanos() as f64 + 5e6, "{waited}");
        waiter.end();
    }
}
