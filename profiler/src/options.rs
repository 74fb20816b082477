//! `FASTINST_OPTIONS`: one string of settings, parsed once.
//!
//! The string is a list of `key=value` separated by `:`. In a value, `\:` is a colon and `\\` a backslash. Empty
//! items are skipped, so `"$FASTINST_OPTIONS:samples=50"` works whether or not the variable is set. A key may stand
//! once. Whatever is left out has its default.

use std::ffi::OsStr;
use std::fmt::{Display, Write};
use std::ops::RangeInclusive;
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use crate::error::Error;
use crate::output;
pub use crate::report::Format;

/// The name of the environment variable that holds the options.
pub const VARIABLE: &str = "FASTINST_OPTIONS";

/// Every key in the order of the help text.
const KEYS: [&str; 7] = ["output", "samples", "epoch_ms", "tool", "text", "run", "help"];

/// The settings of one profiled process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Where the report goes. Default: the text table on standard error.
    pub output: Output,
    /// After how many samples a function's probes turn themselves off until the next epoch. Default 10.
    pub samples: u32,
    /// How often all probes are turned on again, a whole number of milliseconds. Default 10 ms.
    pub epoch: Duration,
    /// What runs on the probes. Default: the profiler.
    pub tool: Tool,
    /// How text is written. Default: through a writable alias.
    pub text: TextAccess,
    /// When the run began that this process is part of. Default: when this process was started.
    pub run: Option<SystemTime>,
    /// Whether to print [`HELP`] at start.
    pub help: bool,
}

impl From<TextAccess> for fastinst::TextAccess {
    fn from(access: TextAccess) -> Self {
        match access {
            TextAccess::Alias => Self::Alias,
            TextAccess::Mprotect => Self::Mprotect,
        }
    }
}

/// Where the report goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// The text table on standard error.
    Stderr,
    /// A file.
    File {
        /// Its name, in which `%p`, `%e`, `%h` and `%%` are still to be expanded (see [`crate::output`]).
        template: String,
        /// What is written, from the extension.
        format: Format,
    },
}

/// What runs on the probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    /// The sampling latency profiler.
    Profiler,
    /// Nothing: the program uses the C interface itself.
    None,
}

/// How instructions in executable pages are changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextAccess {
    /// Through a second, writable mapping of the text pages: no page is ever writable and executable.
    Alias,
    /// By making the page writable and executable for the moment of a write, for systems that refuse `memfd_create`.
    Mprotect,
}

/// All keys with unit, default and consequence, and examples; ends with a newline.
pub const HELP: &str = r#"FASTINST_OPTIONS sets up libfastinst.so: key=value, separated by colons.

examples:
  LD_PRELOAD=/path/to/libfastinst.so ./app
      the table of latencies per function goes to stderr when the program ends
  FASTINST_OPTIONS="output=%e.%p.json:samples=50" LD_PRELOAD=/path/to/libfastinst.so ./app
      one report per process, for fastinst report; more samples per function
  FASTINST_OPTIONS="output=C\:/app.txt" LD_PRELOAD=/path/to/libfastinst.so ./app
      a colon in a file name is written \: and a backslash \\

keys:
  output=stderr|FILE   Where the report goes, .txt for the table or .json for the data (default stderr).
                       In FILE, %p is the process id, %e the executable, %h the host and %% a percent sign.
                       A report of another process of the same run is never overwritten: the second one
                       gets its process id before the extension.
  samples=N            Samples of a function after which its probes turn off until the next epoch, 1 to 1000
                       (default 10). More give finer percentiles and slow down functions that are called often.
  epoch_ms=N           Milliseconds from one epoch to the next, 1 to 60000 (default 10). Every epoch turns all
                       probes on again. A shorter one samples more evenly over time and patches code more often.
  tool=profiler|none   What runs on the probes (default profiler). With none, nothing is measured and there is
                       no report; the program toggles its probes itself through fastinst.h.
  text=alias|mprotect  How code is written (default alias). alias writes through a second mapping, so that no page
                       is writable and executable. mprotect makes the page so for the moment of a write; use it
                       where memfd_create is refused.
  run=NANOSECONDS      When the run began, since 1970. The library sets it for the programs that the program starts:
                       reports that are older belong to an earlier run and may be replaced.
  help=0|1             1 prints this text when the program starts (default 0).
"#;

impl Default for Options {
    fn default() -> Options {
        Options {
            output: Output::Stderr,
            samples: 10,
            epoch: Duration::from_millis(10),
            tool: Tool::Profiler,
            text: TextAccess::Alias,
            run: None,
            help: false,
        }
    }
}

