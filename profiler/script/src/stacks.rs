//! Stacks of open calls, represented by numbers: a tree of calling contexts.
//!
//! A node is a function that is called from its parent. Its number stands for the functions from
//! the root to it, so that the same stack always has the same number, and an entry finds it in one
//! step from that of its caller. Memory is bounded: a stack has at most [`MAX_DEPTH`] functions,
//! the outermost ones, and there are at most [`MAX_STACKS`] stacks; all others share one number.

use std::collections::HashMap;

/// The maximum depth of a stack: functions that are called at a greater depth have the stack of
/// their caller.
const MAX_DEPTH: u32 = 127;

/// The maximum number of stacks of a script.
const MAX_STACKS: usize = 1 << 18;

/// The stack without calls.
pub(crate) const EMPTY: u32 = 0;

/// The stack that stands for all stacks for which there was no room.
const OTHERS: u32 = 1;

/// A stack.
#[derive(Clone, Copy, Debug, Default)]
struct Node {
    caller: u32,
    function: u32,
    depth: u32,
}

/// The stacks that were seen.
#[derive(Debug)]
pub(crate) struct Stacks {
    /// The stacks by number; the first two are [`EMPTY`] and [`OTHERS`].
    nodes: Vec<Node>,
    /// The numbers of stacks, by caller and function.
    numbers: HashMap<(u32, u32), u32>,
}

impl Default for Stacks {
    fn default() -> Self {
        Self { nodes: vec![Node::default(); 2], numbers: HashMap::new() }
    }
}

impl Stacks {
    /// The stack of a call to a function, given the stack of its caller.
    pub(crate) fn of_call(&mut self, caller: u32, function: u32) -> u32 {
        let depth = self.nodes[caller as usize].depth + 1;
        if caller == OTHERS || depth > MAX_DEPTH {
            return caller;
        }
        let next = self.nodes.len();
        if let Some(number) = self.numbers.get(&(caller, function)) {
            return *number;
        }
        if next == MAX_STACKS {
            return OTHERS;
        }
        self.nodes.push(Node { caller, function, depth });
        self.numbers.insert((caller, function), next as u32);
        next as u32
    }

    /// The names of a stack's functions, outermost first, separated by semicolons.
    pub(crate) fn folded<'a>(&self, number: u32, name: &dyn Fn(u32) -> &'a str) -> String {
        if number == OTHERS {
            return "[other stacks]".to_owned();
        }
        let mut names = Vec::new();
        let mut at = number;
        while let Some(node) = self.nodes.get(at as usize).filter(|_| at != EMPTY) {
            names.push(name(node.function).replace(';', ":"));
            at = node.caller;
        }
        names.reverse();
        names.join(";")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(function: u32) -> &'static str {
        ["main", "parse", "a;b"][function as usize % 3]
    }

    #[test]
    fn the_same_functions_are_one_stack() {
        let mut stacks = Stacks::default();
        let main = stacks.of_call(EMPTY, 0);
        let parse = stacks.of_call(main, 1);
        assert_eq!(stacks.of_call(main, 1), parse);
        assert_ne!(stacks.of_call(EMPTY, 1), parse);
        let last = stacks.of_call(parse, 2);
        assert_eq!(stacks.folded(last, &name), "main;parse;a:b");
        assert_eq!(stacks.folded(EMPTY, &name), "");
    }

    #[test]
    fn recursion_and_many_stacks_need_bounded_memory() {
        let mut stacks = Stacks::default();
        let deepest = (0..100_000).fold(EMPTY, |caller, _| stacks.of_call(caller, 0));
        assert_eq!(stacks.folded(deepest, &name).matches("main").count(), MAX_DEPTH as usize);
        let last = (0..=MAX_STACKS as u32).map(|function| stacks.of_call(EMPTY, function)).last();
        assert_eq!((last, stacks.nodes.len()), (Some(OTHERS), MAX_STACKS));
        assert_eq!(stacks.of_call(OTHERS, 0), OTHERS);
        assert_eq!(stacks.folded(OTHERS, &name), "[other stacks]");
    }
}
