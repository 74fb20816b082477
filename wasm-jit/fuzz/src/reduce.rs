//! Reduces a program as long as the engines differ.
//!
//! The text is a tree of lists. Each list in turn is removed, or replaced by one of the lists in it
//! or by a zero; a change is undone if the result is not a module, or if the engines agree on it.
//! The code that counts loops and calls is kept, so that programs still terminate.

use std::time::{Duration, Instant};

/// Maximum duration.
const MAX_TIME: Duration = Duration::from_secs(120);

#[derive(Clone, Debug)]
enum Node {
    Atom(String),
    List(Vec<Node>),
}

impl Node {
    fn show(&self, out: &mut String) {
        match self {
            Self::Atom(text) => out.push_str(text),
            Self::List(nodes) => {
                out.push('(');
                for (at, node) in nodes.iter().enumerate() {
                    if at > 0 {
                        out.push(' ');
                    }
                    node.show(out);
                }
                out.push(')');
            }
        }
    }

    fn is(&self, keyword: &str) -> bool {
        matches!(self, Self::List(nodes) if matches!(nodes.first(), Some(Self::Atom(text)) if text == keyword))
    }

    /// Whether it is the end of a loop, on which termination depends.
    fn ends_loop(&self) -> bool {
        self.is("br_if")
            && matches!(self, Self::List(nodes) if matches!(&nodes[1], Self::Atom(text) if text.starts_with("$l")))
    }

    fn child(&self, path: &[usize]) -> &Self {
        match (path, self) {
            ([], _) => self,
            ([first, rest @ ..], Self::List(nodes)) => nodes[*first].child(rest),
            (_, Self::Atom(_)) => unreachable!("paths lead to lists"),
        }
    }

    /// The same tree with the node at the path replaced, or removed.
    fn with(&self, path: &[usize], new: Option<&Self>) -> Self {
        let (Self::List(nodes), [first, rest @ ..]) = (self, path) else {
            unreachable!("paths lead to lists")
        };
        let mut nodes = nodes.clone();
        if rest.is_empty() {
            match new {
                Some(new) => nodes[*first] = new.clone(),
                None => {
                    nodes.remove(*first);
                }
            }
        } else {
            nodes[*first] = nodes[*first].with(rest, new);
        }
        Self::List(nodes)
    }

    /// Whether it checks or decrements the budget of wasm-smith, which is in this global.
    fn keeps_budget(&self, global: &str) -> bool {
        let names = |nodes: &[Self]| matches!(nodes.get(1), Some(Self::Atom(name)) if name == global);
        match self {
            Self::List(nodes) if self.is("global.set") => names(nodes),
            Self::List(nodes) if self.is("if") => nodes[1..].iter().any(|node| match node {
                Self::List(inner) if node.is("i32.eqz") => inner[1..].iter().any(|node| match node {
                    Self::List(nodes) => node.is("global.get") && names(nodes),
                    Self::Atom(_) => false,
                }),
                _ => false,
            }),
            _ => false,
        }
    }

    /// The number of the last global of a module.
    fn last_global(&self) -> String {
        let Self::List(fields) = self else { return String::new() };
        let imported = |field: &&Self| match field {
            Self::List(nodes) => field.is("import") && nodes.iter().any(|node| node.is("global")),
            Self::Atom(_) => false,
        };
        let globals = fields.iter().filter(|field| field.is("global") || imported(field)).count();
        globals.saturating_sub(1).to_string()
    }

    /// Paths of all lists that may be changed, outermost first.
    fn paths(&self, budget: &str) -> Vec<Vec<usize>> {
        fn walk(node: &Node, budget: &str, path: &mut Vec<usize>, paths: &mut Vec<Vec<usize>>) {
            let Node::List(nodes) = node else { return };
            for (at, child) in nodes.iter().enumerate() {
                let counts = nodes.get(at + 1).is_some_and(|next| next.is("loop"));
                if child.ends_loop()
                    || child.keeps_budget(budget)
                    || (counts && child.is("local.set"))
                    || matches!(child, Node::Atom(_))
                {
                    continue;
                }
                path.push(at);
                paths.push(path.clone());
                walk(child, budget, path, paths);
                path.pop();
            }
        }
        let mut paths = Vec::new();
        walk(self, budget, &mut Vec::new(), &mut paths);
        paths
    }
}

/// The text without `(;...;)` comments, which are never nested here.
fn without_comments(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("(;") {
        out.push_str(before);
        rest = after.split_once(";)").map_or("", |(_, after)| after);
    }
    out + rest
}

fn parse(text: &str) -> Option<Node> {
    let mut open: Vec<Vec<Node>> = vec![Vec::new()];
    let text = without_comments(text);
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '(' => {
                open.push(Vec::new());
                1
            }
            ')' => {
                let list = Node::List(open.pop()?);
                open.last_mut()?.push(list);
                1
            }
            '"' => {
                let end = rest[1..].find('"')? + 2;
                open.last_mut()?.push(Node::Atom(rest[..end].to_owned()));
                end
            }
            _ => {
                let end =
                    rest.find(|c: char| c.is_whitespace() || c == '(' || c == ')').unwrap_or(rest.len());
                open.last_mut()?.push(Node::Atom(rest[..end].to_owned()));
                end
            }
        };
        rest = rest[length..].trim_start();
    }
    open.pop()?.pop()
}

/// The smallest text found on which the engines differ. `differs` compares them; it is called only
/// with valid modules.
pub fn reduced(text: &str, differs: &mut dyn FnMut(&[u8]) -> bool) -> String {
    let end = Instant::now() + MAX_TIME;
    let Some(mut best) = parse(text) else { return text.to_owned() };
    let budget = best.last_global();
    let zeros: Vec<Node> =
        ["(i32.const 0)", "(i64.const 0)", "(f32.const 0)", "(f64.const 0)", "(local.get 0)"]
            .iter()
            .filter_map(|zero| parse(zero))
            .collect();
    let mut keeps = |tree: &Node| {
        let mut text = String::new();
        tree.show(&mut text);
        wat::parse_str(&text).is_ok_and(|wasm| differs(&wasm))
    };
    let mut changed = true;
    while changed && Instant::now() < end {
        changed = false;
        let mut at = 0;
        loop {
            let paths = best.paths(&budget);
            let Some(path) = paths.get(at) else { break };
            if Instant::now() > end {
                break;
            }
            let node = best.child(path);
            let mut attempts = vec![best.with(path, None)];
            let is_zero = zeros.iter().any(|zero| format!("{zero:?}") == format!("{node:?}"));
            if let (Node::List(nodes), false) = (node, is_zero) {
                attempts.extend(
                    nodes
                        .iter()
                        .filter(|node| matches!(node, Node::List(_)))
                        .map(|inner| best.with(path, Some(inner))),
                );
                attempts.extend(zeros.iter().map(|zero| best.with(path, Some(zero))));
            }
            match attempts.into_iter().find(|attempt| keeps(attempt)) {
                Some(smaller) => {
                    best = smaller;
                    changed = true;
                }
                None => at += 1,
            }
        }
    }
    let mut text = String::new();
    best.show(&mut text);
    text.replace(" (func", "\n (func")
}
