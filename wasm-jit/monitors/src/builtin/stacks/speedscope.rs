//! The format of speedscope (<https://www.speedscope.app/file-format-schema.json>).

use serde_json::{Value, json};

use super::Stacks;

impl Stacks {
    pub(super) fn speedscope(&self) -> String {
        let frames: Vec<Value> = self
            .functions
            .iter()
            .map(|function| match &function.source {
                None => json!({ "name": &*function.name }),
                Some((file, line)) => json!({ "name": &*function.name, "file": file, "line": line }),
            })
            .collect();
        let used = || self.nodes.iter().enumerate().filter(|(_, node)| node.weight > 0);
        let samples: Vec<Vec<usize>> = used()
            .map(|(at, _)| {
                let mut path: Vec<usize> = self.path(at).map(|at| self.nodes[at].function).collect();
                path.reverse();
                path
            })
            .collect();
        let weights: Vec<u64> = used().map(|(_, node)| node.weight).collect();
        let end: u64 = weights.iter().sum();
        json!({
            "$schema": "https://www.speedscope.app/file-format-schema.json",
            "exporter": concat!("wasm-jit-monitors ", env!("CARGO_PKG_VERSION")),
            "shared": { "frames": frames },
            "profiles": [{
                "type": "sampled",
                "name": self.title(),
                "unit": self.unit,
                "startValue": 0,
                "endValue": end,
                "samples": samples,
                "weights": weights,
            }],
        })
        .to_string()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    #[test]
    fn samples_are_paths_from_the_outermost_function() {
        let file: Value = serde_json::from_str(&super::super::example().speedscope()).unwrap();
        assert_eq!(file["shared"]["frames"][0], json!({ "name": "main", "file": "main.c", "line": 7 }));
        let profile = &file["profiles"][0];
        assert_eq!(profile["samples"], json!([[0], [0, 1], [0, 1, 2], [0, 3]]));
        assert_eq!(profile["weights"], json!([50, 30, 15, 5]));
        assert_eq!((&profile["endValue"], &profile["unit"]), (&json!(100), &json!("nanoseconds")));
    }
}
