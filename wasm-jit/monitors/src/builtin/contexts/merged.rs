//! The merged trees of several threads.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::calibration::Costs;
use super::estimate::Estimate;
use super::sampler::Samples;
use super::tree::Snapshot;
use super::{HOST, LEFT_OUT, Measure, REST, ROOT};
use crate::Program;
use crate::builtin::clock::Clock;
use crate::builtin::other_functions;

/// A tree of calling contexts.
#[derive(Clone, Debug)]
pub(in crate::builtin) struct Merged {
    /// Parents are before their children. The first node is the host, the second stands for the
    /// contexts that were left out.
    pub(in crate::builtin) nodes: Vec<MergedNode>,
    children: HashMap<(u32, u32), u32>,
    /// The number of observed threads.
    pub(in crate::builtin) threads: usize,
    pub(super) measure: Measure,
    /// The accuracy of sampled times.
    pub(super) estimate: Estimate,
}

/// A function on one call path.
#[derive(Clone, Debug, Default)]
pub(in crate::builtin) struct MergedNode {
    pub(in crate::builtin) function: u32,
    pub(in crate::builtin) parent: u32,
    /// The number of calls on this path.
    pub(in crate::builtin) calls: u64,
    /// The number of calls from here back to this node or one further up, by that node.
    pub(in crate::builtin) back: BTreeMap<u32, u64>,
    ticks: u64,
    samples: Samples,
}

/// Times of the nodes, in nanoseconds.
#[derive(Debug)]
pub(in crate::builtin) struct Times {
    /// The self times, by node. That of the host, which makes the outermost calls, is 0.
    pub(in crate::builtin) own: Vec<u64>,
    /// The times including callees, by node.
    pub(in crate::builtin) total: Vec<u64>,
    /// The time that was subtracted as the cost of observing; 0 for sampled times.
    pub(in crate::builtin) subtracted: u64,
    /// Present if the times come from samples.
    pub(in crate::builtin) sampled: Option<Sampled>,
}

impl Times {
    /// The number of samples that have found a node, and that have found it or a node below it; 0
    /// if times are exact.
    pub(in crate::builtin) fn samples(&self, node: u32) -> (u64, u64) {
        let at = node as usize;
        self.sampled.as_ref().map_or((0, 0), |sampled| (sampled.own[at], sampled.total[at]))
    }
}

/// The samples of times.
#[derive(Debug)]
pub(in crate::builtin) struct Sampled {
    /// The accuracy of the times.
    pub(in crate::builtin) estimate: Estimate,
    /// By node: samples in the function itself, and including its callees.
    own: Vec<u64>,
    total: Vec<u64>,
}

impl Default for Merged {
    fn default() -> Self {
        let node = |function| MergedNode { function, ..MergedNode::default() };
        Self {
            nodes: vec![node(HOST), node(LEFT_OUT)],
            children: HashMap::new(),
            threads: 0,
            measure: Measure::ExactTimes,
            estimate: Estimate::default(),
        }
    }
}

impl Merged {
    /// The node of a function below another node.
    fn child(&mut self, parent: u32, function: u32) -> u32 {
        *self.children.entry((parent, function)).or_insert_with(|| {
            self.nodes.push(MergedNode { function, parent, ..MergedNode::default() });
            self.nodes.len() as u32 - 1
        })
    }

    pub(super) fn add_tree(&mut self, tree: &Snapshot) {
        let mut places: Vec<u32> = Vec::with_capacity(tree.nodes.len());
        for (at, (node, figures)) in tree.nodes.iter().zip(&tree.figures).enumerate() {
            let at = at as u32;
            let parent = places.get(node.parent as usize).copied().unwrap_or(ROOT);
            if at > REST && node.target != at {
                // Nothing is below such a call.
                places.push(parent);
                let target = places[node.target as usize];
                *self.nodes[parent as usize].back.entry(target).or_default() += figures.calls;
                continue;
            }
            let place = if at <= REST { at } else { self.child(parent, node.function) };
            places.push(place);
            let merged = &mut self.nodes[place as usize];
            merged.calls += figures.calls;
            merged.ticks += figures.ticks;
            merged.samples.add(figures.samples);
        }
    }

    pub(super) fn subtract(&mut self, other: &Self) {
        self.estimate.subtract(&other.estimate);
        let mut places: Vec<u32> = Vec::with_capacity(other.nodes.len());
        for (at, node) in other.nodes.iter().enumerate() {
            let at = at as u32;
            let place = if at <= REST { at } else { self.child(places[node.parent as usize], node.function) };
            places.push(place);
            let merged = &mut self.nodes[place as usize];
            merged.calls = merged.calls.saturating_sub(node.calls);
            merged.ticks = merged.ticks.saturating_sub(node.ticks);
            merged.samples.subtract(node.samples);
            for (target, calls) in &node.back {
                let back = merged.back.entry(places[*target as usize]).or_default();
                *back = back.saturating_sub(*calls);
            }
        }
    }

