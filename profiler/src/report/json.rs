//! The JSON form of a report, version 3.
//!
//! The output is canonical: one line for each function and arc, functions in rank order, arcs
//! sorted, addresses in hexadecimal, counts and totals as integers, latencies with one decimal, the
//! ends of an interval rounded outwards; reading and writing a report again gives the same text.
//! Arcs contain names for readers such as jq; only object and address are parsed. The version is
//! checked before anything else, so that a report of another version is reported as such. Unknown
//! fields are ignored.
//!
//! A profiled process writes the symbols of functions as their names, since demangling takes longer
//! than everything else that is done for a row, and a name is repeated in each arc. They are
//! demangled when a report is read. In version 2, names were demangled in all reports.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

use serde::ser::{SerializeStruct, Serializer};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_json::error::Category;
use serde_json::ser::Formatter;

use super::{Arc, Caller, Cost, Estimate, FunctionRef, FunctionReport, Latency, Report, estimate};
use crate::error::Error;

/// The report as JSON, with one line for each function and arc; ends with a newline.
pub fn to_string(report: &Report) -> String {
    to_string_of_run(report, &report.run, || report.cost.report_ns)
}

/// As [`to_string`], for a report of this run. `took` returns the processor time for writing the
/// report, which is known when everything has been written.
pub(crate) fn to_string_of_run(report: &Report, run: &str, took: impl FnOnce() -> u64) -> String {
    let mut text = lines(&written(report, run), report.functions.len() + report.arcs.len());
    // It is no part of a string: quotation marks in strings are escaped.
    let field = |ns: u64| format!("\"report_ns\": {ns},");
    let before = field(report.cost.report_ns);
    if let Some(at) = text.find(&before) {
        text.replace_range(at..at + before.len(), &field(took()));
    }
    text
}

/// JSON with one line for each of about this number of rows; ends with a newline.
pub(super) fn lines(value: &impl Serialize, rows: usize) -> String {
    /// About the length of a line.
    const LINE: usize = 700;
    let mut text = Vec::with_capacity(LINE * (rows + 1));
    let mut serializer = serde_json::Serializer::with_formatter(&mut text, Lines::default());
    value.serialize(&mut serializer).expect("a report has string keys and no failing field");
    text.push(b'\n');
    String::from_utf8(text).expect("JSON is UTF-8")
}

/// Breaks lines in the outermost object and in its arrays and objects only: a report of thousands
/// of functions takes half as long to write as with a line for every number, and can be searched
/// with grep.
#[derive(Default)]
struct Lines {
    depth: usize,
    has_value: bool,
}

impl Lines {
    const MAX_DEPTH: usize = 2;

    fn begin<W: Write + ?Sized>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.has_value = false;
        writer.write_all(bracket)
    }

    fn end<W: Write + ?Sized>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if self.has_value && self.depth < Self::MAX_DEPTH {
            self.break_line(writer)?;
        }
        self.has_value = true;
        writer.write_all(bracket)
    }

    fn separate<W: Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if !first {
            writer.write_all(b",")?;
        }
        match (self.depth, first) {
            (..=Self::MAX_DEPTH, _) => self.break_line(writer),
            (_, true) => Ok(()),
            (_, false) => writer.write_all(b" "),
        }
    }

    fn break_line<W: Write + ?Sized>(&self, writer: &mut W) -> io::Result<()> {
        writer.write_all(["\n", "\n  ", "\n    "][self.depth].as_bytes())
    }
}

impl Formatter for Lines {
    fn begin_array<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.begin(writer, b"[")
    }

    fn end_array<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.end(writer, b"]")
    }

    fn begin_array_value<W: Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.separate(writer, first)
    }

    fn end_array_value<W: Write + ?Sized>(&mut self, _: &mut W) -> io::Result<()> {
        self.has_value = true;
        Ok(())
    }

    fn begin_object<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.begin(writer, b"{")
    }

    fn end_object<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.end(writer, b"}")
    }

    fn begin_object_key<W: Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.separate(writer, first)
    }

    fn begin_object_value<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }

    fn end_object_value<W: Write + ?Sized>(&mut self, _: &mut W) -> io::Result<()> {
        self.has_value = true;
        Ok(())
    }
}

