//! Cycles of the call graph: the strongly connected components that contain an arc.

use std::collections::HashMap;

/// For each function that can call itself, directly or indirectly, a number that it shares with the
/// others of its cycle.
///
/// Tarjan's algorithm (1972), without recursion: call graphs are deep.
pub(crate) fn cycles(arcs: impl Iterator<Item = (u32, u32)>) -> HashMap<u32, u32> {
    let mut callees: HashMap<u32, Vec<u32>> = HashMap::new();
    let mut is_own_caller = std::collections::HashSet::new();
    for (caller, callee) in arcs {
        callees.entry(caller).or_default().push(callee);
        if caller == callee {
            is_own_caller.insert(caller);
        }
    }
    let mut found = HashMap::new();
    // By function: the order in which it was reached, and the lowest order to which it leads back;
    // `None` once its component is known.
    let mut reached: HashMap<u32, (usize, Option<usize>)> = HashMap::new();
    let mut open = Vec::new();
    let roots: Vec<u32> = callees.keys().copied().collect();
    for root in roots {
        if reached.contains_key(&root) {
            continue;
        }
        // The path of functions, each with the number of its callees that were visited.
        let mut way: Vec<(u32, usize)> = Vec::new();
        let order = reached.len();
        reached.insert(root, (order, Some(order)));
        open.push(root);
        way.push((root, 0));
        while let Some((function, looked)) = way.last_mut() {
            let function = *function;
            if let Some(callee) = callees.get(&function).and_then(|callees| callees.get(*looked)).copied() {
                *looked += 1;
                match reached.get(&callee).copied() {
                    None => {
                        let order = reached.len();
                        reached.insert(callee, (order, Some(order)));
                        open.push(callee);
                        way.push((callee, 0));
                    }
                    Some((order, Some(_))) => lower(&mut reached, function, order),
                    Some((_, None)) => {}
                }
                continue;
            }
            way.pop();
            let (order, lowest) = reached[&function];
            let lowest = lowest.unwrap_or(order);
            if let Some((caller, _)) = way.last() {
                lower(&mut reached, *caller, lowest);
            }
            if lowest == order {
                let start = open.iter().rposition(|other| *other == function).unwrap_or(0);
                let component = open.split_off(start);
                if component.len() > 1 || is_own_caller.contains(&function) {
                    found.extend(component.iter().map(|member| (*member, function)));
                }
                for member in component {
                    reached.entry(member).and_modify(|(_, lowest)| *lowest = None);
                }
            }
        }
    }
    found
}

fn lower(reached: &mut HashMap<u32, (usize, Option<usize>)>, function: u32, to: usize) {
    if let Some((_, Some(lowest))) = reached.get_mut(&function) {
        *lowest = (*lowest).min(to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn circles_are_found_whatever_the_order_of_the_arcs() {
        #[track_caller]
        fn check(arcs: &[(u32, u32)], expected: &[&[u32]]) {
            let mut turned = arcs.to_vec();
            for _ in 0..arcs.len() {
                turned.rotate_left(1);
                let found = cycles(turned.iter().copied());
                let mut circles: HashMap<u32, Vec<u32>> = HashMap::new();
                found.iter().for_each(|(member, circle)| circles.entry(*circle).or_default().push(*member));
                let mut circles: Vec<Vec<u32>> = circles.into_values().collect();
                circles.iter_mut().for_each(|circle| circle.sort_unstable());
                circles.sort();
                assert_eq!(circles, expected, "{turned:?}");
            }
        }
        check(&[(1, 2), (2, 3), (1, 3)], &[]);
        check(&[(1, 2), (2, 2)], &[&[2]]);
        check(&[(0, 1), (1, 2), (2, 3), (3, 1), (3, 4)], &[&[1, 2, 3]]);
        check(&[(1, 2), (2, 1), (2, 3), (3, 4), (4, 3)], &[&[1, 2], &[3, 4]]);
        check(&[(1, 2), (2, 1), (2, 3), (3, 2)], &[&[1, 2, 3]]);
    }

    #[test]
    fn a_deep_graph_needs_no_deep_stack() {
        let deep = (0..200_000).map(|function| (function, function + 1)).chain([(200_000, 100_000)]);
        assert_eq!(cycles(deep).len(), 100_001);
    }
}
