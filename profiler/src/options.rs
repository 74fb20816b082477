//! `FASTINST_OPTIONS`: one string of settings, parsed once.
//!
//! The string is a list of `key=value` items separated by `:`. In a value, `\:` is a colon and `\\`
//! a backslash. Empty items are skipped, so `"$FASTINST_OPTIONS:budget=5%"` works whether or not
//! the variable is set. Each key may occur once. Omitted keys have their defaults.

use std::ffi::OsStr;
use std::fmt::{self, Display, Write};
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use crate::error::Error;
use crate::filter::Patterns;
use crate::output;
pub use crate::report::Format;
pub use crate::session::snapshot::Snapshot;
use crate::settings::Settings;

/// The name of the environment variable that holds the options.
pub const VARIABLE: &str = "FASTINST_OPTIONS";

/// Every key, in the order of the help text.
const KEYS: [&str; 14] = [
    "output",
    "merge",
    "snapshot",
    "budget",
    "counts",
    "stacks",
    "only",
    "skip",
    "tool",
    "discovery",
    "text",
    "run",
    "begun",
    "help",
];

/// The settings of one profiled process.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// The destination of the report. Default: the text table on standard error.
    pub output: Output,
    /// Whether all processes of a run share one report. Default: each has its own.
    pub merge: bool,
    /// When reports are written while the program runs. Default: never.
    pub snapshot: Option<Snapshot>,
    /// What is measured, and what it may cost; can be changed later.
    pub settings: Settings,
    /// Whether the kernel samples stacks, which gives the times of functions that are called often.
    /// Default: yes.
    pub stacks: bool,
    /// What uses the probes. Default: the profiler.
    pub tool: Tool,
    /// How text is written. Default: through a writable alias.
    pub text: TextAccess,
    /// When probes are made. Default: depends on the size of the program.
    pub discovery: Discovery,
    /// The run to which this process belongs. Default: one that begins with this process.
    pub run: Option<RunId>,
    /// Whether the first process of the run has been started. Set by that process for later ones.
    pub begun: bool,
    /// Whether to print [`HELP`] at start.
    pub help: bool,
}

impl From<TextAccess> for fastinst::TextAccess {
    fn from(access: TextAccess) -> Self {
        match access {
            TextAccess::Alias => Self::Alias,
            TextAccess::Mprotect => Self::Mprotect,
            TextAccess::Private => Self::Private,
        }
    }
}

/// The destination of the report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// The text table on standard error.
    Stderr,
    /// A file.
    File {
        /// The file name, with `%p`, `%e`, `%h` and `%%` not yet expanded (see [`crate::output`]).
        template: String,
        /// The format, determined by the file name extension.
        format: Format,
    },
}

/// The maximum cost of profiling, in processor time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Budget {
    /// A fraction of the program's own processor time: 0.01 is 1 %. Above 0, at most 1.
    Fraction(f64),
    /// No limit: every call is counted and timed, as with [`Counts::Exact`].
    Unlimited,
}

/// How calls are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counts {
    /// In windows at random instants; calls to rarely called functions are counted all the time.
    Sampled,
    /// All calls are counted.
    Exact,
}

/// Identifies a run: a process and its descendants. Processes of one run do not overwrite each
/// other's reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunId {
    /// The time at which the run began. Older reports of other runs may be replaced.
    pub started: SystemTime,
    /// The process id of the first process of the run.
    pub pid: u32,
}

/// What uses the probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    /// The sampling latency profiler.
    Profiler,
    /// None: the program uses the C interface itself.
    None,
}

/// When probes are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Discovery {
    /// At the start, unless the program has very many functions.
    Auto,
    /// At the start, for all functions.
    Eager,
    /// When a function is first executed, for that function.
    Lazy,
}

/// How instructions in executable pages are changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextAccess {
    /// Through a second, writable mapping of the text pages, which are mapped shared: no page is
    /// ever writable and executable, and a debugger cannot set breakpoints.
    Alias,
    /// By making the page writable and executable during a write, for systems that refuse
    /// `memfd_create`.
    Mprotect,
    /// Through a second mapping as with `Alias`, but the text is mapped privately, so that a
    /// debugger can set breakpoints.
    Private,
}

