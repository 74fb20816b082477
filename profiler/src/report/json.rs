//! The JSON form of a report, version 1.
//!
//! Writing is normal: functions in rank order, addresses in hexadecimal, latencies with one decimal; what was read and
//! is written again is the same text. Reading looks at the version before anything else, so that a report of another
//! version is named as such. Unknown fields are ignored.

use std::fs;
use std::path::Path;

use serde::ser::{SerializeSeq, Serializer};
use serde_json::Value;
use serde_json::error::Category;

use super::{FunctionReport, Report};
use crate::error::Error;

/// The report as indented JSON; ends with a newline.
pub fn to_string(report: &Report) -> String {
    let mut text =
        serde_json::to_string_pretty(report).expect("a report has string keys and no failing field");
    text.push('\n');
    text
}

/// Reads a report from a file.
///
/// # Errors
/// [`Error::ReadReport`] if the file cannot be read, otherwise as [`parse`].
pub fn read(path: &Path) -> Result<Report, Error> {
    let bytes = fs::read(path).map_err(|source| Error::ReadReport { path: path.to_owned(), source })?;
    parse(&bytes, path)
}

/// Reads a report from the bytes of a file; `path` is for the error.
///
/// # Errors
/// [`Error::TruncatedReport`] if the bytes end too early, [`Error::ReportVersion`] if the version is another one than
/// [`Report::VERSION`], [`Error::NotAReport`] for everything else.
pub fn parse(bytes: &[u8], path: &Path) -> Result<Report, Error> {
    let other = |found: String| Error::NotAReport { path: path.to_owned(), found };
    if bytes.is_empty() {
        return Err(other("an empty file".to_owned()));
    }
    let value: Value = serde_json::from_slice(bytes).map_err(|error| match error.classify() {
        Category::Eof => Error::TruncatedReport { path: path.to_owned(), line: error.line() },
        _ => other(format!("not JSON: {error}")),
    })?;
    match value.get("version") {
        None => return Err(other("JSON without a version".to_owned())),
        Some(found) if *found != Report::VERSION => {
            let (path, found) = (path.to_owned(), found.to_string());
            return Err(Error::ReportVersion { path, found, supported: Report::VERSION });
        }
        Some(_) => {}
    }
    serde_json::from_value(value).map_err(|error| other(error.to_string()))
}

/// Writes functions in rank order.
pub(super) fn ranked<S: Serializer>(functions: &[FunctionReport], serializer: S) -> Result<S::Ok, S::Error> {
    let ranked = Report::rank(functions);
    let mut sequence = serializer.serialize_seq(Some(ranked.len()))?;
    for function in ranked {
        sequence.serialize_element(function)?;
    }
    sequence.end()
}

/// Writes nanoseconds.
pub(super) fn one_decimal<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64((value * 10.0).round() / 10.0)
}

/// Writes a relative error. An error that is there is not rounded to 0, which stands for an exact count.
pub(super) fn four_decimals<S: Serializer>(value: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(error) if error.is_finite() => {
            let rounded = (error * 1e4).round() / 1e4;
            serializer.serialize_some(&if *error > 0.0 { rounded.max(1e-4) } else { 0.0 })
        }
        _ => serializer.serialize_none(),
    }
}

/// Addresses as `"0x401136"`: numbers would lose digits in readers that have only doubles.
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
  "version": 1,
  "command": [
    "./app",
    "--size",
    "10"
  ],
  "pid": 4242,
  "duration_ns": 2130000000,
  "probes": 1204,
  "toggles": 11310,
  "samples": 13441,
  "lost_samples": 0,
  "notes": [],
  "functions": [
    {
      "name": "Tree::insert(int)",
      "object": "/opt/app/bin/app",
      "address": "0x401200",
      "samples": 1100,
      "calls_estimate": 5000,
      "calls_error": null,
      "total_ns_estimate": 7500000,
      "latency_ns": {
        "min": 900.0,
        "mean": 1500.0,
        "p50": 1234.0,
        "p90": 2000.0,
        "p99": 9999.0,
        "max": 12000.0
      }
    },
    {
      "name": "fini",
      "object": "/opt/app/bin/app",
      "address": "0x402200",
      "samples": 0,
      "calls_estimate": 1,
      "calls_error": 0.0,
      "total_ns_estimate": 0,
      "latency_ns": null
    }
  ]
}
"#;

    #[test]
    fn the_written_form_is_version_1() {
        let mut report = example();
        report.functions.retain(|function| ["fini", "Tree::insert(int)"].contains(&function.name.as_str()));
        assert_eq!(to_string(&report), EXAMPLE);
    }

    #[test]
    fn what_was_read_is_written_the_same() {
        let mut report = example();
        report.lost_samples = 7;
        report.notes = vec!["\u{1b}[31m \"quoted\" \u{2028}".to_owned()];
        report.functions[0].calls_error = Some(1.0 / 3.0);
        report.functions[0].total_ns_estimate = u64::MAX;
        report.functions[0].address = u64::MAX;
        report.functions[1].calls_error = Some(1e-9);
        report.functions[2].calls_error = Some(f64::INFINITY);
        let written = to_string(&report);
        let read = parse(written.as_bytes(), Path::new("r.json")).unwrap();
        assert_eq!(to_string(&read), written);
        let of = |name: &str| read.functions.iter().find(|function| function.name == name).unwrap();
        assert_eq!(of("hash").calls_error, Some(0.3333));
        assert_eq!(of("hash").address, u64::MAX);
        assert_eq!(of("fini").calls_error, Some(0.0001));
        assert_eq!(of("main").calls_error, None);
    }

    #[test]
    fn fields_that_say_nothing_may_be_missing_and_new_ones_are_ignored() {
        let text = r#"{"version": 1, "command": ["a"], "pid": 1, "duration_ns": 2, "probes": 0, "toggles": 0, "samples": 0,
            "host": "x", "functions": [{"name": "f", "object": "a", "address": "0xff", "samples": 0, "calls_estimate": 3,
            "total_ns_estimate": 0}]}"#;
        let report = parse(text.as_bytes(), Path::new("r.json")).unwrap();
        assert_eq!((report.lost_samples, report.notes.len()), (0, 0));
        let function = &report.functions[0];
        assert_eq!((function.address, function.calls_error, function.latency_ns), (0xff, None, None));
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
            "r.json is truncated: it ends at line 23, in the middle of a report; copy or record it again",
        );
        check(b"", &format!("r.json is no fastinst report (an empty file); {NO}"));
        check(
            br#"{"version": 2, "functions": {}}"#,
            "r.json is a report of version 2, this fastinst reads version 1; use the fastinst that recorded it",
        );
        check(
            br#"{"version": "1"}"#,
            "r.json is a report of version \"1\", this fastinst reads version 1; use the fastinst that recorded it",
        );
        check(b"{}", &format!("r.json is no fastinst report (JSON without a version); {NO}"));
        check(b"[1, 2]", &format!("r.json is no fastinst report (JSON without a version); {NO}"));
        check(
            b"fastinst: ./app",
            &format!("r.json is no fastinst report (not JSON: expected ident at line 1 column 3); {NO}"),
        );
        check(
            b"\x7fELF\x02",
            &format!("r.json is no fastinst report (not JSON: expected value at line 1 column 1); {NO}"),
        );
        check(br#"{"version": 1}"#, &format!("r.json is no fastinst report (missing field `command`); {NO}"));
        check(
            EXAMPLE.replace("0x401200", "401200").as_bytes(),
            &format!(
                "r.json is no fastinst report (invalid value: string \"401200\", expected an address such as \"0x401136\"); {NO}"
            ),
        );
    }
}
