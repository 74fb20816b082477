//! `wasm-jit trace` and `wasm-jit replay-gen`: commands that process recorded runs.

use std::fs::{self, File};
use std::io::{BufReader, Seek};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde::Serialize;
use wasm_jit::{Config, Engine, Module, Trap};
use wasm_jit_replay::{Error, Event, Reader, Reason, Reduced};

use super::limits::ProgramLimits;
use super::output_file::{OutputFile, refuse_inputs};
use super::{Failure, program};

const TRACE_EXAMPLES: &str = "\
Examples:
  wasm-jit trace dump app.trace | less       one event per line, with its number
  wasm-jit trace dump --json app.trace | jq -c 'select(.event == \"call\")'
  wasm-jit trace import trace.r3 app.wasm -o app.trace";

const TRACE_EXIT_CODES: &str = "\
Exit codes:
  0   done
  1   the trace or text is damaged or does not fit the program, or a file cannot be read or written
  2   mistake in the command line";

/// Show or import traces of programs that were recorded
#[derive(Debug, Args)]
#[command(before_help = TRACE_EXAMPLES, after_help = TRACE_EXIT_CODES, help_template = super::TEMPLATE)]
pub(super) struct Trace {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Dump(Dump),
    Import(Import),
}

/// Print the events of a trace, one per line
///
/// A line contains the number of the event, its kind and its fields; integers are signed, and NaNs
/// are printed as bits. If the trace is damaged, the events before the damage are printed, and the
/// exit code is 1.
#[derive(Debug, Args)]
struct Dump {
    /// Print a JSON object per line: `number`, `event` (the kind), and the fields. 64-bit integers
    /// are strings; the bits of 64-bit floats and of vectors are hexadecimal strings
    #[arg(long)]
    json: bool,

    /// The trace
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
}

/// Convert a trace in the text format of Wasm-R3 (EC, ER, IC, IR, L and others)
///
/// The program runs with a host that acts as the text describes. A line that cannot be parsed, or
/// that does not fit the program, is an error; then no trace is written. If the text ends before
/// the run does, the host fails there. Memories and tables that the program imports have the size
/// that it declares, unless the text has their size (IM, IT), and contain only what it reads there.
#[derive(Debug, Args)]
struct Import {
    /// The new trace
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    /// The text
    #[arg(value_name = "TEXT")]
    text: PathBuf,

    #[command(flatten)]
    limits: ProgramLimits,

    /// The program that was recorded (.wasm or .wat), without instrumentation
    #[arg(value_name = "PROGRAM")]
    program: PathBuf,
}

/// A line of the dump.
#[derive(Serialize)]
struct Numbered {
    number: usize,
    #[serde(flatten)]
    event: Event,
}

pub(super) fn trace(arguments: Trace) -> Result<ExitCode, Failure> {
    match arguments.verb {
        Verb::Dump(arguments) => dump(&arguments),
        Verb::Import(arguments) => {
            program::run_with_stack(arguments.limits.max_stack, move || import(&arguments))
        }
    }
}

fn import(Import { output, text, limits, program }: &Import) -> Result<ExitCode, Failure> {
    refuse_inputs(output, [text.as_path(), program.as_path()])?;
    let module = load_to_run(program, limits)?;
    let new = OutputFile::new(output)?;
    let imported = wasm_jit_replay::import_within(&limits.of_replay(), &module, open(text)?, new.file()?);
    imported.map_err(|error| about(error, text, program).in_one_line())?;
    new.finish()?;
    Ok(ExitCode::SUCCESS)
}

fn dump(Dump { json, trace }: &Dump) -> Result<ExitCode, Failure> {
    let mut events = Reader::new(open(trace)?).enumerate();
    let mut failed = None;
    super::print(|out| {
        for (number, event) in &mut events {
            match event {
                Ok(event) if *json => {
                    serde_json::to_writer(&mut *out, &Numbered { number, event })?;
                    writeln!(out)?;
                }
                Ok(event) => writeln!(out, "{number} {event}")?,
                Err(error) => failed = Some(error),
            }
        }
        Ok(())
    })?;
    match failed {
        Some(error) => Err(Failure::of_file(trace, error)),
        None => Ok(ExitCode::SUCCESS),
    }
}

const GENERATE_EXAMPLES: &str = "\
Examples:
  wasm-jit replay-gen app.trace app.wasm -o bench.wasm      a benchmark without a host
  wasmtime bench.wasm
  wasm-jit replay-gen --check app.trace app.wasm -o check.wasm
  wasm-jit replay-gen --javascript app.trace app.wasm -o bench      with a host in JavaScript
  node bench/replay.mjs --check
  wasm-jit replay-gen --separate app.trace app.wasm -o bench        as three modules
  wasmtime --preload imports=bench/imports.wasm --preload program=bench/program.wasm bench/host.wasm";

