//! The format of speedscope (<https://www.speedscope.app/file-format-schema.json>).

use std::io::{self, Write};

use serde::{Serialize, Serializer};

use super::{Function, Stacks};

/// Keys are in alphabetical order.
#[derive(Serialize)]
struct File<P, F> {
    #[serde(rename = "$schema")]
    schema: &'static str,
    exporter: &'static str,
    profiles: [P; 1],
    shared: Shared<F>,
}

#[derive(Serialize)]
struct Shared<F> {
    frames: F,
}

#[derive(Serialize)]
struct Frame<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
    name: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Profile<S, W> {
    end_value: u64,
    name: String,
    samples: S,
    start_value: u64,
    r#type: &'static str,
    unit: &'static str,
    weights: W,
}

/// What this function iterates over.
struct Sequence<F>(F);

impl<I: Iterator<Item: Serialize>, F: Fn() -> I> Serialize for Sequence<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}

impl Stacks {
    pub(super) fn write_speedscope(&self, out: &mut dyn Write) -> io::Result<()> {
        let used = || self.nodes.iter().enumerate().filter(|(_, node)| node.weight > 0);
        let sample = |at: usize| {
            let mut path: Vec<usize> = self.path(at).map(|at| self.nodes[at].function).collect();
            path.reverse();
            path
        };
        let profile = Profile {
            end_value: used().map(|(_, node)| node.weight).sum(),
            name: self.title(),
            samples: Sequence(|| used().map(|(at, _)| sample(at))),
            start_value: 0,
            r#type: "sampled",
            unit: self.unit,
            weights: Sequence(|| used().map(|(_, node)| node.weight)),
        };
        let file = File {
            schema: "https://www.speedscope.app/file-format-schema.json",
            exporter: concat!("wasm-jit-monitors ", env!("CARGO_PKG_VERSION")),
            profiles: [profile],
            shared: Shared { frames: Sequence(|| self.functions.iter().map(Frame::of)) },
        };
        Ok(serde_json::to_writer(out, &file)?)
    }
}

impl<'a> Frame<'a> {
    fn of(Function { name, source }: &'a Function) -> Self {
        let source = source.as_ref();
        Self { file: source.map(|(file, _)| &**file), line: source.map(|(_, line)| *line), name }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    #[test]
    fn samples_are_paths_from_the_outermost_function() {
        let mut file = Vec::new();
        super::super::example().write_speedscope(&mut file).unwrap();
        let file: Value = serde_json::from_slice(&file).unwrap();
        assert_eq!(file["shared"]["frames"][0], json!({ "name": "main", "file": "main.c", "line": 7 }));
        let profile = &file["profiles"][0];
        assert_eq!(profile["samples"], json!([[0], [0, 1], [0, 1, 2], [0, 3]]));
        assert_eq!(profile["weights"], json!([50, 30, 15, 5]));
        assert_eq!((&profile["endValue"], &profile["unit"]), (&json!(100), &json!("nanoseconds")));
    }
}
