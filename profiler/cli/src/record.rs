//! `fastinst record`: starts a program with libfastinst.so preloaded.
//!
//! The program is executed in this process. Therefore its process id, signals, job control,
//! standard streams and exit status are what they would be without the profiler. The only exception
//! is SIGPIPE: if the parent ignores it, the program starts with its default action.
//!
//! 1. The options of the command line override those of FASTINST_OPTIONS; a relative output path is
//!    made absolute.
//! 2. The program is looked up as the shell does, and inspected: programs that would not load a
//!    preloaded library are refused.
//! 3. libfastinst.so is put first in LD_PRELOAD, except that a program's address sanitizer library,
//!    which must be first, precedes it.
//! 4. The program is executed.

use std::convert::Infallible;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use nix::unistd::{AccessFlags, access};
use profiler::binary::elf_check::{Kind, Program, inspect, needed_sanitizer};
use profiler::error::Error;
use profiler::filter::Patterns;
use profiler::options::{Budget, Counts, Options, Output, RunId, Snapshot, TextAccess, Tool, VARIABLE};

use crate::Failure;

const LIBRARY: &str = "libfastinst.so";
/// Directories of the library, relative to that of this executable.
const LIBRARY_DIRECTORIES: [&str; 3] = ["", "../lib", "../lib/fastinst"];
/// Search path if PATH is not set.
pub(crate) const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

const EXAMPLES: &str = "\
Examples:
  fastinst record -- ./app --size 10
      the table goes to stderr when the program ends
  fastinst record -o app.json -- ./app
      the report goes to a file; fastinst report app.json prints the table
  fastinst record -o '%e.%p.json' --budget 5% -- make check
      a report per process, with narrower intervals
  fastinst record -o server.json --merge --only 'http_*,object:libz.so*' -- ./server
      one report for the server and its children, of some functions
  fastinst record -o server.json --snapshot USR1 -- ./server
      kill -USR1 PID writes the report of the running server; so does its end
  FASTINST_OPTIONS=budget=5% LD_PRELOAD=/path/to/libfastinst.so ./app
      the same without this command; FASTINST_OPTIONS=help=1 lists the keys";

const EXIT_CODES: &str = "\
The program replaces this process, so signals and its exit code pass through unchanged.

Exit codes:
  2    wrong usage
  125  the program cannot be profiled, or the library or an option is invalid; nothing was run
  126  the program was found and cannot be executed
  127  the program was not found
  else the exit code of the program";

/// Run a program and measure its instrumented functions
#[derive(Debug, Args)]
#[command(
    before_help = EXAMPLES,
    after_help = EXIT_CODES,
    help_template = crate::TEMPLATE,
    override_usage = "fastinst record [OPTIONS] -- PROGRAM [ARGS]..."
)]
pub(crate) struct Record {
    /// The report's destination: stderr, or a file name that ends in .txt or .json (default:
    /// stderr). In the name, %p is the process id, %e the executable, %h the host, %% a percent
    /// sign. A second process of the same run gets its process id before the extension
    #[arg(short, long, value_name = "FILE")]
    output: Option<Output>,

    /// Write one report for all processes of the run to FILE.json, instead of one for each
    #[arg(long, requires = "output")]
    merge: bool,

    /// Also write the report while the program runs: when the process gets this signal (USR1,
    /// USR2, HUP or QUIT), or at an interval such as 30s, 5m or 1h. Each covers the time since the
    /// start, and replaces the one before
    #[arg(long, value_name = "SIGNAL|TIME", conflicts_with = "merge")]
    snapshot: Option<Snapshot>,

    /// The maximum cost of profiling, in percent of the program's own processor time, or none
    /// (default: 1%). A larger budget narrows the confidence intervals; with none there is no
    /// limit, and every call is counted and timed (--counts exact)
    #[arg(long, value_name = "N%")]
    budget: Option<Budget>,

    /// How calls are counted. The default is sampled: in windows at random instants, and
    /// continuously for functions that are called rarely. exact counts every call, independently of
    /// the budget, at some 140 ns each: a program of very short calls becomes up to fifty times
    /// slower
    #[arg(long, value_name = "sampled|exact")]
    counts: Option<Counts>,

    /// Take no stack samples, which need perf_event_open. Without them, total and self times of
    /// functions that are called often have no upper limit in short runs
    #[arg(long)]
    no_stacks: bool,

    /// Functions to measure (default: all): a name, object:NAME (executable or library) or
    /// file:NAME (source file); * matches any text, ? any character. May be given several times
    #[arg(long, value_name = "PATTERN,...", value_parser = |text: &str| Patterns::parse("only", text))]
    only: Vec<Patterns>,

    /// Functions not to measure, even if --only includes them. They get no probes and cost least
    #[arg(long, value_name = "PATTERN,...", value_parser = |text: &str| Patterns::parse("skip", text))]
    skip: Vec<Patterns>,

