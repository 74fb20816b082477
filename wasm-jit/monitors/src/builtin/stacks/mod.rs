//! Weighted stacks, in the formats of other tools.

mod flame_graph;
mod pprof;
mod speedscope;

use std::io::{self, Write};
use std::sync::Arc;

use wasm_jit::printable;

use crate::Report;

/// A tree of stacks.
#[derive(Debug)]
pub(super) struct Stacks {
    /// The quantity that the weights measure, such as `time`.
    pub(super) what: &'static str,
    /// The samples from which the weights are estimated, if they are.
    pub(super) sampled: Option<String>,
    /// The unit of the weights: `nanoseconds` or `bytes`.
    pub(super) unit: &'static str,
    /// The quantity that the second number of each stack counts, such as `calls`.
    pub(super) counted: &'static str,
    /// The functions, in the order of their numbers.
    pub(super) functions: Vec<Function>,
    /// Parents are before their children.
    pub(super) nodes: Vec<Node>,
}

#[derive(Debug)]
pub(super) struct Function {
    pub(super) name: Arc<str>,
    /// The function's location in the source.
    pub(super) source: Option<(String, u32)>,
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) parent: Option<usize>,
    /// The function's number.
    pub(super) function: usize,
    /// The weight of this stack, without longer ones.
    pub(super) weight: u64,
    pub(super) count: u64,
}

impl Stacks {
    /// Adds the files of all formats.
    pub(super) fn add_files(&self, report: &mut Report) {
        report.file("svg", |out| out.write_all(self.flame_graph().as_bytes()));
        // The format has no comments.
        let folded = if self.sampled.is_some() { "sampled.folded" } else { "folded" };
        report.file(folded, |out| self.write_folded(out));
        report.file("pprof", |out| out.write_all(&self.pprof()));
        report.file("speedscope.json", |out| self.write_speedscope(out));
    }

    /// A line for each stack, in the format that flame graph tools read: functions from the
    /// outermost on, and the weight.
    pub(super) fn write_folded(&self, out: &mut dyn Write) -> io::Result<()> {
        for (at, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.weight > 0) {
            let mut names: Vec<String> = self
                .path(at)
                .map(|at| printable(&self.functions[self.nodes[at].function].name).replace(';', ":"))
                .collect();
            names.reverse();
            writeln!(out, "{} {}", names.join(";"), node.weight)?;
        }
        Ok(())
    }

    /// The meaning of the weights, in human-readable form.
    fn title(&self) -> String {
        match &self.sampled {
            None => self.what.to_owned(),
            Some(samples) => format!("sampled {} ({samples})", self.what),
        }
    }

    /// A node and its ancestors, from the innermost on.
    fn path(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        std::iter::successors(Some(node), |at| self.nodes[*at].parent)
    }

    /// The weights of the nodes, including those of longer stacks.
    fn totals(&self) -> Vec<u64> {
        let mut totals: Vec<u64> = self.nodes.iter().map(|node| node.weight).collect();
        for at in (0..self.nodes.len()).rev() {
            if let Some(parent) = self.nodes[at].parent {
                totals[parent] += totals[at];
            }
        }
        totals
    }
}

/// Stacks of a test: `main` calls `a` twice, which calls `b;c`, and `<d>`.
#[cfg(test)]
fn example() -> Stacks {
    let function = |name: &str| Function { name: name.into(), source: None };
    let node = |parent, function, weight, count| Node { parent, function, weight, count };
    let source = Some(("main.c".to_owned(), 7));
    Stacks {
        what: "time",
        sampled: None,
        unit: "nanoseconds",
        counted: "calls",
        functions: vec![
            Function { name: "main".into(), source },
            function("a"),
            function("b;c"),
            function("<d>"),
        ],
        nodes: vec![
            node(None, 0, 50, 1),
            node(Some(0), 1, 30, 2),
            node(Some(1), 2, 15, 4),
            node(Some(0), 3, 5, 1),
            node(Some(3), 1, 0, 1),
        ],
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn folded_stacks_are_lines_with_weights() {
        let mut folded = Vec::new();
        super::example().write_folded(&mut folded).unwrap();
        assert_eq!(String::from_utf8(folded).unwrap(), "main 50\nmain;a 30\nmain;a;b:c 15\nmain;<d> 5\n");
    }

    /// In all formats; pprof's is tested there.
    #[test]
    fn files_say_that_weights_are_sampled() {
        let sampled = Some("9 samples, one per 1.0 ms".to_owned());
        let stacks = super::Stacks { sampled, ..super::example() };
        let title = "sampled time (9 samples, one per 1.0 ms)";
        assert!(stacks.flame_graph().contains(&format!(">{title} in nanoseconds</text>")));
        let mut report = crate::Report::new("calltree");
        stacks.add_files(&mut report);
        let file = |name: &str| report.files().iter().find(|(file, _)| file == name);
        assert!(file("sampled.folded").is_some());
        let (_, speedscope) = file("speedscope.json").unwrap();
        assert!(String::from_utf8_lossy(speedscope).contains(&format!("\"name\":\"{title}\"")));
    }

    #[test]
    fn totals_contain_what_is_below() {
        assert_eq!(super::example().totals(), [100, 45, 15, 5, 0]);
    }
}
