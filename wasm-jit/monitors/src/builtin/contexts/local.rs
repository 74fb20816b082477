//! [`Local`]: the state of a thread, and how events change it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::frames::Frames;
use super::state::NO_PERIOD;
use super::tree::{Node, Tree, add};
use super::{Measure, REST, ROOT, Shared};

/// The part of the state that only its own thread uses.
pub(super) struct Local {
    /// The number of the monitor.
    number: u64,
    pub(super) shared: Arc<Shared>,
    tree: Arc<Tree>,
    /// The nodes of the tree.
    nodes: Vec<Arc<Node>>,
    /// The numbers of all calls, by caller and callee.
    calls: HashMap<u64, u32, BuildHasherDefault<Mixer>>,
    frames: Frames,
    /// The node of a function that has made a tail call whose callee has not begun.
    tail: Option<u32>,
    period: u64,
}

thread_local! {
    static LOCALS: RefCell<Vec<Local>> = const { RefCell::new(Vec::new()) };
}

#[cfg(test)]
thread_local! {
    /// The number of events that the steps of probes have not handled.
    pub(super) static EVENTS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Hashes keys that have only a few significant bits in each half.
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

/// Calls a function with this thread's observations for the monitor of this number. Nothing is
/// observed on threads that are ending, or for a monitor that no longer exists.
#[inline(always)]
pub(super) fn with(number: u64, function: impl FnOnce(&mut Local)) {
    #[cfg(test)]
    EVENTS.set(EVENTS.get() + 1);
    let _ = LOCALS.try_with(|locals| {
        let Ok(mut locals) = locals.try_borrow_mut() else { return };
        let is_first = locals.first().is_some_and(|local| local.number == number);
        let at = if is_first { 0 } else { find(number, &mut locals) };
        let Some(local) = locals.get_mut(at) else { return };
        if local.period != local.shared.period.load(Ordering::Relaxed) {
            local.restart();
        }
        function(local);
        local.let_steps_apply();
    });
}

/// The index of the state for a monitor, which is created if there is none. There is nothing at
/// this index if the monitor no longer exists.
#[inline(never)]
fn find(number: u64, locals: &mut Vec<Local>) -> usize {
    if let Some(at) = locals.iter().position(|local| local.number == number) {
        return at;
    }
    // Drops the state of monitors that no longer exist: this thread has the only references.
    locals.retain(|local| Arc::strong_count(&local.shared) > 1);
    if let Some(shared) = Shared::numbered(number) {
        let local = Local::new(shared);
        local.shared.threads().begin(local.tree.clone());
        locals.push(local);
        return locals.len() - 1;
    }
    locals.len()
}

/// Calls a function during which this thread makes probes, for whichever monitor; this time is
/// attributed to no function.
pub(super) fn suspended(function: &mut dyn FnMut()) {
    // Monitors that have not observed this thread before have no function to which the time would
    // be added.
    let for_each_observed = |event: &mut dyn FnMut(&mut Local)| {
        let _ = LOCALS.try_with(|locals| {
            let Ok(mut locals) = locals.try_borrow_mut() else { return };
            for local in &mut *locals {
                if local.period == local.shared.period.load(Ordering::Relaxed) {
                    event(local);
                }
            }
        });
    };
    let mut suspended = Vec::new();
    for_each_observed(&mut |local| suspended.push((local.number, local.shared.clock.now(), local.suspend())));
    function();
    for_each_observed(&mut |local| {
        let of_local = suspended.iter().find(|(number, ..)| *number == local.number);
        of_local.iter().for_each(|(_, begun, node)| local.resume(*begun, *node));
    });
}

impl Local {
    fn new(shared: Arc<Shared>) -> Self {
        let tree = Tree::new();
        let nodes = tree.nodes().clone();
        if shared.measure == Measure::ExactTimes {
            tree.state.last.store(shared.clock.now(), Ordering::Relaxed);
        }
        Self {
            number: shared.number,
            frames: Frames::new(&nodes[ROOT as usize], &tree.state),
            tree,
            nodes,
            calls: HashMap::default(),
            tail: None,
            // The first event has no predecessor.
            period: 0,
            shared,
        }
    }

    /// The functions on the path, the innermost first; the host at its end is left out.
    pub(super) fn path(&self) -> Vec<u32> {
        let mut path = Vec::new();
        let mut at = self.tree.published();
        while at != ROOT {
            let node = &self.nodes[at as usize];
            path.push(node.function);
            at = node.parent;
        }
        path
    }

    /// Lets the steps of probes find the state; they apply unless a tail call is pending.
    #[inline(always)]
    fn let_steps_apply(&self) {
        let Some(word) = &self.shared.word else { return };
        word.set(self.address());
        let period = if self.tail.is_none() { self.period } else { NO_PERIOD };
        self.tree.state.applies.store(period, Ordering::Relaxed);
    }

    fn address(&self) -> u64 {
        (&raw const self.tree.state).expose_provenance() as u64
    }

    /// Ends a period in which some events may have been missed.
    #[cold]
    fn restart(&mut self) {
        if self.shared.measure == Measure::ExactTimes {
            let (now, last) = (self.shared.clock.now(), self.last());
            let ended = self.shared.ended.load(Ordering::Relaxed).clamp(last, now.max(last));
            self.advance(ROOT, ended);
            self.tree.state.last.store(now, Ordering::Release);
        }
        self.tail = None;
        self.frames.clear(&self.tree.state);
        self.period = self.shared.period.load(Ordering::Relaxed);
        self.tree.begin(self.period, self.nodes[ROOT as usize].address());
    }

    fn last(&self) -> u64 {
        self.tree.state.last.load(Ordering::Relaxed)
    }

    /// Records that another function runs from now on.
    #[inline(always)]
    fn switch(&mut self, node: u32) {
        if self.shared.measure != Measure::ExactTimes {
            self.publish(node);
        } else if node != self.tree.published() {
            let now = self.shared.clock.now();
            self.advance(node, now);
        }
    }

    #[inline(always)]
    fn publish(&self, node: u32) {
        self.tree.publish(node, self.nodes[node as usize].address());
    }

    #[inline]
    fn advance(&mut self, node: u32, now: u64) {
        let state = &self.tree.state;
        let last = state.last.load(Ordering::Relaxed);
        state.last.store(0, Ordering::Relaxed);
        // With the fence of `Tree::read`.
        fence(Ordering::Release);
        // The counters of different processors may differ by a few ticks.
        add(&self.nodes[self.tree.published() as usize].ticks, now.saturating_sub(last));
        self.publish(node);
        state.last.store(now, Ordering::Release);
    }

    /// Records that no function runs for a while. Returns the node of the one that did.
    fn suspend(&mut self) -> u32 {
        let node = self.tree.published();
        if self.shared.measure == Measure::SampledTimes {
            self.publish(ROOT);
        }
        node
    }

    /// Records that the function of this node continues; the time since `begun` belongs to no
    /// function.
    fn resume(&mut self, begun: u64, node: u32) {
        let now = self.shared.clock.now();
        let mut delay = now.saturating_sub(begun);
        if self.shared.measure == Measure::ExactTimes {
            let before = self.last();
            let last = (before + delay).min(now.max(before));
            delay = last - before;
            self.tree.state.last.store(last, Ordering::Release);
        } else {
            self.publish(node);
        }
        self.shared.delays.fetch_add(delay, Ordering::Relaxed);
    }

    /// Counts a call, and returns the node to which it leads.
    #[inline(always)]
    fn call(&mut self, caller: u32, callee: u32) -> u32 {
        let way = &self.nodes[caller as usize].ways[Node::way_of(callee)];
        let is_known = way.callee.load(Ordering::Relaxed) == u64::from(callee);
        let call =
            if is_known { way.call_number.load(Ordering::Relaxed) as u32 } else { self.find(caller, callee) };
        let node = &self.nodes[call as usize];
        add(&node.calls, 1);
        node.target
    }

    /// The number of a call, which the caller's node remembers from now on.
    #[inline(never)]
    fn find(&mut self, caller: u32, callee: u32) -> u32 {
        let key = u64::from(caller) << 32 | u64::from(callee);
        let number = match self.calls.get(&key) {
            Some(call) => *call,
            // This is permanent: more memory never becomes available.
            None if caller == REST || self.nodes.len() >= self.shared.limit => REST,
            None => self.add(key, caller, callee),
        };
        let call = &self.nodes[number as usize];
        let target = &self.nodes[call.target as usize];
        let way = &self.nodes[caller as usize].ways[Node::way_of(callee)];
        way.callee.store(callee.into(), Ordering::Relaxed);
        way.call.store(call.address(), Ordering::Relaxed);
        way.call_number.store(number.into(), Ordering::Relaxed);
        way.target.store(target.address(), Ordering::Relaxed);
        way.target_number.store(call.target.into(), Ordering::Relaxed);
        number
    }

    #[cold]
    fn add(&mut self, key: u64, caller: u32, callee: u32) -> u32 {
        let call = self.nodes.len() as u32;
        // The node that the function has on the path, if any.
        let mut at = caller;
        while at != ROOT && self.nodes[at as usize].function != callee {
            at = self.nodes[at as usize].parent;
        }
        let target = if at == ROOT { call } else { at };
        self.nodes.push(self.tree.append(callee, caller, target));
        self.calls.insert(key, call);
        call
    }

    /// Removes frames with keys below this one, which have ended, and returns the node of the
    /// innermost remaining frame.
    #[inline(always)]
    fn innermost(&self, key: u64) -> u32 {
        self.frames.pop_below(key, &self.tree.state);
        self.frames.innermost(&self.tree.state)
    }

    #[inline(always)]
    fn push(&mut self, key: u64, node: u32) {
        self.frames.push(key, (node, &self.nodes[node as usize]), &self.tree.state);
        self.switch(node);
    }

    /// A function is entered.
    #[inline(always)]
    pub(super) fn enter(&mut self, function: u32, address: u64) {
        // A frame at this address has ended as well.
        let innermost = self.innermost(address.saturating_add(1));
        let caller = self.tail.take().unwrap_or(innermost);
        let node = self.call(caller, function);
        self.push(address, node);
    }

    /// A function is left.
    #[inline(always)]
    pub(super) fn leave(&mut self, address: u64) {
        self.tail = None;
        // A function that was entered before it was observed has no frame.
        let node = self.innermost(address.saturating_add(1));
        self.switch(node);
    }

    /// A function is about to call another one, which is observed, by a tail call.
    pub(super) fn tail_call(&mut self, address: u64) {
        let node = self.innermost(address);
        self.frames.pop_below(address.saturating_add(1), &self.tree.state);
        self.tail = Some(node);
    }

    /// A function is about to tail-call the host. The time of that call belongs to the caller of
    /// this function, since the return is not observed.
    pub(super) fn tail_call_host(&mut self, function: u32, address: u64) {
        let caller = self.innermost(address);
        self.call(caller, function);
        self.leave(address);
    }

    /// A function is about to call the host.
    pub(super) fn enter_host(&mut self, function: u32, address: u64) {
        self.tail = None;
        let caller = self.innermost(address);
        let node = self.call(caller, function);
        self.push(Frames::host_key(address), node);
    }

    /// A function continues, perhaps after a call of the host.
    pub(super) fn leave_host(&mut self, address: u64) {
        let node = self.innermost(address);
        self.switch(node);
    }

    /// A frame is left by a trap or an exception.
    pub(super) fn unwind(&mut self, address: u64) {
        self.tail = None;
        let node = self.innermost(address.saturating_add(1));
        self.switch(node);
    }
}

impl Drop for Local {
    /// The thread ends, or the monitor has ended: the thread's tree is added to those of other
    /// threads that have ended.
    fn drop(&mut self) {
        if let Some(word) = &self.shared.word
            && word.get() == self.address()
        {
            word.set(0);
        }
        self.frames.clear(&self.tree.state);
        self.switch(ROOT);
        self.shared.threads().end(&self.tree, &self.shared);
    }
}
