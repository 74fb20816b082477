//! [`Monitor`]: an analysis of a program.

use std::any::Any;
use std::fmt;

use wasm_jit::probes::{Probe, ProbeError, ProbeSpec, activate_all, deactivate_all};
use wasm_jit::{FunctionInfo, Module, printable};
use wildmatch::WildMatch;

use crate::names::Names;
use crate::options::COMMON;
use crate::output::{Format, NewFiles, Stream};
use crate::{Error, OptionInfo, Options, Output, Program, Report};

/// An analysis of a module that runs, or may run.
///
/// All of its methods may be called while threads run the program. It lives in a
/// [`Session`](crate::Session), and may therefore own the module and its probes; closures of its
/// probes must not ([`Callback`](wasm_jit::probes::Callback)).
pub trait Monitor: Send + Sync {
    /// Activates the monitor; does nothing if it is on.
    ///
    /// # Errors
    /// As [`Probe::activate`].
    fn activate(&self) -> Result<(), Error>;

    /// Deactivates the monitor; does nothing if it is off. The monitor keeps its observations.
    ///
    /// # Errors
    /// As [`Probe::deactivate`].
    fn deactivate(&self) -> Result<(), Error>;

    /// Adds the observations so far to `report`.
    fn report(&self, program: &Program<'_>, report: &mut Report);

    /// The name of the monitor's report, if it differs from the monitor's name.
    fn report_name(&self) -> Option<&str> {
        None
    }

    /// Whether the monitor's report is among those of all monitors. A monitor that reports in
    /// another way may have nothing to report here.
    fn has_report(&self) -> bool {
        true
    }

    /// An object that a program or its host may use while the program runs; its type is specific to
    /// the monitor ([`Session::interface`](crate::Session::interface)).
    fn interface(&self) -> Option<Box<dyn Any>> {
        None
    }
}

/// A kind of monitor: its documentation, its options, and the function that starts it.
#[derive(Clone, Copy)]
pub struct Description {
    /// The monitor's name, as in requests.
    pub name: &'static str,
    /// A summary of the results: one line, without a full stop.
    pub summary: &'static str,
    /// The meaning of the figures and their limits: a few sentences.
    pub details: &'static str,
    /// The options of this monitor, in addition to those that all monitors have.
    pub options: &'static [OptionInfo],
    /// A command line that shows the monitor's use, after `--monitors=`.
    pub example: &'static str,
    /// Makes a monitor, which is off.
    pub start: fn(&Setup<'_>) -> Result<Box<dyn Monitor>, Error>,
}

impl Description {
    /// The options of this monitor, and those that all monitors have.
    pub fn all_options(&self) -> impl Iterator<Item = &'static OptionInfo> {
        self.options.iter().chain(COMMON)
    }
}

impl fmt::Debug for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Description").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The arguments with which a monitor starts.
#[derive(Debug)]
pub struct Setup<'a> {
    /// The module to observe. Programs may already be running it.
    pub module: &'a Module,
    /// The options of the request.
    pub options: &'a Options,
    pub(crate) output: &'a Output,
    /// The files of its streams.
    pub(crate) files: &'a NewFiles,
    /// Whether the host may call any function.
    pub(crate) host_calls_any: bool,
}

impl<'a> Setup<'a> {
    /// The functions to observe: functions with a body that the option `function` chooses.
    pub fn functions(&self) -> impl Iterator<Item = FunctionInfo<'a>> {
        let globs = self.options.globs("function");
        let names = globs.is_some().then(|| Names::of(self.module));
        let is_chosen = move |function: &FunctionInfo<'_>| {
            let Some((globs, names)) = globs.as_ref().zip(names.as_ref()) else { return true };
            let names = names_of(function, names);
            globs.iter().any(|glob| matches(glob, &names))
        };
        with_bodies(self.module).filter(is_chosen)
    }

    /// Whether each value of the option `function` chooses a function.
    ///
    /// # Errors
    /// [`Error::Value`].
    pub(crate) fn check_functions(&self) -> Result<(), Error> {
        let mut unmatched: Vec<(&str, WildMatch)> =
            self.options.all("function").map(|value| (value, WildMatch::new(value))).collect();
        if unmatched.is_empty() {
            return Ok(());
        }
        let names = Names::of(self.module);
        for function in with_bodies(self.module) {
            let names = names_of(&function, &names);
            unmatched.retain(|(_, glob)| !matches(glob, &names));
            if unmatched.is_empty() {
                break;
            }
        }
        match unmatched.first() {
            None => Ok(()),
            Some((value, _)) => Err(Error::Value {
                option: "function".to_owned(),
                value: (*value).to_owned(),
                expected: "the name or index of a function that the module defines, nor a pattern of such \
                           names (`*` is any text, `?` any character)"
                    .to_owned(),
            }),
        }
    }

    /// A stream that a monitor writes to while the program runs: a file of this name in the
    /// session's directory, or standard error.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn stream(&self, name: &str) -> Result<Stream, Error> {
        self.output.stream(name, self.files)
    }

    /// The format of the reports to which a [stream](Self::stream) is written as well, if it is.
    pub(crate) fn stream_format(&self) -> Option<Format> {
        self.output.stream_format()
    }
}

fn with_bodies(module: &Module) -> impl Iterator<Item = FunctionInfo<'_>> {
    module.functions().filter(|function| function.body().is_some())
}

/// The names of a function: as reports show it, without the index that distinguishes it from
/// others, its index, its name in the name section, and the names of its exports.
fn names_of(function: &FunctionInfo<'_>, names: &Names) -> Vec<String> {
    let (index, name) = (function.index(), function.display_name());
    let shown = printable(&names.get(function)).into_owned();
    let others = function.name().into_iter().chain(function.exports()).map(str::to_owned);
    [shown, name, index.to_string()].into_iter().chain(others).collect()
}

/// Whether a glob is one of a function's names.
fn matches(glob: &WildMatch, names: &[String]) -> bool {
    names.iter().any(|name| glob.matches(name))
}

/// Makes probes, except at instructions that control never reaches.
///
/// # Errors
/// As [`Module::probes`].
pub fn make(module: &Module, specs: &[ProbeSpec]) -> Result<Vec<Probe>, Error> {
    let made = module.probes(specs).into_iter();
    let reached = made.filter(|probe| !matches!(probe, Err(ProbeError::Unreachable { .. })));
    Ok(reached.collect::<Result<_, _>>()?)
}

/// Activates (`on`) or deactivates probes.
///
/// # Errors
/// The first error of [`Probe::activate`] or [`Probe::deactivate`]; the remaining probes are
/// toggled nevertheless.
pub fn switch<'a>(probes: impl IntoIterator<Item = &'a Probe>, on: bool) -> Result<(), Error> {
    let switched = if on { activate_all(probes) } else { deactivate_all(probes) };
    Ok(switched.into_iter().collect::<Result<_, _>>()?)
}