    /// How code is written (default: private). private and alias keep every page from being
    /// writable and executable; private excepts pages in which a debugger has set a breakpoint,
    /// alias permits no breakpoints; mprotect makes a page both during each write, for systems that
    /// refuse memfd_create
    #[arg(long, value_name = "private|alias|mprotect")]
    text: Option<TextAccess>,

    /// The library to preload (default: libfastinst.so in the directory of this command, in ../lib
    /// or in ../lib/fastinst)
    #[arg(long, value_name = "PATH")]
    library: Option<PathBuf>,

    /// The program, looked up in PATH, and its arguments
    #[arg(required = true, trailing_var_arg = true, value_names = ["PROGRAM", "ARGS"], num_args = 1..)]
    command: Vec<OsString>,
}

/// Replaces this process by the program; returns only if that fails.
pub(crate) fn run(arguments: &Record) -> Result<Infallible, Failure> {
    start(arguments).map_err(|error| Failure { code: exit_code(&error), message: error.to_string() })
}

pub(crate) fn exit_code(error: &Error) -> u8 {
    match error {
        Error::ProgramNotFound { .. } => 127,
        Error::ProgramNotExecutable { .. } | Error::Execute { .. } => 126,
        _ => 125,
    }
}

fn start(arguments: &Record) -> Result<Infallible, Error> {
    let (program, rest) = arguments.command.split_first().expect("clap requires a program");
    let mut options = merged_options(arguments, env::var_os(VARIABLE).as_deref())?;
    let path = env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    let path = find_program(Path::new(program), &path)?;
    let library = find_library(arguments.library.as_deref(), LIBRARY)?;
    if let Some(warning) = check_program(&path, options.tool)? {
        crate::say(warning);
    }
    // As late as possible: existing reports belong to earlier runs.
    if options.output != Output::Stderr {
        options.run.get_or_insert_with(RunId::begins_here);
    }
    let source = Command::new(&path)
        .arg0(program)
        .args(rest)
        .env("LD_PRELOAD", preload(needed_sanitizer(&path), &library, env::var_os("LD_PRELOAD").as_deref()))
        .env(VARIABLE, options.to_options_string())
        .exec();
    Err(Error::Execute { path, source })
}

/// The options of the environment, overridden by those of the command line.
fn merged_options(arguments: &Record, environment: Option<&OsStr>) -> Result<Options, Error> {
    let mut options = Options::from_variable(environment)?;
    if let Some(output) = &arguments.output {
        options.output = output.clone();
    }
    options.merge |= arguments.merge;
    options.snapshot = arguments.snapshot.or(options.snapshot);
    options.stacks &= !arguments.no_stacks;
    let settings = &mut options.settings;
    settings.budget = arguments.budget.unwrap_or(settings.budget);
    settings.counts = arguments.counts.unwrap_or(settings.counts);
    let filter = &mut settings.filter;
    for (typed, patterns) in [(&arguments.only, &mut filter.only), (&arguments.skip, &mut filter.skip)] {
        if !typed.is_empty() {
            *patterns = Patterns::default();
            typed.iter().for_each(|more| patterns.extend(more.clone()));
        }
    }
    options.text = arguments.text.unwrap_or(options.text);
    options.check()?;
    options.output = placed(&options.output)?;
    Ok(options)
}

/// The output as an absolute path. Its directory must exist, unless it contains `%` sequences.
fn placed(output: &Output) -> Result<Output, Error> {
    let output = match output {
        Output::File { template, .. } if Path::new(template).is_relative() => {
            output.absolute(&env::current_dir().map_err(|source| Error::WorkingDirectory { source })?)?
        }
        _ => output.clone(),
    };
    if let Output::File { template, .. } = &output
        && let Some(directory) = Path::new(template).parent()
        && !directory.as_os_str().as_bytes().contains(&b'%')
        && !directory.is_dir()
    {
        return Err(Error::OutputDirectory { directory: directory.to_owned() });
    }
    Ok(output)
}

/// Finds an executable file as the shell does: a name with a slash is a path; any other name is
/// searched in the directories of `path`, where an empty one stands for the working directory.
pub(crate) fn find_program(program: &Path, path: &OsStr) -> Result<PathBuf, Error> {
    if program.as_os_str().as_bytes().contains(&b'/') {
        return match obstacle(program) {
            None => Ok(program.to_owned()),
            Some(Obstacle::Missing) => Err(Error::ProgramNotFound { program: program.to_owned() }),
            Some(Obstacle::Unusable(reason)) => {
                Err(Error::ProgramNotExecutable { program: program.to_owned(), reason })
            }
        };
    }
    let mut failure = Error::ProgramNotFound { program: program.to_owned() };
    if program.as_os_str().is_empty() {
        return Err(failure);
    }
    for directory in env::split_paths(path) {
        let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { &directory };
        let candidate = directory.join(program);
        match obstacle(&candidate) {
            None => return Ok(candidate),
            Some(Obstacle::Unusable(reason)) if candidate.is_file() => {
                failure = Error::ProgramNotExecutable { program: candidate, reason };
            }
            Some(_) => {}
        }
    }
    Err(failure)
}

