//! Visits every state that a model can reach, breadth first, and returns the shortest path to a
//! flaw.
//!
//! Flaws are
//! 1. a transition or a state that the model reports as a violation;
//! 2. a state from which no end state can be reached: a deadlock or a livelock;
//! 3. a state in which a thread that must be independent of others cannot reach its goal by its own
//!    transitions, without steps of other threads.
//!
//! States are stored and compared completely; hashes are only used to find them, so two states are
//! never confused.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

/// A transition system.
pub trait Model {
    /// A state.
    type State: Clone + Eq + Hash;
    /// A violation.
    type Violation: Clone + fmt::Debug + PartialEq;

    /// The initial state.
    fn initial(&self) -> Self::State;

    /// Adds every transition out of `state`.
    fn transitions(&self, state: &Self::State, out: &mut Transitions<Self::State, Self::Violation>);

    /// The violation in `state`, if there is one.
    fn judge(&self, state: &Self::State) -> Option<Self::Violation>;

    /// Whether all threads that must finish have finished.
    fn is_end(&self, state: &Self::State) -> bool;

    /// The number of threads that must be independent of others. They are numbered from 0.
    fn independent(&self) -> usize;
}

/// One transition.
struct Transition<S, V> {
    /// The independent thread that makes it.
    by: Option<usize>,
    /// Whether that thread reaches its goal by it.
    arrives: bool,
    /// A description; empty unless requested.
    text: String,
    next: Result<S, V>,
}

/// The transitions out of one state.
pub struct Transitions<S, V> {
    with_text: bool,
    list: Vec<Transition<S, V>>,
}

impl<S, V> Transitions<S, V> {
    fn new(with_text: bool) -> Self {
        Self { with_text, list: Vec::new() }
    }

    /// A transition of a thread that may depend on others.
    pub fn push(&mut self, text: fmt::Arguments<'_>, next: Result<S, V>) {
        self.add(None, false, text, next);
    }

    /// A transition of the independent thread `by`.
    pub fn push_by(&mut self, by: usize, text: fmt::Arguments<'_>, next: Result<S, V>) {
        self.add(Some(by), false, text, next);
    }

    /// A transition of the independent thread `by` that `arrives`.
    pub fn push_arrival(&mut self, by: usize, text: fmt::Arguments<'_>, next: Result<S, V>) {
        self.add(Some(by), true, text, next);
    }

    fn add(&mut self, by: Option<usize>, arrives: bool, text: fmt::Arguments<'_>, next: Result<S, V>) {
        let text = if self.with_text { text.to_string() } else { String::new() };
        self.list.push(Transition { by, arrives, text, next });
    }
}

/// A flaw.
#[derive(Clone, Debug, PartialEq)]
pub enum Flaw<V> {
    /// A violation that the model has reported.
    Violation(V),
    /// No end state can be reached any more.
    NoEnd,
    /// This thread waits for another one.
    Depends(usize),
}

/// A flaw, and the shortest path to it.
#[derive(Clone, Debug)]
pub struct Counterexample<V> {
    /// The flaw.
    pub flaw: Flaw<V>,
    /// The steps, in order.
    pub trace: Vec<String>,
}

impl<V: fmt::Debug> fmt::Display for Counterexample<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, step) in (1..).zip(&self.trace) {
            writeln!(f, "{number:4}. {step}")?;
        }
        write!(f, "   => {:?}", self.flaw)
    }
}

/// The result of an exploration.
#[derive(Clone, Debug)]
pub struct Exploration<V> {
    /// The number of states, up to the counterexample if there is one.
    pub states: usize,
    /// The first flaw.
    pub counterexample: Option<Counterexample<V>>,
}

/// The states seen so far, numbered in the order of discovery.
struct Seen<S> {
    states: Vec<S>,
    /// The state each was discovered from; the first is its own.
    parents: Vec<u32>,
    by_hash: HashMap<u64, u32>,
}

impl<S: Eq + Hash> Seen<S> {
    /// The number of `state`, and whether it is new.
    fn number(&mut self, state: S, parent: u32) -> u32 {
        let mut hasher = DefaultHasher::new();
        state.hash(&mut hasher);
        let mut hash = hasher.finish();
        loop {
            match self.by_hash.entry(hash) {
                Entry::Vacant(free) => {
                    let number = self.states.len() as u32;
                    free.insert(number);
                    self.states.push(state);
                    self.parents.push(parent);
                    return number;
                }
                Entry::Occupied(taken) if self.states[*taken.get() as usize] == state => return *taken.get(),
                // Two states with the same hash: the next hash is tried.
                Entry::Occupied(_) => hash = hash.wrapping_add(1),
            }
        }
    }
}

