//! Samples the stacks of the program's waiting threads, from outside.
//!
//! The kernel's samples ([`super::events`]) show running threads only. A companion of the service
//! thread finds what threads wait for: at instants that do not depend on the program, it reads for
//! each thread whether it is blocked and where its stack is (`/proc/self/task/*/syscall`,
//! proc_pid_syscall(5)), and copies the stack from memory, unless the thread has not been awake
//! since that was last done ([`super::watched`]). No signal is sent, so no system call is
//! interrupted, and the thread does not notice. If the thread has moved or runs after the copy, the
//! copy is discarded. That happens to short waits more often than to long ones; therefore, it is
//! recorded where the thread was before ([`Spot`](super::watched::Spot)), and for how long it has
//! waited.
//!
//! How long a thread has waited is not estimated: the kernel knows how long it has run or was ready
//! to run, and it has waited for the rest of the time. All waiting since the thread was last seen
//! waiting is attributed to the stack in which it is seen now. On a busy machine the companion
//! often gets a processor just when a thread of the program begins to wait, so merely counting the
//! snapshots would overestimate waiting.
//!
//! A thread that is seen for the first time is charged the time since the last snapshot. On
//! average, this error is offset by the time between the thread's last snapshot and its end, which
//! is never charged. When a report is written, the companion takes one more snapshot of the threads
//! that still exist: for these, both errors are known, and the report is without them. It waits for
//! that snapshot for [`PATIENCE`] at most; without it, the time since the last one may have been
//! waited anywhere.
//!
//! The companion has its own descriptor table ([`internal::leave_table`]): the program
//! cannot close the companion's descriptors, and its own are numbered as if there were no profiler.
//! Once the program has restricted system calls for all of its threads (seccomp(2)), the companion
//! opens nothing any more, and does not see threads that are created later.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{io, mem};

use fastinst::internal;
use fastinst::service::{self, Begun};
use fastinst_sigsafe::futex;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::events::RawSample;
use super::watched::{Look, TASKS, Wait, Watched};
use crate::observe::governor;
use crate::processor_time;

/// The assumed cost of a snapshot, and of each thread in it, unwinding included, in nanoseconds. It
/// determines how often snapshots are taken, with a factor that is measured ([`Costs`]).
const COST_OF_SNAPSHOT: f64 = 20_000.0;
const COST_OF_THREAD: f64 = 15_000.0;

/// The assumed cost of a thread that still waits where it was last seen: nothing is copied.
const COST_OF_SAME: f64 = 3_000.0;

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

/// Maximum number of bytes that are copied of a stack. Frames further out are not known.
const STACK: usize = 16 << 10;

/// A value for the frame pointer, which no file of /proc shows for a blocked thread. It belongs to
/// no stack, so frames that need it are not found.
const NO_FRAME_POINTER: u64 = 1 << 63;

/// One snapshot of the threads.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    /// Nanoseconds since the last snapshot. `None` if this one was requested for a report: the next
    /// one says where the threads have waited since the last one, as if there had not been this
    /// one.
    pub(super) span: Option<f64>,
    pub(super) stacks: Vec<Blocked>,
    /// The threads that moved while their stacks were copied.
    pub(super) moved: Vec<Wait>,
    /// The threads that still wait where they were last seen, by their kernel ids, and how long
    /// they have waited since, in nanoseconds.
    pub(super) same: Vec<(u32, f64)>,
    /// Waiting time for which there is no stack, in nanoseconds.
    pub(super) unknown: f64,
    /// Waiting time so far that was not attributed to any stack, in nanoseconds.
    pub(super) unseen: f64,
    /// Threads that have ended since the last snapshot.
    pub(super) ended: Vec<Ended>,
}

/// A waiting thread.
#[derive(Debug)]
pub(super) struct Blocked {
    pub(super) wait: Wait,
    stack: Box<[u8]>,
}

