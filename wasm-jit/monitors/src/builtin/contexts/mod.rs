//! Calling contexts: a tree of the paths on which functions were called, with counts and times.
//!
//! # The tree
//! A node is a function as it was called on one path from the host. A function that is already on
//! the path has no second node: its call leads back to the node that it has there (the calling
//! context tree of Ammons, Ball and Larus). So no function is twice on a path, the depth of the
//! tree is bounded by the number of functions, whatever the recursion, and the time of a function
//! with all that it calls is the sum over the subtrees of its nodes.
//!
//! Functions of the host that the program calls have nodes, and those of the program that the host
//! calls meanwhile are below. The function that a tail call calls is below the one that has called
//! it, and time returns to the caller of both. If that is a function of the host, nothing is
//! observed when it returns: its call is counted, but its time is that of the caller of both, and
//! the functions that it calls are below that one.
//!
//! # Collection
//! Each thread has a tree and a stack of the frames that it observes. It counts the calls of nodes,
//! and publishes at each event whose function runs now. Times are either of these:
//! * Exact: at each event, the time since the last one is added to the innermost function's node,
//!   so the times of nodes are those of the functions themselves, and nothing else is measured. A
//!   call that leads back to the same node, as of a function that calls itself, takes no time
//!   stamps.
//! * [Sampled](sampler): another thread looks from time to time whose function runs.
//!
//! The stubs of probes do the most of this by themselves ([`steps`]): most calls are made on a path
//! and from a function that has made them before.
//!
//! Frames are known by their addresses: those that are deeper than the one of an event have ended,
//! however they were left. Traps and exceptions are also reported at once, when they happen.
//!
//! Only a thread writes to its tree; reports read it meanwhile.
//!
//! The probes of a function are made when it is first called. How long this takes is known, also of
//! the probes of other monitors, and belongs to no function; threads that wait meanwhile for
//! another one's probes are not known.

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
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use wasm_jit::probes::{ProbeSpec, ThreadWord, UnwoundWatch};
use wasm_jit::{FunctionInfo, Module};

use self::calibration::Costs;
pub(super) use self::estimate::Estimate;
pub(super) use self::merged::{Merged, Times, name};
use self::sampler::{Sampler, Samples};
use self::sites::Sites;
pub(super) use self::sites::host_in_tables;
use self::tree::Tree;
use super::clock::Clock;
use crate::{Error, LazyProbes, OptionInfo, Report, Setup, lazy};

/// The host, at the root of each tree.
pub(super) const HOST: u32 = u32::MAX;
/// A function of the host or another instance that the module does not know by an index.
pub(super) const FOREIGN: u32 = u32::MAX - 1;
/// All contexts for which there was no more memory.
pub(super) const LEFT_OUT: u32 = u32::MAX - 2;

/// The nodes that each tree has.
const ROOT: u32 = 0;
const REST: u32 = 1;

/// Maximum number of contexts of a thread, unless the option says another one.
const CONTEXTS: usize = 1_000_000;

/// The least maximum.
const MIN_CONTEXTS: usize = 8;

/// An option of all monitors that use this.
pub(super) const CONTEXTS_OPTION: OptionInfo = OptionInfo {
    name: "contexts",
    value: "N",
    help: "keeps at most this many calling contexts of a thread, of about 280 bytes [default: 1000000, minimum: 8]",
    is_repeated: false,
};

/// An option of monitors that show times.
pub(super) const TIMES_OPTION: OptionInfo = OptionInfo {
    name: "times",
    value: "WAY",
    help: "exact, or sampled: calls are counted as before, but times come from a sample each millisecond, with a \
           95 % error, which costs less if functions call each other often [default: exact]",
    is_repeated: false,
};

/// The observed quantities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measure {
    /// Counts, and times by time stamps.
    ExactTimes,
    /// Counts, and times by samples.
    SampledTimes,
    /// Counts and paths.
    Paths,
}

