//! Calling contexts: a tree of the paths on which functions were called, with counts and times.
//!
//! # The tree
//! A node is a function as called on one path from the host. A function that is already on the path
//! gets no second node: the call leads back to its existing node (the calling context tree of
//! Ammons, Ball and Larus). Therefore no function occurs twice on a path, the depth of the tree is
//! bounded by the number of functions, whatever the recursion, and the time of a function including
//! its callees is the sum over the subtrees of its nodes.
//!
//! Host functions called by the program have nodes; program functions that they call are their
//! children. The callee of a tail call is a child of the function that made the tail call; when it
//! returns, time is attributed to that function's caller. The return of a tail-called host function
//! is not observed: its call is counted, but its time goes to that caller, and the functions that
//! it calls are children of that caller.
//!
//! # Collection
//! Each thread has a tree and a stack of the frames that it observes. It counts the calls of nodes,
//! and publishes at each event whose function runs now. Times are measured in one of two ways:
//! * Exact: at each event, the time since the previous one is added to the innermost function's
//!   node. This yields the self times of the nodes; nothing else is measured. A call that leads
//!   back to the same node, such as a direct recursion, takes no time stamps.
//! * [Sampled](sampler): another thread looks at random instants which function runs.
//!
//! The stubs of probes do most of this by themselves ([`steps`]): most calls are made on a path,
//! and from a function, that has made them before.
//!
//! Frames are identified by their addresses: frames that are deeper than the frame of an event have
//! ended, however they were left. Traps and exceptions are also reported as soon as they happen.
//!
//! Only its own thread writes to a tree; reports read it concurrently.
//!
//! The probes of a function are made when it is first called. The time that this takes is known,
//! also for the probes of other monitors, and is attributed to no function. It is not known for
//! threads that wait while another thread makes the probes.

mod calibration;
mod estimate;
mod events;
mod frames;
mod local;
mod merged;
mod sampler;
mod sites;
mod state;
mod steps;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use wasm_jit::probes::{ProbeSpec, ThreadWord, UnwoundWatch, on_delays};
use wasm_jit::{FunctionInfo, Module};

use self::calibration::Costs;
pub(super) use self::estimate::Estimate;
pub(super) use self::merged::{Merged, Times, name};
use self::sampler::{Sampler, Samples};
use self::sites::Sites;
pub(super) use self::sites::host_in_tables;
use self::tree::Tree;
use super::clock::Clock;
use crate::lazy::Order;
use crate::lock::lock;
use crate::{Error, LazyProbes, OptionInfo, Report, Setup};

/// The host, at the root of each tree.
pub(super) const HOST: u32 = u32::MAX;
/// Stands for all contexts for which there was no memory.
pub(super) const LEFT_OUT: u32 = u32::MAX - 2;

/// The nodes that every tree has.
const ROOT: u32 = 0;
const REST: u32 = 1;

/// Maximum number of contexts of a thread, unless the option states another one.
const CONTEXTS: usize = 1_000_000;

/// The minimum value of that maximum.
const MIN_CONTEXTS: usize = 8;

/// An option of all monitors that use contexts.
pub(super) const CONTEXTS_OPTION: OptionInfo = OptionInfo::with_value(
    "contexts",
    "N",
    "keeps at most this many calling contexts of a thread, of about 280 bytes [default: 1000000, minimum: 8]",
);

/// An option of monitors that show times.
pub(super) const TIMES_OPTION: OptionInfo = OptionInfo::with_value(
    "times",
    "WAY",
    "exact, or sampled: calls are counted as before, but times come from a sample each millisecond, with a \
           95 % error, which costs less if functions call each other often [default: exact]",
);

/// The observed quantities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measure {
    /// Counts, and times from time stamps.
    ExactTimes,
    /// Counts, and times from samples.
    SampledTimes,
    /// Counts and paths.
    Paths,
}

/// As in [`TIMES_OPTION`].
impl FromStr for Measure {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "exact" => Ok(Self::ExactTimes),
            "sampled" => Ok(Self::SampledTimes),
            _ => Err(()),
        }
    }
}

impl Measure {
    /// The measure that the options request.
    ///
    /// # Errors
    /// [`Error::Value`].
    pub(super) fn of(setup: &Setup<'_>) -> Result<Self, Error> {
        Ok(setup.options.parse(TIMES_OPTION.name, "exact or sampled")?.unwrap_or(Self::ExactTimes))
    }
}

/// Observes the calls of a module.
pub(super) struct Contexts {
    shared: Arc<Shared>,
    probes: LazyProbes,
    sampler: Mutex<Option<Sampler>>,
    _watch: UnwoundWatch,
}