/// Reads a report from a file, with demangled names.
///
/// # Errors
/// [`Error::ReadReport`] if the file cannot be read, otherwise as [`parse`].
pub fn read(path: &Path) -> Result<Report, Error> {
    let mut report = read_symbols(path)?;
    report.demangle();
    Ok(report)
}

/// As [`read`], with names as in the file.
pub(crate) fn read_symbols(path: &Path) -> Result<Report, Error> {
    let bytes = fs::read(path).map_err(|source| Error::ReadReport { path: path.to_owned(), source })?;
    parse_symbols(&bytes, path)
}

/// Reads a report from the bytes of a file, with demangled names; `path` is for error messages.
///
/// # Errors
/// [`Error::TruncatedReport`] if the input ends too early, [`Error::ReportVersion`] if the version
/// is neither [`Report::VERSION`] nor 2, [`Error::NotAReport`] for everything else.
pub fn parse(bytes: &[u8], path: &Path) -> Result<Report, Error> {
    let mut report = parse_symbols(bytes, path)?;
    report.demangle();
    Ok(report)
}

fn parse_symbols(bytes: &[u8], path: &Path) -> Result<Report, Error> {
    let other = |found: String| Error::NotAReport { path: path.to_owned(), found };
    if bytes.is_empty() {
        return Err(other("an empty file".to_owned()));
    }
    // Takes a third of the time of what follows, which finds out what is wrong with other files.
    if let Ok(report) = serde_json::from_slice::<Report>(bytes)
        && report.version == Report::VERSION
    {
        return Ok(report);
    }
    let value: Value = serde_json::from_slice(bytes).map_err(|error| match error.classify() {
        Category::Eof => Error::TruncatedReport { path: path.to_owned(), line: error.line() },
        _ => other(format!("not JSON: {error}")),
    })?;
    match value.get("version") {
        None => return Err(other("JSON without a version".to_owned())),
        Some(found) if *found != Report::VERSION && *found != OLDEST => {
            let (path, found) = (path.to_owned(), found.to_string());
            return Err(Error::ReportVersion { path, found, supported: Report::VERSION });
        }
        Some(_) => {}
    }
    let report: Report = serde_json::from_value(value).map_err(|error| other(error.to_string()))?;
    Ok(Report { version: Report::VERSION, ..report })
}

/// The oldest version that can be read.
const OLDEST: u32 = Report::VERSION - 1;

/// A report in its written form: sorted, and with names in the arcs.
#[derive(Serialize)]
pub(super) struct Written<'a> {
    version: u32,
    run: &'a str,
    settings: &'a str,
    command: &'a [String],
    pid: u32,
    started_us: u64,
    processes: u32,
    duration_ns: u64,
    thread_time_ns: u64,
    probes: u64,
    toggles: u64,
    samples: u64,
    lost_samples: u64,
    stacks: u64,
    cost: &'a Cost,
    notes: &'a [String],
    pub(super) functions: Vec<&'a FunctionReport>,
    pub(super) arcs: Vec<WrittenArc<'a>>,
}

#[derive(Serialize)]
pub(super) struct WrittenArc<'a> {
    #[serde(skip)]
    pub(super) callee_key: &'a FunctionRef,
    caller: WrittenFunction<'a>,
    callee: WrittenFunction<'a>,
    #[serde(serialize_with = "whole")]
    calls: &'a Estimate,
    #[serde(serialize_with = "whole_or_null")]
    total_ns: &'a Option<Estimate>,
}

/// One end of an arc. Code without probes has only a name.
#[derive(Serialize)]
struct WrittenFunction<'a> {
    name: Cow<'a, str>,
    #[serde(flatten)]
    key: Option<WrittenKey<'a>>,
}

#[derive(Serialize)]
struct WrittenKey<'a> {
    object: &'a str,
    #[serde(with = "hex")]
    address: u64,
}

impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        written(self, &self.run).serialize(serializer)
    }
}

pub(super) fn written<'a>(report: &'a Report, run: &'a str) -> Written<'a> {
    let functions = report.ranked();
    Written {
        version: report.version,
        run,
        settings: &report.settings,
        command: &report.command,
        pid: report.pid,
        started_us: report.started_us,
        processes: report.processes,
        duration_ns: report.duration_ns,
        thread_time_ns: report.thread_time_ns,
        probes: report.probes,
        toggles: report.toggles,
        samples: report.samples,
        lost_samples: report.lost_samples,
        stacks: report.stacks,
        cost: &report.cost,
        notes: &report.notes,
        arcs: written_arcs(&report.arcs, &functions),
        functions,
    }
}

