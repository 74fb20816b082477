//! The format of pprof: a message of
//! <https://github.com/google/pprof/blob/main/proto/profile.proto>, not compressed.

use std::collections::HashMap;

use prost::Message;

use super::Stacks;

#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, repeated, tag = "13")]
    comment: Vec<i64>,
    #[prost(int64, tag = "14")]
    default_sample_type: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    r#type: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
    #[prost(int64, tag = "2")]
    line: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "3")]
    system_name: i64,
    #[prost(int64, tag = "4")]
    filename: i64,
    #[prost(int64, tag = "5")]
    start_line: i64,
}

/// The strings of a profile, each stored once; the first one is empty.
struct Texts {
    all: Vec<String>,
    known: HashMap<String, i64>,
}

impl Texts {
    fn new() -> Self {
        let mut texts = Self { all: Vec::new(), known: HashMap::new() };
        texts.number("");
        texts
    }

    fn number(&mut self, text: &str) -> i64 {
        *self.known.entry(text.to_owned()).or_insert_with(|| {
            self.all.push(text.to_owned());
            self.all.len() as i64 - 1
        })
    }
}

impl Stacks {
    pub(super) fn pprof(&self) -> Vec<u8> {
        let mut texts = Texts::new();
        let mut value_type = |what: &str, unit: &str| {
            let r#type = texts.number(what);
            ValueType { r#type, unit: texts.number(unit) }
        };
        let sample_type = vec![value_type(self.counted, "count"), value_type(self.what, self.unit)];
        let default_sample_type = texts.number(self.what);
        let comment = self.sampled.iter().map(|_| texts.number(&self.title())).collect();
        // Ids begin with 1.
        let functions: Vec<Function> = self
            .functions
            .iter()
            .zip(1..)
            .map(|(function, id)| {
                let name = texts.number(&function.name);
                let (file, line) = function.source.as_ref().map_or(("", 0), |(file, line)| (file, *line));
                Function {
                    id,
                    name,
                    system_name: name,
                    filename: texts.number(file),
                    start_line: line.into(),
                }
            })
            .collect();
        let location = |function: &Function| Location {
            id: function.id,
            line: vec![Line { function_id: function.id, line: function.start_line }],
        };
        let sample = |at: usize| Sample {
            location_id: self.path(at).map(|at| self.nodes[at].function as u64 + 1).collect(),
            value: vec![self.nodes[at].count as i64, self.nodes[at].weight as i64],
        };
        let profile = Profile {
            sample_type,
            sample: (0..self.nodes.len()).map(sample).collect(),
            location: functions.iter().map(location).collect(),
            function: functions,
            string_table: texts.all,
            comment,
            default_sample_type,
        };
        profile.encode_to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_paths_from_the_innermost_function() {
        let bytes = super::super::example().pprof();
        let profile = Profile::decode(&*bytes).unwrap();
        let text = |at: i64| profile.string_table[at as usize].as_str();
        assert_eq!(profile.string_table[0], "");
        let types: Vec<_> = profile.sample_type.iter().map(|ty| (text(ty.r#type), text(ty.unit))).collect();
        assert_eq!(types, [("calls", "count"), ("time", "nanoseconds")]);
        let name = |location: &u64| {
            let location = profile.location.iter().find(|known| known.id == *location).unwrap();
            let function = profile.function.iter().find(|known| known.id == location.line[0].function_id);
            text(function.unwrap().name)
        };
        let samples: Vec<(Vec<_>, &[i64])> = profile
            .sample
            .iter()
            .map(|sample| (sample.location_id.iter().map(name).collect(), &sample.value[..]))
            .collect();
        assert_eq!(samples[2], (vec!["b;c", "a", "main"], &[4, 15][..]));
        assert_eq!(samples[3], (vec!["<d>", "main"], &[1, 5][..]));
        assert_eq!((text(profile.function[0].filename), profile.function[0].start_line), ("main.c", 7));
        assert_eq!(text(profile.default_sample_type), "time");
        assert!(profile.comment.is_empty());
    }

    #[test]
    fn a_comment_says_that_weights_are_sampled() {
        let stacks = Stacks { sampled: Some("9 samples".to_owned()), ..super::super::example() };
        let profile = Profile::decode(&*stacks.pprof()).unwrap();
        assert_eq!(profile.string_table[profile.comment[0] as usize], "sampled time (9 samples)");
    }
}
