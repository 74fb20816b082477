//! Options of a script that runs inside a program: what `fastinst run` passes to
//! `libfastinst_script.so`.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::PathBuf;

use crate::error::Error;
use crate::options::{RunId, escape, split};
use crate::output::check_template;

/// The environment variable.
pub const VARIABLE: &str = "FASTINST_SCRIPT";

/// The format of a script's report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScriptFormat {
    /// Tables for people.
    #[default]
    Text,
    /// An object.
    Json,
    /// A header and rows for each table.
    Csv,
}

impl ScriptFormat {
    const NAMES: [(&'static str, Self); 3] = [("text", Self::Text), ("json", Self::Json), ("csv", Self::Csv)];

    /// The format of a file, by its extension: text, unless that is `json` or `csv`.
    #[must_use]
    pub fn of_file(name: &str) -> Self {
        let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
        Self::NAMES.iter().find(|(name, _)| *name == extension).map_or(Self::Text, |(_, format)| *format)
    }

    /// `text`, `json` or `csv`.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, format)| *format == self).map_or("", |(name, _)| *name)
    }

    /// The format with a name.
    ///
    /// # Errors
    /// [`Error::BadValue`].
    pub fn named(name: &str) -> Result<Self, Error> {
        let found = Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, format)| *format);
        let allowed = || "text or json or csv".to_owned();
        found.ok_or_else(|| Error::BadValue { key: "format", value: name.to_owned(), allowed: allowed() })
    }
}

/// What a script is to do in a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptOptions {
    /// The file of the script.
    pub script: PathBuf,
    /// The name of the report's file, with sequences for [`expand`](crate::output::expand);
    /// standard error without it.
    pub output: Option<String>,
    /// The format of the report.
    pub format: ScriptFormat,
    /// The run that the process is part of.
    pub run: RunId,
}

impl ScriptOptions {
    /// Parses the value of [`VARIABLE`].
    ///
    /// # Errors
    /// As [`Options::parse`](crate::options::Options::parse), and [`Error::BadValue`] if there is
    /// no script.
    pub fn from_variable(value: &OsStr) -> Result<Self, Error> {
        let text = value.to_str().ok_or(Error::OptionsNotUtf8)?;
        let (mut script, mut output, mut format, mut run) = (None, None, ScriptFormat::default(), None);
        for item in split(text)? {
            let Some((key, value)) = item.split_once('=') else { return Err(Error::NoValue { item }) };
            match key {
                "script" => script = Some(PathBuf::from(value)),
                "output" => {
                    check_template(value)?;
                    output = Some(value.to_owned());
                }
                "format" => format = ScriptFormat::named(value)?,
                "run" => run = Some(value.parse()?),
                _ => {
                    let allowed = "script, output, format or run".to_owned();
                    return Err(Error::UnknownKey { key: key.to_owned(), allowed });
                }
            }
        }
        let missing = || Error::BadValue {
            key: "script",
            value: String::new(),
            allowed: "the name of a file".to_owned(),
        };
        let script = script.filter(|script| script.is_absolute()).ok_or_else(missing)?;
        Ok(Self { script, output, format, run: run.unwrap_or_else(RunId::begins_here) })
    }

    /// A string that [`ScriptOptions::from_variable`] turns into these options again; `None` if the
    /// name of the script is not UTF-8.
    #[must_use]
    pub fn to_variable(&self) -> Option<String> {
        let mut text = format!("script={}", escape(self.script.to_str()?));
        if let Some(output) = &self.output {
            let _ = write!(text, ":output={}", escape(output));
        }
        let _ = write!(text, ":format={}:run={}", self.format.name(), self.run);
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_survive_the_environment() {
        let run = RunId::begins_here();
        let check = |output: Option<&str>, format| {
            let output = output.map(str::to_owned);
            let options = ScriptOptions { script: "/a:b/c\\d.mm".into(), output, format, run };
            let text = options.to_variable().expect("it is UTF-8");
            assert_eq!(ScriptOptions::from_variable(OsStr::new(&text)).expect("it is valid"), options);
        };
        check(None, ScriptFormat::Text);
        check(Some("/x:y/%e.%p.json"), ScriptFormat::Json);
        check(Some("r.csv"), ScriptFormat::Csv);
    }

    #[test]
    fn mistakes_in_the_variable_are_named() {
        let check = |text: &str, expected: &str| {
            let error = ScriptOptions::from_variable(OsStr::new(text)).expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        };
        check("", "script");
        check("script=relative.mm", "script");
        check("script=/a:colour=red", "colour");
        check("script=/a:format=xml", "format=xml");
        check("script=/a:output=%q", "%q");
        check("script", "script");
    }

    #[test]
    fn the_extension_chooses_the_format() {
        assert_eq!(ScriptFormat::of_file("a.json"), ScriptFormat::Json);
        assert_eq!(ScriptFormat::of_file("a.%p.csv"), ScriptFormat::Csv);
        assert_eq!(ScriptFormat::of_file("json"), ScriptFormat::Text);
    }
}
