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
//! it, and time returns to the caller of both.
//!
//! # Collection
//! Each thread has a tree and a stack of the frames that it observes. At each event, the time since
//! the last one is added to the innermost function's node, so the times of nodes are those of the
//! functions themselves, and nothing else is measured. A call that leads back to the same node, as
//! of a function that calls itself, takes no time stamps.
//!
//! Frames are known by their addresses: those that are deeper than the one of an event have ended,
//! however they were left. Traps and exceptions are also reported at once, when they happen.
//!
//! Only a thread writes to its tree; reports read it meanwhile.
//!
//! The probes of a function are made when it is first called. How long this takes is known, and
//! belongs to no function; threads that wait meanwhile for another one's probes are not known.

mod calibration;
mod merged;
mod sites;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wasm_jit::probes::{ProbeSpec, UnwoundWatch};
use wasm_jit::{FunctionInfo, Module};

use self::calibration::Costs;
pub(super) use self::merged::{Merged, Times, name};
use self::sites::Sites;
pub(super) use self::sites::host_in_tables;
use super::clock::Clock;
use crate::{Error, LazyProbes, OptionInfo, Report, Setup};

/// The host, at the root of each tree.
pub(super) const HOST: u32 = u32::MAX;
/// A function of the host or another instance that the module does not know by an index.
pub(super) const FOREIGN: u32 = u32::MAX - 1;
/// All contexts for which there was no more memory.
pub(super) const LEFT_OUT: u32 = u32::MAX - 2;

/// The nodes that each tree has.
const ROOT: u32 = 0;
const REST: u32 = 1;

/// Maximum number of contexts of a thread.
const CONTEXTS: usize = 1_000_000;

/// An option of all monitors that use this.
pub(super) const CONTEXTS_OPTION: OptionInfo = OptionInfo {
    name: "contexts",
    value: "N",
    help: "keeps at most this many calling contexts of a thread, of about 150 bytes [default: 1000000]",
};

/// The observed quantities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measure {
    /// Counts and times.
    Times,
    /// Counts and paths.
    Paths,
}

/// Observes the calls of a module.
pub(super) struct Contexts {
    shared: Arc<Shared>,
    probes: LazyProbes,
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
    /// Incremented when it is switched on: older frames may have ended unobserved.
    period: AtomicU64,
    /// When it was last switched off.
    ended: AtomicU64,
    /// Number of ticks that threads have spent on making probes, which belong to no function.
    delays: AtomicU64,
    threads: Mutex<Threads>,
}

#[derive(Default)]
struct Threads {
    running: Vec<Arc<Tree>>,
    /// The number of threads that have ended, and their trees together.
    ended: usize,
    of_ended: Merged,
    /// The values at the last reset, to be subtracted.
    cleared: Merged,
}

/// The tree of a thread.
struct Tree {
    /// The owner appends; what is there does not change.
    nodes: Mutex<Vec<Arc<Node>>>,
    /// When the last event was; 0 while one is being recorded.
    last: AtomicU64,
    /// The node whose function runs.
    top: AtomicU64,
    /// The period in which the last event was.
    period: AtomicU64,
}

/// A node of the tree, or a call that leads back to one.
struct Node {
    function: u32,
    parent: u32,
    /// The node of the call: itself, or one on its path.
    target: u32,
    calls: AtomicU64,
    ticks: AtomicU64,
}

impl Node {
    fn new(function: u32, parent: u32, target: u32) -> Arc<Self> {
        Arc::new(Self { function, parent, target, calls: AtomicU64::new(0), ticks: AtomicU64::new(0) })
    }
}

