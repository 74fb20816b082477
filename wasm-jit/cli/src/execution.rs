//! What `wasm-jit run`, `record` and `debug` have in common: the options of a program, and its
//! execution.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use clap::Args;
use wasm_jit::{Config, Engine, Error, ExternType, Func, FuncType, Instance, Module, Store, Val};
use wasm_jit_debug::{Killed, Outcome};
use wasm_jit_wasi::{WasiCtx, WasiCtxBuilder};

use super::code_settings::CodeSettings;
use super::host::Host;
use super::limits::ProgramLimits;
use super::loading::Loading;
use super::program::Imports;
use super::recordings::Recorded;
use super::{Failure, values};

/// Exit code of a program that trapped: the code that a shell reports for an aborted process.
pub(super) const TRAPPED: u8 = 134;

const EXAMPLES: &str = "\
Examples:
  wasm-jit run --dir .::/ --env LANG=C app.wasm -v input.txt
  wasm-jit run --invoke fib math.wat 30
  wasm-jit run --count malloc --count main:0x2c1 app.wasm
  wasm-jit run --monitors=icount,'hotness{function=main}' --monitor-out report app.wasm
  wasm-jit run --monitors=./monitor.wasm+whamm_core.wasm app.wasm
  wasm-jit run --cache app.wasm
  wasm-jit run --lazy app.wasm
  wasm-jit run --allow-precompiled app.cwasm
  wasm-jit run --replay app.trace --monitors=hotness app.wasm
  wasm-jit run --timeout 10s untrusted.wasm < input";

const EXIT_CODES: &str = "\
Exit codes:
  the program's own   it ended; with --invoke and without an error, 0
  134                 it trapped, needed more memory than it may have, called a function that is
                      missing, or its time was up: reason and backtrace go to stderr
  1                   it could not be loaded or linked, does not have a named function, does not
                      take the arguments, or did not catch an exception; a directory or monitor
                      is missing
  2                   mistake in the command line, or in a script";

/// Run a WebAssembly program
#[derive(Clone, Debug, Args)]
#[command(before_help = EXAMPLES, after_help = EXIT_CODES, help_template = super::TEMPLATE)]
#[command(override_usage = "wasm-jit run [OPTIONS] <FILE> [ARGS]...")]
pub(super) struct Run {
    /// Give the program access to this directory of the host, under the name GUEST (default: the
    /// same name); may be repeated. If it contains /proc, the program can access this process there
    #[arg(long = "dir", value_name = "HOST[::GUEST]", value_parser = directory)]
    directories: Vec<(PathBuf, String)>,

    /// Set a variable in the program's environment, or pass on one of this environment; the
    /// program sees no others; may be repeated
    #[arg(long = "env", value_name = "NAME[=VALUE]", value_parser = variable)]
    environment: Vec<(String, Option<String>)>,

    /// Call this exported function with ARGS, and print its results, one per line [default:
    /// _start, with ARGS as the program's arguments]
    #[arg(long, value_name = "NAME")]
    pub(super) invoke: Option<String>,

    #[command(flatten)]
    pub(super) limits: ProgramLimits,

    /// Instantiate this module first, and make its exports available to imports from NAME; may be
    /// repeated
    #[arg(long = "preload", value_name = "NAME=FILE", value_parser = preload)]
    preloads: Vec<(String, PathBuf)>,

    /// The module from which programs import string constants: immutable globals that are named by
    /// their text (importedStringConstants in JavaScript)
    #[arg(long, value_name = "NAME", default_value = "'")]
    string_constants: String,

    /// Run the program even if functions that it imports are undefined: it traps when it calls one
    /// of them
    #[arg(long)]
    allow_unknown_functions: bool,

    #[command(flatten)]
    code: CodeSettings,

    #[command(flatten)]
    loading: Loading,

