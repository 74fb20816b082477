//! Options of scripts that run inside a program, which `fastinst run` passes to
//! `libfastinst_script.so`.

pub mod attach;

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::options::{RunId, escape, split};
use crate::output::check_template;

/// The name of the environment variable.
pub const VARIABLE: &str = "FASTINST_SCRIPT";

/// The format of a script's report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScriptFormat {
    /// Human-readable tables.
    #[default]
    Text,
    /// A JSON object.
    Json,
    /// Comma-separated values: a header and rows for each table.
    Csv,
    /// Maps by call stack, one line for each stack.
    Folded,
}

impl ScriptFormat {
    const NAMES: [(&'static str, Self); 4] =
        [("text", Self::Text), ("json", Self::Json), ("csv", Self::Csv), ("folded", Self::Folded)];

    /// The format for a file name, by its ending: `.txt`, `.json`, `.csv` or `.folded`; text if the
    /// name has none.
    ///
    /// # Errors
    /// [`Error::BadValue`]: another ending.
    pub fn of_file(name: &str) -> Result<Self, Error> {
        match Path::new(name).extension().map(|ending| ending.to_string_lossy()).as_deref() {
            None | Some("txt") => Ok(Self::Text),
            Some("json") => Ok(Self::Json),
            Some("csv") => Ok(Self::Csv),
            Some("folded") => Ok(Self::Folded),
            Some(_) => {
                let allowed = "a file name that ends in .txt, .json, .csv or .folded; or state the format: \
                               --format text";
                Err(Error::BadValue { key: "output", value: name.to_owned(), allowed: allowed.to_owned() })
            }
        }
    }

    /// The name of the format: `text`, `json`, `csv` or `folded`.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, format)| *format == self).map_or("", |(name, _)| *name)
    }

    /// The format with this name.
    ///
    /// # Errors
    /// [`Error::BadValue`].
    pub fn named(name: &str) -> Result<Self, Error> {
        let found = Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, format)| *format);
        let allowed = || "text or json or csv or folded".to_owned();
        found.ok_or_else(|| Error::BadValue { key: "format", value: name.to_owned(), allowed: allowed() })
    }
}

/// The options for observing a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptOptions {
    /// The file of a script that observes from the start.
    pub script: Option<PathBuf>,
    /// Whether other processes may [`attach`] scripts.
    pub control: bool,
    /// Whether the script is off at first and toggled by SIGUSR2.
    pub toggle: bool,
    /// The name of the report's file, with sequences for [`expand`](crate::output::expand); `None`
    /// for standard error.
    pub output: Option<String>,
    /// The format of the report.
    pub format: ScriptFormat,
    /// The run to which the process belongs.
    pub run: RunId,
}

impl ScriptOptions {
    /// Parses the value of [`VARIABLE`].
    ///
    /// # Errors
    /// As [`Options::parse`](crate::options::Options::parse); [`Error::BadValue`] if there is no
    /// script and none can be attached, or if there is none to toggle.
    pub fn from_variable(value: &OsStr) -> Result<Self, Error> {
        let text = value.to_str().ok_or(Error::OptionsNotUtf8)?;
        let flag = |key: &'static str, value: &str| match value {
            "0" => Ok(false),
            "1" => Ok(true),
            _ => Err(Error::BadValue { key, value: value.to_owned(), allowed: "0 or 1".to_owned() }),
        };
        let (mut script, mut control, mut toggle) = (None, false, false);
        let (mut output, mut format, mut run) = (None, ScriptFormat::default(), None);
        for item in split(text)? {
            let Some((key, value)) = item.split_once('=') else { return Err(Error::NoValue { item }) };
            match key {
                "script" => script = Some(PathBuf::from(value)),
                "control" => control = flag("control", value)?,
                "toggle" => toggle = flag("toggle", value)?,
                "output" => {
                    check_template(value)?;
                    output = Some(value.to_owned());
                }
                "format" => format = ScriptFormat::named(value)?,
                "run" => run = Some(value.parse()?),
                _ => {
                    let allowed = "script, control, toggle, output, format or run".to_owned();
                    return Err(Error::UnknownKey { key: key.to_owned(), allowed });
                }
            }
        }
        if !script.as_ref().map_or(control, |script| script.is_absolute()) {
            let value = script.unwrap_or_default().display().to_string();
            let allowed = "the absolute name of a file; or control=1 without a script".to_owned();
            return Err(Error::BadValue { key: "script", value, allowed });
        }
        if toggle && script.is_none() {
            let allowed = "0, or 1 with a script".to_owned();
            return Err(Error::BadValue { key: "toggle", value: "1".to_owned(), allowed });
        }
        Ok(Self { script, control, toggle, output, format, run: run.unwrap_or_else(RunId::begins_here) })
    }

    /// A string from which [`ScriptOptions::from_variable`] gets the same options; `None` if the
    /// name of the script is not UTF-8.
    #[must_use]
    pub fn to_variable(&self) -> Option<String> {
        let mut text = format!("format={}:run={}", self.format.name(), self.run);
        if let Some(script) = &self.script {
            let _ = write!(text, ":script={}", escape(script.to_str()?));
        }
        if self.control {
            text += ":control=1";
        }
        if self.toggle {
            text += ":toggle=1";
        }
        if let Some(output) = &self.output {
            let _ = write!(text, ":output={}", escape(output));
        }
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_survive_the_environment() {
        let run = RunId::begins_here();
        let check = |script: Option<&str>, [control, toggle]: [bool; 2], output: Option<&str>, format| {
            let (script, output) = (script.map(PathBuf::from), output.map(str::to_owned));
            let options = ScriptOptions { script, control, toggle, output, format, run };
            let text = options.to_variable().expect("it is UTF-8");
            assert_eq!(ScriptOptions::from_variable(OsStr::new(&text)).expect("it is valid"), options);
        };
        let script = Some("/a:b/c\\d.mm");
        check(script, [false, true], None, ScriptFormat::Text);
        check(script, [true, false], Some("/x:y/%e.%p.json"), ScriptFormat::Json);
        check(None, [true, false], Some("r.csv"), ScriptFormat::Csv);
    }

    #[test]
    fn mistakes_in_the_variable_are_named() {
        let check = |text: &str, expected: &str| {
            let error = ScriptOptions::from_variable(OsStr::new(text)).expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        };
        check("", "script");
        check("control=0", "script");
        check("control=yes:script=/a", "control=yes");
        check("toggle=2:script=/a", "toggle=2");
        check("toggle=1:control=1", "toggle=1");
        check("script=relative.mm", "script");
        check("control=1:script=relative.mm", "script=relative.mm");
        check("script=/a:colour=red", "colour");
        check("script=/a:format=xml", "format=xml");
        check("script=/a:output=%q", "%q");
        check("script", "script");
    }

    #[test]
    fn the_extension_chooses_the_format() {
        let check =
            |name: &str, expected| assert_eq!(ScriptFormat::of_file(name).unwrap(), expected, "{name}");
        check("a.json", ScriptFormat::Json);
        check("a.%p.csv", ScriptFormat::Csv);
        check("a.folded", ScriptFormat::Folded);
        check("a.txt", ScriptFormat::Text);
        check("/dir.xml/json", ScriptFormat::Text);
        let error = ScriptFormat::of_file("c.xml").unwrap_err().to_string();
        assert!(error.contains("output=c.xml: expected a file name that ends in .txt, .json"), "{error}");
    }
}
