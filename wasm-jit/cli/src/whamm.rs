//! `wasm-jit whamm`: scripts for monitors.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use wasm_jit::{Engine, Module};
use wasm_jit_whamm::lang::{self, EventInfo, NarrowRule, Script, ScriptError, WideBound};
use wasm_jit_whamm::rewrite::{self, RewriteError};

use super::Failure;
use super::output_file::{OutputFile, refuse_inputs};

const EXAMPLES: &str = "\
Examples:
  wasm-jit run --monitors=count.mm app.wasm           compiles the script, and runs the monitor
  wasm-jit whamm compile count.mm -o monitor.wasm     a monitor module, for run --monitors
  wasm-jit whamm instrument count.mm app.wasm -o counted.wasm   a program for any engine
  wasm-jit whamm info 'wasm:opcode:*load*:before'     what matches, and what is bound";

const EXIT_CODES: &str = "\
Exit codes:
  0   done
  1   a file cannot be read or written, or the program cannot be rewritten
  2   mistake in the command line, or in a script";

/// Compile Whamm scripts to monitor modules or into programs, and describe match rules
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES, after_help = EXIT_CODES, help_template = super::TEMPLATE)]
pub(super) struct Whamm {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Compile(Compile),
    Instrument(Instrument),
    Info(Info),
}

/// Compile a script to a monitor module
#[derive(Debug, Args)]
struct Compile {
    /// The module [default: the script's name with .wasm]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// The script; count.mm+DIRECTORY/library.wasm if a library is not next to it
    #[arg(value_name = "SCRIPT[+LIBRARY]...")]
    script: String,
}

/// Rewrite a program so that it executes a script itself, in any engine
///
/// The report goes to standard error when the program ends by returning from _start or by exit. A
/// program without _start, such as a library, reports when the exported function that --entry names
/// returns for the first time, or when the host calls the export `whamm:report`. Engines need
/// several memories (multi-memory).
#[derive(Debug, Args)]
struct Instrument {
    /// The exported function at whose return the report is printed [default: _start]
    #[arg(long, value_name = "FUNCTION")]
    entry: Option<String>,

    /// The new program
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    /// The script, which must not use libraries
    #[arg(value_name = "SCRIPT")]
    script: PathBuf,

    /// The program (.wasm or .wat)
    #[arg(value_name = "PROGRAM")]
    program: PathBuf,
}

/// List the events that a rule matches, and the variables that each binds
#[derive(Debug, Args)]
struct Info {
    /// A match rule, such as wasm:opcode:call:before, wasm:func:entry or
    /// 'wasm:opcode:*load*:before'
    #[arg(value_name = "RULE")]
    rule: String,
}