    /// Count how often this function (name or index) is called, or the instruction at this offset
    /// of the module, as backtraces print it, is executed; print the counts to stderr when the
    /// program has ended; may be repeated
    #[arg(long = "count", value_name = "FUNCTION[:OFFSET]")]
    pub(super) counts: Vec<String>,

    #[command(flatten)]
    pub(super) monitors: super::monitors::Arguments,

    /// Let debuggers attach to the program: wasm-jit debug --connect ADDRESS, or LLDB; ADDRESS is
    /// a port of 127.0.0.1, which every user of this host can connect to, or the path of a new
    /// socket
    #[arg(long, value_name = "ADDRESS")]
    pub(super) debug_port: Option<String>,

    /// Write /tmp/perf-PID.map, from which perf takes the names of functions
    #[arg(long)]
    pub(super) perf_map: bool,

    /// Register the names of functions with gdb; with probes, tell it
    /// `handle SIGILL nostop noprint pass`
    #[arg(long)]
    pub(super) gdb: bool,

    /// Repeat a recorded run of the program (wasm-jit record -o TRACE) without its host: files,
    /// arguments and the environment come from the trace, and the program's output is not written
    /// again
    #[arg(
        long,
        value_name = "TRACE",
        conflicts_with_all = ["directories", "environment", "invoke", "preloads", "allow_unknown_functions"]
    )]
    pub(super) replay: Option<PathBuf>,

    /// Whether a replay counts instructions, so that a debugger can go back.
    #[arg(skip)]
    pub(super) goes_back: bool,

    /// The output of a recording, and the calls to record.
    #[arg(skip)]
    pub(super) recorded: Option<Recorded>,

    /// The module (.wasm or .wat), and the program's arguments
    #[arg(value_name = "FILE", required = true, trailing_var_arg = true)]
    program: Vec<OsString>,
}

impl Run {
    /// The fuel of a run: the maximum that compiled code counts, if it is not limited.
    pub(super) fn given_fuel(&self) -> u64 {
        self.limits.fuel.unwrap_or(i64::MAX as u64)
    }

    /// The items that the program can import besides WASI and the functions of `wasm:js-string`.
    pub(super) fn imports(&self, engine: &Engine) -> Result<Imports, Failure> {
        let load = |(name, file): &(String, PathBuf)| Ok((name.clone(), super::load(engine, file)?));
        let preloads = self.preloads.iter().map(load).collect::<Result<_, Failure>>()?;
        let string_constants = self.string_constants.clone();
        Ok(Imports { preloads, string_constants, allows_unknown: self.allow_unknown_functions })
    }

    #[cfg(test)]
    pub(super) fn program(&self) -> &[OsString] {
        &self.program
    }

    pub(super) fn file(&self) -> &Path {
        Path::new(&self.program[0])
    }

    /// The files of the modules.
    pub(super) fn inputs(&self) -> Vec<&Path> {
        self.preloads.iter().map(|(_, file)| file.as_path()).chain([self.file()]).collect()
    }

    fn arguments(&self) -> &[OsString] {
        &self.program[1..]
    }

    /// Compiles the program.
    pub(super) fn load(&self) -> Result<Module, Failure> {
        let mut config = Config::new();
        self.limits.apply(&mut config);
        if self.goes_back {
            config.consume_fuel(true);
        }
        self.code.apply(&mut config);
        self.loading.apply(&mut config)?;
        // perf ignores its map for code in files.
        config.map_stored_code(!self.perf_map);
        let engine = Engine::new(&config).map_err(Failure::new)?;
        let module = self.loading.load(&engine, self.file())?;
        if let (Some(_), Some(argument)) = (&self.replay, self.arguments().first()) {
            let argument = argument.to_string_lossy();
            let message = format!("--replay: the program's arguments are those of the trace: `{argument}`");
            return Err(Failure { code: 2, message });
        }
        match &self.invoke {
            // Before anything runs or is written.
            Some(name) => match module.get_export(name) {
                Some(ExternType::Func(ty)) => self.values(&ty).map(drop)?,
                _ => return Err(not_exported(name)),
            },
            None if self.replay.is_some() => {}
            None => check_main(&module).map_err(|failure| failure.about(self.file().display()))?,
        }
        Ok(module)
    }