    /// The number of calls in contexts for which there was no memory.
    pub(in crate::builtin) fn left_out(&self) -> u64 {
        self.nodes[REST as usize].calls
    }

    /// The times; from exact ones, the known cost of observing is subtracted. None is negative, and
    /// the total of the host is the sum of all self times.
    pub(in crate::builtin) fn times(&self) -> Times {
        match self.measure {
            Measure::SampledTimes => self.sampled_times(),
            Measure::ExactTimes | Measure::Paths => self.exact_times(),
        }
    }

    fn sampled_times(&self) -> Times {
        let own: Vec<u64> = self.nodes.iter().map(|node| node.samples.nanoseconds).collect();
        let samples: Vec<u64> = self.nodes.iter().map(|node| node.samples.count).collect();
        let sampled = Sampled { estimate: self.estimate, total: self.totals(&samples), own: samples };
        Times { total: self.totals(&own), own, subtracted: 0, sampled: Some(sampled) }
    }

    /// Sums the figures of each node and of all nodes below it.
    fn totals(&self, own: &[u64]) -> Vec<u64> {
        let mut total = own.to_vec();
        for at in (1..self.nodes.len()).rev() {
            let parent = self.nodes[at].parent as usize;
            total[parent] += total[at];
        }
        total
    }

    fn exact_times(&self) -> Times {
        let rate = Clock::get().nanoseconds_per_tick();
        let (mut timed, mut untimed) = (vec![0_u64; self.nodes.len()], vec![0_u64; self.nodes.len()]);
        for (at, node) in self.nodes.iter().enumerate() {
            // Time stamps are at its entries; those at its exits begin an interval of the caller.
            timed[at] += node.calls;
            timed[node.parent as usize] += node.calls;
            for (target, calls) in &node.back {
                if *target as usize == at {
                    untimed[at] += 2 * calls;
                } else {
                    timed[at] += calls;
                    timed[*target as usize] += calls;
                }
            }
        }
        let costs = Costs::get();
        let mut subtracted = 0.0;
        let mut own: Vec<u64> = Vec::with_capacity(self.nodes.len());
        for (at, node) in self.nodes.iter().enumerate() {
            if at == ROOT as usize {
                own.push(0);
                continue;
            }
            let cost = timed[at] as f64 * costs.timed + untimed[at] as f64 * costs.untimed;
            let cost = cost.min(node.ticks as f64);
            subtracted += cost * rate;
            own.push(((node.ticks as f64 - cost) * rate) as u64);
        }
        Times { total: self.totals(&own), own, subtracted: subtracted as u64, sampled: None }
    }

    /// The children of each node, by decreasing time. Nodes without a call are left out.
    pub(in crate::builtin) fn children(&self, times: &Times) -> Vec<Vec<u32>> {
        let mut is_used: Vec<bool> = self
            .nodes
            .iter()
            .map(|node| node.calls > 0 || node.back.values().any(|calls| *calls > 0))
            .collect();
        for at in (1..self.nodes.len()).rev() {
            is_used[self.nodes[at].parent as usize] |= is_used[at] || times.total[at] > 0;
        }
        let mut children: Vec<Vec<u32>> = vec![Vec::new(); self.nodes.len()];
        for (at, node) in self.nodes.iter().enumerate().skip(1) {
            if is_used[at] || times.total[at] > 0 {
                children[node.parent as usize].push(at as u32);
            }
        }
        for of_node in &mut children {
            let key =
                |child: &u32| (Reverse(times.total[*child as usize]), self.nodes[*child as usize].function);
            of_node.sort_by_key(key);
        }
        children
    }

    /// The number of calls that lead back to each node, from itself or from further down.
    pub(in crate::builtin) fn recursive_calls(&self) -> Vec<u64> {
        let mut recursive = vec![0; self.nodes.len()];
        for (target, calls) in self.nodes.iter().flat_map(|node| &node.back) {
            recursive[*target as usize] += calls;
        }
        recursive
    }

    /// The nodes with calls, and their depths, parents before their children; the host is left out.
    pub(in crate::builtin) fn depth_first(&self, times: &Times) -> Vec<(u32, usize)> {
        let children = self.children(times);
        let mut order = Vec::new();
        let mut open: Vec<(u32, usize)> =
            children[ROOT as usize].iter().rev().map(|child| (*child, 0)).collect();
        while let Some((node, depth)) = open.pop() {
            order.push((node, depth));
            open.extend(children[node as usize].iter().rev().map(|child| (*child, depth + 1)));
        }
        order
    }
}

/// The name of a function, or of a node that does not represent a function. Control characters are
/// not escaped.
pub(in crate::builtin) fn name(program: &Program<'_>, function: u32) -> Arc<str> {
    match function {
        HOST => "<spontaneous>".into(),
        LEFT_OUT => "<contexts left out>".into(),
        _ => other_functions::name(function).unwrap_or_else(|| program.function_name(function)),
    }
}