/// As [`TIMES_OPTION`] says it.
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
    /// The one that the options request.
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
    /// Identifies it in the threads.
    number: u64,
    measure: Measure,
    limit: usize,
    clock: Clock,
    is_active: AtomicBool,
    /// Changed when it is switched on: older frames may have ended unobserved. The periods of all
    /// monitors are different; the first one of each is 0, in which nothing is observed.
    period: Arc<AtomicU64>,
    /// In each thread, the address of its [`State`](state::State), if it has one. The monitor has
    /// no such word if too many others do.
    word: Option<ThreadWord>,
    /// When it was last switched off.
    ended: AtomicU64,
    /// Number of ticks that threads have spent on making probes, which belong to no function.
    delays: AtomicU64,
    threads: Mutex<Threads>,
}

/// Those that exist, by their numbers: the probes know no more.
static MONITORS: Mutex<BTreeMap<u64, Weak<Shared>>> = Mutex::new(BTreeMap::new());

#[derive(Default)]
struct Threads {
    running: Vec<Running>,
    /// The number of threads that have ended, and their trees together.
    ended: usize,
    of_ended: Merged,
    /// The values at the last reset, to be subtracted.
    cleared: Merged,
}

/// A thread that runs.
struct Running {
    tree: Arc<Tree>,
    /// By node, up to the last one in which it was found.
    samples: Vec<Samples>,
    estimate: Estimate,
}

impl Contexts {
    /// Of the chosen functions, off.
    pub(super) fn of(setup: &Setup<'_>, measure: Measure) -> Result<Self, Error> {
        Ok(Self::with(setup, Current::of(setup, measure)?, BTreeMap::new()))
    }

    /// As [`Contexts::of`], with more probes of some functions, which fire after those that keep
    /// the paths.
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
        lazy::call_around(local::suspended);
        let probes = LazyProbes::of(module, observed, specs);
        let watched = shared.clone();
        let watch = module.watch_unwound(move |left| {
            if watched.is_active.load(Ordering::Relaxed) {
                local::with(watched.number, |local| local.unwind(left.frame));
            }
        });
        Self { shared, probes, sampler: Mutex::default(), _watch: watch }
    }

    pub(super) fn activate(&self) -> Result<(), Error> {
        let mut sampler = self.sampler.lock().unwrap_or_else(PoisonError::into_inner);
        if sampler.is_none() && self.shared.measure == Measure::SampledTimes {
            *sampler = Some(Sampler::start(self.shared.clone())?);
        }
        self.observe()
    }

    /// Without samples, which a test takes itself.
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
        // It waits for the thread: no sample is added after this.
        *self.sampler.lock().unwrap_or_else(PoisonError::into_inner) = None;
        switched
    }

    /// The trees of all threads together, as they are now.
    pub(super) fn merged(&self) -> Merged {
        self.shared.threads().merged(&self.shared)
    }

    /// Forgets what was observed so far.
    pub(super) fn clear(&self) {
        let mut threads = self.shared.threads();
        threads.cleared = threads.all(&self.shared);
    }

    /// Number of nanoseconds that threads have spent on making probes, which belong to no function.
    pub(super) fn delays(&self) -> u64 {
        let ticks = self.shared.delays.load(Ordering::Relaxed);
        (ticks as f64 * self.shared.clock.nanoseconds_per_tick()) as u64
    }

    /// Says in a report which functions could not be observed.
    pub(super) fn report_refused(&self, report: &mut Report) {
        self.probes.report_refused(report);
    }
}

/// Says on which path a thread is.
#[derive(Clone)]
pub(super) struct Current(Arc<Shared>);

impl Current {
    /// Nothing is known before there are [`Contexts`] with it, and they are on.
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

    /// Takes a sample of each thread, which represents this time.
    fn sample(&mut self, shared: &Shared, nanoseconds: u64) {
        if !shared.is_active.load(Ordering::Relaxed) {
            return;
        }
        let period = shared.period.load(Ordering::Relaxed);
        for running in &mut self.running {
            // Otherwise, it has not been in the program since it was switched on.
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

    /// The one of this number, if it still exists.
    fn numbered(number: u64) -> Option<Arc<Self>> {
        monitors().get(&number).and_then(Weak::upgrade)
    }

    fn threads(&self) -> MutexGuard<'_, Threads> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn monitors() -> MutexGuard<'static, BTreeMap<u64, Weak<Shared>>> {
    MONITORS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Shared {
    fn drop(&mut self) {
        monitors().remove(&self.number);
    }
}