enum Obstacle {
    Missing,
    Unusable(&'static str),
}

/// The reason why a file cannot be executed; `None` if it can.
fn obstacle(path: &Path) -> Option<Obstacle> {
    match fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            Some(Obstacle::Unusable("a directory on the way to it is closed"))
        }
        Err(_) => Some(Obstacle::Missing),
        Ok(found) if found.is_dir() => Some(Obstacle::Unusable("it is a directory")),
        Ok(_) if access(path, AccessFlags::X_OK).is_err() => {
            Some(Obstacle::Unusable("execute permission is missing"))
        }
        Ok(_) => None,
    }
}

/// Refuses a program in which a preloaded library would not run. Warns if the program has no
/// instrumented functions.
pub(crate) fn check_program(path: &Path, tool: Tool) -> Result<Option<String>, Error> {
    let Program { kind, setuid_or_capabilities } = inspect(path)?;
    let path = path.to_owned();
    match kind {
        // The kernel ignores the set-id bits of a script.
        Kind::Script { .. } => Ok(None),
        _ if setuid_or_capabilities => Err(Error::PrivilegedProgram { path }),
        Kind::ForeignElf { bits, machine } => Err(Error::ForeignProgram { path, bits, machine }),
        Kind::Elf { dynamic: false, .. } => Err(Error::StaticProgram { path }),
        Kind::Elf { instrumented: false, .. } if tool == Tool::Profiler => Ok(Some(format!(
            "warning: {} itself has no instrumented function, only its libraries and child processes may be measured; \
             compile it with -finstrument-functions",
            path.display()
        ))),
        Kind::Elf { .. } | Kind::Other => Ok(None),
    }
}

/// The absolute path of the library to preload.
pub(crate) fn find_library(named: Option<&Path>, name: &str) -> Result<PathBuf, Error> {
    let library = match named {
        Some(library) => fs::canonicalize(library)
            .map_err(|source| Error::InspectProgram { path: library.to_owned(), source })?,
        None => usual_library(name)?,
    };
    if !matches!(inspect(&library)?.kind, Kind::Elf { shared: true, .. }) {
        return Err(Error::NotALibrary { path: library });
    }
    if library.as_os_str().as_bytes().iter().any(|byte| b" :$".contains(byte)) {
        return Err(Error::LibraryName { path: library });
    }
    Ok(library)
}

fn usual_library(name: &str) -> Result<PathBuf, Error> {
    let executable = env::current_exe().unwrap_or_default();
    let folder = executable.parent().unwrap_or(Path::new("/"));
    let directories = LIBRARY_DIRECTORIES.map(|directory| folder.join(directory));
    match directories.iter().find_map(|directory| fs::canonicalize(directory.join(name)).ok()) {
        Some(library) => Ok(library),
        None => {
            let searched = directories.map(|directory| directory.display().to_string()).join(", ");
            Err(Error::LibraryNotFound { searched })
        }
    }
}

