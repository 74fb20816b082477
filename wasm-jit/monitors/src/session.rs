//! [`Session`]: the monitors of a module.

use std::sync::{Mutex, MutexGuard};

use wasm_jit::Module;

use crate::lock::lock;
use crate::output::NewFiles;
use crate::report::files::Files;
use crate::{ALL, Description, Error, Monitor, Options, Output, Program, Report, Request, Setup};

/// The monitors of a module. Threads may share a session; monitors are toggled while threads run
/// the program.
pub struct Session {
    module: Module,
    output: Output,
    known: Vec<Description>,
    open: Option<Box<Open>>,
    host_calls_any: bool,
    started: Mutex<Vec<Started>>,
}

/// Starts the monitor of this name, if there is one: see [`Session::with_others`].
type Open = dyn Fn(&str, &Setup<'_>) -> Option<Result<Box<dyn Monitor>, Error>> + Send + Sync;

struct Started {
    name: String,
    options: Options,
    is_on: bool,
    monitor: Box<dyn Monitor>,
}

impl Session {
    /// A session that knows the monitors of this crate. All of them are off.
    pub fn new(module: &Module, output: Output) -> Self {
        let (known, started) = (ALL.to_vec(), Mutex::default());
        Self { module: module.clone(), output, known, open: None, host_calls_any: false, started }
    }

    /// States that the host may call functions that are neither exported nor in a table, a global
    /// or a reference, by [`Instance::func`](wasm_jit::Instance::func), as replays of a part of a
    /// run do. Otherwise the monitor `calls` does not count the calls of the host to them.
    #[must_use]
    pub fn host_calls_any_function(self) -> Self {
        Self { host_calls_any: true, ..self }
    }

    /// Adds a custom monitor, which replaces any monitor of the same name.
    #[must_use]
    pub fn with(mut self, description: Description) -> Self {
        self.known.retain(|known| known.name != description.name);
        self.known.push(description);
        self
    }

    /// Adds monitors whose names are not known in advance, such as files: `open` starts the monitor
    /// of this name, off, or returns `None` if it does not know the name. Such monitors take no
    /// options.
    #[must_use]
    pub fn with_others(
        mut self,
        open: impl Fn(&str, &Setup<'_>) -> Option<Result<Box<dyn Monitor>, Error>> + Send + Sync + 'static,
    ) -> Self {
        self.open = Some(Box::new(open));
        self
    }

    pub(crate) fn module(&self) -> &Module {
        &self.module
    }

    /// The monitors that the session knows, without [others](Self::with_others).
    pub fn known(&self) -> &[Description] {
        &self.known
    }

    /// Starts a monitor, or activates it again. A monitor that is on stays on. One that is off is
    /// restarted if the options differ: its observations are dropped.
    ///
    /// # Errors
    /// [`Error::Unknown`] and others about the request; [`Error::OtherOptions`] if the monitor is
    /// on with other options; [`Error::Probe`] and others if its probes cannot be made. The monitor
    /// is then as it was. Only one that a process has once has ended if it cannot be restarted.
    pub fn enable(&self, request: Request) -> Result<(), Error> {
        let mut started = self.started();
        let Some(at) = started.iter().position(|started| started.name == request.name) else {
            started.push(self.start(request)?);
            return Ok(());
        };
        let known = &mut started[at];
        if request.options == known.options {
            known.monitor.activate()?;
            known.is_on = true;
        } else if known.is_on {
            let options = known.options.to_string();
            return Err(Error::OtherOptions { name: request.name, options });
        } else {
            match self.start(request.clone()) {
                // There is this one.
                Err(Error::Exclusive { .. }) => {
                    drop(started.remove(at));
                    started.insert(at, self.start(request)?);
                }
                restarted => *known = restarted?,
            }
        }
        Ok(())
    }

    /// Starts a monitor, which is then on.
    fn start(&self, request: Request) -> Result<Started, Error> {
        let Request { name, options } = request;
        let files = NewFiles::default();
        let setup = Setup {
            module: &self.module,
            options: &options,
            output: &self.output,
            files: &files,
            host_calls_any: self.host_calls_any,
        };
        let monitor = match self.known.iter().find(|known| known.name == name) {
            Some(known) => {
                options.check(known.name, known.options)?;
                options.parse::<usize>("rows", "a number")?;
                setup.check_functions()?;
                (known.start)(&setup)?
            }
            None => match self.open.as_ref().and_then(|open| open(&name, &setup)) {
                Some(opened) => {
                    options.check_none(&name)?;
                    opened?
                }
                None => return Err(self.unknown(name)),
            },
        };
        monitor.activate()?;
        files.keep()?;
        Ok(Started { name, options, is_on: true, monitor })
    }

    /// Deactivates a monitor. It keeps its observations.
    ///
    /// # Errors
    /// [`Error::NotStarted`], [`Error::Unknown`], and as [`Monitor::deactivate`].
    pub fn disable(&self, name: &str) -> Result<(), Error> {
        let mut started = self.started();
        let known = started.iter_mut().find(|started| started.name == name);
        let known = known.ok_or_else(|| self.not_started(name))?;
        known.monitor.deactivate()?;
        known.is_on = false;
        Ok(())
    }

    /// Activates (`on`) or deactivates all monitors that were started. They keep their
    /// observations.
    ///
    /// # Errors
    /// The first error of [`Monitor::activate`] or [`Monitor::deactivate`]; the remaining monitors
    /// are toggled nevertheless.
    pub fn switch_all(&self, on: bool) -> Result<(), Error> {
        let mut result = Ok(());
        for started in self.started().iter_mut().filter(|started| started.is_on != on) {
            let switched = if on { started.monitor.activate() } else { started.monitor.deactivate() };
            match switched {
                Ok(()) => started.is_on = on,
                Err(error) => result = result.and(Err(error)),
            }
        }
        result
    }

    /// The names of the started monitors, in the order in which they were started, and whether they
    /// are on.
    pub fn started_monitors(&self) -> Vec<(String, bool)> {
        self.started().iter().map(|started| (started.name.clone(), started.is_on)).collect()
    }

    /// The observations of a monitor so far.
    ///
    /// # Errors
    /// [`Error::NotStarted`], or [`Error::Unknown`].
    pub fn report(&self, name: &str) -> Result<Report, Error> {
        self.report_with(name, Files::Kept(Vec::new()))
    }

    pub(crate) fn report_with(&self, name: &str, files: Files) -> Result<Report, Error> {
        let started = self.started();
        let known = started.iter().find(|started| started.name == name);
        let known = known.ok_or_else(|| self.not_started(name))?;
        Ok(known.report(&Program::new(&self.module), files))
    }

    /// The observations of all monitors so far, in the order in which they were started.
    pub fn reports(&self) -> Vec<Report> {
        let mut reports = Vec::new();
        self.visit_reports(|| Files::Kept(Vec::new()), |report| reports.push(report));
        reports
    }

    /// Visits one report after the other: reports may be large.
    pub(crate) fn visit_reports(&self, files: impl Fn() -> Files, visit: impl FnMut(Report)) {
        let started = self.started();
        if !started.is_empty() {
            let program = Program::new(&self.module);
            let reporting = started.iter().filter(|started| started.monitor.has_report());
            reporting.map(|started| started.report(&program, files())).for_each(visit);
        }
    }

    /// The object that the started monitor `name` offers to the program or its host, if it has this
    /// type.
    pub fn interface<T: 'static>(&self, name: &str) -> Option<T> {
        let started = self.started();
        let known = started.iter().find(|started| started.name == name)?;
        known.monitor.interface()?.downcast().ok().map(|interface| *interface)
    }

    /// Writes all reports to the output. May be called at any time, and repeatedly: files are
    /// replaced.
    ///
    /// # Errors
    /// [`Error::Write`] and [`Error::Files`], about one report; [`Error::Lost`], once for each
    /// [stream](Setup::stream) of a monitor; [`Error::Several`]. The remaining reports are written
    /// nevertheless.
    pub fn write(&self) -> Result<(), Error> {
        let mut errors = Vec::new();
        let mut is_first = true;
        if self.output.is_written() {
            self.visit_reports(
                || self.output.files(),
                |mut report| {
                    let failed = report.take_errors();
                    let written = self.output.write_one(&report, failed, std::mem::take(&mut is_first));
                    errors.extend(written.err());
                },
            );
        }
        // Reports write what monitors have buffered.
        errors.extend(self.output.lost());
        Error::all(errors)
    }

    fn unknown(&self, name: String) -> Error {
        let known: Vec<_> = self.known.iter().map(|known| known.name).collect();
        Error::Unknown { name, known: known.join(", ") }
    }

    /// The error for a monitor that was not started, which may be a file.
    fn not_started(&self, name: &str) -> Error {
        let may_start = self.known.iter().any(|known| known.name == name) || Request::is_file_name(name);
        let name = name.to_owned();
        if may_start { Error::NotStarted { name } } else { self.unknown(name) }
    }

    fn started(&self) -> MutexGuard<'_, Vec<Started>> {
        lock(&self.started)
    }
}

impl Started {
    fn report(&self, program: &Program<'_>, files: Files) -> Report {
        let mut report = Report::with_files(self.monitor.report_name().unwrap_or(&self.name), files);
        report.rows = self.options.get("rows").and_then(|rows| rows.parse().ok());
        self.monitor.report(program, &mut report);
        report
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("started", &self.started_monitors()).finish_non_exhaustive()
    }
}