/// Adds to a number that only this thread changes.
fn add(number: &AtomicU64, by: u64) {
    number.store(number.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

/// The state that only its thread uses.
struct Local {
    shared: Arc<Shared>,
    tree: Arc<Tree>,
    /// The nodes of the tree.
    nodes: Vec<Known>,
    /// Calls by caller and callee.
    calls: HashMap<u64, u32, BuildHasherDefault<Mixer>>,
    frames: Vec<Frame>,
    /// The node whose function runs.
    top: u32,
    /// The node that has made a tail call, whose callee has not begun.
    tail: Option<u32>,
    last: u64,
    period: u64,
}

/// A node, and the call that was last made there.
struct Known {
    node: Arc<Node>,
    callee: u32,
    call: u32,
}

/// A frame that was entered and not left, or a call of the host by one.
#[derive(Clone, Copy, Debug)]
struct Frame {
    /// Of the frame that calls the host.
    address: u64,
    node: u32,
    is_host: bool,
}

thread_local! {
    static LOCALS: RefCell<Vec<Local>> = const { RefCell::new(Vec::new()) };
}

/// Of keys that are a few bits in each half.
#[derive(Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }
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
        let delayed = shared.clone();
        let around = move |make: &mut dyn FnMut()| {
            let begun = delayed.clock.now();
            make();
            delayed.delay(delayed.clock.now().saturating_sub(begun));
        };
        let probes = LazyProbes::of(module, observed, specs, Some(Box::new(around)));
        let watched = shared.clone();
        let watch = module.watch_unwound(move |left| {
            if watched.is_active.load(Ordering::Relaxed) {
                watched.with(|local| local.unwind(left.frame));
            }
        });
        Self { shared, probes, _watch: watch }
    }

    pub(super) fn activate(&self) -> Result<(), Error> {
        if !self.shared.is_active.load(Ordering::Relaxed) {
            self.shared.period.fetch_add(1, Ordering::Relaxed);
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
        let limit = setup.options.parse("contexts", "a number")?.unwrap_or(CONTEXTS);
        if measure == Measure::Times {
            // Measured now, since a report must not wait for it.
            Costs::get();
        }
        Ok(Self(Shared::new(measure, limit)))
    }

    /// The functions on this thread's path, the innermost first; the host at its end is left out.
    pub(super) fn path(&self) -> Vec<u32> {
        let mut path = Vec::new();
        self.0.with(|local| {
            let mut at = local.top;
            while at != ROOT {
                let node = &local.nodes[at as usize].node;
                path.push(node.function);
                at = node.parent;
            }
        });
        path
    }
}

impl Threads {
    fn all(&self, shared: &Shared) -> Merged {
        let mut all = self.of_ended.clone();
        all.threads = self.ended + self.running.len();
        self.running.iter().for_each(|tree| all.add_tree(&tree.read(shared)));
        all
    }

    fn merged(&self, shared: &Shared) -> Merged {
        let mut all = self.all(shared);
        all.subtract(&self.cleared);
        all
    }
}

/// A tree as it was at one time.
struct Snapshot {
    nodes: Vec<Arc<Node>>,
    figures: Vec<(u64, u64)>,
}

impl Tree {
    /// Reads it, with the time that has passed since the last event.
    fn read(&self, shared: &Shared) -> Snapshot {
        let last = self.last.load(Ordering::Acquire);
        let top = self.top.load(Ordering::Relaxed) as usize;
        let nodes: Vec<Arc<Node>> = self.nodes().clone();
        let read =
            |node: &Arc<Node>| (node.calls.load(Ordering::Relaxed), node.ticks.load(Ordering::Relaxed));
        let mut figures: Vec<(u64, u64)> = nodes.iter().map(read).collect();
        // With the fence of `Local::advance`: if an event has changed a number that was read above,
        // this reads another time.
        fence(Ordering::Acquire);
        let until = self.until(shared);
        if last != 0 && self.last.load(Ordering::Relaxed) == last && top < figures.len() {
            figures[top].1 += until.saturating_sub(last);
        }
        Snapshot { nodes, figures }
    }

    /// When the function that ran at the last event ceased to be observed.
    fn until(&self, shared: &Shared) -> u64 {
        let is_on = shared.is_active.load(Ordering::Relaxed);
        let is_current = self.period.load(Ordering::Relaxed) == shared.period.load(Ordering::Relaxed);
        if is_on && is_current { shared.clock.now() } else { shared.ended.load(Ordering::Relaxed) }
    }

    fn nodes(&self) -> MutexGuard<'_, Vec<Arc<Node>>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    fn new(measure: Measure, limit: usize) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Arc::new(Self {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            measure,
            limit: limit.clamp(8, HOST as usize / 2),
            clock: Clock::get(),
            is_active: AtomicBool::new(false),
            period: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            delays: AtomicU64::new(0),
            threads: Mutex::default(),
        })
    }

    /// This thread has made probes for this time, in ticks.
    fn delay(&self, ticks: u64) {
        let _ = LOCALS.try_with(|locals| {
            let Ok(mut locals) = locals.try_borrow_mut() else { return };
            // One that was not observed before has no function to which the time would be added.
            let local = locals.iter_mut().find(|local| local.shared.number == self.number);
            if let Some(local) = local
                && local.period == self.period.load(Ordering::Relaxed)
            {
                local.delay(ticks);
            }
        });
    }

    fn threads(&self) -> MutexGuard<'_, Threads> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls a function with what this thread has observed. Threads that are ending do not observe.
    #[inline]
    fn with(self: &Arc<Self>, function: impl FnOnce(&mut Local)) {
        let _ = LOCALS.try_with(|locals| {
            let Ok(mut locals) = locals.try_borrow_mut() else { return };
            let is_it = |local: &Local| local.shared.number == self.number;
            let at = match locals.iter().position(is_it) {
                Some(at) => at,
                None => self.begin(&mut locals),
            };
            let local = &mut locals[at];
            if local.period != self.period.load(Ordering::Relaxed) {
                local.restart();
            }
            function(local);
        });
    }

    #[cold]
    fn begin(self: &Arc<Self>, locals: &mut Vec<Local>) -> usize {
        // Drops the state of monitors that no longer exist: this thread has the only references.
        locals.retain(|local| Arc::strong_count(&local.shared) > 1);
        let local = Local::new(self);
        self.threads().running.push(local.tree.clone());
        locals.push(local);
        locals.len() - 1
    }
}