const GENERATE_EXIT_CODES: &str = "\
Exit codes:
  0   done
  1   the trace is damaged or does not fit the program, or a file cannot be read or written
  2   mistake in the command line";

/// Make a module from a program and a trace, which repeats the recorded run by itself, in any
/// engine
///
/// The module has no imports; its _start repeats the calls made by the host. A run that ended by
/// exit, or by a trap, ends by a trap.
#[derive(Debug, Args)]
#[command(before_help = GENERATE_EXAMPLES, after_help = GENERATE_EXIT_CODES, help_template = super::TEMPLATE)]
pub(super) struct ReplayGen {
    /// The new module; with --javascript or --separate a directory, which is created if it does not
    /// exist
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    /// Make a host in JavaScript: the files replay.mjs, program.wasm, which is the program with
    /// more exports, and events.bin. Started with --check, it compares arguments and results with
    /// the recorded ones. Its exit codes: 0 the run was repeated, 1 it differs, 2 the recording
    /// ends before the program
    #[arg(long, conflicts_with_all = ["check", "separate"])]
    javascript: bool,

    /// Make three modules: imports.wasm, program.wasm, which is the program with more exports but
    /// without _start and _initialize, and host.wasm, whose _start repeats the run
    #[arg(long)]
    separate: bool,

    /// Compare the order of all calls, their arguments and results with the recorded ones: the
    /// first difference traps, and the exported global replay.difference is the number of its
    /// event, as trace dump prints it
    #[arg(long)]
    check: bool,

    /// The trace
    #[arg(value_name = "TRACE")]
    trace: PathBuf,

    /// The program that was recorded (.wasm or .wat)
    #[arg(value_name = "PROGRAM")]
    program: PathBuf,
}

impl ReplayGen {
    fn inputs(&self) -> [&Path; 2] {
        [&self.trace, &self.program]
    }
}