/// The help text: all keys with unit, default and effect, and examples; ends with a newline.
pub const HELP: &str = r#"FASTINST_OPTIONS sets up libfastinst.so: key=value, separated by colons.

examples:
  LD_PRELOAD=/path/to/libfastinst.so ./app
      the table of latencies per function goes to stderr when the program ends
  FASTINST_OPTIONS="output=%e.%p.json:budget=5%" LD_PRELOAD=/path/to/libfastinst.so ./app
      one report per process, for fastinst report; more windows, so narrower intervals
  FASTINST_OPTIONS="only=Tree\:\:*,object\:libz.so*:skip=*::size" LD_PRELOAD=/path/to/libfastinst.so ./app
      the methods of Tree and all of libz, except functions named size
  FASTINST_OPTIONS="output=server.json:snapshot=USR1" LD_PRELOAD=/path/to/libfastinst.so ./server
      kill -USR1 PID writes the report of the running server
  FASTINST_OPTIONS="output=C\:/app.txt" LD_PRELOAD=/path/to/libfastinst.so ./app
      a colon in a file name is written \: and a backslash \\

keys:
  output=stderr|FILE   Where the report goes, .txt for the table or .json for the data (default stderr).
                       In FILE, %p is the process id, %e the executable, %h the host and %% a percent sign.
                       A report of another process of the same run is never overwritten: the second one
                       gets its process id before the extension.
  merge=0|1            1 makes one report for all processes of a run, in FILE.json: each adds its own when it ends
                       (default 0: a report for each).
  snapshot=SIGNAL|TIME Also writes the report while the program runs: when the process gets the signal (USR1, USR2,
                       HUP or QUIT), or at an interval such as 30s, 5m or 1h. Each report covers the time since the
                       start, and replaces the one before.
  budget=N%|none       What profiling may cost, in percent of the program's own processor time: more than 0, at most
                       100 (default 1%). A larger budget narrows the intervals. With none there is no limit, and every
                       call is counted and timed (counts=exact).
  counts=sampled|exact How calls are counted (default sampled: in windows at random instants; functions that are
                       called rarely, all the time). exact counts and times every call, independently of the budget:
                       some 140 ns of processor time for each.
  stacks=0|1           0 takes no samples of stacks (default 1), which need perf_event_open and lock 516 KiB of memory
                       for each processor. Without them, total and self times of functions that are called often
                       have no upper limit in short runs.
  only=PATTERN,...     Functions to measure (default all). PATTERN is a name, object:NAME or file:NAME, in which *
                       matches any text and ? any character. A function's name is matched mangled, demangled, and
                       demangled without parameters; object is its executable or library, file its source file.
                       A NAME with a slash matches the end of the path, from any slash on; one without, its last part.
                       A comma in a name is written ?, and colons here as \: (but not on the command line).
  skip=PATTERN,...     Functions not to measure, even if only= includes them. They get no probes and cost least.
  tool=profiler|none   What uses the probes (default profiler). With none, nothing is measured and there is
                       no report; the program toggles its probes itself through fastinst.h.
  discovery=auto|eager|lazy
                       When probes are made (default auto). eager makes all of them at the start: some 2 us for each,
                       and every call from the first on is observed. lazy makes those of a function when it is first
                       executed: earlier calls are counted, not timed, so main and other functions that are
                       called once have no latency. auto is eager for programs of up to 8000 functions.
  text=private|alias|mprotect
                       How code is written (default private). private writes through a second mapping, so that no page
                       is writable and executable, except during a write to one in which a debugger has set a
                       breakpoint. With alias no page ever is, and no debugger can set breakpoints in instrumented
                       functions. mprotect makes the page both during each write; use it if memfd_create is refused.
  run=NANOSECONDS.PID  The run: when it began, since 1970, and its first process. fastinst record and the library set
                       it, for all programs that the program starts. Reports of older runs are replaced.
  begun=0|1            1 means that the run has its first process, which is the one that says why there is nothing to
                       report (default 0). The library sets it, for all programs that the program starts.
  help=0|1             1 prints this text when the program starts (default 0).
"#;