impl Local {
    fn new(shared: &Arc<Shared>) -> Self {
        let nodes = [Node::new(HOST, ROOT, ROOT), Node::new(LEFT_OUT, ROOT, REST)];
        let known = |node: &Arc<Node>| Known { node: node.clone(), callee: HOST, call: ROOT };
        let tree = Arc::new(Tree {
            nodes: Mutex::new(nodes.to_vec()),
            last: AtomicU64::new(0),
            top: AtomicU64::new(ROOT.into()),
            period: AtomicU64::new(0),
        });
        Self {
            shared: shared.clone(),
            tree,
            nodes: nodes.iter().map(known).collect(),
            calls: HashMap::default(),
            frames: Vec::new(),
            top: ROOT,
            tail: None,
            last: shared.clock.now(),
            // There is none before the first.
            period: 0,
        }
    }

    /// Ends a period in which some events may have been missed.
    #[cold]
    fn restart(&mut self) {
        let now = self.shared.clock.now();
        let ended = self.shared.ended.load(Ordering::Relaxed).clamp(self.last, now.max(self.last));
        self.advance(ROOT, ended);
        self.last = now;
        self.tail = None;
        self.frames.clear();
        self.period = self.shared.period.load(Ordering::Relaxed);
        self.tree.period.store(self.period, Ordering::Relaxed);
    }

    /// Another function runs from now on.
    #[inline]
    fn switch(&mut self, node: u32) {
        if node == self.top {
            return;
        }
        if self.shared.measure == Measure::Paths {
            self.top = node;
            return;
        }
        let now = self.shared.clock.now();
        self.advance(node, now);
    }

    #[inline]
    fn advance(&mut self, node: u32, now: u64) {
        self.tree.last.store(0, Ordering::Relaxed);
        // With the fence of `Tree::read`.
        fence(Ordering::Release);
        // Counters of different processors may differ by some ticks.
        add(&self.nodes[self.top as usize].node.ticks, now.saturating_sub(self.last));
        self.tree.top.store(node.into(), Ordering::Relaxed);
        self.tree.last.store(now, Ordering::Release);
        self.top = node;
        self.last = now;
    }

    /// The time that has just passed, in ticks, belongs to no function.
    fn delay(&mut self, ticks: u64) {
        let last = (self.last + ticks).min(self.shared.clock.now().max(self.last));
        self.shared.delays.fetch_add(last - self.last, Ordering::Relaxed);
        self.last = last;
        self.tree.last.store(last, Ordering::Release);
    }