impl Blocked {
    pub(super) fn sample(&self) -> RawSample<'_> {
        let spot = self.wait.spot;
        RawSample { ip: spot.ip, sp: spot.sp, bp: NO_FRAME_POINTER, stack: &self.stack }
    }
}

/// A thread that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    /// Its kernel id.
    pub(super) thread: u32,
    /// The time since it was last looked at, in nanoseconds.
    pub(super) since: f64,
}

/// State shared by the companion and the service thread.
#[derive(Debug, Default)]
struct Shared {
    snapshots: Mutex<Vec<Snapshot>>,
    /// When the threads were last looked at.
    looked: Mutex<Option<Looked>>,
    /// [`STOP`], and the number of snapshots that were requested, times [`REQUEST`]; a futex on
    /// which the companion sleeps.
    orders: AtomicU32,
    /// The orders that were carried out; a futex on which the service thread sleeps.
    done: AtomicU32,
}

const STOP: u32 = 1;
const REQUEST: u32 = 2;

/// How long a report waits for its snapshot, where the companion gets no processor.
const PATIENCE: Duration = Duration::from_millis(100);

/// How much time had passed at a moment since each thread was looked at.
#[derive(Clone, Copy, Debug)]
struct Looked {
    at: Instant,
    /// The number of threads, and the sum of these times, in nanoseconds.
    threads: usize,
    before: f64,
}

/// Locks a mutex that a panic may have poisoned.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
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
        mem::take(&mut *lock(&self.shared.snapshots))
    }

    /// Has a snapshot taken for a report, and waits for it. Returns the time for which the threads
    /// have not been looked at, in nanoseconds: nothing unless that took too long.
    pub(super) fn request(&self) -> f64 {
        let Shared { orders, done, looked, .. } = &*self.shared;
        let wanted = orders.fetch_add(REQUEST, Ordering::AcqRel).wrapping_add(REQUEST);
        futex::wake(orders);
        let until = Instant::now() + PATIENCE;
        // Without /proc, it has ended.
        while !self.thread.is_finished() && Instant::now() < until {
            match done.load(Ordering::Acquire) {
                carried_out if carried_out == wanted => return 0.0,
                carried_out => futex::wait(done, carried_out, until),
            }
        }
        // Threads may have been created since.
        let present = fs::metadata(TASKS).map_or(0, |folder| internal::number_of_threads(&folder) as usize);
        let threads = |last: Looked| present.saturating_sub(internal::own_thread_count()).max(last.threads);
        lock(looked)
            .map_or(0.0, |last| last.before + threads(last) as f64 * last.at.elapsed().as_nanos() as f64)
    }

    /// Ends the companion, and waits until it has ended.
    pub(super) fn stop(self) {
        self.shared.orders.fetch_or(STOP, Ordering::AcqRel);
        futex::wake(&self.shared.orders);
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
    internal::leave_table()?;
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
        let (period, allowed) =
            plan(number, (allowed / costs.factor).max(budget * at_start / longest), longest);
        let pause = Duration::from_nanos((period * random.random_range(JITTER)) as u64);
        let until = Instant::now() + pause;
        while let Some(order) = shared.order_until(until) {
            if order & STOP != 0 {
                return Ok(());
            }
            threads.follow();
            let snapshot = threads.look_for_report(last);
            shared.answer(order, snapshot, &mut threads);
            costs.leave_out(processor_time::of_thread());
        }
        threads.follow();
        let snapshot = threads.look(allowed, &mut last, &mut random);
        costs.add(processor_time::of_thread(), &snapshot);
        shared.add(snapshot, &mut threads);
    }
}

impl Shared {
    /// Waits for an order; `None` if there is none until then.
    fn order_until(&self, until: Instant) -> Option<u32> {
        let carried_out = self.done.load(Ordering::Relaxed);
        loop {
            match self.orders.load(Ordering::Acquire) {
                order if order != carried_out => return Some(order),
                _ if Instant::now() >= until => return None,
                order => futex::wait(&self.orders, order, until),
            }
        }
    }

