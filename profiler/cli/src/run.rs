//! `fastinst run`: starts a program with a script that observes its calls, or so that scripts can
//! be attached to it.
//!
//! Works like `fastinst record`, but with `libfastinst_script.so`. The script is also compiled
//! here, so that its errors are reported before the program starts.

use std::convert::Infallible;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use profiler::binary::elf_check::needed_sanitizer;
use profiler::error::Error;
use profiler::options::{RunId, Tool};
use profiler::output::check_template;
use profiler::script::{ScriptFormat, ScriptOptions, VARIABLE};
use wasm_jit_whamm::lang::Script;

use crate::Failure;
use crate::record::{DEFAULT_PATH, check_program, exit_code, find_library, find_program, preload};

const LIBRARY: &str = "libfastinst_script.so";

const EXAMPLES: &str = "\
Examples:
  fastinst run calls.mm -- ./app --size 10
      the report goes to stderr when the program ends
  fastinst run -o calls.json calls.mm -- ./app
      the report goes to a file: .json, .csv, .folded or .txt
  fastinst run --toggle -o calls.json calls.mm -- ./server
      nothing is observed until kill -USR2 PID; the next one writes the report
  fastinst run --control -- ./server
      nothing is observed until a script is attached: see fastinst attach

A script that counts the calls to each function:
  native:func:entry { report var calls: u64; calls++; }
One that measures how long calls to some functions take, in powers of two:
  report var ns: map<u32, u64>;
  native:func:exit / fname.starts_with(\"http_\") / { ns[log2(duration)]++; }
One that shows the values of the arguments `size`, with debugging information (-g):
  report var sizes: map<log2, u64>;
  native:func:entry(args.size: u64) { sizes[args.size]++; }";

const EXIT_CODES: &str = "\
The program replaces this process, so signals and its exit code pass through unchanged.

Exit codes:
  2    wrong usage, or the script has mistakes; nothing was run
  125  the program cannot be observed, or the library or the output is invalid; nothing was run
  126  the program was found and cannot be executed
  127  the program was not found
  else the exit code of the program";

/// Run a program and observe calls to its instrumented functions with scripts
#[derive(Debug, Args)]
#[command(
    before_help = EXAMPLES,
    after_help = EXIT_CODES,
    help_template = crate::TEMPLATE,
    override_usage = "fastinst run [OPTIONS] [SCRIPT] -- PROGRAM [ARGS]..."
)]
pub(crate) struct Run {
    /// The report's destination (default: stderr). In the name, %p is the process id, %e the
    /// executable, %h the host, %% a percent sign. All processes of the run but the first get their
    /// process id before the extension
    #[arg(short, long, value_name = "FILE")]
    output: Option<String>,

    /// The format of the report (default: by the ending of FILE, .txt, .json, .csv or
    /// .folded; text if it has none)
    #[arg(long, value_name = "text|json|csv|folded", value_parser = ScriptFormat::named)]
    format: Option<ScriptFormat>,

    /// The library to preload (default: libfastinst_script.so in the directory of this command, in
    /// ../lib or in ../lib/fastinst)
    #[arg(long, value_name = "PATH")]
    library: Option<PathBuf>,

    /// Let fastinst attach add scripts to the program, and to its children, while they run
    #[arg(long)]
    control: bool,

    /// Begin with the script off: each SIGUSR2 toggles it, and writes the report when it is
    /// switched off
    #[arg(long, requires = "script")]
    toggle: bool,

    /// The script, in the Whamm language; optional with --control
    #[arg(value_name = "SCRIPT")]
    script: Option<PathBuf>,

    /// The program, looked up in PATH, and its arguments
    #[arg(required = true, last = true, value_names = ["PROGRAM", "ARGS"], num_args = 1..)]
    command: Vec<OsString>,
}

