//! The report of one profiled process, or of several: its contents and its formats.
//!
//! [`Report`] is filled once; its estimated figures are [`Estimate`]s. [`text`] renders the table
//! for users, [`json`] the format for programs ([`json_of_view`] a part of it), which
//! `fastinst report` turns into the table again, or into [`csv`], callers and callees ([`arcs`])
//! and a call [`tree`]. Both list the functions in the order of [`Report::ranked`] unless another
//! [`SortKey`] is requested.

pub mod arcs;
mod columns;
pub mod csv;
mod estimate;
pub mod json;
pub mod json_of_view;
mod merge;
mod model;
mod names;
mod sort;
pub mod text;
pub mod tree;
mod units;

use std::path::Path;

pub use estimate::Estimate;
pub use model::{Arc, Caller, Cost, FunctionRef, FunctionReport, Latency, OffCpu, Report};
pub use names::names;
pub use sort::SortKey;
pub use text::View;

/// A format of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// The human-readable table, `.txt`.
    Text,
    /// The data as JSON, `.json`.
    Json,
}

impl Format {
    /// The format for the extension of a file name; `None` if it is neither `.txt` nor `.json`.
    pub fn of_file_name(name: &str) -> Option<Format> {
        if name.ends_with('/') {
            return None;
        }
        match Path::new(name).extension()?.to_str()? {
            "txt" => Some(Format::Text),
            "json" => Some(Format::Json),
            _ => None,
        }
    }

    /// The report in this format, with every function; ends with a newline.
    pub fn render(self, report: &Report) -> String {
        match self {
            Format::Text => text::render(report, &View::default()),
            Format::Json => json::to_string(report),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Format;

    #[test]
    fn the_extension_chooses_the_format() {
        #[track_caller]
        fn check(name: &str, expected: Option<Format>) {
            assert_eq!(Format::of_file_name(name), expected, "{name}");
        }
        check("a.txt", Some(Format::Text));
        check("/run/a.b.json", Some(Format::Json));
        check("%e.%p.json", Some(Format::Json));
        check("a", None);
        check("a.", None);
        check("json", None);
        check(".json", None);
        check("a.JSON", None);
        check("a.txt/", None);
        check("", None);
    }
}