/// The value of LD_PRELOAD: the program's address sanitizer, by the name by which the loader finds
/// it for the program; the library; then the current value.
pub(crate) fn preload(sanitizer: Option<OsString>, library: &Path, present: Option<&OsStr>) -> OsString {
    let mut value = sanitizer.unwrap_or_default();
    if !value.is_empty() {
        value.push(":");
    }
    value.push(library);
    if let Some(present) = present.filter(|present| !present.is_empty()) {
        value.push(":");
        value.push(present);
    }
    value
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn arguments() -> Record {
        Record {
            output: None,
            merge: false,
            snapshot: None,
            budget: None,
            counts: None,
            no_stacks: false,
            only: Vec::new(),
            skip: Vec::new(),
            text: None,
            library: None,
            command: vec!["a".into()],
        }
    }

    #[test]
    fn the_command_line_wins_over_the_environment() {
        #[track_caller]
        fn check(arguments: Record, environment: &str, expected: &str) {
            let options = merged_options(&arguments, Some(environment.as_ref())).unwrap();
            assert_eq!(options.to_options_string(), expected);
        }
        check(arguments(), "", "");
        check(arguments(), "budget=3%:help=1", "budget=3%:help=1");
        let budget = |percent: &str| Record { budget: Some(percent.parse().unwrap()), ..arguments() };
        check(budget("4%"), "budget=3%:counts=exact", "budget=4%:counts=exact");
        check(budget("1%"), "budget=3%", "");
        check(budget("none"), "tool=none", "budget=none:tool=none");
        let patterns = |text: &str| Patterns::parse("only", text).unwrap();
        let (only, skip) = (vec![patterns("a,b*"), patterns("file:c")], vec![patterns("d")]);
        check(Record { only, ..arguments() }, "only=z:skip=y", r"only=a,b*,file\:c:skip=y");
        check(Record { skip, ..arguments() }, "only=z:skip=y", "only=z:skip=d");
        check(Record { merge: true, ..arguments() }, "output=/tmp/a.json", "output=/tmp/a.json:merge=1");
        let snapshot = |text: &str| Record { snapshot: Some(text.parse().unwrap()), ..arguments() };
        check(snapshot("SIGUSR1"), "snapshot=5m", "snapshot=USR1");
        check(arguments(), "snapshot=5m", "snapshot=300s");
        check(Record { no_stacks: true, ..arguments() }, "stacks=1", "stacks=0");
        check(Record { text: Some(TextAccess::Mprotect), ..arguments() }, "text=private", "text=mprotect");
        check(Record { output: Some(Output::Stderr), ..arguments() }, "output=/tmp/a.txt", "");
        check(
            Record { output: Some("/tmp/%p.json".parse().unwrap()), ..arguments() },
            "output=/tmp/a.txt",
            "output=/tmp/%p.json",
        );
    }

    #[test]
    fn wrong_options_in_the_environment_are_named() {
        #[track_caller]
        fn check(environment: &[u8], expected: &str) {
            let error = merged_options(&arguments(), Some(OsStr::from_bytes(environment))).unwrap_err();
            assert_eq!((exit_code(&error), error.to_string().as_str()), (125, expected));
        }
        check(
            b"bugdet=3%",
            "FASTINST_OPTIONS: unknown option `bugdet`; the options are output, merge, snapshot, budget, counts, stacks, only, skip, tool, \
             discovery, text, run, begun, help",
        );
        check(b"tool=\xff", "FASTINST_OPTIONS: the value is not UTF-8; set key=value:key=value or unset it");
        check(
            b"output=/nowhere/at/all/%p.txt",
            "the directory /nowhere/at/all of the report does not exist; create it first",
        );
    }

    #[test]
    fn a_relative_output_becomes_absolute() {
        let here = env::current_dir().unwrap();
        let output: Output = "a.%p.txt".parse().unwrap();
        assert_eq!(placed(&output).unwrap(), output.absolute(&here).unwrap());
        assert_eq!(placed(&Output::Stderr).unwrap(), Output::Stderr);
    }

    #[test]
    fn programs_are_found_as_the_shell_finds_them() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let put = |name: &str, mode: u32| {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        };
        put("first/plain", 0o644);
        put("second/plain", 0o755);
        put("second/tool", 0o755);
        put("second/text", 0o644);
        fs::create_dir(root.join("first/tool")).unwrap();
        let search = format!("{0}/missing:{0}/first:{0}/second", root.display());
        let check = |program: &str, expected: Result<&str, &str>| {
            let found =
                find_program(Path::new(program), OsStr::new(&search)).map_err(|error| error.to_string());
            let inside = |text: &str| text.replace('^', root.to_str().unwrap());
            assert_eq!(found, expected.map(|path| PathBuf::from(inside(path))).map_err(inside), "{program}");
        };
        let here = format!("{}/second/text", root.display());
        check("tool", Ok("^/second/tool"));
        check("plain", Ok("^/second/plain"));
        check("text", Err("^/second/text: execute permission is missing; it cannot be executed"));
        check(&here, Err("^/second/text: execute permission is missing; it cannot be executed"));
        check("nothing", Err("nothing: no such program; check the name and PATH"));
        check("", Err(": no such program; check the name and PATH"));
        check("/", Err("/: it is a directory; it cannot be executed"));
        check("./nothing", Err("./nothing: no such program; check the name and PATH"));
    }

    #[test]
    fn an_empty_directory_of_path_is_the_working_directory() {
        let found = find_program(Path::new("Cargo.toml"), OsStr::new(":/nowhere")).unwrap_err();
        assert_eq!(found.to_string(), "./Cargo.toml: execute permission is missing; it cannot be executed");
    }

    #[test]
    fn the_library_is_the_first_to_be_preloaded() {
        #[track_caller]
        fn check(present: Option<&str>, expected: &str) {
            assert_eq!(preload(None, Path::new("/l.so"), present.map(OsStr::new)), OsStr::new(expected));
            let after = preload(Some("asan.so".into()), Path::new("/l.so"), present.map(OsStr::new));
            assert_eq!(after, OsString::from(format!("asan.so:{expected}")));
        }
        check(None, "/l.so");
        check(Some(""), "/l.so");
        check(Some("a.so:b.so"), "/l.so:a.so:b.so");
    }
}