/// The ranks and names of functions.
pub(super) type ByKey<'a> = HashMap<(&'a str, u64), (usize, &'a str)>;

pub(super) fn by_key<'a>(functions: &[&'a FunctionReport]) -> ByKey<'a> {
    let all = functions.iter().enumerate();
    all.map(|(rank, function)| ((function.object.as_str(), function.address), (rank, function.name.as_str())))
        .collect()
}

/// The arcs by callee, in the order of `functions`, then by calls, then by caller.
fn written_arcs<'a>(arcs: &'a [Arc], functions: &[&'a FunctionReport]) -> Vec<WrittenArc<'a>> {
    let by_key = by_key(functions);
    let rank = |arc: &'a Arc| {
        by_key.get(&(arc.callee.object.as_str(), arc.callee.address)).map_or(usize::MAX, |(rank, _)| *rank)
    };
    let mut sorted: Vec<(usize, &'a Arc)> = arcs.iter().map(|arc| (rank(arc), arc)).collect();
    sorted.sort_by(|(rank, left), (rank_of_right, right)| {
        let by_key = || (&left.callee, &left.caller).cmp(&(&right.callee, &right.caller));
        let by_calls = || right.calls.low.total_cmp(&left.calls.low);
        rank.cmp(rank_of_right).then_with(by_calls).then_with(by_key)
    });
    sorted.into_iter().map(|(_, arc)| written_arc(arc, &by_key)).collect()
}

pub(super) fn written_arc<'a>(arc: &'a Arc, by_key: &ByKey<'a>) -> WrittenArc<'a> {
    let written = |key: &'a FunctionRef| WrittenFunction {
        name: by_key
            .get(&(key.object.as_str(), key.address))
            .map_or(Cow::Owned(format!("{:#x}", key.address)), |(_, name)| (*name).into()),
        key: Some(WrittenKey { object: &key.object, address: key.address }),
    };
    WrittenArc {
        callee_key: &arc.callee,
        caller: match &arc.caller {
            Caller::Function(key) => written(key),
            Caller::Other(name) => WrittenFunction { name: name.into(), key: None },
        },
        callee: written(&arc.callee),
        calls: &arc.calls,
        total_ns: &arc.total_ns,
    }
}

/// A caller in its written form: an identified function takes precedence over a name.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum ReadCaller {
    /// A function with object and address.
    Function(FunctionRef),
    /// A caller without object and address.
    Other {
        /// `[libc.so.6]`
        name: String,
    },
}

impl From<ReadCaller> for Caller {
    fn from(read: ReadCaller) -> Caller {
        match read {
            ReadCaller::Function(key) => Caller::Function(key),
            ReadCaller::Other { name } => Caller::Other(name),
        }
    }
}

/// An estimate in its written form: [rounded](Estimate::rounded) to multiples of `1 / scale`.
fn rounded<S: Serializer, N: Serialize>(
    estimate: &Estimate,
    serializer: S,
    scale: f64,
    number: fn(f64) -> N,
) -> Result<S::Ok, S::Error> {
    let Estimate { value, low, high } = estimate.rounded(scale);
    let mut fields = serializer.serialize_struct("Estimate", 3)?;
    fields.serialize_field("value", &number(value))?;
    fields.serialize_field("low", &number(low))?;
    fields.serialize_field("high", &high.map(number))?;
    fields.end()
}

/// Writes an estimate of a count or of nanoseconds as integers.
pub(super) fn whole<S: Serializer>(estimate: &Estimate, serializer: S) -> Result<S::Ok, S::Error> {
    rounded(estimate, serializer, 1.0, |number| number as u64)
}

/// [`whole`], or null.
pub(super) fn whole_or_null<S: Serializer>(
    estimate: &Option<Estimate>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    struct Whole<'a>(&'a Estimate);
    impl Serialize for Whole<'_> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            whole(self.0, serializer)
        }
    }
    estimate.as_ref().map(Whole).serialize(serializer)
}