pub(super) fn run(arguments: &Whamm) -> Result<ExitCode, Failure> {
    match &arguments.verb {
        Verb::Compile(arguments) => compile(arguments)?,
        Verb::Instrument(arguments) => instrument(arguments)?,
        Verb::Info(Info { rule }) => {
            let events = lang::info(rule).map_err(|error| Failure { code: 2, message: error.to_string() })?;
            super::print(|out| describe(&events, out))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A script with its libraries.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) script: PathBuf,
    /// The named libraries; others are searched for in the directory of the script.
    pub(super) libraries: Vec<PathBuf>,
}

/// The name by which scripts and modules import a library.
pub(super) fn library_name(file: &Path) -> String {
    file.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// The name of a library, and its module.
type Library = (String, Module);

impl Source {
    /// Parses `SCRIPT[+LIBRARY]...`.
    fn of(text: &str) -> Self {
        let mut files = text.split('+').map(PathBuf::from);
        Self { script: files.next().unwrap_or_default(), libraries: files.collect() }
    }

    /// Compiles the script to observe programs of this process.
    pub(super) fn compile_here(&self, engine: &Engine) -> Result<(Script, Vec<Library>), Failure> {
        let (script, libraries) = self.compile(engine, Script::new)?;
        Ok((script, libraries))
    }

    fn compile<T>(
        &self,
        engine: &Engine,
        compile: impl FnOnce(&str, &[u8], &[(&str, &[u8])]) -> Result<T, ScriptError>,
    ) -> Result<(T, Vec<Library>), Failure> {
        let source = fs::read(&self.script).map_err(|error| Failure::of_file(&self.script, error))?;
        let name = self.script.to_string_lossy();
        let problems = |error: ScriptError| problems(&self.script, &error);
        let mut libraries = Vec::new();
        for library in lang::libraries(&name, &source).map_err(problems)? {
            let adjacent = ["wasm", "wat"]
                .map(|extension| self.script.with_file_name(&library).with_extension(extension));
            let named = self.libraries.iter().find(|file| library_name(file) == library);
            // A missing library is a problem of the script.
            if let Some(file) = named.or_else(|| adjacent.iter().find(|file| file.exists())) {
                libraries.push((library, super::load(engine, file)?));
            }
        }
        let modules: Vec<_> =
            libraries.iter().map(|(name, module)| (name.as_str(), module.bytes())).collect();
        let compiled = compile(&name, &source, &modules).map_err(problems)?;
        Ok((compiled, libraries))
    }
}

/// Reports the rules that do not observe 64-bit memories.
pub(super) fn report_narrow<'a>(script: &Path, rules: impl IntoIterator<Item = &'a NarrowRule>) {
    for NarrowRule { rule, bound } in rules {
        let bound = match bound {
            WideBound { bound, is_for_both: true } => {
                format!("give it the type bound `({bound})`, which is for both")
            }
            WideBound { bound, .. } => format!("add a rule with the type bound `({bound})`"),
        };
        let message = format!(
            "`{rule}` does not observe memories with addresses of 64 bits, because it uses addresses or sizes \
             of 32 bits: {bound}"
        );
        Failure::of_file(script, message).report();
    }
}

fn compile(arguments: &Compile) -> Result<(), Failure> {
    let source = Source::of(&arguments.script);
    let both = |name: &str, text: &[u8], libraries: &[(&str, &[u8])]| {
        Ok((lang::compile(name, text, libraries)?, lang::narrow_rules(name, text, libraries)?))
    };
    let ((module, narrow), _) = source.compile(&Engine::default(), both)?;
    let output = arguments.output.clone().unwrap_or_else(|| source.script.with_extension("wasm"));
    refuse_inputs(&output, [source.script.as_path()])?;
    OutputFile::write(&output, &module)?;
    // The program may have such a memory.
    report_narrow(&source.script, &narrow);
    Ok(())
}

/// The problems of a script.
fn problems(script: &Path, error: &ScriptError) -> Failure {
    let count = error.problems().len();
    let message = format!("{count} {}\n{error}", if count == 1 { "problem" } else { "problems" });
    Failure { code: 2, ..Failure::of_file(script, message) }
}

fn instrument(arguments: &Instrument) -> Result<(), Failure> {
    let Instrument { entry, output, script, program } = arguments;
    let source = fs::read(script).map_err(|error| Failure::of_file(script, error))?;
    let module = super::load(&Engine::default(), program)?;
    let name = script.to_string_lossy();
    let instrumented = match entry {
        Some(entry) => rewrite::instrument_entry(&name, &source, &module, entry),
        None => rewrite::instrument(&name, &source, &module),
    };
    let instrumented = instrumented.map_err(|error| match error {
        RewriteError::Script(error) => problems(script, &error),
        RewriteError::Unsupported { .. } | RewriteError::Entry { .. } => Failure::of_file(program, error),
        _ => Failure::of_file(script, error),
    })?;
    refuse_inputs(output, [script.as_path(), program.as_path()])?;
    OutputFile::write(output, &instrumented)?;
    if module.memories().any(|memory| memory.is_64()) {
        let narrow = lang::narrow_rules(&name, &source, &[]);
        report_narrow(script, &narrow.map_err(|error| problems(script, &error))?);
    }
    if entry.is_none() && !rewrite::has_start(&module) {
        let hint = format_args!(
            "{}: there is no function _start: the report is made when the host calls the export `whamm:report`; \
             or name a function at whose end it is made: --entry FUNCTION",
            program.display()
        );
        fastinst_command_line::say("wasm-jit", hint);
    }
    Ok(())
}

/// Events with the same bound variables are listed together.
fn describe(events: &[EventInfo], out: &mut dyn Write) -> io::Result<()> {
    let rows = |event: &EventInfo| -> Vec<(String, String, bool, &'static str)> {
        let row =
            |bound: &lang::BoundInfo| (bound.name.clone(), bound.ty.clone(), bound.is_static, bound.help);
        event.bound.iter().map(row).collect()
    };
    let mut groups: Vec<(Vec<&str>, _)> = Vec::new();
    for event in events {
        let rows = rows(event);
        match groups.iter_mut().find(|(_, known)| *known == rows) {
            Some((names, _)) => names.push(&event.event),
            None => groups.push((vec![&event.event], rows)),
        }
    }
    for (index, (names, rows)) in groups.iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        for name in names {
            writeln!(out, "{name}")?;
        }
        for (name, ty, is_static, help) in rows {
            let when = if *is_static { "static" } else { "dynamic" };
            writeln!(out, "  {name:18}{ty:16}{when:9}{help}")?;
        }
    }
    Ok(())
}
