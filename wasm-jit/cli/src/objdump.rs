//! `wasm-jit objdump`: shows the machine code of functions.

use std::collections::HashSet;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use wasm_jit::{Engine, FunctionInfo};

use super::Failure;

const EXAMPLES: &str = "\
Examples:
  wasm-jit objdump math.wat                    every function
  wasm-jit objdump --function fib math.wat     the function with this name
  wasm-jit objdump --function 12 math.wat      the function with this index, imports counted";

const EXIT_CODES: &str = "\
Exit codes:
  0   done
  1   there is no such function, or the module cannot be read or compiled
  2   mistake in the command line";

/// Prints WebAssembly and machine code side by side
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES, after_help = EXIT_CODES, help_template = super::TEMPLATE)]
pub(super) struct Objdump {
    /// Prints only this function, given by its name in the name section or its index [default: all]
    #[arg(long, value_name = "NAME|INDEX")]
    function: Option<String>,

    /// The module, .wasm or .wat
    file: PathBuf,
}

pub(super) fn run(arguments: &Objdump) -> Result<ExitCode, Failure> {
    let engine = Engine::new(&wasm_jit::Config::new()).map_err(Failure::new)?;
    let module = super::load(&engine, &arguments.file)?;
    let is_wanted = |function: &FunctionInfo<'_>| match &arguments.function {
        None => true,
        Some(wanted) => function.name() == Some(wanted) || wanted.parse() == Ok(function.index()),
    };
    let with_code = module.functions().filter(|function| function.body().is_some());
    let wanted: HashSet<u32> = with_code.filter(is_wanted).map(|function| function.index()).collect();
    if let (Some(function), true) = (&arguments.function, wanted.is_empty()) {
        let message = format_args!("there is no function `{function}` with code");
        return Err(Failure::of_file(&arguments.file, message));
    }
    super::print(|out| module.write_objdump(|index, _| wanted.contains(&index), out))?;
    Ok(ExitCode::SUCCESS)
}
