//! `wasm-jit objdump`: shows the machine code of functions.

use std::collections::HashSet;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use wasm_jit::probes::{Location, Place};
use wasm_jit::{Config, Engine, FunctionInfo, Instruction};

use super::Failure;
use super::listed_probes::{ListedProbes, ProbeKind};

const EXAMPLES: &str = "\
Examples:
  wasm-jit objdump math.wat                    every function
  wasm-jit objdump --function fib math.wat     the function with this name
  wasm-jit objdump --function 12 math.wat      the function with this index, imports included
  wasm-jit objdump --sites all math.wat        the code that is run while there are probes
  wasm-jit objdump --sites functions --probes native math.wat
                                               with the stubs of active probes";

const EXIT_CODES: &str = "\
Exit codes:
  0   done
  1   there is no such function, or the module cannot be read or compiled
  2   mistake in the command line";

/// Print WebAssembly and machine code side by side
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES, after_help = EXIT_CODES, help_template = super::TEMPLATE)]
pub(super) struct Objdump {
    /// Print only this function, given by its name in the name section or its index [default: all]
    #[arg(long, value_name = "NAME|INDEX")]
    function: Option<String>,

    /// Print the versions of functions that probes at these places use: each site is marked, and
    /// followed by its stub
    #[arg(long, value_enum, value_name = "PLACES")]
    sites: Option<Sites>,

    /// Switch probes of these kinds on at each site, so that their stubs are listed; several
    /// kinds, separated by commas, share a stub
    #[arg(long, value_enum, value_name = "KINDS", value_delimiter = ',', requires = "sites")]
    probes: Vec<ProbeKind>,

    /// Accept a precompiled module (wasm-jit compile -o), from somebody who may run programs as
    /// you
    #[arg(long)]
    allow_precompiled: bool,

    /// The module, .wasm or .wat
    file: PathBuf,
}

/// Places of probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Sites {
    /// Entries of functions
    Functions,
    /// Entries of functions, blocks, loops, branches and calls
    Branches,
    /// Entries and all instructions
    All,
}

impl Sites {
    fn has(self, instruction: &Instruction<'_>) -> bool {
        match self {
            Self::Functions => false,
            Self::Branches => instruction.is_control(),
            Self::All => true,
        }
    }

    /// The locations in a function.
    fn locations(self, function: &FunctionInfo<'_>) -> Vec<Location> {
        let Some(body) = function.body() else { return Vec::new() };
        let start = body.range().start;
        let chosen: Vec<Place> = body
            .instructions()
            .filter(|instruction| self.has(instruction))
            .map(|instruction| Place::Instruction { offset: (instruction.offset() - start) as u32 })
            .collect();
        let places = [Place::Entry].into_iter().chain(chosen);
        places.map(|place| Location { function: function.index(), place }).collect()
    }
}

pub(super) fn run(arguments: &Objdump) -> Result<ExitCode, Failure> {
    // Counters have sites, whatever their number.
    let engine = Engine::new(Config::new().counter_stubs(u32::MAX)).map_err(Failure::new)?;
    let module = super::loading::load_program(&engine, &arguments.file, arguments.allow_precompiled)?;
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
    let is_wanted = |index, _: Option<&str>| wanted.contains(&index);
    let Some(sites) = arguments.sites else {
        super::print(|out| module.write_objdump(is_wanted, out))?;
        return Ok(ExitCode::SUCCESS);
    };
    let chosen = module.functions().filter(|function| wanted.contains(&function.index()));
    let locations: Vec<Location> = chosen.flat_map(|function| sites.locations(&function)).collect();
    let kinds = if arguments.probes.is_empty() { &[ProbeKind::Counter] } else { &arguments.probes[..] };
    let of_file = |failure: Failure| failure.about(arguments.file.display());
    let probes = ListedProbes::new(&engine, &module, kinds, &locations).map_err(of_file)?;
    if !arguments.probes.is_empty() {
        probes.activate().map_err(of_file)?;
    }
    super::print(|out| module.write_objdump_with_sites(is_wanted, out))?;
    Ok(ExitCode::SUCCESS)
}
