//! [`Local`]: the state of a thread, and what events do to it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::tree::{Node, Tree, add};
use super::{Measure, REST, ROOT, Shared};

/// The state that only its thread uses.
pub(super) struct Local {
    /// That of the monitor.
    number: u64,
    pub(super) shared: Arc<Shared>,
    tree: Arc<Tree>,
    /// The nodes of the tree.
    nodes: Vec<Arc<Node>>,
    /// Calls that were made recently, each at one place. Most calls are found here.
    recent: Box<[Call; RECENT]>,
    /// All calls, by caller and callee.
    calls: HashMap<u64, u32, BuildHasherDefault<Mixer>>,
    frames: Vec<Frame>,
    /// With exact times: the node whose function runs.
    top: u32,
    /// The node that has made a tail call, whose callee has not begun.
    tail: Option<u32>,
    last: u64,
    period: u64,
}

/// The size of a direct-mapped cache of calls: 8 KiB for each thread.
const RECENT: usize = 512;

/// A call, by the nodes of the tree.
#[derive(Clone, Copy, Debug)]
struct Call {
    /// The caller's node and the callee.
    key: u64,
    /// The node at which it is counted.
    node: u32,
    /// The node to which it leads.
    target: u32,
}

impl Call {
    /// No node has this number.
    const NONE: Self = Self { key: u64::MAX, node: ROOT, target: ROOT };
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

/// Calls a function with what this thread has observed for the monitor of this number. Threads that
/// are ending do not observe, nor does anything for a monitor that no longer exists.
#[inline(always)]
pub(super) fn with(number: u64, function: impl FnOnce(&mut Local)) {
    let _ = LOCALS.try_with(|locals| {
        let Ok(mut locals) = locals.try_borrow_mut() else { return };
        let is_first = locals.first().is_some_and(|local| local.number == number);
        let at = if is_first { 0 } else { find(number, &mut locals) };
        let Some(local) = locals.get_mut(at) else { return };
        if local.period != local.shared.period.load(Ordering::Relaxed) {
            local.restart();
        }
        function(local);
    });
}

/// The place of the state for a monitor, which is made if there is none. There is nothing at this
/// place if the monitor no longer exists.
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

/// Calls a function while this thread makes probes for the monitor of this number, which is not the
/// time of any function.
pub(super) fn suspended(number: u64, function: &mut dyn FnMut()) {
    // One that was not observed before has no function to which the time would be added.
    let observed = |event: &mut dyn FnMut(&mut Local)| {
        let _ = LOCALS.try_with(|locals| {
            let Ok(mut locals) = locals.try_borrow_mut() else { return };
            let local = locals.iter_mut().find(|local| local.number == number);
            if let Some(local) = local
                && local.period == local.shared.period.load(Ordering::Relaxed)
            {
                event(local);
            }
        });
    };
    let mut suspended = None;
    observed(&mut |local| suspended = Some((local.shared.clock.now(), local.suspend())));
    function();
    if let Some((begun, node)) = suspended {
        observed(&mut |local| local.resume(begun, node));
    }
}

impl Local {
    fn new(shared: Arc<Shared>) -> Self {
        let tree = Tree::new();
        let nodes = tree.nodes().clone();
        Self {
            number: shared.number,
            tree,
            nodes,
            recent: Box::new([Call::NONE; RECENT]),
            calls: HashMap::default(),
            frames: Vec::new(),
            top: ROOT,
            tail: None,
            last: shared.clock.now(),
            // There is none before the first.
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

    /// Ends a period in which some events may have been missed.
    #[cold]
    fn restart(&mut self) {
        if self.shared.measure == Measure::ExactTimes {
            let now = self.shared.clock.now();
            let ended = self.shared.ended.load(Ordering::Relaxed).clamp(self.last, now.max(self.last));
            self.advance(ROOT, ended);
            self.last = now;
        }
        self.tail = None;
        self.frames.clear();
        self.period = self.shared.period.load(Ordering::Relaxed);
        self.tree.begin(self.period);
    }

    /// Another function runs from now on.
    #[inline(always)]
    fn switch(&mut self, node: u32) {
        if self.shared.measure != Measure::ExactTimes {
            self.tree.publish(node);
        } else if node != self.top {
            let now = self.shared.clock.now();
            self.advance(node, now);
        }
    }

    #[inline]
    fn advance(&mut self, node: u32, now: u64) {
        self.tree.last.store(0, Ordering::Relaxed);
        // With the fence of `Tree::read`.
        fence(Ordering::Release);
        // Counters of different processors may differ by some ticks.
        add(&self.nodes[self.top as usize].ticks, now.saturating_sub(self.last));
        self.tree.publish(node);
        self.tree.last.store(now, Ordering::Release);
        self.top = node;
        self.last = now;
    }

    /// No function runs for a while. Returns the node of the one that did.
    fn suspend(&mut self) -> u32 {
        let node = self.tree.published();
        if self.shared.measure == Measure::SampledTimes {
            self.tree.publish(ROOT);
        }
        node
    }

    /// The function of this node goes on, after the time since `begun`, which belongs to none.
    fn resume(&mut self, begun: u64, node: u32) {
        let now = self.shared.clock.now();
        let mut delay = now.saturating_sub(begun);
        if self.shared.measure == Measure::ExactTimes {
            let last = (self.last + delay).min(now.max(self.last));
            delay = last - self.last;
            self.last = last;
            self.tree.last.store(last, Ordering::Release);
        } else {
            self.tree.publish(node);
        }
        self.shared.delays.fetch_add(delay, Ordering::Relaxed);
    }

    /// Counts a call, and returns the node to which it leads.
    #[inline(always)]
    fn call(&mut self, caller: u32, callee: u32) -> u32 {
        let key = u64::from(caller) << 32 | u64::from(callee);
        // The callees of one caller have different places, and so do most others.
        let place = (caller.wrapping_mul(9) ^ callee) as usize % RECENT;
        let known = &self.recent[place];
        // Not the call as a value, which would pass through the stack.
        let (node, target) =
            if known.key == key { (known.node, known.target) } else { self.find(key, place) };
        add(&self.nodes[node as usize].calls, 1);
        target
    }

    #[inline(never)]
    fn find(&mut self, key: u64, place: usize) -> (u32, u32) {
        let (caller, callee) = ((key >> 32) as u32, key as u32);
        let node = match self.calls.get(&key) {
            Some(call) => *call,
            // It stays so: there is never more memory.
            None if caller == REST || self.nodes.len() >= self.shared.limit => REST,
            None => self.add(key, caller, callee),
        };
        let target = self.nodes[node as usize].target;
        self.recent[place] = Call { key, node, target };
        (node, target)
    }

    #[cold]
    fn add(&mut self, key: u64, caller: u32, callee: u32) -> u32 {
        let call = self.nodes.len() as u32;
        // The node that the function has on the path, if it has one.
        let mut at = caller;
        while at != ROOT && self.nodes[at as usize].function != callee {
            at = self.nodes[at as usize].parent;
        }
        let target = if at == ROOT { call } else { at };
        self.nodes.push(self.tree.append(callee, caller, target));
        self.calls.insert(key, call);
        call
    }

    /// Forgets frames that have ended, and returns the node of the innermost one.
    #[inline(always)]
    fn innermost(&mut self, has_ended: impl Fn(Frame) -> bool) -> u32 {
        while let Some(frame) = self.frames.last()
            && has_ended(*frame)
        {
            self.frames.pop();
        }
        self.frames.last().map_or(ROOT, |frame| frame.node)
    }

    /// A function is entered.
    #[inline(always)]
    pub(super) fn enter(&mut self, function: u32, address: u64) {
        let innermost = self.innermost(|frame| frame.address <= address);
        let caller = self.tail.take().unwrap_or(innermost);
        let node = self.call(caller, function);
        self.frames.push(Frame { address, node, is_host: false });
        self.switch(node);
    }

    /// A function is left.
    #[inline(always)]
    pub(super) fn leave(&mut self, address: u64) {
        self.tail = None;
        let is_own = |frame: &Frame| frame.address == address && !frame.is_host;
        if !self.frames.last().is_some_and(is_own) {
            self.innermost(|frame| frame.address < address || frame.address == address && frame.is_host);
        }
        // Otherwise, it was entered before it was observed.
        if self.frames.last().is_some_and(|frame| frame.address == address) {
            self.frames.pop();
        }
        let node = self.frames.last().map_or(ROOT, |frame| frame.node);
        self.switch(node);
    }

    /// A function is about to call another one, which is observed, in its place.
    pub(super) fn tail_call(&mut self, address: u64) {
        let node =
            self.innermost(|frame| frame.address < address || frame.address == address && frame.is_host);
        self.frames.pop_if(|frame| frame.address == address);
        self.tail = Some(node);
    }

    /// A function is about to call the host.
    pub(super) fn enter_host(&mut self, function: u32, address: u64) {
        self.tail = None;
        let caller =
            self.innermost(|frame| frame.address < address || frame.address == address && frame.is_host);
        let node = self.call(caller, function);
        self.frames.push(Frame { address, node, is_host: true });
        self.switch(node);
    }

    /// A function continues, perhaps after a call of the host.
    pub(super) fn leave_host(&mut self, address: u64) {
        let is_host = |frame: Frame| frame.address < address || frame.address == address && frame.is_host;
        let node = self.innermost(is_host);
        self.switch(node);
    }

    /// A frame is left by a trap or an exception.
    pub(super) fn unwind(&mut self, address: u64) {
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
        self.shared.threads().end(&self.tree, &self.shared);
    }
}