/// The state that probes and reports share.
struct Shared {
    /// Identifies the monitor in the threads.
    number: u64,
    measure: Measure,
    limit: usize,
    clock: Clock,
    is_active: AtomicBool,
    /// Changed when the monitor is activated: older frames may have ended unobserved. The periods
    /// of all monitors are different; the first one of each is 0, in which nothing is observed.
    period: Arc<AtomicU64>,
    /// In each thread, the address of its [`State`](state::State), if it has one. The monitor has
    /// no such word if too many others have one.
    word: Option<ThreadWord>,
    /// When the monitor was last deactivated.
    ended: AtomicU64,
    /// The ticks that threads have spent on making probes, which belong to no function.
    delays: AtomicU64,
    threads: Mutex<Threads>,
}

/// The monitors that exist, by their numbers: probes know only the number.
static MONITORS: Mutex<BTreeMap<u64, Weak<Shared>>> = Mutex::new(BTreeMap::new());

#[derive(Default)]
struct Threads {
    running: Vec<Running>,
    /// The number of threads that have ended, and their merged trees.
    ended: usize,
    of_ended: Merged,
    /// The values at the last reset, which are subtracted.
    cleared: Merged,
}

/// A running thread.
struct Running {
    tree: Arc<Tree>,
    /// Indexed by node, up to the last node with a sample.
    samples: Vec<Samples>,
    estimate: Estimate,
}

impl Contexts {
    /// Observes the calls of the chosen functions; off at first.
    pub(super) fn of(setup: &Setup<'_>, measure: Measure) -> Result<Self, Error> {
        Ok(Self::with(setup, Current::of(setup, measure)?, BTreeMap::new()))
    }

    /// As [`Contexts::of`], with additional probes of some functions, which fire after those that
    /// keep the paths.
    pub(super) fn with(setup: &Setup<'_>, paths: Current, more: BTreeMap<u32, Vec<ProbeSpec>>) -> Self {
        let functions = setup.functions().map(|function| function.index());
        Self::new(setup.module, functions.collect(), paths.0, more)
    }

    fn new(
        module: &Module,
        functions: BTreeSet<u32>,
        shared: Arc<Shared>,
        more: BTreeMap<u32, Vec<ProbeSpec>>,
    ) -> Self {
        let observed: BTreeSet<u32> = functions.iter().chain(more.keys()).copied().collect();
        let sites = Sites::new(module, functions, &shared);
        let specs = move |function: &FunctionInfo<'_>| {
            let mut specs = sites.of(function);
            specs.extend(more.get(&function.index()).into_iter().flatten().cloned());
            specs
        };
        on_delays(local::suspended);
        let probes = LazyProbes::of(module, observed, Order::Functions, specs);
        let watched = shared.clone();
        let watch = module.watch_unwound(move |left| {
            if watched.is_active.load(Ordering::Relaxed) {
                local::with(watched.number, |local| local.unwind(left.frame));
            }
        });
        Self { shared, probes, sampler: Mutex::default(), _watch: watch }
    }

    pub(super) fn activate(&self) -> Result<(), Error> {
        let mut sampler = lock(&self.sampler);
        if sampler.is_none() && self.shared.measure == Measure::SampledTimes {
            *sampler = Some(Sampler::start(self.shared.clone())?);
        }
        self.observe()
    }

    /// Without a sampler: a test takes samples itself.
    fn observe(&self) -> Result<(), Error> {
        if !self.shared.is_active.load(Ordering::Relaxed) {
            static PERIODS: AtomicU64 = AtomicU64::new(1);
            let period = PERIODS.fetch_add(1, Ordering::Relaxed);
            self.shared.period.store(period, Ordering::Relaxed);
            self.shared.is_active.store(true, Ordering::Relaxed);
        }
        self.probes.switch(true)
    }

    pub(super) fn deactivate(&self) -> Result<(), Error> {
        let switched = self.probes.switch(false);
        if self.shared.is_active.load(Ordering::Relaxed) {
            self.shared.ended.store(self.shared.clock.now(), Ordering::Relaxed);
            self.shared.is_active.store(false, Ordering::Relaxed);
        }
        // Waits for the thread: no sample is added after this.
        *lock(&self.sampler) = None;
        switched
    }

    /// The merged trees of all threads, as they are now.
    pub(super) fn merged(&self) -> Merged {
        self.shared.threads().merged(&self.shared)
    }

    /// Discards all observations so far.
    pub(super) fn clear(&self) {
        let mut threads = self.shared.threads();
        threads.cleared = threads.all(&self.shared);
    }

    /// The nanoseconds that threads have spent on making probes, which belong to no function.
    pub(super) fn delays(&self) -> u64 {
        let ticks = self.shared.delays.load(Ordering::Relaxed);
        (ticks as f64 * self.shared.clock.nanoseconds_per_tick()) as u64
    }

    /// Adds the functions that could not be observed to a report.
    pub(super) fn report_refused(&self, report: &mut Report) {
        self.probes.report_refused(report);
    }
}