    fn answer(&self, order: u32, snapshot: Snapshot, threads: &mut Threads) {
        self.add(snapshot, threads);
        self.done.store(order, Ordering::Release);
        futex::wake(&self.done);
    }

    /// Adds a snapshot, as far as there is room for its stacks.
    fn add(&self, mut snapshot: Snapshot, threads: &mut Threads) {
        let at = Instant::now();
        let before = threads.watched.iter().map(|thread| thread.since_look(at)).sum();
        *lock(&self.looked) = Some(Looked { at, threads: threads.watched.len(), before });
        let mut snapshots = lock(&self.snapshots);
        let room = MAX_STACKS.saturating_sub(snapshots.iter().map(|snapshot| snapshot.stacks.len()).sum());
        let is_for_report = snapshot.span.is_none();
        for Blocked { wait, .. } in snapshot.stacks.drain(room.min(snapshot.stacks.len())..) {
            if !is_for_report {
                snapshot.unknown += wait.waited;
                threads.forget_stack(wait.spot.thread);
            } else if !wait.hides {
                // What is hidden was not seen, and has been added.
                snapshot.unknown += wait.own.map_or(wait.waited, |own| own.most);
            }
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
    /// Adds a snapshot, after which the companion has taken this processor time in all.
    fn add(&mut self, until_now: f64, snapshot: &Snapshot) {
        if let Some(before) = self.until_now.replace(until_now) {
            let (stacks, same) = (snapshot.stacks.len() as f64, snapshot.same.len() as f64);
            let cost = until_now - before + stacks * COST_OF_UNWINDING;
            let factor = cost / (COST_OF_SNAPSHOT + stacks * COST_OF_THREAD + same * COST_OF_SAME);
            self.factor += NEWEST * (factor.clamp(0.5, 10.0) - self.factor);
        }
    }

    /// Leaves out what the companion has done since the last snapshot, after which it has taken
    /// this processor time in all.
    fn leave_out(&mut self, until_now: f64) {
        self.until_now = self.until_now.map(|_| until_now);
    }
}

/// The nanoseconds between two snapshots for this number of threads, and the nanoseconds that
/// looking at threads may take in each. Snapshots are at most `longest` nanoseconds apart.
fn plan(threads: usize, budget: f64, longest: f64) -> (f64, f64) {
    let threads = threads.max(1);
    let all = (COST_OF_SNAPSHOT + threads as f64 * COST_OF_THREAD) / (SHARE * budget);
    let period = all.clamp(PERIODS.0, longest.min(PERIODS.1));
    (period, (period * SHARE * budget - COST_OF_SNAPSHOT).max(0.0))
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
    ended: Vec<Ended>,
    /// Buffer for a copy of a stack.
    buffer: Vec<u8>,
}

/// The restrictions of system calls in a thread's status file.
fn restrictions(status: &File) -> String {
    let mut text = [0; 4096];
    let length = status.read_at(&mut text, 0).unwrap_or(0);
    let text = String::from_utf8_lossy(&text[..length]);
    // `Seccomp`, and since Linux 5.9 `Seccomp_filters`, their number.
    text.lines().filter(|line| line.starts_with("Seccomp")).collect()
}

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
            buffer: vec![0; STACK],
        };
        threads.restrictions = restrictions(&threads.status);
        threads.follow();
        threads.watched.iter_mut().for_each(Watched::begin_now);
        Ok(threads)
    }

    /// Starts to watch new threads, and stops watching those that have ended.
    fn follow(&mut self) {
        let number = self.folder.metadata().map_or(0, |folder| internal::number_of_threads(&folder));
        let own = internal::own_threads();
        // If there are several, a new one may have taken the place of one that has ended.
        let is_one = number <= 1 + internal::own_thread_count() as u64;
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
        // If the thread before one in the directory ends while that is read, the kernel skips it.
        for thread in self.watched.iter_mut().filter(|thread| has_ended(thread.id)) {
            thread.has_ended |= thread.is_gone();
        }
        self.remove_ended();
        self.others = 0;
        let mut watched: Vec<u32> = self.watched.iter().map(|thread| thread.id).collect();
        watched.sort_unstable();
        for id in present.into_iter().filter(|id| watched.binary_search(id).is_err()) {
            if self.watched.len() >= MAX_THREADS {
                self.others += 1;
                continue;
            }
            match Watched::open(id) {
                Ok(thread) => self.watched.push(thread),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                _ => self.others += 1,
            }
        }
    }

    fn remove_ended(&mut self) {
        let now = Instant::now();
        for thread in self.watched.extract_if(.., |thread| thread.has_ended) {
            self.unseen += thread.unseen();
            self.ended.push(Ended { thread: thread.id, since: thread.since_look(now) });
        }
    }

    /// Has the next look at a thread copy its stack.
    fn forget_stack(&mut self, id: u32) {
        self.watched.iter_mut().filter(|thread| thread.id == id).for_each(Watched::forget_stack);
    }

    /// Looks at threads for about `allowed` nanoseconds, and at all new ones, some time after the
    /// previous snapshot.
    fn look(&mut self, allowed: f64, last: &mut Instant, random: &mut SmallRng) -> Snapshot {
        let before = mem::replace(last, Instant::now());
        let span = last.duration_since(before).as_nanos() as f64;
        let mut snapshot = Snapshot {
            span: Some(span),
            unknown: self.others as f64 * span,
            unseen: self.unseen,
            ended: mem::take(&mut self.ended),
            ..Snapshot::default()
        };
        let number = self.watched.len();
        self.watched.sort_by_key(|thread| !thread.is_new());
        let new = self.watched.iter().take_while(|thread| thread.is_new()).count();
        let mut cost = 0.0;
        for at in 0..number {
            if at >= new {
                if cost > allowed {
                    break;
                }
                // A random subset, as in the first steps of a shuffle.
                self.watched.swap(at, random.random_range(at..number));
            }
            let thread = &mut self.watched[at];
            let look = thread.look(span, &self.memory, &mut self.buffer);
            cost += snapshot.add(thread, look);
        }
        self.remove_ended();
        snapshot.unseen += self.watched.iter().map(Watched::unseen).sum::<f64>();
        snapshot
    }

    /// Looks at all threads for a report, some time after the previous snapshot.
    fn look_for_report(&mut self, last: Instant) -> Snapshot {
        let mut snapshot = Snapshot::default();
        for thread in &mut self.watched {
            let copied = if snapshot.stacks.len() < MAX_STACKS { self.buffer.len() } else { 0 };
            let (look, unseen) = thread.peek(&self.memory, &mut self.buffer[..copied]);
            snapshot.unseen += unseen;
            snapshot.add(thread, look);
        }
        self.remove_ended();
        snapshot.ended = mem::take(&mut self.ended);
        snapshot.unseen += self.unseen + self.others as f64 * last.elapsed().as_nanos() as f64;
        snapshot
    }
}

