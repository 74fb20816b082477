//! Code-generation settings, which must be the same when a module is compiled ahead of time and
//! when it is run.

use clap::Args;
use wasm_jit::{BoundsChecks, Config};

/// Settings of the generated code.
#[derive(Clone, Debug, Args)]
pub(super) struct CodeSettings {
    /// Check memory accesses with instructions, instead of reserving 8 GiB of addresses for each
    /// memory [default: only if the reservation is refused, as under ulimit -v]
    #[arg(long)]
    bounds_checks: bool,

    /// Harden the code against speculative bypassing of bounds checks
    #[arg(long)]
    harden_speculation: bool,

    /// Use no AVX-512, so that precompiled code can be loaded, with this option, on processors
    /// without it [default: as the processor has it]
    #[arg(long)]
    no_avx512: bool,
}

impl CodeSettings {
    /// Applies the settings to the engine's configuration.
    pub(super) fn apply(&self, config: &mut Config) {
        config.harden_speculation(self.harden_speculation);
        if self.bounds_checks {
            config.bounds_checks(BoundsChecks::Instructions);
        }
        if self.no_avx512 {
            config.avx512(false);
        }
    }
}
