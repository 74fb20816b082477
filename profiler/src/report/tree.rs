//! The call tree computed from the arcs of a report.
//!
//! Arcs record callers and callees, not call paths. Therefore the tree is *context-insensitive*:
//! each caller of a function gets the share of its time that the arc has, and passes it on to its
//! own callers in the same proportion, as in gprof. A function that takes long on only one call
//! path looks the same on all of them.
//!
//! 1. Functions that call each other in a cycle are one node (a strongly connected component of the
//!    arcs; Tarjan 1972). Arcs inside it are omitted.
//! 2. A node's time is its function's total; for a cycle, or if the total is not known, the time of
//!    the arcs that lead into it; if that is not known either, the time of the arcs that lead out
//!    of it.
//! 3. Each arc between nodes gets a share of the callee's time in proportion to its own time among
//!    all arcs to the callee. If the time of some arc is not known, numbers of calls are used
//!    instead.
//! 4. The roots are nodes that are called from code without probes, with that share of their time,
//!    and those that nothing calls, with all of it. Below a node that is shown with a share of its
//!    time, every arc has the same share.
//! 5. Nodes with less than 0.5 % of the time of all roots are omitted: the tree stays small even if
//!    there are many paths.

use std::collections::HashMap;
use std::fmt::Write;

use super::text::{MAX_NAME_LENGTH, View, shortened_name};
use super::{Arc, Caller, FunctionRef, Report, names, units};

/// The smallest share of the total that is shown.
const MIN_SHARE: f64 = 0.005;
/// Maximum number of levels of indentation.
const MAX_DEPTH: usize = 40;

/// The tree as text, ordered by decreasing time; ends with a newline.
#[must_use]
pub fn render(report: &Report, view: &View) -> String {
    let mut text = String::from(
        "time is passed from callees to callers in proportion to their calls' time, regardless of the path of calls\n\
         calls with less than 0.5% of the time are left out\n\n",
    );
    if report.arcs.is_empty() {
        return "the report has no arcs between functions\n".to_owned();
    }
    let graph = Graph::of(report);
    let roots = graph.roots();
    let whole: f64 = roots.iter().map(|(_, time)| time).sum();
    let mut lines = Vec::new();
    // Nodes to be shown, with time and depth, in reverse order.
    let mut open: Vec<(usize, f64, usize)> = Vec::new();
    let push = |open: &mut Vec<(usize, f64, usize)>, mut nodes: Vec<(usize, f64)>, depth| {
        nodes.retain(|(_, time)| *time > 0.0 && *time >= MIN_SHARE * whole);
        nodes.sort_by(|(left, left_time), (right, right_time)| {
            left_time
                .total_cmp(right_time)
                .then_with(|| graph.nodes[*right].name.cmp(&graph.nodes[*left].name))
        });
        open.extend(nodes.into_iter().map(|(node, time)| (node, time, depth)));
    };
    push(&mut open, roots, 0);
    while let Some((index, time, depth)) = open.pop() {
        let node = &graph.nodes[index];
        let (share, shown) = (units::share(time, report.thread_time_ns), units::time(time));
        let name = shortened_name(&node.name, MAX_NAME_LENGTH);
        lines.push(format!("{share:>6}  {shown:>7}  {}{name}", "  ".repeat(depth.min(MAX_DEPTH))));
        let part = if node.time > 0.0 { (time / node.time).min(1.0) } else { 0.0 };
        let callees = node.callees.iter().map(|(callee, of_arc)| (*callee, (of_arc * part).min(time)));
        push(&mut open, callees.collect(), depth + 1);
    }
    let limit = view.limit.unwrap_or(lines.len()).min(lines.len());
    let _ = writeln!(text, " share    total  function\n{}", "─".repeat(60));
    lines[..limit].iter().for_each(|line| _ = writeln!(text, "{line}"));
    if limit < lines.len() {
        let _ = writeln!(text, "… and {} more lines; {}", lines.len() - limit, view.hint);
    }
    text
}

