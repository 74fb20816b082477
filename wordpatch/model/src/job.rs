//! Calls of the library, as drivers that the exploration can stop at each operation.
//!
//! A call's states are the nodes of a tree: each stands for the answers that led to it, and its
//! children for the answers to its next operation. A node is made by one
//! [replay](crate::environment::replay), the first time an exploration gets there.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use crate::code::Code;
use crate::environment::{Answer, Operation, Reached, replay};

/// What a call makes of a site if it succeeds.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// Number of the site in the scenario.
    pub site: usize,
    /// The whole instruction before.
    pub old: Code,
    /// The whole instruction after.
    pub new: Code,
    /// How many of its bytes the call names. It succeeds whatever the others are, and keeps them.
    pub named: usize,
}

impl Change {
    /// A call that names the whole instruction.
    pub fn new(site: usize, old: &[u8], new: &[u8]) -> Self {
        Self { site, old: Code::new(old), new: Code::new(new), named: old.len() }
    }

    /// What the call makes of these bytes, if it succeeds.
    pub(crate) fn apply(&self, bytes: &Code) -> Option<Code> {
        let rest = bytes.strip_prefix(&self.old[..self.named])?;
        Some(Code::new(&self.new[..self.named]).followed_by(rest))
    }
}

/// One or more calls of the library in a row, made by one thread. Copies share what was found out
/// about it.
#[derive(Clone)]
pub struct Job {
    shared: Rc<Shared>,
    /// The wait that does not wait, for defects: counted from 0 in the order in which waits begin.
    pub(crate) skipped_wait: Option<usize>,
    /// Whether it does not acquire its sites, for defects.
    pub(crate) owns_nothing: bool,
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
    /// How often it has asked the same thing in vain.
    in_vain: usize,
    /// How often it has read the clock.
    clocks: u64,
}

impl Job {
    /// Calls in a library that assumes this fetch window. The driver says of each change whether it
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
        Self { shared: Rc::new(shared), skipped_wait: None, owns_nothing: false }
    }

    /// The same, with a wait (counted from 0 in the order in which waits begin) that is over at
    /// once.
    pub fn without_wait(self, which: usize) -> Self {
        Self { skipped_wait: Some(which), ..self }
    }

    /// The same, without acquiring its sites or noting that they are locked.
    pub fn without_owning(self) -> Self {
        Self { owns_nothing: true, ..self }
    }

    pub(crate) fn changes(&self) -> &[Change] {
        &self.shared.changes
    }

    /// Where the driver is before its first operation.
    pub(crate) fn start(&self) -> usize {
        if self.shared.nodes.borrow().is_empty() {
            let root = self.make(0, Answer::Yes, Vec::new());
            self.shared.nodes.borrow_mut().push(root);
        }
        0
    }

    /// Where the driver is after this answer to the operation that it asks for at `node`.
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
        let in_vain = match answered.last() {
            Some((Operation::IsVisible { .. }, Answer::No)) => self.shared.nodes.borrow()[parent].in_vain + 1,
            _ => 0,
        };
        let reached = replay(answered, self.shared.window, &*self.shared.driver);
        Node { parent, answer, reached, children: Vec::new(), in_vain, clocks }
    }

    pub(crate) fn reached(&self, node: usize) -> Reached {
        self.shared.nodes.borrow()[node].reached.clone()
    }

    /// How often the driver has asked at `node` in vain whether a wait is over.
    pub(crate) fn in_vain(&self, node: usize) -> usize {
        self.shared.nodes.borrow()[node].in_vain
    }

    /// How often the driver has read the clock before it came to `node`.
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

/// What one thread has to do.
#[derive(Clone, Debug)]
pub struct Program {
    pub(crate) jobs: Vec<Job>,
    /// Whether the kernel may refuse waits from any of them on.
    pub(crate) refusable: bool,
    /// Whether a question whether a wait is over may be answered by no.
    pub(crate) polls: bool,
}

impl Program {
    /// These calls, one after the other.
    pub fn new(jobs: impl IntoIterator<Item = Job>) -> Self {
        Self { jobs: jobs.into_iter().collect(), refusable: false, polls: false }
    }

    /// The same where the kernel may refuse waits, from any of them on.
    pub fn refusable(self) -> Self {
        Self { refusable: true, ..self }
    }

    /// The same where waits may be found not to be over, once each time.
    pub fn polling(self) -> Self {
        Self { polls: true, ..self }
    }
}
