//! `wasm-jit run --monitors` and `wasm-jit monitors`.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use clap::{ArgGroup, Args};
use nix::sys::signal::Signal;
use textwrap::fill;
use wasm_jit::{Error, Linker, Module};
use wasm_jit_monitors::control::Control;
use wasm_jit_monitors::{ALL, CallArcs, Description, Format, Output, Request, Session};

use super::Failure;
use super::monitor_modules::Files;
use super::shared_monitors::{SharedMonitors, starts_threads};
use super::signals::{end_by, is_ignored};

/// Of `wasm-jit run`.
#[derive(Clone, Debug, Args)]
#[command(group(ArgGroup::new("monitoring").args(["monitors", "control"]).multiple(true)))]
pub(super) struct Arguments {
    /// Observe the program by monitors, such as hotness; `wasm-jit monitors` lists them; quote
    /// options: 'hotness{function=main}'. Reports are written when the program ends, and at
    /// SIGUSR1. A name with a dot or a slash is the file of a monitor module or script:
    /// ./monitor.wasm, or monitor.wasm+whamm_core.wasm with a library. The libraries of a script
    /// may also be next to it
    #[arg(long, value_name = "NAME[{OPTIONS}],...")]
    monitors: Vec<String>,

    /// Write the monitors' reports and files to this directory [default: reports to stderr]
    #[arg(long, value_name = "DIR", requires = "monitoring")]
    monitor_out: Option<PathBuf>,

    /// Format of reports to stderr: text, json or csv; a directory gets all of them
    #[arg(
        long,
        value_name = "FORMAT",
        default_value = "text",
        value_parser = str::parse::<Format>,
        requires = "monitoring"
    )]
    monitor_format: Format,

    /// Begin with the monitors switched off: each SIGUSR2 toggles them
    #[arg(long, requires = "monitors")]
    monitor_toggle: bool,

    /// Let `wasm-jit attach PID` switch monitors and print reports while the program runs
    #[arg(long)]
    control: bool,

    /// Whether the program's store is that of a replay.
    #[arg(skip)]
    pub(super) is_replayed: bool,

    /// Whether the program's fuel is limited: that of its store is only for the program.
    #[arg(skip)]
    pub(super) has_fuel: bool,
}

impl Arguments {
    /// The requested monitors; built-in ones start before files, each in the order given.
    pub(super) fn requests(&self) -> Result<Requests, Failure> {
        let mut requests = Requests::default();
        for list in &self.monitors {
            for request in Request::list(list).map_err(usage)? {
                match Files::of(&request) {
                    Some(files) => requests.files.push(files),
                    None => requests.monitors.push(request),
                }
            }
        }
        Request::check_all(&requests.monitors).map_err(usage)?;
        Ok(requests)
    }

    /// Whether monitor modules and scripts have their own stores.
    fn has_shared(&self, program: &Module) -> bool {
        self.control || self.monitor_toggle || self.is_replayed || self.has_fuel || starts_threads(program)
    }

    /// The directory of the reports, if they are files.
    pub(super) fn directory(&self) -> Option<&Path> {
        self.monitor_out.as_deref()
    }

    /// The destination of the reports.
    pub(super) fn output(&self) -> Result<Output, Failure> {
        match &self.monitor_out {
            Some(directory) => Output::directory(directory).map_err(Failure::new),
            None => Ok(Output::standard_error(self.monitor_format)),
        }
    }

    /// Whether there are monitors, or there may be some later.
    pub(super) fn any(&self) -> bool {
        self.control || !self.monitors.is_empty()
    }

    /// The signals that [control monitors](Monitors::act), if there may be monitors, except those
    /// that this process ignores.
    pub(super) fn signals(&self) -> Vec<Signal> {
        let mut signals = vec![Signal::SIGUSR1, Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
        signals.extend(self.monitor_toggle.then_some(Signal::SIGUSR2));
        signals.retain(|signal| self.any() && !is_ignored(*signal));
        signals
    }
}

/// The requested monitors.
#[derive(Clone, Debug, Default)]
pub(super) struct Requests {
    monitors: Vec<Request>,
    /// Monitor modules and scripts.
    pub(super) files: Vec<Files>,
}

/// A mistake in the command line.
fn usage(error: wasm_jit_monitors::Error) -> Failure {
    use wasm_jit_monitors::Error::{Form, Syntax, Twice, Unknown, UnknownOption, Value};
    let failure = Failure::new(&error).about("--monitors");
    match error {
        Syntax { .. } | Twice { .. } | Unknown { .. } | UnknownOption { .. } | Value { .. } | Form { .. } => {
            Failure { code: 2, ..failure }
        }
        _ => failure,
    }
}

/// The monitors of a program.
#[derive(Clone, Debug)]
pub(super) struct Monitors(Option<Arc<Running>>);

#[derive(Debug)]
struct Running {
    session: Arc<Session>,
    shared: SharedMonitors,
    /// The monitors that run in the store of the program, and report only at the end.
    modules: Vec<Files>,
    control: Mutex<Option<Control>>,
}

impl Monitors {
    /// Starts the monitors, in order, in a program from these files.
    pub(super) fn start(
        module: &Module,
        inputs: &[&Path],
        arguments: &Arguments,
        requests: Requests,
    ) -> Result<Self, Failure> {
        if !arguments.any() {
            return Ok(Self(None));
        }
        let output = arguments.output()?;
        let shared = SharedMonitors::default();
        let mut session = shared.in_session(Session::new(module, output), arguments.directory());
        if arguments.is_replayed {
            // The function of a slice, or of `record --from`.
            session = session.host_calls_any_function();
        }
        let Requests { monitors, mut files } = requests;
        for request in monitors {
            session.enable(request).map_err(usage)?;
        }
        if arguments.has_shared(module) {
            for files in std::mem::take(&mut files) {
                files.check_script(module.engine())?;
                let request = files.absolute().parse().map_err(usage)?;
                session.enable(request).map_err(Failure::new)?;
            }
        }
        if arguments.monitor_toggle {
            session.switch_all(false).map_err(Failure::new)?;
        }
        let session = Arc::new(session);
        let control =
            arguments.control.then(|| super::attach::listen(session.clone(), module, inputs)).transpose()?;
        Ok(Self(Some(Arc::new(Running { session, shared, modules: files, control: Mutex::new(control) }))))
    }