    /// The arguments of the invoked function, which has this type.
    fn values(&self, ty: &FuncType) -> Result<Vec<Val>, Failure> {
        // A program gets a first `--` as its argument. A function has no options, so it is none.
        let given = match self.arguments() {
            [separator, given @ ..] if separator == "--" => given,
            given => given,
        };
        let count = ty.params().len();
        if given.len() != count {
            let takes = match count {
                0 => "no arguments".to_owned(),
                1 => "1 argument".to_owned(),
                count => format!("{count} arguments"),
            };
            return Err(Failure::new(match given.len() {
                1 => format!("the function takes {takes}, 1 is given"),
                count => format!("the function takes {takes}, {count} are given"),
            }));
        }
        let given = ty.params().zip(given);
        let parsed = given.map(|(ty, text)| values::parse(ty, &text.to_string_lossy()));
        parsed.collect::<Result<_, _>>().map_err(Failure::new)
    }
}

/// Parses `HOST::GUEST`, or one name for both.
fn directory(text: &str) -> Result<(PathBuf, String), String> {
    let (host, guest) = text.split_once("::").unwrap_or((text, text));
    if host.is_empty() || guest.is_empty() {
        return Err("expected HOST or HOST::GUEST".to_owned());
    }
    Ok((host.into(), guest.to_owned()))
}

fn variable(text: &str) -> Result<(String, Option<String>), String> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (text, None),
    };
    if name.is_empty() {
        return Err("expected NAME=VALUE or NAME".to_owned());
    }
    Ok((name.to_owned(), value))
}

fn preload(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, file)) if !file.is_empty() => Ok((name.to_owned(), file.into())),
        _ => Err("expected NAME=FILE".to_owned()),
    }
}

/// The names of a program's main function.
const MAIN: [&str; 2] = ["", "_start"];

/// Refuses a library, since only its initialization would run, and a main function that needs
/// arguments or has results.
fn check_main(module: &Module) -> Result<(), Failure> {
    let function = |name| match module.get_export(name) {
        Some(ExternType::Func(ty)) => Some((name, ty)),
        _ => None,
    };
    if let Some((name, ty)) = MAIN.into_iter().find_map(function) {
        if ty.params().len() + ty.results().len() == 0 {
            return Ok(());
        }
        return Err(Failure::new(format_args!(
            "`{name}` has the type {ty}, that of a program is [] -> []: use --invoke '{name}' to call it"
        )));
    }
    if module.start_function().is_some() && function("_initialize").is_none() {
        return Ok(());
    }
    Err(Failure::new(
        "no function is exported as `_start`: this is not a program; use --invoke NAME to call one of its functions",
    ))
}

fn not_exported(name: &str) -> Failure {
    Failure::new(format_args!("no function is exported as `{name}`"))
}

