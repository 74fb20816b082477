//! `wasm-jit compile`: compiles a module, writes it with its code, and prints statistics.

use std::borrow::Cow;
use std::num::NonZero;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use nix::time::{ClockId, clock_gettime};
use serde::Serialize;
use wasm_jit::{Config, Engine};

use super::Failure;
use super::code_settings::CodeSettings;
use super::loading::refuse_precompiled;
use super::output_file::{OutputFile, refuse_inputs};
use super::units;

const EXAMPLES: &str = "\
Examples:
  wasm-jit compile app.wasm                           is it valid, and supported?
  wasm-jit compile -o app.cwasm app.wasm              for wasm-jit run --allow-precompiled app.cwasm
  wasm-jit compile --stats app.wasm                   how large, how fast
  wasm-jit compile --stats --json --threads 1 app.wasm";

const EXIT_CODES: &str = "\
Exit codes:
  0   the module was compiled
  1   it is invalid or not supported, or cannot be read, or FILE cannot be written
  2   mistake in the command line";

/// Compile a module; write it with its code, or discard the code
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES, after_help = EXIT_CODES, help_template = super::TEMPLATE)]
pub(super) struct Compile {
    /// Write the module and its machine code to this file, which wasm-jit run --allow-precompiled
    /// loads without compiling it, if version and code-generation settings are the same
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    #[command(flatten)]
    code: CodeSettings,

    /// Compile for wasm-jit run --fuel
    #[arg(long)]
    fuel: bool,

    /// Print sizes and times
    #[arg(long)]
    stats: bool,

    /// Print them as one line of JSON
    #[arg(long, requires = "stats")]
    json: bool,

    /// Number of threads to compile on [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = units::from_one::<NonZero<usize>>)]
    threads: Option<NonZero<usize>>,

    /// The module, .wasm or .wat
    file: PathBuf,
}

/// The statistics that `--stats` prints.
#[derive(Debug, Serialize)]
struct Stats {
    /// Functions that are not imported.
    functions: usize,
    /// Size of the binary module.
    bytes_in: usize,
    /// Size of the machine code.
    code_bytes: usize,
    /// Time from bytes in memory to executable code: parsing, validation, compilation and linking.
    milliseconds: f64,
    /// Processor time of all threads meanwhile.
    processor_milliseconds: f64,
    /// 10^6 bytes of the binary module per second.
    megabytes_per_second: f64,
    /// Number of compiling threads.
    threads: usize,
}

impl Stats {
    fn text(&self) -> String {
        let Self {
            functions,
            bytes_in,
            code_bytes,
            milliseconds,
            processor_milliseconds,
            megabytes_per_second,
            threads,
        } = self;
        let per_byte = *code_bytes as f64 / (*bytes_in).max(1) as f64;
        format!(
            "functions   {functions}\n\
             bytes in    {bytes_in}\n\
             code bytes  {code_bytes} ({per_byte:.2} for each byte in)\n\
             time        {milliseconds:.3} ms on {threads} {}\n\
             processor   {processor_milliseconds:.3} ms\n\
             throughput  {megabytes_per_second:.2} MB/s\n",
            if *threads == 1 { "thread" } else { "threads" },
        )
    }
}

pub(super) fn run(arguments: &Compile) -> Result<ExitCode, Failure> {
    let mut config = Config::new();
    let available = || std::thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN);
    let threads = arguments.threads.unwrap_or_else(available);
    config.compile_threads(threads).consume_fuel(arguments.fuel);
    arguments.code.apply(&mut config);
    let engine = Engine::new(&config).map_err(Failure::new)?;
    if let Some(output) = &arguments.output {
        refuse_inputs(output, [arguments.file.as_path()])?;
    }
    refuse_precompiled(&arguments.file)?;
    let of_file = |error: &dyn std::fmt::Display| Failure::of_file(&arguments.file, error);
    let bytes = std::fs::read(&arguments.file).map_err(|error| of_file(&error))?;
    // The time does not include the conversion from text.
    let binary =
        wat::Parser::new().parse_bytes(Some(&arguments.file), &bytes).map_err(|error| of_file(&error))?;
    let bytes = match binary {
        Cow::Owned(binary) => binary,
        Cow::Borrowed(_) => bytes,
    };
    let size = bytes.len();
    let (start, processor_start) = (Instant::now(), processor_time());
    let module = wasm_jit::Module::from_owned_binary(&engine, bytes).map_err(|error| of_file(&error))?;
    let (time, processor_time) = (start.elapsed(), processor_time() - processor_start);
    if let Some(output) = &arguments.output {
        let bytes = module.serialize().map_err(|error| of_file(&error))?;
        OutputFile::write(output, &bytes)?;
    }
    if arguments.stats {
        let stats = stats(&module, size, time, processor_time, threads.get());
        let text = match arguments.json {
            true => serde_json::to_string(&stats).map_err(Failure::new)? + "\n",
            false => stats.text(),
        };
        super::print(|out| out.write_all(text.as_bytes()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The processor time of all threads of the process so far.
fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).expect("every process has this clock").into()
}

fn stats(
    module: &wasm_jit::Module,
    bytes_in: usize,
    time: Duration,
    processor_time: Duration,
    threads: usize,
) -> Stats {
    Stats {
        functions: module.functions().filter(|function| function.body().is_some()).count(),
        bytes_in,
        code_bytes: module.code_size(),
        milliseconds: time.as_secs_f64() * 1e3,
        processor_milliseconds: processor_time.as_secs_f64() * 1e3,
        megabytes_per_second: bytes_in as f64 / 1e6 / time.as_secs_f64().max(1e-9),
        threads,
    }
}
