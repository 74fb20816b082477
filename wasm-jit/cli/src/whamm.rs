//! `wasm-jit whamm`: scripts for monitors.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use wasm_jit_whamm::lang::{self, EventInfo};

use super::Failure;

const EXAMPLES: &str = "\
Examples:
  wasm-jit run --monitors=count.mm app.wasm           compiles the script, and runs the monitor
  wasm-jit whamm compile count.mm -o monitor.wasm     a monitor module, for run --monitors
  wasm-jit whamm info 'wasm:opcode:*load*:before'     what matches, and what is bound";

/// Compiles Whamm scripts to monitor modules, and describes match rules
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES, help_template = super::TEMPLATE)]
pub(super) struct Whamm {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Compile(Compile),
    Info(Info),
}

/// Compiles a script to a monitor module
#[derive(Debug, Args)]
struct Compile {
    /// The module [default: the script's name with .wasm]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// The script
    #[arg(value_name = "SCRIPT")]
    script: PathBuf,
}

/// Lists the events that a rule matches, and the variables that each binds
#[derive(Debug, Args)]
struct Info {
    /// Such as wasm:opcode:call:before, wasm:func:entry or 'wasm:opcode:*load*:before'
    #[arg(value_name = "RULE")]
    rule: String,
}

pub(super) fn run(arguments: &Whamm) -> Result<ExitCode, Failure> {
    match &arguments.verb {
        Verb::Compile(arguments) => compile(arguments)?,
        Verb::Info(Info { rule }) => {
            let events = lang::info(rule).map_err(|error| Failure { code: 2, message: error.to_string() })?;
            super::print(|out| describe(&events, out))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Compiles a script to a monitor module.
pub(super) fn compile_script(script: &Path) -> Result<Vec<u8>, Failure> {
    let source = fs::read(script).map_err(|error| Failure::of_file(script, error))?;
    lang::compile(&script.to_string_lossy(), &source).map_err(|error| {
        let count = error.problems().len();
        let message = format!("{count} {}\n{error}", if count == 1 { "problem" } else { "problems" });
        Failure::of_file(script, message)
    })
}

fn compile(arguments: &Compile) -> Result<(), Failure> {
    let Compile { output, script } = arguments;
    let module = compile_script(script)?;
    let output = output.clone().unwrap_or_else(|| script.with_extension("wasm"));
    fs::write(&output, module).map_err(|error| Failure::of_file(&output, error))
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
            writeln!(out, "  {name:16}{ty:16}{when:9}{help}")?;
        }
    }
    Ok(())
}
