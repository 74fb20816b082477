//! The command line of a benchmark.

use std::fmt;

use clap::Parser;

use crate::report::Report;

/// Options of every benchmark.
#[derive(Clone, Debug, Parser)]
#[command(about = "Measures, and prints a table.")]
pub struct Options {
    /// Few repetitions: ends in seconds, and only shows that the benchmark works
    #[arg(long)]
    quick: bool,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,

    /// Rounds, in benchmarks that measure their subjects in turns
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    runs: Option<u32>,

    /// Passed by `cargo bench`; without it, as under `cargo test`, the run is a quick one
    #[arg(long, hide = true)]
    bench: bool,
}

impl Options {
    /// Whether the run should end in seconds.
    pub fn is_quick(&self) -> bool {
        self.quick || !self.bench
    }

    /// `full`, or `quick` in a quick run.
    pub fn either<T>(&self, full: T, quick: T) -> T {
        if self.is_quick() { quick } else { full }
    }

    /// Number of runs of each program in each configuration: the requested number, or `full`, or
    /// one in a quick run.
    pub fn runs(&self, full: u32) -> u32 {
        self.runs.unwrap_or(self.either(full, 1))
    }

    /// Reports progress on standard error.
    pub fn progress(&self, what: impl fmt::Display) {
        eprintln!("... {what}");
    }

    /// Prints the report in the requested format.
    pub fn print(&self, report: &Report) {
        if self.json {
            println!("{}", report.json());
        } else {
            print!("{report}");
        }
    }
}