    /// Whether there are monitors, or there may be some later.
    pub(super) fn any(&self) -> bool {
        self.0.is_some()
    }

    /// The monitors that run in the store of the program.
    pub(super) fn modules(&self) -> &[Files] {
        self.0.as_ref().map_or(&[], |running| &running.modules)
    }

    /// Defines the functions of monitors that programs may import.
    pub(super) fn define<T: 'static>(&self, linker: &mut Linker<T>) -> Result<(), Error> {
        match &self.0 {
            Some(running) => CallArcs::define_for(&running.session, linker),
            None => Ok(()),
        }
    }

    /// Writes what the monitors have observed so far.
    pub(super) fn write(&self) {
        if let Some(running) = &self.0
            && let Err(error) = running.session.write()
        {
            // The program's exit code stays valid.
            for error in error.each() {
                Failure::new(error).about("monitors").report();
            }
        }
    }

    /// As [`Self::write`], at a signal.
    fn write_now(&self) {
        for files in self.0.iter().flat_map(|running| &running.modules) {
            let message = "its report is written when the program ends; with --control, also at SIGUSR1";
            Failure::of_file(files.monitor(), message).report();
        }
        self.write();
    }

    /// As [`Self::write`], at the end of the program, which can no longer be attached to.
    pub(super) fn finish(&self) {
        self.end();
        self.write();
    }

    /// Ends the monitors of a program that does not run. It can no longer be attached to.
    pub(super) fn end(&self) {
        self.detach();
        if let Some(running) = &self.0 {
            running.shared.finish();
        }
    }

    /// Makes sure that the program can no longer be attached to.
    pub(super) fn detach(&self) {
        if let Some(running) = &self.0 {
            running.control.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
    }

    /// Toggles the monitors: switches them on, or off if one of them is on.
    fn toggle(&self) {
        let Some(running) = &self.0 else { return };
        let is_any_on = running.session.started_monitors().iter().any(|(_, is_on)| *is_on);
        if let Err(error) = running.session.switch_all(!is_any_on) {
            Failure::new(error).about("monitors").report();
        }
    }

    /// Writes reports at SIGUSR1, switches monitors at SIGUSR2, and writes reports before the
    /// process ends by another signal.
    pub(super) fn act(&self, signal: Signal) {
        match signal {
            Signal::SIGUSR1 => self.write_now(),
            Signal::SIGUSR2 => self.toggle(),
            signal => {
                self.finish();
                end_by(signal);
            }
        }
    }
}

const EXAMPLES: &str = "\
Examples:
  wasm-jit monitors             all monitors, one per line
  wasm-jit monitors hotness     its results and its options";

const EXIT_CODES: &str = "\
Exit codes:
  0   done
  1   the output cannot be written
  2   mistake in the command line, or there is no such monitor";

/// List the monitors for run --monitors, or describe one
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES, after_help = EXIT_CODES, help_template = super::TEMPLATE)]
pub(super) struct List {
    /// Describe this monitor
    #[arg(value_name = "NAME")]
    name: Option<String>,
}

pub(super) fn run(arguments: &List) -> Result<ExitCode, Failure> {
    let width = ALL.iter().map(|monitor| monitor.name.len()).max().unwrap_or(0);
    match &arguments.name {
        None => super::print(|out| {
            ALL.iter().try_for_each(|monitor| writeln!(out, "{:width$}  {}", monitor.name, monitor.summary))
        })?,
        Some(name) => {
            let found = ALL.iter().find(|monitor| monitor.name == name);
            let unknown = || {
                let known: Vec<_> = ALL.iter().map(|monitor| monitor.name).collect();
                let message = format!("there is no monitor `{name}`; there are: {}", known.join(", "));
                Failure { code: 2, message }
            };
            let found = found.ok_or_else(unknown)?;
            super::print(|out| describe(found, out))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Width of descriptions.
const WIDTH: usize = 90;

fn describe(monitor: &Description, out: &mut dyn io::Write) -> io::Result<()> {
    writeln!(out, "{}: {}\n\n{}\n\nOptions:", monitor.name, monitor.summary, fill(monitor.details, WIDTH))?;
    for option in monitor.all_options() {
        let name = match option.value {
            "" => option.name.to_owned(),
            value => format!("{}={value}", option.name),
        };
        let help = fill(
            option.help,
            textwrap::Options::new(WIDTH)
                .subsequent_indent(&" ".repeat(20))
                .initial_indent(&format!("  {name:17} ")),
        );
        writeln!(out, "{help}")?;
    }
    writeln!(out, "\nExample:\n  wasm-jit run --monitors='{}", monitor.example.replacen(' ', "' ", 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_options_are_separate_from_their_meanings() {
        for monitor in ALL {
            let mut text = Vec::new();
            describe(monitor, &mut text).unwrap();
            let text = String::from_utf8(text).unwrap();
            for option in monitor.all_options().filter(|option| !option.value.is_empty()) {
                let name = format!("\n  {}={} ", option.name, option.value);
                assert!(text.contains(&name), "{}: {name}", monitor.name);
            }
        }
    }
}