/// Gives the path on which a thread is.
#[derive(Clone)]
pub(super) struct Current(Arc<Shared>);

impl Current {
    /// Knows nothing until there are [`Contexts`] with it that are on.
    pub(super) fn of(setup: &Setup<'_>, measure: Measure) -> Result<Self, Error> {
        let expected = format!("a number from {MIN_CONTEXTS} on");
        let limit = setup.options.parse("contexts", &expected)?.unwrap_or(CONTEXTS);
        if limit < MIN_CONTEXTS {
            return Err(Error::Value { option: "contexts".to_owned(), value: limit.to_string(), expected });
        }
        if measure == Measure::ExactTimes {
            // Measured now, since a report must not wait for it.
            Costs::get();
        }
        Ok(Self(Shared::new(measure, limit)))
    }

    /// The functions on this thread's path, the innermost first; the host at its end is left out.
    pub(super) fn path(&self) -> Vec<u32> {
        let mut path = Vec::new();
        local::with(self.0.number, |local| path = local.path());
        path
    }
}

impl Threads {
    /// A thread begins.
    fn begin(&mut self, tree: Arc<Tree>) {
        self.running.push(Running { tree, samples: Vec::new(), estimate: Estimate::default() });
    }

    /// A thread ends.
    fn end(&mut self, tree: &Arc<Tree>, shared: &Shared) {
        if let Some(at) = self.running.iter().position(|running| Arc::ptr_eq(&running.tree, tree)) {
            let running = self.running.swap_remove(at);
            running.add_to(&mut self.of_ended, shared);
            self.ended += 1;
        }
    }

    /// Takes a sample of each thread, each representing this time.
    fn sample(&mut self, shared: &Shared, nanoseconds: u64) {
        if !shared.is_active.load(Ordering::Relaxed) {
            return;
        }
        let period = shared.period.load(Ordering::Relaxed);
        for running in &mut self.running {
            // Otherwise, the thread has not been in the program since the monitor was activated.
            let Some(top) = running.tree.published_in(period) else { continue };
            running.estimate.add_sample(nanoseconds, top != ROOT);
            if top == ROOT {
                continue;
            }
            let top = top as usize;
            if running.samples.len() <= top {
                running.samples.resize(top + 1, Samples::default());
            }
            running.samples[top].add(Samples { count: 1, nanoseconds });
        }
    }

    fn all(&self, shared: &Shared) -> Merged {
        let mut all = self.of_ended.clone();
        all.threads = self.ended + self.running.len();
        all.measure = shared.measure;
        self.running.iter().for_each(|running| running.add_to(&mut all, shared));
        all
    }

    fn merged(&self, shared: &Shared) -> Merged {
        let mut all = self.all(shared);
        all.subtract(&self.cleared);
        all
    }
}

impl Running {
    fn add_to(&self, merged: &mut Merged, shared: &Shared) {
        merged.add_tree(&self.tree.read(shared, &self.samples));
        merged.estimate.add(&self.estimate);
    }
}

impl Shared {
    fn new(measure: Measure, limit: usize) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let shared = Arc::new(Self {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            measure,
            limit: limit.clamp(MIN_CONTEXTS, HOST as usize / 2),
            clock: Clock::get(),
            is_active: AtomicBool::new(false),
            period: Arc::default(),
            word: ThreadWord::new(),
            ended: AtomicU64::new(0),
            delays: AtomicU64::new(0),
            threads: Mutex::default(),
        });
        monitors().insert(shared.number, Arc::downgrade(&shared));
        shared
    }

    /// The monitor with this number, if it still exists.
    fn numbered(number: u64) -> Option<Arc<Self>> {
        monitors().get(&number).and_then(Weak::upgrade)
    }

    fn threads(&self) -> MutexGuard<'_, Threads> {
        lock(&self.threads)
    }
}

fn monitors() -> MutexGuard<'static, BTreeMap<u64, Weak<Shared>>> {
    lock(&MONITORS)
}

impl Drop for Shared {
    fn drop(&mut self) {
        monitors().remove(&self.number);
    }
}