struct Edge {
    from: u32,
    to: u32,
    by: Option<usize>,
    arrives: bool,
}

/// Explores `model` completely, or up to the first flaw.
pub fn explore<M: Model>(model: &M) -> Exploration<M::Violation> {
    let mut seen = Seen { states: Vec::new(), parents: Vec::new(), by_hash: HashMap::new() };
    seen.number(model.initial(), 0);
    let mut edges = Vec::new();
    let mut next = 0;
    while next < seen.states.len() {
        let from = next as u32;
        if let Some(violation) = model.judge(&seen.states[next]) {
            let trace = trace_to(model, &seen, from);
            return found(&seen, Flaw::Violation(violation), trace);
        }
        let mut out = Transitions::new(false);
        model.transitions(&seen.states[next], &mut out);
        for (choice, Transition { by, arrives, next, .. }) in out.list.into_iter().enumerate() {
            match next {
                Ok(state) => {
                    let to = seen.number(state, from);
                    edges.push(Edge { from, to, by, arrives });
                }
                Err(violation) => {
                    let mut trace = trace_to(model, &seen, from);
                    trace.push(texts(model, &seen.states[from as usize]).swap_remove(choice).text);
                    return found(&seen, Flaw::Violation(violation), trace);
                }
            }
        }
        next += 1;
    }
    let ends = seen.states.iter().map(|state| model.is_end(state)).collect();
    if let Some(lost) = first_that_cannot_reach(ends, &edges, |_| true) {
        return found(&seen, Flaw::NoEnd, trace_to(model, &seen, lost));
    }
    for thread in 0..model.independent() {
        let mut arrivals = vec![false; seen.states.len()];
        for edge in edges.iter().filter(|edge| edge.by == Some(thread) && edge.arrives) {
            arrivals[edge.from as usize] = true;
        }
        if let Some(lost) = first_that_cannot_reach(arrivals, &edges, |edge| edge.by == Some(thread)) {
            return found(&seen, Flaw::Depends(thread), trace_to(model, &seen, lost));
        }
    }
    Exploration { states: seen.states.len(), counterexample: None }
}

fn found<S, V>(seen: &Seen<S>, flaw: Flaw<V>, trace: Vec<String>) -> Exploration<V> {
    Exploration { states: seen.states.len(), counterexample: Some(Counterexample { flaw, trace }) }
}

fn texts<M: Model>(model: &M, state: &M::State) -> Vec<Transition<M::State, M::Violation>> {
    let mut out = Transitions::new(true);
    model.transitions(state, &mut out);
    out.list
}

/// The steps from the initial state to this one.
fn trace_to<M: Model>(model: &M, seen: &Seen<M::State>, mut state: u32) -> Vec<String> {
    let mut trace = Vec::new();
    while state != 0 {
        let parent = seen.parents[state as usize];
        let steps = texts(model, &seen.states[parent as usize]);
        let leads_here =
            |step: &Transition<_, _>| step.next.as_ref().ok() == Some(&seen.states[state as usize]);
        trace.push(steps.into_iter().find(leads_here).expect("the parent leads to its child").text);
        state = parent;
    }
    trace.reverse();
    trace
}

/// The first state from which no goal can be reached by `usable` edges.
fn first_that_cannot_reach(goals: Vec<bool>, edges: &[Edge], usable: impl Fn(&Edge) -> bool) -> Option<u32> {
    // The edges sorted by where they lead, so that they can be followed backwards.
    let mut starts = vec![0_u32; goals.len() + 1];
    for edge in edges.iter().filter(|edge| usable(edge)) {
        starts[edge.to as usize + 1] += 1;
    }
    for i in 1..starts.len() {
        starts[i] += starts[i - 1];
    }
    let mut sources = vec![0_u32; starts[goals.len()] as usize];
    let mut free = starts.clone();
    for edge in edges.iter().filter(|edge| usable(edge)) {
        let place = &mut free[edge.to as usize];
        sources[*place as usize] = edge.from;
        *place += 1;
    }
    let mut reaches = goals;
    let mut open: Vec<u32> = (0..reaches.len() as u32).filter(|state| reaches[*state as usize]).collect();
    while let Some(state) = open.pop() {
        for source in &sources[starts[state as usize] as usize..starts[state as usize + 1] as usize] {
            if !std::mem::replace(&mut reaches[*source as usize], true) {
                open.push(*source);
            }
        }
    }
    reaches.iter().position(|reaches| !reaches).map(|state| state as u32)
}
