//! The report of one profiled process, or of several: what it holds, and its written forms.
//!
//! [`Report`] is filled once; what was estimated in it is an [`Estimate`]. [`text`] makes the table
//! that people read, [`json`] the form that programs read and that `fastinst report` turns into the
//! table again, or into [`csv`], callers and callees ([`arcs`]) and a call [`tree`]. Both list the
//! functions in the order of [`Report::ranked`] unless another [`SortKey`] is asked for.

pub mod arcs;
pub mod csv;
mod estimate;
pub mod json;
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

/// The written form of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// The table, `.txt`.
    Text,
    /// The data, `.json`.
    Json,
}

impl Format {
    /// The format that a file name asks for by its extension; none if that is neither `.txt` nor
    /// `.json`.
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

    /// The report in this form, with every function; ends with a newline.
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
