//! The cost of recording, the size of traces, and the speed of replays.
//!
//! Real WASI programs (`programs.rs`) and the kernels (`kernels.rs`) run with and without
//! `wasm-jit record`; then programs that do nothing but call their host (`calls.rs`), recordings
//! that begin and end in the middle of a run (`middle.rs`), and other ways to find what the host
//! changes (`effects.rs`).

mod calls;
mod effects;
mod kernels;
mod middle;
mod programs;

use std::process::Command;

use benches::child;
use benches::distribution::geometric_mean;
use benches::options::Options;
use benches::report::{Report, Table};
use clap::Parser;

fn main() {
    let options = Options::parse();
    let (programs, mut ratios) = programs::costs(&options);
    let (kernels, of_kernels) = kernels::costs(&options);
    ratios.extend(of_kernels);
    let mut report = Report::new("What does it cost to record a program of WebAssembly?");
    report.push(programs);
    report.push(kernels);
    report.push(all(&ratios));
    report.push(calls::costs(&options));
    report.push(effects::ways(&options));
    report.push(middle::speed(&options));
    report.push(middle::snapshots(&options));
    options.print(&report);
}

/// The programs and kernels together.
fn all(ratios: &[f64]) -> Table {
    let mut table = Table::new(
        "All programs and kernels",
        "The processor time of all threads when they are recorded, relative to that of `run`.",
        &["number", "geometric mean", "largest"],
    );
    let largest = ratios.iter().copied().fold(0.0, f64::max);
    table.push(vec![ratios.len().into(), geometric_mean(ratios.iter().copied()).into(), largest.into()]);
    table
}

/// The least times of a program without and with a recording, which run in turns.
struct Turns {
    name: &'static str,
    /// Number of turns. One more comes first, which loads files into memory, and is not counted.
    number: u32,
    /// The least elapsed times in seconds.
    elapsed: [f64; 2],
    /// The least processor times of all threads, in seconds.
    processor: [f64; 2],
}

impl Turns {
    fn new(name: &'static str, options: &Options) -> Self {
        Self { name, number: options.runs(5), elapsed: [f64::INFINITY; 2], processor: [f64::INFINITY; 2] }
    }

    /// Runs both; returns everything that they have printed.
    fn run(&mut self, commands: impl Fn() -> [Command; 2]) -> [Vec<Vec<u8>>; 2] {
        let mut printed = [Vec::new(), Vec::new()];
        for turn in 0..=self.number {
            for (index, command) in commands().into_iter().enumerate() {
                let ran = child::run(command);
                assert!(ran.status.success(), "{}: {}", self.name, ran.status);
                if turn > 0 {
                    self.elapsed[index] = self.elapsed[index].min(ran.elapsed.as_secs_f64());
                    self.processor[index] = self.processor[index].min(ran.cpu_seconds);
                }
                printed[index].push(ran.output);
            }
        }
        printed
    }
}