impl Default for Options {
    fn default() -> Options {
        Options {
            output: Output::Stderr,
            merge: false,
            snapshot: None,
            settings: Settings::default(),
            stacks: true,
            tool: Tool::Profiler,
            text: TextAccess::Private,
            discovery: Discovery::Auto,
            run: None,
            begun: false,
            help: false,
        }
    }
}

impl Options {
    /// Parses the value of `FASTINST_OPTIONS`. The empty string gives the defaults.
    ///
    /// # Errors
    /// [`Error::UnknownKey`], [`Error::NoValue`], [`Error::BadValue`], [`Error::DuplicateKey`],
    /// [`Error::Escape`] or [`Error::TemplateSequence`], with the first invalid item and the valid
    /// form.
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
        options.check()?;
        Ok(options)
    }

    /// Parses the result of `std::env::var_os` for [`VARIABLE`]. If the variable is not set, the
    /// options are the defaults.
    ///
    /// # Errors
    /// [`Error::OptionsNotUtf8`], or [`Error::OptionsVariable`] around the errors of
    /// [`Options::parse`].
    pub fn from_variable(value: Option<&OsStr>) -> Result<Options, Error> {
        let text = value.unwrap_or_default().to_str().ok_or(Error::OptionsNotUtf8)?;
        Options::parse(text).map_err(|error| Error::OptionsVariable { source: Box::new(error) })
    }

    /// A string from which [`Options::parse`] gets the same options. Defaults are omitted.
    pub fn to_options_string(&self) -> String {
        let default = Options::default();
        let mut items = Vec::new();
        if let Output::File { template, .. } = &self.output {
            items.push(format!("output={}", escape(template)));
        }
        if self.merge {
            items.push("merge=1".to_owned());
        }
        items.extend(self.snapshot.map(|snapshot| format!("snapshot={snapshot}")));
        items.extend(self.settings.to_items());
        if !self.stacks {
            items.push("stacks=0".to_owned());
        }
        if self.tool != default.tool {
            items.push(format!("tool={}", self.tool.name()));
        }
        if self.text != default.text {
            items.push(format!("text={}", self.text.name()));
        }
        if self.discovery != default.discovery {
            items.push(format!("discovery={}", self.discovery.name()));
        }
        if let Some(run) = self.run {
            items.push(format!("run={run}"));
        }
        if self.begun {
            items.push("begun=1".to_owned());
        }
        if self.help {
            items.push("help=1".to_owned());
        }
        items.join(":")
    }

    /// Checks combinations of options.
    ///
    /// # Errors
    /// [`Error::MergeWithoutData`] if reports that are not JSON files are to be merged;
    /// [`Error::MergeOfSnapshots`] if reports of programs that still run are.
    pub fn check(&self) -> Result<(), Error> {
        match self.output {
            _ if self.merge && self.snapshot.is_some() => Err(Error::MergeOfSnapshots),
            Output::File { format: Format::Json, .. } => Ok(()),
            _ if self.merge => Err(Error::MergeWithoutData),
            _ => Ok(()),
        }
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), Error> {
        match key {
            "output" => self.output = value.parse()?,
            "merge" => self.merge = choice("merge", value, &[("0", false), ("1", true)])?,
            "snapshot" => self.snapshot = Some(value.parse()?),
            "budget" => self.settings.budget = value.parse()?,
            "counts" => self.settings.counts = value.parse()?,
            "stacks" => self.stacks = choice("stacks", value, &[("0", false), ("1", true)])?,
            "only" => self.settings.filter.only = Patterns::parse("only", value)?,
            "skip" => self.settings.filter.skip = Patterns::parse("skip", value)?,
            "tool" => self.tool = value.parse()?,
            "text" => self.text = value.parse()?,
            "discovery" => self.discovery = value.parse()?,
            "run" => self.run = Some(value.parse()?),
            "begun" => self.begun = choice("begun", value, &[("0", false), ("1", true)])?,
            "help" => self.help = choice("help", value, &[("0", false), ("1", true)])?,
            _ => return Err(Error::UnknownKey { key: key.to_owned(), allowed: KEYS.join(", ") }),
        }
        Ok(())
    }
}