/// Replaces this process by the program; returns only if that fails.
pub(crate) fn run(arguments: &Run) -> Result<Infallible, Failure> {
    let format = || report_format(arguments.format, arguments.output.as_deref());
    let format = match &arguments.script {
        Some(script) => {
            let compiled = compile(script)?;
            let format = format()?;
            compiled.fits(format)?;
            format
        }
        None if arguments.control => format()?,
        None => {
            let message = "there is no script: fastinst run SCRIPT -- PROGRAM; or with --control, to attach \
                           scripts later";
            return Err(Failure { code: 2, message: message.to_owned() });
        }
    };
    start(arguments, format).map_err(|error| Failure { code: exit_code(&error), message: error.to_string() })
}

/// A script without errors.
pub(crate) struct Compiled {
    name: String,
    pub(crate) source: Vec<u8>,
    script: Script,
}

impl Compiled {
    /// Refuses a format in which the report would always be empty.
    pub(crate) fn fits(&self, format: ScriptFormat) -> Result<(), Failure> {
        if format != ScriptFormat::Folded || self.script.reports_stacks() {
            return Ok(());
        }
        let message = format!(
            "{}: the format `folded` shows maps with a stack in the key and integers as values, and the script reports \
             none: report one, such as `report var calls: map<stack, u64>;`, or choose another format",
            self.name
        );
        Err(Failure { code: 2, message })
    }
}

/// Reports the errors of a script.
pub(crate) fn compile(path: &Path) -> Result<Compiled, Failure> {
    let name = path.display().to_string();
    let failed = |message: String| Failure { code: 2, message };
    let source = fs::read(path).map_err(|error| failed(format!("{name}: {error}")))?;
    match Script::native(&name, &source) {
        Ok(script) => Ok(Compiled { name, source, script }),
        Err(error) => Err(failed(format!("{name} is not a valid script:\n{error}"))),
    }
}

/// The format of the report: the given one, or that of the file.
pub(crate) fn report_format(
    given: Option<ScriptFormat>,
    output: Option<&str>,
) -> Result<ScriptFormat, Failure> {
    match (given, output) {
        (Some(format), _) => Ok(format),
        (None, None) => Ok(ScriptFormat::Text),
        (None, Some(output)) => {
            ScriptFormat::of_file(output).map_err(|error| Failure { code: 2, message: error.to_string() })
        }
    }
}

fn start(arguments: &Run, format: ScriptFormat) -> Result<Infallible, Error> {
    let (program, rest) = arguments.command.split_first().expect("clap requires a program");
    let output = arguments.output.as_deref().map(placed).transpose()?;
    let path = env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    let path = find_program(Path::new(program), &path)?;
    let library = find_library(arguments.library.as_deref(), LIBRARY)?;
    if let Some(warning) = check_program(&path, Tool::Profiler)? {
        crate::say(warning);
    }
    let absolute = |path: &PathBuf| {
        fs::canonicalize(path).map_err(|source| Error::InspectProgram { path: path.clone(), source })
    };
    let options = ScriptOptions {
        script: arguments.script.as_ref().map(absolute).transpose()?,
        control: arguments.control,
        toggle: arguments.toggle,
        format,
        output,
        run: RunId::begins_here(),
    };
    let variable = options.to_variable().ok_or(Error::OptionsNotUtf8)?;
    let source = Command::new(&path)
        .arg0(program)
        .args(rest)
        .env("LD_PRELOAD", preload(needed_sanitizer(&path), &library, env::var_os("LD_PRELOAD").as_deref()))
        .env(VARIABLE, variable)
        .exec();
    Err(Error::Execute { path, source })
}

/// The name of the report as an absolute path. Its directory must exist, unless it contains `%`
/// sequences.
fn placed(output: &str) -> Result<String, Error> {
    check_template(output)?;
    let directory = env::current_dir().map_err(|source| Error::WorkingDirectory { source })?;
    let path = directory.join(output);
    let parent = path.parent().unwrap_or(Path::new("/"));
    if !parent.to_string_lossy().contains('%') && !parent.is_dir() {
        return Err(Error::OutputDirectory { directory: parent.to_owned() });
    }
    path.into_os_string().into_string().map_err(|_| Error::OptionsNotUtf8)
}