impl Options {
    pub(crate) fn budget(&self) -> Option<f64> {
        Some(0.01)
    }

    pub(crate) fn is_exact(&self) -> bool {
        false
    }

    pub(crate) fn wants(&self, _: &std::ffi::CStr, _: &std::ffi::CStr) -> bool {
        true
    }

    /// What `samples` may be.
    pub const SAMPLES: RangeInclusive<u32> = 1..=1000;
    /// What `run` may be, in nanoseconds.
    const RUN: RangeInclusive<u64> = 0..=i64::MAX as u64;
    /// What `epoch_ms` may be, in milliseconds.
    pub const EPOCH_MS: RangeInclusive<u32> = 1..=60_000;

    /// Parses the value of `FASTINST_OPTIONS`. The empty string gives the defaults.
    ///
    /// # Errors
    /// [`Error::UnknownKey`], [`Error::NoValue`], [`Error::BadValue`], [`Error::DuplicateKey`], [`Error::Escape`] and
    /// [`Error::TemplateSequence`] name the first item that is wrong and what would be right.
    pub fn parse(text: &str) -> Result<Options, Error> {
        let mut options = Options::default();
        let mut seen = Vec::new();
        for item in split(text)? {
            let Some((key, value)) = item.split_once('=') else {
                return Err(Error::NoValue { item });
            };
            options.set(key, value)?;
            if seen.iter().any(|earlier| earlier == key) {
                return Err(Error::DuplicateKey { key: key.to_owned() });
            }
            seen.push(key.to_owned());
        }
        Ok(options)
    }

    /// Parses what `std::env::var_os` says about [`VARIABLE`]. Without it, the options are the defaults.
    ///
    /// # Errors
    /// [`Error::OptionsNotUtf8`], and [`Error::OptionsVariable`] around the errors of [`Options::parse`].
    pub fn from_variable(value: Option<&OsStr>) -> Result<Options, Error> {
        let text = value.unwrap_or_default().to_str().ok_or(Error::OptionsNotUtf8)?;
        Options::parse(text).map_err(|error| Error::OptionsVariable { source: Box::new(error) })
    }

    /// The string that [`Options::parse`] turns into these options again. What has its default is left out.
    pub fn to_options_string(&self) -> String {
        let default = Options::default();
        let mut items = Vec::new();
        if let Output::File { template, .. } = &self.output {
            items.push(format!("output={}", escape(template)));
        }
        if self.samples != default.samples {
            items.push(format!("samples={}", self.samples));
        }
        if self.epoch != default.epoch {
            items.push(format!("epoch_ms={}", self.epoch.as_millis()));
        }
        if self.tool != default.tool {
            items.push(format!("tool={}", self.tool.name()));
        }
        if self.text != default.text {
            items.push(format!("text={}", self.text.name()));
        }
        if let Some(since_1970) = self.run.and_then(|run| run.duration_since(SystemTime::UNIX_EPOCH).ok()) {
            items.push(format!("run={}", since_1970.as_nanos()));
        }
        if self.help {
            items.push("help=1".to_owned());
        }
        items.join(":")
    }

    /// Parses a number of samples.
    ///
    /// # Errors
    /// [`Error::BadValue`] if it is no number in [`Options::SAMPLES`].
    pub fn parse_samples(value: &str) -> Result<u32, Error> {
        number("samples", value, Options::SAMPLES)
    }

    /// Parses the length of an epoch in milliseconds.
    ///
    /// # Errors
    /// [`Error::BadValue`] if it is no number in [`Options::EPOCH_MS`].
    pub fn parse_epoch_ms(value: &str) -> Result<Duration, Error> {
        Ok(Duration::from_millis(number("epoch_ms", value, Options::EPOCH_MS)?.into()))
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), Error> {
        match key {
            "output" => self.output = value.parse()?,
            "samples" => self.samples = Options::parse_samples(value)?,
            "epoch_ms" => self.epoch = Options::parse_epoch_ms(value)?,
            "tool" => self.tool = value.parse()?,
            "text" => self.text = value.parse()?,
            "run" => {
                self.run =
                    Some(SystemTime::UNIX_EPOCH + Duration::from_nanos(number("run", value, Options::RUN)?))
            }
            "help" => self.help = choice("help", value, &[("0", false), ("1", true)])?,
            _ => return Err(Error::UnknownKey { key: key.to_owned(), allowed: KEYS.join(", ") }),
        }
        Ok(())
    }
}