impl Output {
    /// The same output, with a relative file name resolved against `directory`, because the program
    /// may change its directory before the report is written.
    ///
    /// # Errors
    /// [`Error::DirectoryName`] if the name is relative and the directory's name is not UTF-8.
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

impl Budget {
    /// The budget as a fraction of the program's own processor time; `None` without a limit.
    #[must_use]
    pub fn fraction(self) -> Option<f64> {
        match self {
            Budget::Fraction(fraction) => Some(fraction),
            Budget::Unlimited => None,
        }
    }
}

impl Display for Budget {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Rounded, because 0.07 * 100 is not 7.
            Budget::Fraction(fraction) => write!(formatter, "{}%", (fraction * 1e8).round() / 1e6),
            Budget::Unlimited => formatter.write_str("none"),
        }
    }
}

impl FromStr for Budget {
    type Err = Error;

    /// A percentage such as `1%`, or `none`.
    fn from_str(value: &str) -> Result<Budget, Error> {
        if value == "none" {
            return Ok(Budget::Unlimited);
        }
        let percent = value.strip_suffix('%').and_then(|number| number.parse().ok());
        // The minimum is the precision of the written form.
        match percent.filter(|percent: &f64| (1e-6..=100.0).contains(percent)) {
            Some(percent) => Ok(Budget::Fraction(percent / 100.0)),
            None => Err(Error::BadValue {
                key: "budget",
                value: value.to_owned(),
                allowed: "a percentage above 0% and up to 100%, such as 1%, or none".to_owned(),
            }),
        }
    }
}

impl Counts {
    const NAMES: [(&'static str, Counts); 2] = [("sampled", Counts::Sampled), ("exact", Counts::Exact)];

    pub(crate) fn name(self) -> &'static str {
        name_of(self, &Counts::NAMES)
    }
}

impl FromStr for Counts {
    type Err = Error;

    fn from_str(value: &str) -> Result<Counts, Error> {
        choice("counts", value, &Counts::NAMES)
    }
}

impl RunId {
    /// A run that begins now, with this process.
    #[must_use]
    pub fn begins_here() -> RunId {
        // With nanosecond precision, as it is written.
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        RunId { started: SystemTime::UNIX_EPOCH + since_1970, pid: std::process::id() }
    }
}

impl Display for RunId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since_1970 = self.started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        write!(formatter, "{}.{}", since_1970.as_nanos(), self.pid)
    }
}

impl FromStr for RunId {
    type Err = Error;

