//! `wasm-jit attach`: monitors and recordings of a program that runs in another process.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::num::NonZeroU64;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{self, Path, PathBuf};
use std::process::{self, ExitCode};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use clap::{Args, Subcommand};
use nix::unistd::getuid;
use wasm_jit::Module;
use wasm_jit_monitors::control::{self, Control};
use wasm_jit_monitors::{Format, Request as Monitor, Session};

use super::Failure;
use super::monitor_modules::Files;
use super::recordings::{self, AttachedRecording};
use super::units;

const EXAMPLES: &str = "\
Examples:
  wasm-jit run --control app.wasm &          a program whose monitors can be switched
  wasm-jit attach $! enable hotness
  wasm-jit attach $! report hotness
  wasm-jit attach $! disable hotness         from here on, it costs nothing
  wasm-jit attach $! enable ./count.mm       a script, even for a program with threads
  wasm-jit attach $! record -o app.trace     from now on, until record --stop
  wasm-jit attach $! record --from parse --calls 20 -o app.trace";

const EXIT_CODES: &str = "\
Exit codes:
  0   done
  1   there is no such process, or it does not listen, or has refused: the reason is on stderr
  2   mistake in the command line; nothing was sent";

/// Switch the monitors of a running program, or record a part of its run
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES, after_help = EXIT_CODES, help_template = super::TEMPLATE)]
#[command(subcommand_value_name = "REQUEST", subcommand_help_heading = "Requests")]
pub(super) struct Attach {
    /// The id of the process, which was started with run --control
    #[arg(value_name = "PID", value_parser = process_id)]
    process: u32,

    #[command(subcommand)]
    request: Request,
}

#[derive(Debug, Subcommand)]
#[command(disable_help_subcommand = true)]
enum Request {
    /// Print the monitors, and whether they are on
    List,
    /// Start monitors, or switch them on again
    Enable {
        /// The monitors, with options: 'hotness{function=main},icount'; or a script or monitor
        /// module with its libraries, as for run --monitors, which the other process reads
        #[arg(value_name = "NAME[{OPTIONS}][,NAME...]", value_parser = list)]
        monitors: List,
    },
    /// Switch a monitor off; it keeps its observations
    Disable {
        /// The monitor
        #[arg(value_name = "NAME")]
        monitor: Monitor,
    },
    /// Print what one or all monitors have observed so far
    Report {
        /// The monitor [default: all that were started]
        #[arg(value_name = "NAME")]
        monitor: Option<Monitor>,

        /// text, json or csv
        #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = format)]
        format: String,
    },
    /// Record the program from now on, or calls to a function, as wasm-jit record --from does,
    /// without a restart
    ///
    /// Without --from, the recording begins with the next call of a function, and has all calls
    /// that begin from then on: a replay cannot begin within a call. Functions that are running
    /// now are treated as the host: what they change between two calls that they make becomes
    /// changes by the host. When they have returned, the calls of their callers are recorded.
    ///
    /// The recording ends after these calls, with --stop, or with the program, which then prints
    /// that calls are missing; afterwards it costs nothing.
    Record {
        /// Record only calls to this function (name or index), from its CALLth call on, counted
        /// from now [default: 1]
        #[arg(long, value_name = "FUNCTION[:CALL]")]
        from: Option<String>,

        /// Number of calls that are recorded; calls within them do not count [default: 1 with
        /// --from, otherwise until --stop]
        #[arg(long, value_name = "N", value_parser = units::from_one::<NonZeroU64>)]
        calls: Option<NonZeroU64>,

        /// The trace; overwritten if it exists
        #[arg(short, long, value_name = "TRACE", required_unless_present = "stop")]
        output: Option<PathBuf>,

        /// End the recording, and print how many calls it contains
        #[arg(long, conflicts_with_all = ["from", "output"])]
        stop: bool,
    },
}

fn process_id(text: &str) -> Result<u32, String> {
    let id = text.parse().ok().filter(|id| *id > 0);
    id.ok_or_else(|| "expected the id of a process, such as 4242".to_owned())
}

fn format(text: &str) -> Result<String, String> {
    text.parse::<Format>().map(|_| text.to_owned())
}

/// The name of a monitor in the other process, which has another current directory.
fn name(monitor: &Monitor) -> String {
    Files::of(monitor).map_or_else(|| monitor.to_string(), |files| files.absolute())
}

/// A list of monitors.
#[derive(Clone, Debug)]
struct List(Vec<Monitor>);

fn list(text: &str) -> Result<List, wasm_jit_monitors::Error> {
    Monitor::list(text).map(List)
}

impl Request {
    /// The requests as they are sent.
    fn lines(&self) -> Vec<String> {
        let line = match self {
            // One for each: the name of a file may contain commas.
            Self::Enable { monitors } => {
                return monitors.0.iter().map(|monitor| format!("enable {}", name(monitor))).collect();
            }
            Self::List => "list".to_owned(),
            Self::Disable { monitor } => format!("disable {}", name(monitor)),
            Self::Report { monitor, format } => {
                format!("report {format} {}", monitor.as_ref().map(name).unwrap_or_default())
            }
            Self::Record { from, calls, output: Some(output), .. } => {
                // The other process has another current directory.
                let output = path::absolute(output).unwrap_or_else(|_| output.clone());
                recordings::starting(from.as_deref(), *calls, &output)
            }
            Self::Record { .. } => "record".to_owned(),
        };
        vec![line]
    }
}

