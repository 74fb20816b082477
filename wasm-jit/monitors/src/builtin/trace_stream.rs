//! The streams to which monitors with the options `trace`, `json` and `csv` write their traces.

use std::borrow::Cow;

use wasm_jit::printable;

use crate::{Error, Format, Setup, Stream};

/// The names of a trace's file, by the form of its lines.
#[derive(Clone, Copy)]
pub(super) struct Files {
    pub text: &'static str,
    pub json: &'static str,
    /// Ends in `.csv`; the rest is the name of the table.
    pub csv: &'static str,
}

/// The form of the lines of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lines {
    Text,
    /// Objects.
    Json,
    /// Rows of a table.
    Csv,
}

impl Lines {
    /// As the options say, or the reports that are written to the same stream.
    pub(super) fn of(setup: &Setup<'_>) -> Result<Self, Error> {
        Ok(match ["json", "csv"].map(|option| setup.options.flag(option)) {
            [true, true] => {
                let reason = "is another form of the trace than the option `json`";
                return Err(Error::Form { option: "csv".to_owned(), reason });
            }
            [true, false] => Self::Json,
            [false, true] => Self::Csv,
            [false, false] => match setup.stream_format() {
                None | Some(Format::Text) => Self::Text,
                Some(Format::Json) => Self::Json,
                Some(Format::Csv) => Self::Csv,
            },
        })
    }

    /// Opens the stream. Tables have a line with the names of their columns, and on standard error,
    /// as those of reports, one with their own name before it.
    pub(super) fn stream(self, setup: &Setup<'_>, files: Files, columns: &str) -> Result<Stream, Error> {
        let name = match self {
            Self::Text => files.text,
            Self::Json => files.json,
            Self::Csv => files.csv,
        };
        let mut stream = setup.stream(name)?;
        if self == Self::Csv {
            let table = setup.stream_format().and_then(|_| files.csv.strip_suffix(".csv"));
            let title = table.map_or(String::new(), |table| format!("# {table}\n"));
            // What is lost is reported by the session.
            let _ = stream.write_all(format!("{title}{columns}\n").as_bytes());
        }
        Ok(stream)
    }

    /// The stream of a monitor whose option `trace` is set.
    pub(super) fn trace(
        self,
        setup: &Setup<'_>,
        files: Files,
        columns: &str,
    ) -> Result<Option<Stream>, Error> {
        if setup.options.flag("trace") {
            return self.stream(setup, files, columns).map(Some);
        }
        match ["json", "csv"].into_iter().find(|option| setup.options.flag(option)) {
            None => Ok(None),
            Some(option) => {
                let reason = "is about the trace: it needs the option `trace`";
                Err(Error::Form { option: option.to_owned(), reason })
            }
        }
    }

    /// A text in a line: in text, without control characters.
    pub(super) fn quoted(self, text: &str) -> Cow<'_, str> {
        match self {
            Self::Text => printable(text),
            Self::Json => serde_json::Value::from(text).to_string().into(),
            Self::Csv if text.contains([',', '"', '\n', '\r']) => {
                format!("\"{}\"", text.replace('"', "\"\"")).into()
            }
            Self::Csv => text.into(),
        }
    }
}
