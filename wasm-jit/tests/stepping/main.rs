//! Programs are run again and again, and single-stepped to an instruction that is a few further
//! each time, or one with `LONG_TESTS=1`, where they are interrupted.

mod frames;
mod probes;
mod stepper;

/// The distance between two interrupts, in steps.
fn stride(short: usize) -> usize {
    if std::env::var_os("LONG_TESTS").is_some() { 1 } else { short }
}