/// A function, or several functions that call each other in a cycle.
struct Node {
    name: String,
    time: f64,
    /// The share of its time in calls from code without probes, or without callers.
    as_root: f64,
    /// The nodes that it calls, with their shares of time.
    callees: Vec<(usize, f64)>,
}

struct Graph {
    nodes: Vec<Node>,
}

impl Graph {
    fn of(report: &Report) -> Graph {
        let functions = report.ranked();
        let shown = names(&functions);
        let indices: HashMap<FunctionRef, usize> =
            functions.iter().enumerate().map(|(index, function)| (function.key(), index)).collect();
        // Arcs between known functions.
        let ends = |arc: &Arc| {
            let caller = match &arc.caller {
                Caller::Function(key) => Some(*indices.get(key)?),
                Caller::Other(_) => None,
            };
            Some((caller, *indices.get(&arc.callee)?))
        };
        let arcs: Vec<(Option<usize>, usize, &Arc)> = report
            .arcs
            .iter()
            .filter_map(|arc| ends(arc).map(|(caller, callee)| (caller, callee, arc)))
            .collect();
        let mut callees = vec![Vec::new(); functions.len()];
        for (caller, callee, _) in &arcs {
            caller.iter().for_each(|caller| callees[*caller].push(*callee));
        }
        let (node_of, count) = components(&callees);
        let mut members = vec![Vec::new(); count];
        node_of.iter().enumerate().for_each(|(function, node)| members[*node].push(function));

        // Arcs that lead into each node from outside.
        let mut arcs_into: Vec<Vec<(Option<usize>, &Arc)>> = vec![Vec::new(); count];
        let mut time_of_callees = vec![0.0; count];
        for (caller, callee, arc) in arcs {
            let (from, to) = (caller.map(|caller| node_of[caller]), node_of[callee]);
            if from != Some(to) {
                arcs_into[to].push((from, arc));
                from.iter()
                    .for_each(|from| time_of_callees[*from] += arc.total_ns.map_or(0.0, |total| total.value));
            }
        }
        let mut nodes: Vec<Node> = members
            .iter()
            .zip(&arcs_into)
            .zip(time_of_callees)
            .map(|((members, arcs), of_callees)| {
                let totals = || members.iter().filter_map(|member| functions[*member].total_ns);
                let longest = totals().map(|total| total.value).fold(0.0, f64::max);
                let of_arcs: f64 = arcs.iter().filter_map(|(_, arc)| Some(arc.total_ns?.value)).sum();
                let known = if members.len() > 1 { [of_arcs, longest] } else { [longest, of_arcs] };
                let time = known.into_iter().find(|time| *time > 0.0).unwrap_or(of_callees);
                let name = match &members[..] {
                    [one] => shown[*one].clone(),
                    many => {
                        let names: Vec<&str> = many.iter().map(|member| shown[*member].as_str()).collect();
                        format!("<cycle of {}: {}>", many.len(), names.join(", "))
                    }
                };
                Node { name, time, as_root: 0.0, callees: Vec::new() }
            })
            .collect();
        for (to, arcs) in arcs_into.into_iter().enumerate() {
            let time = nodes[to].time;
            let by_time = arcs.iter().all(|(_, arc)| arc.total_ns.is_some());
            let weight = |arc: &Arc| match arc.total_ns {
                Some(total) if by_time => total.value,
                _ => arc.calls.value,
            };
            let all: f64 = arcs.iter().map(|(_, arc)| weight(arc)).sum();
            if all <= 0.0 {
                nodes[to].as_root = time;
                continue;
            }
            // Several arcs may connect the members of two cycles.
            let mut from_nodes: HashMap<usize, f64> = HashMap::new();
            for (from, arc) in arcs {
                let part = time * weight(arc) / all;
                match from {
                    Some(from) => *from_nodes.entry(from).or_default() += part,
                    None => nodes[to].as_root += part,
                }
            }
            from_nodes.into_iter().for_each(|(from, part)| nodes[from].callees.push((to, part)));
        }
        Graph { nodes }
    }