/// A latency in its written form: nanoseconds with one decimal.
impl Serialize for Latency {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        struct Tenths(Estimate);
        impl Serialize for Tenths {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                rounded(&self.0, serializer, 10.0, |number| number)
            }
        }
        let number = |value: f64, direction| estimate::rounded(value, 10.0, direction);
        let known = |figure: Estimate| self.known(figure).map(Tenths);
        let mut fields = serializer.serialize_struct("Latency", 8)?;
        fields.serialize_field("min", &number(self.min, f64::floor))?;
        fields.serialize_field("mean", &known(self.mean))?;
        fields.serialize_field("p50", &known(self.p50))?;
        fields.serialize_field("p90", &known(self.p90))?;
        fields.serialize_field("p99", &known(self.p99))?;
        fields.serialize_field("max", &number(self.max, f64::ceil))?;
        fields.serialize_field("below_resolution", &self.below_resolution)?;
        fields.serialize_field("resolution", &number(self.resolution, f64::round))?;
        fields.end()
    }
}

/// Reads a figure of a latency; null if nothing is known of it.
pub(super) fn known_or_not<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Estimate, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(Estimate::at_least(0.0)))
}

/// Writes a relative error.
pub(super) fn four_decimals<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64((value * 1e4).round() / 1e4)
}

/// Addresses as `"0x401136"`: numbers would lose digits in readers that only support doubles.
pub(super) mod hex {
    use serde::de::{Deserialize, Deserializer, Error, Unexpected};
    use serde::ser::Serializer;

