//! Calls of the library, as drivers that the exploration can suspend at each operation.
//!
//! The states of a call are the nodes of a tree: each represents the answers that have led to it,
//! and its children the answers to its next operation. A node is created by a
//! [replay](crate::environment::replay) when an exploration first reaches it.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use crate::code::Code;
use crate::environment::{Answer, Operation, Reached, replay};

/// The change of a site by a successful call.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// The number of the site in the scenario.
    pub site: usize,
    /// The old instruction.
    pub old: Code,
    /// The new instruction.
    pub new: Code,
    /// The number of bytes given in the call, from the start of the instruction. The call keeps the
    /// other bytes, and succeeds regardless of them.
    pub named: usize,
}

impl Change {
    /// The change by a call that is given all bytes of the instruction.
    pub fn new(site: usize, old: &[u8], new: &[u8]) -> Self {
        Self { site, old: Code::new(old), new: Code::new(new), named: old.len() }
    }

    /// The result of the call for these bytes, if it succeeds.
    pub(crate) fn apply(&self, bytes: &Code) -> Option<Code> {
        let rest = bytes.strip_prefix(&self.old[..self.named])?;
        Some(Code::new(&self.new[..self.named]).followed_by(rest))
    }
}

/// A sequence of calls to the library by one thread. Clones share the known nodes.
#[derive(Clone)]
pub struct Job {
    shared: Rc<Shared>,
    /// The number of the wait that is skipped, for defects: counted from 0 in the order in which
    /// waits begin.
    pub(crate) skipped_wait: Option<usize>,
    /// Whether it does not acquire its sites, for defects.
    pub(crate) skips_ownership: bool,
}

struct Shared {
    name: String,
    window: usize,
    changes: Vec<Change>,
    driver: Box<dyn Fn() -> Vec<bool>>,
    nodes: RefCell<Vec<Node>>,
}

struct Node {
    parent: usize,
    answer: Answer,
    reached: Reached,
    children: Vec<(Answer, usize)>,
    /// The number of previous polls of the same wait.
    polls: usize,
    /// The number of times that it has read the clock.
    clocks: u64,
}

impl Job {
    /// Calls to a library that assumes this fetch window. The driver returns whether each change
    /// was made.
    pub fn new(
        name: impl Into<String>,
        window: usize,
        changes: impl IntoIterator<Item = Change>,
        driver: impl Fn() -> Vec<bool> + 'static,
    ) -> Self {
        let shared = Shared {
            name: name.into(),
            window,
            changes: changes.into_iter().collect(),
            driver: Box::new(driver),
            nodes: RefCell::default(),
        };
        Self { shared: Rc::new(shared), skipped_wait: None, skips_ownership: false }
    }

    /// The same calls, where a wait (counted from 0 in the order in which waits begin) ends
    /// immediately.
    pub fn without_wait(self, which: usize) -> Self {
        Self { skipped_wait: Some(which), ..self }
    }

    /// The same calls, without acquiring and locking the sites.
    pub fn without_owning(self) -> Self {
        Self { skips_ownership: true, ..self }
    }

    pub(crate) fn changes(&self) -> &[Change] {
        &self.shared.changes
    }

    /// The node of the driver before its first operation.
    pub(crate) fn start(&self) -> usize {
        if self.shared.nodes.borrow().is_empty() {
            let root = self.make(0, Answer::Yes, Vec::new());
            self.shared.nodes.borrow_mut().push(root);
        }
        0
    }

    /// The node of the driver after this answer to its operation at `node`.
    pub(crate) fn after(&self, node: usize, answer: Answer) -> usize {
        let nodes = self.shared.nodes.borrow();
        let known = nodes[node].children.iter().find(|(given, _)| *given == answer);
        if let Some((_, child)) = known {
            return *child;
        }
        let mut answered = vec![(self.asked(&nodes[node]), answer)];
        let mut at = node;
        while at != 0 {
            let Node { parent, answer, .. } = nodes[at];
            answered.push((self.asked(&nodes[parent]), answer));
            at = parent;
        }
        answered.reverse();
        drop(nodes);
        let new = self.make(node, answer, answered);
        let mut nodes = self.shared.nodes.borrow_mut();
        let number = nodes.len();
        nodes.push(new);
        nodes[node].children.push((answer, number));
        number
    }

    fn asked(&self, node: &Node) -> Operation {
        match node.reached {
            Reached::Asks { operation, .. } => operation,
            _ => unreachable!("only operations are answered"),
        }
    }

    fn make(&self, parent: usize, answer: Answer, answered: Vec<(Operation, Answer)>) -> Node {
        let asked = |of: &&(Operation, Answer)| matches!(of.0, Operation::Clock);
        let clocks = answered.iter().filter(asked).count() as u64;
        let polls = match answered.last() {
            Some((Operation::IsVisible { .. }, Answer::No)) => self.shared.nodes.borrow()[parent].polls + 1,
            _ => 0,
        };
        let reached = replay(answered, self.shared.window, &*self.shared.driver);
        Node { parent, answer, reached, children: Vec::new(), polls, clocks }
    }

    pub(crate) fn reached(&self, node: usize) -> Reached {
        self.shared.nodes.borrow()[node].reached.clone()
    }

    /// The number of polls of the wait at `node` that were answered by no.
    pub(crate) fn polls(&self, node: usize) -> usize {
        self.shared.nodes.borrow()[node].polls
    }

    /// The number of times that the driver has read the clock before `node`.
    pub(crate) fn clocks(&self, node: usize) -> u64 {
        self.shared.nodes.borrow()[node].clocks
    }
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shared.name)
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} (window {})", self.shared.window)
    }
}

/// The calls of one thread.
#[derive(Clone, Debug)]
pub struct Program {
    pub(crate) jobs: Vec<Job>,
    /// Whether the kernel may refuse waits from any of them on.
    pub(crate) refusable: bool,
    /// Whether a poll of a wait may be answered by no.
    pub(crate) polls: bool,
}

impl Program {
    /// These calls, one after the other.
    pub fn new(jobs: impl IntoIterator<Item = Job>) -> Self {
        Self { jobs: jobs.into_iter().collect(), refusable: false, polls: false }
    }

    /// The same calls, but the kernel may refuse waits, from any wait on.
    pub fn refusable(self) -> Self {
        Self { refusable: true, ..self }
    }

    /// The same calls, but a wait may be polled once before it is over.
    pub fn polling(self) -> Self {
        Self { polls: true, ..self }
    }
}