impl Output {
    /// The same output, with a relative file name taken from `directory`, so that the program may change its
    /// directory before the report is written.
    ///
    /// # Errors
    /// [`Error::DirectoryName`] if the name is relative and the directory's is not UTF-8.
    pub fn absolute(&self, directory: &Path) -> Result<Output, Error> {
        match self {
            Output::File { template, format } if Path::new(template).is_relative() => {
                let Some(directory) = directory.to_str() else {
                    return Err(Error::DirectoryName { directory: directory.to_owned() });
                };
                let directory = directory.trim_end_matches('/').replace('%', "%%");
                Ok(Output::File { template: format!("{directory}/{template}"), format: *format })
            }
            _ => Ok(self.clone()),
        }
    }
}

impl FromStr for Output {
    type Err = Error;

    /// `stderr`, or a file name that ends in `.txt` or `.json`.
    fn from_str(value: &str) -> Result<Output, Error> {
        if value == "stderr" {
            return Ok(Output::Stderr);
        }
        let Some(format) = Format::of_file_name(value) else {
            return Err(Error::BadValue {
                key: "output",
                value: value.to_owned(),
                allowed: r"stderr or a file name that ends in .txt or .json (a colon in it is written `\:`)"
                    .to_owned(),
            });
        };
        output::check_template(value)?;
        Ok(Output::File { template: value.to_owned(), format })
    }
}

impl Tool {
    const NAMES: [(&'static str, Tool); 2] = [("profiler", Tool::Profiler), ("none", Tool::None)];

    fn name(self) -> &'static str {
        name_of(self, &Tool::NAMES)
    }
}

impl FromStr for Tool {
    type Err = Error;

    fn from_str(value: &str) -> Result<Tool, Error> {
        choice("tool", value, &Tool::NAMES)
    }
}

impl TextAccess {
    const NAMES: [(&'static str, TextAccess); 2] =
        [("alias", TextAccess::Alias), ("mprotect", TextAccess::Mprotect)];

    fn name(self) -> &'static str {
        name_of(self, &TextAccess::NAMES)
    }
}

impl FromStr for TextAccess {
    type Err = Error;