    pub(in crate::report) fn serialize<S: Serializer>(
        address: &u64,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{address:#x}"))
    }

    pub(in crate::report) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<u64, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok()).ok_or_else(|| {
            D::Error::invalid_value(Unexpected::Str(&text), &"an address such as \"0x401136\"")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::tests::example;
    use super::*;

    const EXAMPLE: &str = r#"{
  "version": 3,
  "run": "1700000000000000001.4242",
  "settings": "budget=1%:counts=sampled",
  "command": [
    "./app",
    "--size",
    "10"
  ],
  "pid": 4242,
  "started_us": 1700000000000100,
  "processes": 1,
  "duration_ns": 2130000000,
  "thread_time_ns": 2140000000,
  "probes": 1204,
  "toggles": 11310,
  "samples": 13441,
  "lost_samples": 0,
  "stacks": 0,
  "cost": {
    "budget": 0.01,
    "cpu_ns": 2020000000,
    "probes_ns": 8000000,
    "service_ns": 5000000,
    "toggles_ns": 4000000,
    "stacks_ns": 0,
    "startup_ns": 3000000,
    "report_ns": 2000000,
    "error": 0.12,
    "memory_bytes": 2345678
  },
  "notes": [],
  "functions": [
    {"name": "main", "object": "/opt/app/bin/app", "address": "0x401136", "location": null, "samples": 1, "calls": {"value": 1, "low": 1, "high": 1}, "total_ns": {"value": 2100000000, "low": 2100000000, "high": 2100000000}, "self_ns": {"value": 910000000, "low": 800000000, "high": 1000000000}, "recursive": false, "open_calls": 1, "latency_ns": null, "off_cpu": {"samples": 0, "ns": 0}},
    {"name": "Tree::insert(int)", "object": "/opt/app/bin/app", "address": "0x401200", "location": null, "samples": 1100, "calls": {"value": 5000, "low": 5000, "high": null}, "total_ns": {"value": 7500000, "low": 0, "high": 20000000}, "self_ns": {"value": 12000, "low": 12000, "high": null}, "recursive": true, "open_calls": 0, "latency_ns": {"min": 900.0, "mean": {"value": 1500.0, "low": 749.9, "high": 2250.0}, "p50": {"value": 1234.0, "low": 617.0, "high": 1851.0}, "p90": {"value": 2000.0, "low": 1000.0, "high": 3000.0}, "p99": {"value": 9999.0, "low": 4999.5, "high": 14998.5}, "max": 12000.0, "below_resolution": false, "resolution": 20.0}, "off_cpu": null},
    {"name": "fini", "object": "/opt/app/bin/app", "address": "0x402200", "location": null, "samples": 0, "calls": {"value": 1, "low": 1, "high": 1}, "total_ns": null, "self_ns": null, "recursive": false, "open_calls": 0, "latency_ns": null, "off_cpu": null}
  ],
  "arcs": [
    {"caller": {"name": "[libc.so.6]"}, "callee": {"name": "main", "object": "/opt/app/bin/app", "address": "0x401136"}, "calls": {"value": 1, "low": 1, "high": 1}, "total_ns": {"value": 2100000000, "low": 2100000000, "high": 2100000000}},
    {"caller": {"name": "main", "object": "/opt/app/bin/app", "address": "0x401136"}, "callee": {"name": "Tree::insert(int)", "object": "/opt/app/bin/app", "address": "0x401200"}, "calls": {"value": 100, "low": 100, "high": null}, "total_ns": null}
  ]
}
"#;

    #[test]
    fn the_cost_includes_the_writing_of_everything() {
        let mut report = example();
        report.command.push("\"report_ns\": 2000000,".to_owned());
        let text = to_string_of_run(&report, &report.run, || 7_000_000);
        let read = parse(text.as_bytes(), Path::new("a.json")).unwrap();
        assert_eq!(read.command, report.command);
        assert_eq!(read.cost, Cost { report_ns: 7_000_000, ..report.cost });
    }

    #[test]
    fn names_that_are_no_symbols_are_not_demangled() {
        let mut report = example();
        for (name, readable) in
            [("assembly/index/f@varargs", "assembly/index/f@varargs"), ("_Z1fv@V1", "f()")]
        {
            report.functions[0].name = name.to_owned();
            report.demangle();
            assert_eq!(report.functions[0].name, readable);
        }
    }

    #[test]
    fn the_written_form_is_version_3() {
        let mut report = example();
        report
            .functions
            .retain(|function| ["main", "fini", "Tree::insert(int)"].contains(&function.name.as_str()));
        report.functions[1].latency_ns = None;
        report.arcs.remove(0);
        assert_eq!(to_string(&report), EXAMPLE);
    }

    #[test]
    fn a_report_round_trips() {
        let mut report = example();
        report.lost_samples = 7;
        report.cost.error = 1.0 / 3.0;
        report.cost.budget = None;
        report.notes = vec!["\u{1b}[31m \"quoted\" \u{2028}".to_owned()];
        report.functions[0].total_ns = Some(Estimate::exact(1e300));
        report.functions[0].self_ns = Some(Estimate::within(0.4, 0.3, f64::INFINITY));
        report.functions[0].address = u64::MAX;
        report.functions[1].calls = Estimate::exact(1.0 / 3.0);
        report.functions[2].latency_ns.as_mut().unwrap().p50 = Estimate::within(10.04, 9.98, 10.02);
        let written = to_string(&report);
        let read = parse(written.as_bytes(), Path::new("r.json")).unwrap();
        assert_eq!(to_string(&read), written);
        let of = |name: &str| read.functions.iter().find(|function| function.name == name).unwrap();
        assert_eq!(of("hash").address, u64::MAX);
        assert_eq!(of("hash").self_ns, Some(Estimate::at_least(0.0)));
        assert_eq!(of("fini").calls, Estimate::exact(0.0));
        assert_eq!(of("main").latency_ns.unwrap().p50, Estimate::within(10.0, 9.9, 10.1));
        assert_eq!(read.arcs.len(), 3);
        report.arcs.iter().for_each(|arc| assert!(read.arcs.iter().any(|read| read.caller == arc.caller)));
    }

    #[test]
    fn what_is_not_known_of_a_latency_is_null() {
        let mut report = example();
        let latency = report.functions[0].latency_ns.as_mut().unwrap();
        latency.p99 = Estimate { value: 410.0, low: 0.3, high: None };
        let written = to_string(&report);
        assert!(written.contains(r#""high": 122.4}, "p99": null, "max": 81250.0,"#), "{written}");
        let read = parse(written.as_bytes(), Path::new("r.json")).unwrap();
        let latency = read.ranked()[1].latency_ns.unwrap();
        assert_eq!(latency.p99, Estimate::at_least(0.0));
        assert_eq!(to_string(&read), written);
    }

    #[test]
    fn symbols_are_demangled_when_a_report_is_read() {
        let mut report = example();
        report.functions[0].name = "_ZN4Tree6insertEi".to_owned();
        let written = to_string(&report);
        let read = |text: &str| parse(text.as_bytes(), Path::new("r.json")).unwrap();
        let shown = read(&written);
        assert_eq!(shown.functions.iter().filter(|function| function.name == "Tree::insert(int)").count(), 2);
        assert_eq!(to_string(&read(&to_string(&shown))), to_string(&shown));
        let kept = parse_symbols(written.as_bytes(), Path::new("r.json")).unwrap();
        assert_eq!(to_string(&kept), written);
        let old = written.replace("\"version\": 3", "\"version\": 2");
        assert_eq!(to_string(&read(&old)), to_string(&shown));
    }

    #[test]
    fn fields_that_say_nothing_may_be_missing_and_new_ones_are_ignored() {
        let text = r#"{"version": 2, "command": ["a"], "pid": 1, "processes": 1, "duration_ns": 2, "thread_time_ns": 3,
            "probes": 0, "toggles": 0, "samples": 0, "host": "x",
            "cost": {"budget": null, "cpu_ns": 1, "probes_ns": 0, "service_ns": 0, "toggles_ns": 0, "startup_ns": 0,
                     "error": 0, "memory_bytes": 0},
            "functions": [{"name": "f", "object": "a", "address": "0xff", "samples": 0, "recursive": false,
                           "calls": {"value": 3, "low": 2, "high": null}}]}"#;
        let report = parse(text.as_bytes(), Path::new("r.json")).unwrap();
        assert_eq!((report.lost_samples, report.notes.len(), report.arcs.len()), (0, 0, 0));
        let function = &report.functions[0];
        assert_eq!((function.address, function.total_ns, function.latency_ns), (0xff, None, None));
        assert_eq!(function.calls, Estimate { value: 3.0, low: 2.0, high: None });
    }

    #[test]
    fn callers_are_functions_or_names() {
        #[track_caller]
        fn check(text: &str, expected: Caller) {
            assert_eq!(serde_json::from_str::<Caller>(text).unwrap(), expected);
        }
        check(r#"{"name": "[libc.so.6]"}"#, Caller::Other("[libc.so.6]".to_owned()));
        let key = FunctionRef { object: "/a".to_owned(), address: 0x10 };
        check(r#"{"name": "f", "object": "/a", "address": "0x10"}"#, Caller::Function(key));
    }

    #[test]
    fn other_files_are_named() {
        #[track_caller]
        fn check(bytes: &[u8], expected: &str) {
            assert_eq!(parse(bytes, Path::new("r.json")).unwrap_err().to_string(), expected);
        }
        const NO: &str = "give a .json file that fastinst wrote";
        let middle = &EXAMPLE.as_bytes()[..EXAMPLE.len() / 2];
        check(
            middle,
            "r.json is truncated: it ends at line 35, in the middle of a report; copy or record it again",
        );
        check(b"", &format!("r.json is not a fastinst report (an empty file); {NO}"));
        check(
            br#"{"version": 1, "functions": {}}"#,
            "r.json is a report of version 1, this fastinst reads versions 2 to 3; use the fastinst that recorded it",
        );
        check(
            br#"{"version": "2"}"#,
            "r.json is a report of version \"2\", this fastinst reads versions 2 to 3; use the fastinst that recorded it",
        );
        check(b"{}", &format!("r.json is not a fastinst report (JSON without a version); {NO}"));
        check(b"[1, 2]", &format!("r.json is not a fastinst report (JSON without a version); {NO}"));
        check(
            b"fastinst: ./app",
            &format!("r.json is not a fastinst report (not JSON: expected ident at line 1 column 3); {NO}"),
        );
        check(
            b"\x7fELF\x02",
            &format!("r.json is not a fastinst report (not JSON: expected value at line 1 column 1); {NO}"),
        );
        check(
            br#"{"version": 2}"#,
            &format!("r.json is not a fastinst report (missing field `command`); {NO}"),
        );
        check(
            EXAMPLE.replace("0x401200", "401200").as_bytes(),
            &format!(
                "r.json is not a fastinst report (invalid value: string \"401200\", expected an address such as \"0x401136\"); {NO}"
            ),
        );
    }
}