    fn roots(&self) -> Vec<(usize, f64)> {
        self.nodes.iter().map(|node| node.as_root).enumerate().collect()
    }
}

/// Tarjan's strongly connected components, without recursion: the component of each node, and their
/// number.
fn components(successors: &[Vec<usize>]) -> (Vec<usize>, usize) {
    const NONE: usize = usize::MAX;
    let nodes = successors.len();
    let (mut number, mut lowest, mut component) = (vec![NONE; nodes], vec![NONE; nodes], vec![NONE; nodes]);
    let (mut numbered, mut count) = (0, 0);
    // Nodes without a component, in the order in which they were reached.
    let mut stack = Vec::new();
    for start in 0..nodes {
        if number[start] != NONE {
            continue;
        }
        // A node, and the number of its successors that were visited.
        let mut path = vec![(start, 0)];
        while let Some((node, looked_at)) = path.pop() {
            if looked_at == 0 {
                (number[node], lowest[node]) = (numbered, numbered);
                numbered += 1;
                stack.push(node);
            }
            if let Some(&next) = successors[node].get(looked_at) {
                path.push((node, looked_at + 1));
                if number[next] == NONE {
                    path.push((next, 0));
                } else if component[next] == NONE {
                    lowest[node] = lowest[node].min(number[next]);
                }
                continue;
            }
            if lowest[node] == number[node] {
                while let Some(member) = stack.pop() {
                    component[member] = count;
                    if member == node {
                        break;
                    }
                }
                count += 1;
            }
            if let Some((parent, _)) = path.last() {
                lowest[*parent] = lowest[*parent].min(lowest[node]);
            }
        }
    }
    (component, count)
}

#[cfg(test)]
mod tests {
    use super::super::model::tests::example;
    use super::super::{Estimate, FunctionReport};
    use super::*;

    /// A report of functions with total times, and arcs with times; a caller that is not a function
    /// has no probes.
    fn report(functions: &[(&str, f64)], arcs: &[(&str, &str, f64)]) -> Report {
        let address = |name: &str| functions.iter().position(|(known, _)| *known == name).map(|at| at as u64);
        let key = |name: &str| Some(FunctionRef { object: "app".to_owned(), address: address(name)? });
        let function = |&(name, total): &(&str, f64)| FunctionReport {
            name: name.to_owned(),
            object: "app".to_owned(),
            address: address(name).unwrap(),
            total_ns: Some(Estimate::exact(total)),
            ..example().functions[1].clone()
        };
        let arc = |&(caller, callee, time): &(&str, &str, f64)| Arc {
            caller: key(caller).map_or(Caller::Other(caller.to_owned()), Caller::Function),
            callee: key(callee).unwrap(),
            calls: Estimate::exact(1.0),
            total_ns: (time >= 0.0).then(|| Estimate::exact(time)),
        };
        Report {
            thread_time_ns: 1000,
            functions: functions.iter().map(function).collect(),
            arcs: arcs.iter().map(arc).collect(),
            ..example()
        }
    }

    #[track_caller]
    fn check(functions: &[(&str, f64)], arcs: &[(&str, &str, f64)], expected: &[&str]) {
        let text = render(&report(functions, arcs), &View::default());
        let lines: Vec<&str> = text.lines().skip_while(|line| !line.starts_with('─')).skip(1).collect();
        assert_eq!(lines, expected, "{text}");
    }

    #[test]
    fn time_is_passed_to_callers_in_proportion() {
        check(
            &[("main", 1000.0), ("a", 300.0), ("b", 600.0), ("leaf", 800.0)],
            &[
                ("[libc]", "main", 1000.0),
                ("main", "a", 300.0),
                ("main", "b", 600.0),
                ("a", "leaf", 200.0),
                ("b", "leaf", 600.0),
            ],
            &[
                "  100%   1.00us  main",
                " 60.0%    600ns    b",
                " 60.0%    600ns      leaf",
                " 30.0%    300ns    a",
                " 20.0%    200ns      leaf",
            ],
        );
    }

