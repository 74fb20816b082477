//! Limits of programs on the command line.

use std::time::Duration;

use clap::Args;
use wasm_jit::Config;

use super::program::Limits;
use super::units;

/// What the program may use.
#[derive(Clone, Debug, Args)]
pub(super) struct ProgramLimits {
    /// Stop the program with a trap after this time: 10s, 500ms, 2m [default: never]
    #[arg(long, value_name = "DURATION", value_parser = units::duration)]
    pub(super) timeout: Option<Duration>,

    /// Stop each thread of the program with a trap after N units of fuel: 1 for each instruction,
    /// and 1 for each call; at the same instruction in every run [default: unlimited]
    #[arg(long, value_name = "N")]
    pub(super) fuel: Option<u64>,

    /// Stack size of the program; deeper recursion traps: 512K, 8M
    #[arg(long, value_name = "BYTES", default_value = "8M", value_parser = units::bytes)]
    pub(super) max_stack: usize,

    /// Memory of each thread's garbage-collected heap, and of its exceptions: 64M, 1G; a program
    /// that needs more for one of them fails [default: unlimited]
    #[arg(long, value_name = "BYTES", value_parser = units::bytes)]
    max_heap: Option<usize>,
}

impl ProgramLimits {
    /// What each thread of the program may use.
    pub(super) fn of_threads(&self) -> Limits {
        Limits { stack: self.max_stack, fuel: self.fuel, heap: self.max_heap.map(|bytes| bytes as u64) }
    }

    /// The limits of a replayed run.
    pub(super) fn of_replay(&self) -> wasm_jit_replay::Limits {
        let Limits { fuel, heap, .. } = self.of_threads();
        wasm_jit_replay::Limits { fuel, heap, timeout: self.timeout }
    }

    /// Limits the code of a program, and lets it count fuel if that is limited.
    pub(super) fn apply(&self, config: &mut Config) {
        config.max_wasm_stack(self.max_stack).consume_fuel(self.fuel.is_some());
    }
}