/// The reason why a program did not return.
#[derive(Debug)]
pub(super) enum Stop {
    Error(Error),
    Failure(Failure),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

pub(super) fn wasi_context(arguments: &Run) -> Result<WasiCtx, Failure> {
    let mut builder = WasiCtxBuilder::new();
    builder.inherit_stdio();
    // The program gets its name, without the directory.
    builder.arg(arguments.file().file_name().unwrap_or_default().to_os_string().into_vec());
    builder.args(arguments.arguments().iter().map(|argument| argument.clone().into_vec()));
    for (name, value) in &arguments.environment {
        let value = value.clone().map(OsString::from).or_else(|| std::env::var_os(name));
        if let Some(value) = value {
            builder.env(name.as_str(), value.into_vec());
        }
    }
    for (host, guest) in &arguments.directories {
        builder.preopened_dir(host, guest).map_err(|error| Failure::of_file(host, error))?;
    }
    Ok(builder.build())
}

pub(super) fn execute(arguments: &Run, store: &mut Store<Host>, instance: &Instance) -> Result<(), Stop> {
    // A library, as opposed to a command, must be initialized first.
    if let Some(initialize) = instance.get_func(&mut *store, "_initialize") {
        initialize.typed::<(), ()>(&*store)?.call(&mut *store, ())?;
    }
    if let Some(name) = &arguments.invoke {
        return match instance.get_func(&mut *store, name) {
            Some(function) => invoke(arguments, store, &function),
            None => Err(Stop::Failure(not_exported(name))),
        };
    }
    match MAIN.into_iter().find_map(|name| instance.get_func(&mut *store, name)) {
        Some(main) => Ok(main.typed::<(), ()>(&*store)?.call(&mut *store, ())?),
        None => Ok(()),
    }
}

/// Calls a function with the arguments from the command line, and prints its results.
fn invoke(arguments: &Run, store: &mut Store<Host>, function: &Func) -> Result<(), Stop> {
    let ty = function.ty(&*store);
    let parsed = arguments.values(&ty).map_err(Stop::Failure)?;
    let mut results = vec![Val::I32(0); ty.results().len()];
    function.call(&mut *store, &parsed, &mut results)?;
    let text: String = results.iter().map(|value| values::print(value) + "\n").collect();
    super::print(|out| out.write_all(text.as_bytes())).map_err(Stop::Failure)
}

/// A description of how a program has ended, for a debugger.
pub(super) fn outcome(done: &Result<(), Stop>) -> Outcome {
    match done {
        Ok(()) => Outcome::exited(0),
        Err(Stop::Failure(failure)) => Outcome::failed(&failure.message, failure.code),
        Err(Stop::Error(error)) if error.downcast_ref::<Killed>().is_some() => Outcome::returned("killed"),
        Err(Stop::Error(error)) => match ended(error) {
            Ok(code) => Outcome::exited(code),
            Err(failure) => Outcome::failed(failure.message, failure.code),
        },
    }
}

/// Whether a program exits by this error.
pub(super) fn is_exit(error: &Error) -> bool {
    error.downcast_ref::<wasm_jit_wasi::Exit>().is_some()
}

/// The exit code of a program that did not end by returning.
pub(super) fn ended(error: &Error) -> Result<u8, Failure> {
    if let Some(exit) = error.downcast_ref::<wasm_jit_wasi::Exit>() {
        // As for a native process, only the lower eight bits are significant.
        return Ok(exit.0 as u8);
    }
    let is_of_program = match error {
        // Without frames, the program was not running yet.
        Error::StoreLimit { backtrace, .. } | Error::Memory { backtrace, .. } => !backtrace.is_empty(),
        error => error.trap().is_some(),
    };
    let code = if is_of_program { TRAPPED } else { 1 };
    Err(Failure { code, message: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_have_one_or_two_names() {
        assert_eq!(directory("."), Ok((".".into(), ".".to_owned())));
        assert_eq!(directory("/srv/a::/"), Ok(("/srv/a".into(), "/".to_owned())));
        assert_eq!(directory("C:x::D:y"), Ok(("C:x".into(), "D:y".to_owned())));
        assert!(directory("").is_err());
        assert!(directory("a::").is_err());
    }

    #[test]
    fn preloaded_modules_have_a_name_and_a_file() {
        assert_eq!(preload("env=a=b.wasm"), Ok(("env".to_owned(), "a=b.wasm".into())));
        assert!(preload("env").is_err());
        assert!(preload("env=").is_err());
    }

    #[test]
    fn variables_may_have_no_value() {
        assert_eq!(variable("A=b=c"), Ok(("A".to_owned(), Some("b=c".to_owned()))));
        assert_eq!(variable("A="), Ok(("A".to_owned(), Some(String::new()))));
        assert_eq!(variable("A"), Ok(("A".to_owned(), None)));
        assert!(variable("").is_err());
    }
}