    #[test]
    fn a_function_that_is_shown_in_part_has_that_part_of_its_callees() {
        check(
            &[("main", 900.0), ("thread", 100.0), ("work", 400.0), ("leaf", 200.0)],
            &[("main", "work", 300.0), ("thread", "work", 100.0), ("work", "leaf", 200.0)],
            &[
                " 90.0%    900ns  main",
                " 30.0%    300ns    work",
                " 15.0%    150ns      leaf",
                " 10.0%    100ns  thread",
                " 10.0%    100ns    work",
                "  5.0%   50.0ns      leaf",
            ],
        );
    }

    #[test]
    fn cycles_are_one_node_and_recursion_is_no_cycle() {
        check(
            &[("main", 1000.0), ("even", 700.0), ("odd", 650.0), ("self", 100.0), ("leaf", 50.0)],
            &[
                ("main", "even", 700.0),
                ("even", "odd", 5000.0),
                ("odd", "even", 4000.0),
                ("odd", "self", 100.0),
                ("self", "self", 9000.0),
                ("self", "leaf", 50.0),
            ],
            &[
                "  100%   1.00us  main",
                " 70.0%    700ns    <cycle of 2: even, odd>",
                " 10.0%    100ns      self",
                "  5.0%   50.0ns        leaf",
            ],
        );
    }

    #[test]
    fn calls_take_the_place_of_unknown_times_and_little_is_left_out() {
        check(
            &[("main", 1000.0), ("a", 500.0), ("b", 500.0), ("leaf", 100.0), ("small", 4.0)],
            &[
                ("main", "a", -1.0),
                ("main", "b", -1.0),
                ("a", "leaf", 100.0),
                ("b", "leaf", -1.0),
                ("main", "small", 4.0),
            ],
            &[
                "  100%   1.00us  main",
                " 50.0%    500ns    a",
                "  5.0%   50.0ns      leaf",
                " 50.0%    500ns    b",
                "  5.0%   50.0ns      leaf",
            ],
        );
    }

    #[test]
    fn deep_chains_and_many_paths_end() {
        let names: Vec<String> = (0..20_000).map(|number| format!("f{number}")).collect();
        let functions: Vec<FunctionReport> = names
            .iter()
            .enumerate()
            .map(|(address, name)| FunctionReport {
                name: name.clone(),
                address: address as u64,
                total_ns: Some(Estimate::exact(1000.0)),
                ..example().functions[1].clone()
            })
            .collect();
        let arc = |from: usize, to: usize| Arc {
            caller: Caller::Function(functions[from].key()),
            callee: functions[to].key(),
            calls: Estimate::exact(1.0),
            total_ns: Some(Estimate::exact(500.0)),
        };
        let chain: Vec<Arc> = (1..names.len()).map(|to| arc(to - 1, to)).collect();
        // Two arcs from each of two functions to both of the next: two to the power of fifty paths.
        // The two roots' times are halved on every level, and are 0.8 % of the total on the
        // seventh: 2 * (1 + 2 + ... + 64) lines.
        let ladder = (0..50).flat_map(|level| {
            let (from, to) = (2 * level, 2 * level + 2);
            [arc(from, to), arc(from, to + 1), arc(from + 1, to), arc(from + 1, to + 1)]
        });
        let ladder: Vec<Arc> = ladder.collect();
        for (arcs, functions, expected) in
            [(chain, &functions[..], names.len()), (ladder, &functions[..102], 254)]
        {
            let report = Report { functions: functions.to_vec(), arcs, thread_time_ns: 1000, ..example() };
            let lines = |limit| render(&report, &View { limit, ..View::default() }).lines().count();
            assert_eq!(lines(None), expected + 5);
            assert_eq!(lines(Some(10)), 16);
        }
    }
}