    fn from_str(value: &str) -> Result<TextAccess, Error> {
        choice("text", value, &TextAccess::NAMES)
    }
}

/// The items that are not empty, with their escapes undone.
fn split(text: &str) -> Result<Vec<String>, Error> {
    let mut items = vec![String::new()];
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        let last = items.len() - 1;
        match character {
            ':' => items.push(String::new()),
            '\\' => match characters.next() {
                Some(escaped @ (':' | '\\')) => items[last].push(escaped),
                _ => return Err(Error::Escape { text: text.to_owned() }),
            },
            _ => items[last].push(character),
        }
    }
    items.retain(|item| !item.is_empty());
    Ok(items)
}

/// The inverse of what [`split`] does to one value.
fn escape(value: &str) -> String {
    value.replace('\\', r"\\").replace(':', r"\:")
}

fn number<N: FromStr + PartialOrd + Display>(
    key: &'static str,
    value: &str,
    range: RangeInclusive<N>,
) -> Result<N, Error> {
    value.parse().ok().filter(|number| range.contains(number)).ok_or_else(|| Error::BadValue {
        key,
        value: value.to_owned(),
        allowed: format!("a number from {} to {}", range.start(), range.end()),
    })
}

fn choice<T: Copy>(key: &'static str, value: &str, names: &[(&str, T)]) -> Result<T, Error> {
    if let Some((_, chosen)) = names.iter().find(|(name, _)| *name == value) {
        return Ok(*chosen);
    }
    let mut allowed = String::new();
    for (index, (name, _)) in names.iter().enumerate() {
        let separator = if index == 0 { "" } else { " or " };
        let _ = write!(allowed, "{separator}{name}");
    }
    Err(Error::BadValue { key, value: value.to_owned(), allowed })
}

fn name_of<T: PartialEq + Copy>(value: T, names: &[(&'static str, T)]) -> &'static str {
    names.iter().find(|(_, named)| *named == value).map_or("", |(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(template: &str, format: Format) -> Output {
        Output::File { template: template.to_owned(), format }
    }

    #[test]
    fn strings_become_options_and_options_strings() {
        #[track_caller]
        fn check(text: &str, expected: Options, canonical: &str) {
            let options = Options::parse(text).unwrap();
            assert_eq!(options, expected, "{text}");
            assert_eq!(options.to_options_string(), canonical, "{text}");
            assert_eq!(Options::parse(canonical).unwrap(), expected, "{canonical}");
        }
        let default = Options::default;
        check("", default(), "");
        check("::", default(), "");
        check("output=stderr:samples=10:epoch_ms=10:tool=profiler:text=alias:help=0", default(), "");
        check("samples=1000", Options { samples: 1000, ..default() }, "samples=1000");
        check(":epoch_ms=1:", Options { epoch: Duration::from_millis(1), ..default() }, "epoch_ms=1");
        check(
            "epoch_ms=60000:samples=1",
            Options { epoch: Duration::from_secs(60), samples: 1, ..default() },
            "samples=1:epoch_ms=60000",
        );
        let run = Some(SystemTime::UNIX_EPOCH + Duration::from_nanos(1_700_000_000_000_000_001));
        check("run=1700000000000000001", Options { run, ..default() }, "run=1700000000000000001");
        check("tool=none", Options { tool: Tool::None, ..default() }, "tool=none");
        check(
            "text=mprotect:help=1",
            Options { text: TextAccess::Mprotect, help: true, ..default() },
            "text=mprotect:help=1",
        );
        check(
            "output=%e.%p.json",
            Options { output: file("%e.%p.json", Format::Json), ..default() },
            "output=%e.%p.json",
        );
        check(
            "output=a=b.txt",
            Options { output: file("a=b.txt", Format::Text), ..default() },
            "output=a=b.txt",
        );
        check(
            r"samples=2:output=/run\:1/a\\b.txt",
            Options { samples: 2, output: file(r"/run:1/a\b.txt", Format::Text), ..default() },
            r"output=/run\:1/a\\b.txt:samples=2",
        );
    }

    #[test]
    fn every_mistake_is_named_in_one_line() {
        #[track_caller]
        fn check(text: &str, expected: &str) {
            let message = Options::parse(text).unwrap_err().to_string();
            assert_eq!(message, expected, "{text}");
        }
        check(
            "sampels=3",
            "unknown option `sampels`; the options are output, samples, epoch_ms, tool, text, run, help",
        );
        check("samples", "option `samples` has no value; write key=value");
        check("samples=", "samples=: expected a number from 1 to 1000");
        check("samples=0", "samples=0: expected a number from 1 to 1000");
        check("samples=1001", "samples=1001: expected a number from 1 to 1000");
        check("epoch_ms=10ms", "epoch_ms=10ms: expected a number from 1 to 60000");
        check(
            "epoch_ms=99999999999999999999",
            "epoch_ms=99999999999999999999: expected a number from 1 to 60000",
        );
        check("tool=gprof", "tool=gprof: expected profiler or none");
        check("text=Alias", "text=Alias: expected alias or mprotect");
        check("help=yes", "help=yes: expected 0 or 1");
        check("samples=3:tool=none:samples=3", "option `samples` is given twice; leave one");
        check(
            "output=a.csv",
            r"output=a.csv: expected stderr or a file name that ends in .txt or .json (a colon in it is written `\:`)",
        );
        check(
            "output=",
            r"output=: expected stderr or a file name that ends in .txt or .json (a colon in it is written `\:`)",
        );
        check(
            "output=%x.txt",
            "output=%x.txt: `%x` is no sequence; use %p (pid), %e (executable), %h (host) or %%",
        );
        check(
            r"output=a\b.txt",
            r"option text `output=a\b.txt`: a backslash stands only before `:` or `\`; write `\\` for a backslash",
        );
        check(
            r"tool=none\",
            r"option text `tool=none\`: a backslash stands only before `:` or `\`; write `\\` for a backslash",
        );
    }

    #[test]
    fn a_relative_output_follows_the_directory_it_was_named_in() {
        #[track_caller]
        fn check(output: &str, directory: &str, expected: &str) {
            let expected: Output = expected.parse().unwrap();
            let output: Output = output.parse().unwrap();
            assert_eq!(output.absolute(Path::new(directory)).unwrap(), expected);
        }
        check("stderr", "/work", "stderr");
        check("r.json", "/srv", "/srv/r.json");
        check("../%p.txt", "/", "/../%p.txt");
        check("/r.json", "/work", "/r.json");
        check("%e.json", "/100%", "/100%%/%e.json");
    }

    #[test]
    fn the_help_names_every_key_and_fits_120_columns() {
        for key in KEYS {
            assert!(HELP.contains(&format!("\n  {key}=")), "{key}");
        }
        assert!(HELP.lines().all(|line| line.len() <= 120));
    }
}
