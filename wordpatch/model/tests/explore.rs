//! The explorer, on small graphs.

use wordpatch_model::explore::{Flaw, Model, Transitions, explore};

/// States are numbers, from 0 to the end; a transition is a thread's if it names one, and arrives
/// if it leads to a larger number.
struct Graph {
    edges: &'static [(u8, u8, Option<usize>)],
    end: u8,
    bad: Option<u8>,
    threads: usize,
}

impl Model for Graph {
    type State = u8;
    type Violation = u8;

    fn initial(&self) -> u8 {
        0
    }

    fn transitions(&self, state: &u8, out: &mut Transitions<u8, u8>) {
        for (from, to, thread) in self.edges.iter().filter(|(from, ..)| from == state) {
            match thread {
                Some(thread) if to > from => {
                    out.push_arrival(*thread, format_args!("{from} to {to}"), Ok(*to));
                }
                Some(thread) => out.push_by(*thread, format_args!("{from} to {to}"), Ok(*to)),
                None => out.push(format_args!("{from} to {to}"), Ok(*to)),
            }
        }
    }

    fn judge(&self, state: &u8) -> Option<u8> {
        self.bad.filter(|bad| bad == state)
    }

    fn is_end(&self, state: &u8) -> bool {
        *state == self.end
    }

    fn independent(&self) -> usize {
        self.threads
    }
}

#[track_caller]
fn check(graph: &Graph, expected: Option<(Flaw<u8>, &[&str])>) {
    let found = explore(graph).counterexample.map(|found| (found.flaw, found.trace));
    let expected = expected.map(|(flaw, trace)| (flaw, trace.iter().map(|step| step.to_string()).collect()));
    assert_eq!(found, expected);
}

#[test]
fn the_shortest_path_to_a_flaw() {
    let edges = &[(0, 1, None), (1, 2, None), (2, 3, None), (0, 4, None), (4, 3, None), (3, 5, None)];
    let graph = Graph { edges, end: 5, bad: None, threads: 0 };
    check(&graph, None);
    check(&Graph { bad: Some(3), ..graph }, Some((Flaw::Violation(3), &["0 to 4", "4 to 3"])));
}

#[test]
fn a_deadlock_and_a_livelock() {
    let deadlock = &[(0, 1, None), (0, 2, None), (2, 3, None)];
    check(&Graph { edges: deadlock, end: 3, bad: None, threads: 0 }, Some((Flaw::NoEnd, &["0 to 1"])));
    let circle = &[(0, 1, None), (1, 2, None), (2, 1, None), (0, 3, None)];
    check(&Graph { edges: circle, end: 3, bad: None, threads: 0 }, Some((Flaw::NoEnd, &["0 to 1"])));
    let way_out = &[(0, 1, None), (1, 2, None), (2, 1, None), (2, 3, None)];
    check(&Graph { edges: way_out, end: 3, bad: None, threads: 0 }, None);
}

#[test]
fn a_thread_that_depends_on_another() {
    let alone = &[(0, 1, Some(0)), (1, 0, None), (1, 0, Some(0))];
    check(&Graph { edges: alone, end: 1, bad: None, threads: 1 }, None);
    let helped = &[(0, 1, Some(0)), (1, 0, None)];
    check(&Graph { edges: helped, end: 1, bad: None, threads: 1 }, Some((Flaw::Depends(0), &["0 to 1"])));
}