pub(super) fn generate(arguments: &ReplayGen) -> Result<ExitCode, Failure> {
    let module = load(&arguments.program)?;
    if arguments.javascript {
        let made = wasm_jit_replay::javascript(module.bytes(), open(&arguments.trace)?);
        let made = made.map_err(|error| about(error, &arguments.trace, &arguments.program))?;
        return write_files(&made.files(), arguments);
    }
    if arguments.separate {
        let made = wasm_jit_replay::separate(module.bytes(), open(&arguments.trace)?, arguments.check);
        let made = made.map_err(|error| about(error, &arguments.trace, &arguments.program))?;
        return write_files(&made.files(), arguments);
    }
    let generated = wasm_jit_replay::generate(module.bytes(), open(&arguments.trace)?, arguments.check);
    let generated = generated.map_err(|error| about(error, &arguments.trace, &arguments.program))?;
    refuse_inputs(&arguments.output, arguments.inputs())?;
    OutputFile::write(&arguments.output, &generated)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes files into a directory.
fn write_files(files: &[(&str, &[u8])], arguments: &ReplayGen) -> Result<ExitCode, Failure> {
    let folder = &arguments.output;
    fs::create_dir_all(folder).map_err(|error| Failure::of_file(folder, error))?;
    let paths: Vec<PathBuf> = files.iter().map(|(name, _)| folder.join(name)).collect();
    paths.iter().try_for_each(|path| refuse_inputs(path, arguments.inputs()))?;
    for (path, (_, contents)) in paths.iter().zip(files) {
        OutputFile::write(path, contents)?;
    }
    Ok(ExitCode::SUCCESS)
}

const REDUCE_EXAMPLES: &str = "\
Examples:
  wasm-jit reduce app.trace app.wasm -o small.trace
  wasm-jit replay-gen small.trace app.wasm -o bench.wasm
  wasm-jit reduce --slice parse app.trace app.wasm -o parse.trace      the calls to one function";

const REDUCE_EXIT_CODES: &str = "\
Exit codes:
  0   done
  1   the run differs from the trace, the trace is damaged, or a file cannot be read or written
  2   mistake in the command line";

/// Write a smaller trace of the same run
///
/// Bytes that the host has written and the program does not read are dropped. For this, the program
/// runs once more, without its host, about ten times slower; a run that differs from the trace is
/// an error, which names the first event that differs, and no trace is written. The figures of a
/// slice are those before and after bytes were dropped from it.
#[derive(Debug, Args)]
#[command(before_help = REDUCE_EXAMPLES, after_help = REDUCE_EXIT_CODES, help_template = super::TEMPLATE)]
pub(super) struct Reduce {
    /// Keep only the calls to this function, given by its name or its index: in the new trace, the
    /// host calls it, with the memories, tables and globals that it found. Recursive calls are part
    /// of the outermost one. The program runs twice
    #[arg(long, value_name = "FUNCTION")]
    slice: Option<String>,

    /// Print the figures as JSON: `events` and `bytes`, each before and after; `calls` of the
    /// slice
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    limits: ProgramLimits,

    /// The new trace
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    /// The trace
    #[arg(value_name = "TRACE")]
    trace: PathBuf,

    /// The program that was recorded (.wasm or .wat)
    #[arg(value_name = "PROGRAM")]
    program: PathBuf,
}

/// The printed figures.
#[derive(Serialize)]
struct Figures {
    #[serde(flatten)]
    reduced: Reduced,
    #[serde(skip_serializing_if = "Option::is_none")]
    calls: Option<u64>,
}

pub(super) fn reduce(arguments: Reduce) -> Result<ExitCode, Failure> {
    program::run_with_stack(arguments.limits.max_stack, move || reduce_here(&arguments))
}

fn reduce_here(arguments: &Reduce) -> Result<ExitCode, Failure> {
    refuse_inputs(&arguments.output, [arguments.program.as_path()])?;
    let module = load_to_run(&arguments.program, &arguments.limits)?;
    let limits = arguments.limits.of_replay();
    let about = |error| about(error, &arguments.trace, &arguments.program).in_one_line();
    let of_slice = |failure: Failure| match &arguments.slice {
        Some(name) => failure.about(format_args!("the slice of `{name}`")),
        None => failure,
    };
    let new = OutputFile::new(&arguments.output)?;
    let mut trace = open(&arguments.trace)?;
    let mut calls = None;
    if let Some(name) = &arguments.slice {
        let function = super::count::function(&module, name).ok_or_else(|| {
            let message = format_args!("there is no function `{name}` with code");
            Failure::of_file(&arguments.program, message)
        })?;
        let failed = |error| Failure::new(error).about("a temporary file");
        let mut slice = tempfile::tempfile().map_err(failed)?;
        let out = slice.try_clone().map_err(failed)?;
        calls = Some(wasm_jit_replay::slice_within(&limits, &module, function, trace, out).map_err(about)?);
        slice.rewind().map_err(failed)?;
        trace = BufReader::new(slice);
    }
    let reduced = wasm_jit_replay::reduce_within(&limits, &module, trace, new.file()?);
    let reduced = reduced.map_err(about).map_err(of_slice)?;
    new.finish()?;
    let ([before, after], [bytes, needed]) = (reduced.events, reduced.bytes);
    super::print(|out| {
        if arguments.json {
            serde_json::to_writer(&mut *out, &Figures { reduced, calls })?;
            return writeln!(out);
        }
        if let Some(calls) = calls {
            writeln!(out, "calls in the slice: {calls}")?;
        }
        writeln!(out, "events: {before} before, {after} after")?;
        writeln!(out, "bytes written by the host: {bytes} before, {needed} after")
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Loads a program that runs with these limits.
fn load_to_run(program: &Path, limits: &ProgramLimits) -> Result<Module, Failure> {
    let mut config = Config::new();
    limits.apply(&mut config);
    super::load(&Engine::new(&config).map_err(Failure::new)?, program)
}

fn load(program: &Path) -> Result<Module, Failure> {
    super::load(&Engine::default(), program)
}

pub(super) fn open(trace: &Path) -> Result<BufReader<File>, Failure> {
    File::open(trace).map(BufReader::new).map_err(|error| Failure::of_file(trace, error))
}

/// Checks that a file can be read, and begins as a trace does.
pub(super) fn check_head(trace: &Path) -> Result<(), Failure> {
    match Reader::new(open(trace)?).next() {
        Some(Err(error)) => Err(Failure::of_file(trace, error)),
        _ => Ok(()),
    }
}

/// Names the file that an error is about.
pub(super) fn about(error: Error, trace: &Path, program: &Path) -> Failure {
    match error {
        Error::Module(_)
        | Error::Unsupported { .. }
        | Error::NotGenerated { .. }
        | Error::NotImported { .. }
        | Error::NotCalled { .. } => Failure::of_file(program, error),
        error if is_about_stack(&error) => {
            Failure::of_file(trace, error).advise("; --max-stack must be as large as in the recorded run")
        }
        error => Failure::of_file(trace, error),
    }
}

/// Whether the stack was exhausted in only one of the two runs.
fn is_about_stack(error: &Error) -> bool {
    match error {
        Error::Mismatch { values: Some(values), .. } => match &values.recorded {
            Event::Fail { reason: Some(Reason::Trap(text)) } => *text == Trap::StackOverflow.to_string(),
            _ => false,
        },
        Error::Failed { source, .. } => source.trap() == Some(Trap::StackOverflow),
        _ => false,
    }
}