    fn from_str(value: &str) -> Result<RunId, Error> {
        let parse = || {
            let (nanoseconds, pid) = value.split_once('.')?;
            let nanoseconds = nanoseconds.parse().ok().filter(|number| *number <= i64::MAX as u64)?;
            let started = SystemTime::UNIX_EPOCH + Duration::from_nanos(nanoseconds);
            Some(RunId { started, pid: pid.parse().ok()? })
        };
        parse().ok_or_else(|| Error::BadValue {
            key: "run",
            value: value.to_owned(),
            allowed: "NANOSECONDS.PID, as fastinst record sets it".to_owned(),
        })
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

impl Discovery {
    const NAMES: [(&'static str, Discovery); 3] =
        [("auto", Discovery::Auto), ("eager", Discovery::Eager), ("lazy", Discovery::Lazy)];

    fn name(self) -> &'static str {
        name_of(self, &Discovery::NAMES)
    }
}

impl FromStr for Discovery {
    type Err = Error;

    fn from_str(value: &str) -> Result<Discovery, Error> {
        choice("discovery", value, &Discovery::NAMES)
    }
}

impl TextAccess {
    const NAMES: [(&'static str, TextAccess); 3] =
        [("private", TextAccess::Private), ("alias", TextAccess::Alias), ("mprotect", TextAccess::Mprotect)];

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

/// The non-empty items, unescaped.
pub(crate) fn split(text: &str) -> Result<Vec<String>, Error> {
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

/// The inverse of unescaping in [`split`].
pub(crate) fn escape(value: &str) -> String {
    value.replace('\\', r"\\").replace(':', r"\:")
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
    use crate::filter::Filter;

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
        let with = |settings: Settings| Options { settings, ..Options::default() };
        let usual = Settings::default;
        check("", default(), "");
        check("::", default(), "");
        check(
            "output=stderr:merge=0:budget=1%:counts=sampled:tool=profiler:text=private:help=0",
            default(),
            "",
        );
        check(
            "budget=0.070%",
            with(Settings { budget: Budget::Fraction(0.07 / 100.0), ..usual() }),
            "budget=0.07%",
        );
        check(":budget=100%:", with(Settings { budget: Budget::Fraction(1.0), ..usual() }), "budget=100%");
        check(
            "counts=exact:budget=none",
            with(Settings { budget: Budget::Unlimited, counts: Counts::Exact, ..usual() }),
            "budget=none:counts=exact",
        );
        let patterns = |text: &str| Patterns::parse("only", text).unwrap();
        let filter = Filter { only: patterns("A::f*,object:libz*"), skip: patterns("file:a.c") };
        check(
            r"skip=file\:a.c:only=A\:\:f*,object\:libz*",
            with(Settings { filter, ..usual() }),
            r"only=A\:\:f*,object\:libz*:skip=file\:a.c",
        );
        let started = SystemTime::UNIX_EPOCH + Duration::from_nanos(1_700_000_000_000_000_001);
        let run = Some(RunId { started, pid: 42 });
        check("run=1700000000000000001.42", Options { run, ..default() }, "run=1700000000000000001.42");
        check(
            "merge=1:output=a.json",
            Options { merge: true, output: file("a.json", Format::Json), ..default() },
            "output=a.json:merge=1",
        );
        check("begun=1:merge=0", Options { begun: true, ..default() }, "begun=1");
        check("stacks=0:tool=profiler", Options { stacks: false, ..default() }, "stacks=0");
        check("stacks=1", default(), "");
        check("tool=none", Options { tool: Tool::None, ..default() }, "tool=none");
        check(
            "text=mprotect:discovery=lazy:help=1",
            Options { text: TextAccess::Mprotect, discovery: Discovery::Lazy, help: true, ..default() },
            "text=mprotect:discovery=lazy:help=1",
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
            r"help=1:output=/run\:1/a\\b.txt",
            Options { help: true, output: file(r"/run:1/a\b.txt", Format::Text), ..default() },
            r"output=/run\:1/a\\b.txt:help=1",
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
            "bugdet=3%",
            "unknown option `bugdet`; the options are output, merge, snapshot, budget, counts, stacks, only, skip, tool, discovery, \
             text, run, begun, help",
        );
        check(
            "output=a.json:merge=1:snapshot=5m",
            "snapshot= and merge=1 exclude each other: each process needs a report of its own",
        );
        check("budget", "option `budget` has no value; write key=value, and a colon in a value as `\\:`");
        const BUDGET: &str = "expected a percentage above 0% and up to 100%, such as 1%, or none";
        for value in ["", "%", "1", "0%", "-1%", "100.1%", "inf%", "NaN%", "1e-9%", "None"] {
            check(&format!("budget={value}"), &format!("budget={value}: {BUDGET}"));
        }
        check("counts=all", "counts=all: expected sampled or exact");
        const MERGE: &str = "merge=1 needs a report that can be read again: name it with output=FILE.json";
        check("merge=1", MERGE);
        check("merge=1:output=a.txt", MERGE);
        check(
            "only=a,",
            "only=a,: expected patterns separated by commas: NAME, object:NAME or file:NAME, with * and ?",
        );
        check("run=17", "run=17: expected NANOSECONDS.PID, as fastinst record sets it");
        check("tool=gprof", "tool=gprof: expected profiler or none");
        check("text=Alias", "text=Alias: expected private or alias or mprotect");
        check("help=yes", "help=yes: expected 0 or 1");
        check("help=1:tool=none:help=1", "option `help` is given twice; leave one");
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
            "output=%x.txt: `%x` is not a valid sequence; use %p (pid), %e (executable), %h (host) or %%",
        );
        check(
            r"output=a\b.txt",
            r"option text `output=a\b.txt`: a backslash may only precede `:` or `\`; write `\\` for a backslash",
        );
        check(
            r"tool=none\",
            r"option text `tool=none\`: a backslash may only precede `:` or `\`; write `\\` for a backslash",
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