/// How often a process that does not listen is asked again, which may have just been started.
const ATTEMPTS: u32 = 300;

/// The time between two attempts.
const BETWEEN: Duration = Duration::from_millis(10);

pub(super) fn run(arguments: &Attach) -> Result<ExitCode, Failure> {
    let process = arguments.process;
    let in_proc = Path::new("/proc").join(process.to_string());
    let is_silent = |error: &io::Error| {
        matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
    };
    let failed = |error: io::Error, tried: &[PathBuf]| match is_silent(&error) {
        true if !in_proc.exists() => Failure::new(format_args!("there is no process {process}")),
        true => {
            let tried: Vec<_> = tried.iter().map(|path| path.display().to_string()).collect();
            let tried = tried.join(", ");
            let message =
                format!("process {process} does not listen at {tried}: start it with run --control");
            Failure::new(message)
        }
        false => Failure::new(error).about(format_args!("process {process}")),
    };
    let mut attempts = 0;
    let mut text = String::new();
    for line in arguments.request.lines() {
        let answer = loop {
            let paths = sockets(process, &in_proc);
            match ask(&paths, &line, is_silent) {
                Err(error) if is_silent(&error) && in_proc.exists() && attempts < ATTEMPTS => {
                    attempts += 1;
                    thread::sleep(BETWEEN);
                }
                answer => break answer.map_err(|error| failed(error, &paths))?,
            }
        };
        text += &answer.map_err(Failure::new)?;
    }
    if text.is_empty() && matches!(arguments.request, Request::Report { .. }) {
        let message = "there is no report: no monitor was started; `enable NAME` starts one";
        Failure::new(message).about(format_args!("process {process}")).report();
    }
    super::print(|out| out.write_all(text.as_bytes()))?;
    Ok(ExitCode::SUCCESS)
}

/// Sends a request to the first of these sockets at which a process listens.
fn ask(
    paths: &[PathBuf],
    line: &str,
    is_silent: impl Fn(&io::Error) -> bool,
) -> io::Result<Result<String, String>> {
    let mut answer = Err(io::ErrorKind::NotFound.into());
    for path in paths {
        answer = control::request(path, line);
        if !answer.as_ref().is_err_and(&is_silent) {
            break;
        }
    }
    answer
}

/// The paths at which a process may listen, which may belong to another user, and may have been
/// started in another environment. Sockets of others than its user are left out.
fn sockets(process: u32, in_proc: &Path) -> Vec<PathBuf> {
    let own = getuid().as_raw();
    let user = fs::metadata(in_proc).map_or(own, |found| found.uid());
    let of_shell = |name: &str| std::env::var_os(name);
    let mut directories = vec![directory(own, of_shell)];
    // Only this user's processes, and root, can read it.
    if let Ok(environment) = fs::read(in_proc.join("environ")) {
        let of_process = |name: &str| {
            let mut all = environment.split(|byte| *byte == 0);
            let value = all.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
            value.map(|value| OsStr::from_bytes(value).to_owned())
        };
        directories.push(directory(user, of_process));
    }
    directories.push(Path::new("/run/user").join(user.to_string()).join("wasm-jit"));
    directories.push(directory(user, |_| None));
    let mut paths: Vec<PathBuf> = Vec::new();
    for path in directories.into_iter().map(|directory| directory.join(process.to_string())) {
        let is_of_other = fs::metadata(&path).is_ok_and(|found| ![own, user].contains(&found.uid()));
        if !is_of_other && !paths.contains(&path) {
            paths.push(path);
        }
    }
    paths
}

/// Lets other processes of this user toggle the monitors of this process, and record it, but not to
/// one of its inputs.
pub(super) fn listen(session: Arc<Session>, module: &Module, inputs: &[&Path]) -> Result<Control, Failure> {
    let directory = directory(getuid().as_raw(), |name| std::env::var_os(name));
    let about = |message: &dyn std::fmt::Display| {
        Failure::new(message).about(format_args!("--control: {}", directory.display()))
    };
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory);
    made.map_err(|error| about(&error))?;
    // In a directory that all users may write to, another user may have created it first.
    let owner = fs::symlink_metadata(&directory).map_err(|error| about(&error))?;
    if !owner.is_dir() || owner.uid() != getuid().as_raw() || owner.mode() & 0o077 != 0 {
        return Err(about(&"not a directory that only this user can access"));
    }
    let path = directory.join(process::id().to_string());
    let recordings = AttachedRecording::new(module, inputs);
    let others = move |verb: &str, rest: &str| (verb == "record").then(|| recordings.answer(rest));
    Control::listen_with(session, path, others).map_err(|error| Failure::new(error).about("--control"))
}

/// The directory of the sockets of a user's processes, which are named by process id, in an
/// environment.
fn directory(user: u32, environment: impl Fn(&str) -> Option<OsString>) -> PathBuf {
    let known = |name: &str| environment(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    match known("XDG_RUNTIME_DIR") {
        Some(directory) => directory.join("wasm-jit"),
        None => {
            let directory = known("TMPDIR").unwrap_or_else(|| PathBuf::from("/tmp"));
            directory.join(format!("wasm-jit-{user}"))
        }
    }
}