    /// Counts a call, and returns the node to which it leads.
    #[inline]
    fn call(&mut self, caller: u32, callee: u32) -> u32 {
        let known = &self.nodes[caller as usize];
        let call = if known.callee == callee { known.call } else { self.find(caller, callee) };
        let node = &self.nodes[call as usize].node;
        add(&node.calls, 1);
        node.target
    }

    fn find(&mut self, caller: u32, callee: u32) -> u32 {
        let key = u64::from(caller) << 32 | u64::from(callee);
        let call = match self.calls.get(&key) {
            Some(call) => *call,
            None if caller == REST || self.nodes.len() >= self.shared.limit => return REST,
            None => self.add(key, caller, callee),
        };
        let known = &mut self.nodes[caller as usize];
        (known.callee, known.call) = (callee, call);
        call
    }

    #[cold]
    fn add(&mut self, key: u64, caller: u32, callee: u32) -> u32 {
        let call = self.nodes.len() as u32;
        // The node that the function has on the path, if it has one.
        let mut at = caller;
        while at != ROOT && self.nodes[at as usize].node.function != callee {
            at = self.nodes[at as usize].node.parent;
        }
        let target = if at == ROOT { call } else { at };
        let node = Node::new(callee, caller, target);
        self.tree.nodes().push(node.clone());
        self.nodes.push(Known { node, callee: HOST, call: ROOT });
        self.calls.insert(key, call);
        call
    }

    /// Forgets frames that have ended, and returns the node of the innermost one.
    #[inline]
    fn innermost(&mut self, has_ended: impl Fn(Frame) -> bool) -> u32 {
        while let Some(frame) = self.frames.last()
            && has_ended(*frame)
        {
            self.frames.pop();
        }
        self.frames.last().map_or(ROOT, |frame| frame.node)
    }

    /// A function is entered.
    #[inline]
    fn enter(&mut self, function: u32, address: u64) {
        let innermost = self.innermost(|frame| frame.address <= address);
        let caller = self.tail.take().unwrap_or(innermost);
        let node = self.call(caller, function);
        self.frames.push(Frame { address, node, is_host: false });
        self.switch(node);
    }

    /// A function is left.
    #[inline]
    fn leave(&mut self, address: u64) {
        self.tail = None;
        self.innermost(|frame| frame.address < address || frame.address == address && frame.is_host);
        // Otherwise, it was entered before it was observed.
        if self.frames.last().is_some_and(|frame| frame.address == address) {
            self.frames.pop();
        }
        let node = self.frames.last().map_or(ROOT, |frame| frame.node);
        self.switch(node);
    }

    /// A function is about to call another one, which is observed, in its place.
    fn tail_call(&mut self, address: u64) {
        let node =
            self.innermost(|frame| frame.address < address || frame.address == address && frame.is_host);
        self.frames.pop_if(|frame| frame.address == address);
        self.tail = Some(node);
    }

    /// A function is about to call the host.
    fn enter_host(&mut self, function: u32, address: u64) {
        self.tail = None;
        let caller =
            self.innermost(|frame| frame.address < address || frame.address == address && frame.is_host);
        let node = self.call(caller, function);
        self.frames.push(Frame { address, node, is_host: true });
        self.switch(node);
    }

    /// A function continues, perhaps after a call of the host.
    fn leave_host(&mut self, address: u64) {
        let is_host = |frame: Frame| frame.address < address || frame.address == address && frame.is_host;
        let node = self.innermost(is_host);
        self.switch(node);
    }

    /// A frame is left by a trap or an exception.
    fn unwind(&mut self, address: u64) {
        self.tail = None;
        let node = self.innermost(|frame| frame.address <= address);
        self.switch(node);
    }
}

impl Drop for Local {
    /// The thread ends: its tree is added to those of others that have ended.
    fn drop(&mut self) {
        self.frames.clear();
        self.switch(ROOT);
        let mut threads = self.shared.threads();
        let at = threads.running.iter().position(|tree| Arc::ptr_eq(tree, &self.tree));
        if let Some(at) = at {
            let tree = threads.running.swap_remove(at);
            let snapshot = tree.read(&self.shared);
            threads.of_ended.add_tree(&snapshot);
            threads.ended += 1;
        }
    }
}
