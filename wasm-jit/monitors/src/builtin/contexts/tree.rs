//! [`Tree`]: the contexts of a thread. Only this thread changes them, while reports read them.

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard};

use super::sampler::Samples;
use super::state::State;
use super::{HOST, LEFT_OUT, REST, ROOT, Shared};
use crate::lock::lock;

/// The tree of a thread.
pub(super) struct Tree {
    /// The owner appends nodes; existing ones do not change.
    nodes: Mutex<Vec<Arc<Node>>>,
    pub(super) state: State,
    /// The period of the last event.
    period: AtomicU64,
}

/// A node of the tree, or a call that leads back to one.
#[repr(C)]
pub(super) struct Node {
    pub(super) calls: AtomicU64,
    pub(super) ticks: AtomicU64,
    /// Recent calls of this node's function: most calls are found here. [`Node::way_of`] has the
    /// index of a callee. Only the owner of the tree uses them.
    pub(super) ways: [Way; WAYS],
    pub(super) function: u32,
    pub(super) parent: u32,
    /// The node to which the call leads: this one, or one on its path.
    pub(super) target: u32,
}

/// The number of ways of a node: 160 bytes. With one, a function that calls two others in turn
/// would find neither.
pub(super) const WAYS: usize = 4;

/// A call from a node.
#[repr(C)]
pub(super) struct Way {
    /// The callee, or [`NO_CALLEE`].
    pub(super) callee: AtomicU64,
    /// The address and the number of the node at which the call is counted.
    pub(super) call: AtomicU64,
    pub(super) call_number: AtomicU64,
    /// The address and the number of the node to which the call leads.
    pub(super) target: AtomicU64,
    pub(super) target_number: AtomicU64,
}

const NO_CALLEE: u64 = u64::MAX;

impl Way {
    fn new() -> Self {
        let [callee, call, call_number, target, target_number] = [NO_CALLEE, 0, 0, 0, 0].map(AtomicU64::new);
        Self { callee, call, call_number, target, target_number }
    }
}

impl Node {
    fn new(function: u32, parent: u32, target: u32) -> Arc<Self> {
        let [calls, ticks] = [0, 0].map(AtomicU64::new);
        let ways = std::array::from_fn(|_| Way::new());
        Arc::new(Self { calls, ticks, ways, function, parent, target })
    }

    /// The node's address, for machine code.
    #[inline(always)]
    pub(super) fn address(&self) -> u64 {
        std::ptr::from_ref(self).expose_provenance() as u64
    }

    /// The index of a callee among the ways: the callees of one caller, which are often neighbours,
    /// have different ones.
    #[inline(always)]
    pub(super) const fn way_of(callee: u32) -> usize {
        callee as usize % WAYS
    }
}

/// Adds to a number that only this thread changes.
pub(super) fn add(number: &AtomicU64, by: u64) {
    number.store(number.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

/// A tree as it was at one moment.
pub(super) struct Snapshot {
    pub(super) nodes: Vec<Arc<Node>>,
    /// Indexed by node.
    pub(super) figures: Vec<Figures>,
}

/// The observations of a node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Figures {
    pub(super) calls: u64,
    pub(super) ticks: u64,
    pub(super) samples: Samples,
}

impl Tree {
    pub(super) fn new() -> Arc<Self> {
        let nodes = vec![Node::new(HOST, ROOT, ROOT), Node::new(LEFT_OUT, ROOT, REST)];
        let state = State::new();
        state.top_node.store(nodes[ROOT as usize].address(), Ordering::Relaxed);
        Arc::new(Self { nodes: Mutex::new(nodes), state, period: AtomicU64::new(0) })
    }

    /// Appends a node, whose number the owner knows.
    pub(super) fn append(&self, function: u32, parent: u32, target: u32) -> Arc<Node> {
        let node = Node::new(function, parent, target);
        self.nodes().push(node.clone());
        node
    }

    pub(super) fn nodes(&self) -> MutexGuard<'_, Vec<Arc<Node>>> {
        lock(&self.nodes)
    }

    /// Publishes that the function of this node, which is at this address, runs from now on.
    ///
    /// Release: a thread that reads the number then finds the node. The node was appended before,
    /// and a report that gets the number from the sampler takes the lock of the nodes after that.
    #[inline]
    pub(super) fn publish(&self, node: u32, address: u64) {
        self.state.top_node.store(address, Ordering::Relaxed);
        self.state.top.store(node.into(), Ordering::Release);
    }

    /// The number of the node whose function runs.
    pub(super) fn published(&self) -> u32 {
        self.state.top.load(Ordering::Acquire) as u32
    }

    /// Begins a period, outside of all functions.
    pub(super) fn begin(&self, period: u64, root: u64) {
        self.publish(ROOT, root);
        // Release, for `published_in`: a thread that reads this period reads no older node.
        self.period.store(period, Ordering::Release);
    }

    /// The number of the node whose function runs, if the thread has had an event in this period.
    pub(super) fn published_in(&self, period: u64) -> Option<u32> {
        // Acquire, with the store of `begin`.
        (self.period.load(Ordering::Acquire) == period).then(|| self.published())
    }

    /// Reads the tree, with the time since the last event and with the samples of each node.
    pub(super) fn read(&self, shared: &Shared, samples: &[Samples]) -> Snapshot {
        let last = self.state.last.load(Ordering::Acquire);
        let top = self.published() as usize;
        let nodes: Vec<Arc<Node>> = self.nodes().clone();
        let read = |(at, node): (usize, &Arc<Node>)| Figures {
            calls: node.calls.load(Ordering::Relaxed),
            ticks: node.ticks.load(Ordering::Relaxed),
            samples: samples.get(at).copied().unwrap_or_default(),
        };
        let mut figures: Vec<Figures> = nodes.iter().enumerate().map(read).collect();
        // With the fence of `Local::advance`: if an event has changed a number that was read above,
        // this reads another time of the last event.
        fence(Ordering::Acquire);
        let until = self.until(shared);
        if last != 0 && self.state.last.load(Ordering::Relaxed) == last && top < figures.len() {
            figures[top].ticks += until.saturating_sub(last);
        }
        Snapshot { nodes, figures }
    }

    /// When the function that ran at the last event ceased to be observed.
    fn until(&self, shared: &Shared) -> u64 {
        let is_on = shared.is_active.load(Ordering::Relaxed);
        let is_current = self.period.load(Ordering::Relaxed) == shared.period.load(Ordering::Relaxed);
        if is_on && is_current { shared.clock.now() } else { shared.ended.load(Ordering::Relaxed) }
    }
}