impl Snapshot {
    /// Adds what a thread was found to do. Returns the assumed cost, in nanoseconds.
    fn add(&mut self, thread: &mut Watched, look: Look) -> f64 {
        match look {
            Look::Same(waited) => self.same.push((thread.id, waited)),
            Look::Waits(wait, Some(stack)) => {
                self.stacks.push(Blocked { wait, stack });
                return COST_OF_THREAD;
            }
            Look::Waits(wait, None) => {
                self.moved.push(wait);
                return COST_OF_THREAD;
            }
            Look::Awake => {}
            Look::Ended => thread.has_ended = true,
        }
        COST_OF_SAME
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::super::watched::{Spot, TICK};
    use super::*;

    #[test]
    fn few_threads_are_looked_at_often_and_a_part_of_many_seldom() {
        let plan = |threads, budget| super::plan(threads, budget, 5e7);
        let (period, allowed) = plan(2, 0.02);
        assert!((1.6e7..1.7e7).contains(&period) && (allowed - 3e4).abs() < 1.0, "{period} {allowed}");
        assert_eq!(plan(0, 0.02), plan(1, 0.02));
        assert_eq!(plan(1, 0.1).0, PERIODS.0);
        let (period, allowed) = plan(100, 0.05);
        assert!(period == 5e7 && (allowed / COST_OF_THREAD) as u32 == 23, "{period} {allowed}");
        assert_eq!(plan(100, 0.0001), (5e7, 0.0));
        assert_eq!(super::plan(1, 1e-9, 1e10), (PERIODS.1, 0.0));
    }

    #[test]
    fn snapshots_that_cost_more_are_taken_less_often() {
        let mut costs = Costs::default();
        let wait = Wait { spot: Spot { thread: 1, ip: 0, sp: 0 }, waited: 0.0, hides: false, own: None };
        let stacks = vec![Blocked { wait, stack: Box::new([]) }];
        let snapshot = Snapshot { stacks, ..Snapshot::default() };
        // The first one includes the start.
        costs.add(5e6, &snapshot);
        assert_eq!(costs.factor, 1.0);
        for number in 1..100 {
            // A report in between is not counted.
            let before = 5e6 + f64::from(number) * 1e6;
            costs.leave_out(before);
            costs.add(before + 95_000.0, &snapshot);
        }
        assert!((costs.factor - 3.0).abs() < 1e-6, "{costs:?}");
        assert!(plan(1, 0.01 / costs.factor, 1e9).0 > 2.9 * plan(1, 0.01, 1e9).0);
    }

    /// A thread that reads from a pipe, and writes to another.
    struct Waiter {
        id: u32,
        writer: io::PipeWriter,
        reader: io::PipeReader,
        thread: JoinHandle<()>,
    }

    impl Waiter {
        fn new() -> Self {
            let (mut requests, writer) = io::pipe().expect("a pipe can be made");
            let (reader, mut answers) = io::pipe().expect("a pipe can be made");
            let (send, receive) = std::sync::mpsc::channel();
            let thread = std::thread::spawn(move || {
                send.send(nix::unistd::gettid().as_raw() as u32).expect("the test waits for it");
                while requests.read_exact(&mut [0]).is_ok() {
                    answers.write_all(&[1]).expect("the test reads it");
                }
            });
            Self { id: receive.recv().expect("the thread sends it"), writer, reader, thread }
        }

        /// Wakes the thread, and waits until it has been awake.
        fn wake(&mut self) {
            self.writer.write_all(&[1]).expect("the thread reads it");
            self.reader.read_exact(&mut [0]).expect("the thread writes it");
        }

        fn end(self) {
            drop(self.writer);
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
        let (start, mut last) = (Instant::now(), Instant::now());
        let mut threads = open_with(id);
        threads.watched.retain(|thread| thread.id == id);
        let mut random = SmallRng::seed_from_u64(1);
        let is_late = || start.elapsed() > Duration::from_secs(60);
        let mut waited = Vec::new();
        while waited.len() < 10 {
            assert!(!is_late(), "it is seldom blocked");
            let snapshot = threads.look(0.0, &mut last, &mut random);
            waited.extend(snapshot.stacks.iter().map(|blocked| blocked.wait.waited));
            waited.extend(snapshot.same.iter().map(|(_, waited)| waited));
            assert!(snapshot.stacks.iter().all(|blocked| blocked.stack.len() > 512), "frames of a thread");
            assert!(snapshot.moved.is_empty(), "it does not move");
        }
        let all = start.elapsed().as_nanos() as f64;
        assert!(waited.iter().sum::<f64>() <= all, "{waited:?} of {all}");
        waiter.end();
        while threads.ended.is_empty() {
            assert!(!is_late(), "its end is not seen");
            threads.look(0.0, &mut last, &mut random);
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
        let (start, mut last) = (Instant::now(), Instant::now());
        let mut threads = open_with(id);
        threads.watched.retain(|thread| thread.id == id);
        let mut random = SmallRng::seed_from_u64(1);
        let (mut seen, mut moved) = (0.0, 0.0);
        while moved == 0.0 || seen == 0.0 {
            assert!(start.elapsed() < Duration::from_secs(60), "{seen} {moved}");
            let snapshot = threads.look(0.0, &mut last, &mut random);
            seen += snapshot.stacks.iter().map(|blocked| blocked.wait.waited).sum::<f64>();
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
            threads.known = internal::number_of_threads(&threads.folder.metadata().expect("it is open"));
            assert!(sees(&mut threads, waiter.id));
            waiter.end();
        }
    }

    /// The stacks of a thread that does what the test wants.
    struct Stage {
        waiter: Waiter,
        threads: Threads,
        random: SmallRng,
    }

    impl Stage {
        /// A thread that was created after the first snapshot.
        fn new() -> Self {
            let mut threads = Threads::open().expect("there is /proc");
            threads.watched.clear();
            let waiter = Waiter::new();
            threads.watched.push(Watched::open(waiter.id).expect("it exists"));
            Self { waiter, threads, random: SmallRng::seed_from_u64(1) }
        }

        /// The next snapshot in which the thread waits, the last one being a moment ago.
        fn look(&mut self) -> Snapshot {
            let threads = &mut self.threads;
            let mut look = || threads.look(0.0, &mut Instant::now(), &mut self.random);
            loop {
                let snapshot = look();
                if !snapshot.stacks.is_empty() || !snapshot.same.is_empty() {
                    return snapshot;
                }
            }
        }

        fn look_for_report(&mut self) -> Snapshot {
            self.threads.look_for_report(Instant::now())
        }

        /// The next snapshot for a report in which the thread waits.
        fn waits_for_report(&mut self) -> Snapshot {
            loop {
                let report = self.look_for_report();
                if !report.stacks.is_empty() || !report.same.is_empty() {
                    return report;
                }
            }
        }
    }

    fn nanoseconds(since: Instant) -> f64 {
        since.elapsed().as_nanos() as f64
    }

    /// The time of a thread between two looks is known exactly, and it need not be copied again.
    /// A report does not change what the next look finds.
    #[test]
    fn time_that_was_waited_unseen_is_not_lost() {
        let mut stage = Stage::new();
        let mut before = Instant::now();
        assert_eq!(stage.look().stacks.len(), 1, "its stack is copied");
        for _ in 0..3 {
            let begin = Instant::now();
            std::thread::sleep(Duration::from_millis(30));
            let slept = nanoseconds(begin);
            let report = stage.look_for_report();
            let [(id, until_report)] = report.same[..] else { panic!("{report:?}") };
            assert_eq!((id, report.unseen, report.span), (stage.waiter.id, 0.0, None));
            let least = nanoseconds(begin);
            let snapshot = stage.look();
            let most = nanoseconds(before);
            before = begin;
            let [(_, waited)] = snapshot.same[..] else { panic!("{snapshot:?}") };
            assert!(slept <= until_report && until_report <= waited, "{until_report} {waited}");
            assert!(least <= waited && waited <= most, "{least} <= {waited} <= {most}");
        }
        stage.threads.forget_stack(stage.waiter.id);
        assert_eq!(stage.look().stacks.len(), 1, "the stack was dropped");
        stage.waiter.end();
    }

    /// The last snapshot was a moment ago, but the thread may have existed for longer: in its life,
    /// it has waited for what the test measures.
    #[test]
    fn the_time_since_a_thread_was_created_is_known() {
        let begin = Instant::now();
        let mut stage = Stage::new();
        let created = Instant::now();
        std::thread::sleep(Duration::from_millis(30));
        let least = nanoseconds(created);
        let (report, snapshot) = (stage.waits_for_report(), stage.look());
        let most = nanoseconds(begin);
        for blocked in [&report.stacks[0], &snapshot.stacks[0]] {
            let own = blocked.wait.own.expect("it is new");
            // The thread was awake for a while.
            assert!(own.least <= most, "{own:?}, not {most}");
            assert!(own.most > 0.0 && own.most - own.least <= TICK, "{own:?}");
        }
        let own = report.stacks[0].wait.own.expect("it is new");
        let awake = stage.threads.watched[0].awake().expect("the kernel knows it");
        assert!(own.most + awake >= least, "{own:?} and {awake}, not {least}");
        stage.waiter.end();
    }

    /// A thread that was awake several times may have waited anywhere.
    #[test]
    fn waits_between_two_looks_may_be_hidden() {
        let mut stage = Stage::new();
        stage.look();
        let hides = |snapshot: &Snapshot| snapshot.stacks.iter().any(|blocked| blocked.wait.hides);
        for _ in 0..3 {
            stage.waiter.wake();
            stage.waits_for_report();
            stage.waiter.wake();
            let report = stage.waits_for_report();
            assert!(hides(&report) && report.unseen > 0.0, "{report:?}");
            assert!(hides(&stage.look()));
        }
        let start = Instant::now();
        // It may be preempted in one of the turns.
        loop {
            stage.waiter.wake();
            let report = stage.waits_for_report();
            if !hides(&stage.look()) && report.unseen == 0.0 {
                break;
            }
            assert!(start.elapsed() < Duration::from_secs(30), "it never has a single turn");
        }
        stage.waiter.end();
    }

    /// A thread that has waited only once is not uncertain, however often it was preempted; a
    /// thread that has waited before is.
    #[test]
    fn waits_of_a_new_thread_may_be_hidden() {
        let mut stage = Stage::new();
        let status = |id: u32| crate::observe::preemption::switches_of(id).expect("it exists").0;
        let id = stage.waiter.id;
        for waits in 1..=4 {
            let report = stage.waits_for_report();
            assert!(report.stacks[0].wait.own.is_some(), "it is new");
            let waited = status(id);
            assert!(waited >= waits, "{waited}");
            assert_eq!(report.stacks[0].wait.hides, waited > 1, "it has waited {waited} times");
            stage.waiter.wake();
        }
        stage.waiter.end();
    }

    /// The companion gets no processor.
    #[test]
    fn a_report_does_not_wait_for_its_snapshot_forever() {
        let shared = Arc::new(Shared::default());
        let before = Looked { at: Instant::now(), threads: 3, before: 1e12 };
        *lock(&shared.looked) = Some(before);
        let (send, receive) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || _ = receive.recv());
        let companion = Companion { shared, thread };
        let unlooked = companion.request();
        assert!(unlooked >= 1e12 + 3.0 * PATIENCE.as_nanos() as f64, "{unlooked}");
        drop(send);
        companion.stop();
    }

    #[test]
    fn a_report_gets_its_snapshot() {
        let shared = Arc::new(Shared::default());
        let of_companion = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            let mut threads = Threads::open().expect("there is /proc");
            let long = Instant::now() + Duration::from_secs(3600);
            while let Some(order) = of_companion.order_until(long).filter(|order| order & STOP == 0) {
                of_companion.answer(order, threads.look_for_report(Instant::now()), &mut threads);
            }
        });
        let companion = Companion { shared, thread };
        let start = Instant::now();
        // Some of the requests may take too long.
        while companion.request() > 0.0 {
            assert!(start.elapsed() < Duration::from_secs(60));
        }
        assert!(companion.take().iter().all(|snapshot| snapshot.span.is_none()));
        companion.stop();
    }
}
