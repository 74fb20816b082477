//! Handler, table and asynchronous patches under loom: every order of the threads' steps within a
//! bound, with every older value that the memory model lets a load find. (What processors fetch
//! meanwhile is searched by `exploration`.)
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test --release -p wordpatch --lib --target-dir target/loom interleavings
//! ```
//!
//! # Bounds
//! Each test says how often a thread may be taken off its processor in one execution (switches
//! where a thread waits are free), and how many executions that makes; fewer fail the test. loom
//! keeps the last seven values of an atomic, and follows no load that finds a value of the future.
//! The table has two segments here, of two and of four sets of one record.
//!
//! # What is left out
//! Forked children; the locks of text, copies and fork handlers, which stay std's; the signal
//! itself.

mod queue;
mod table;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs the scenario in every execution that takes threads off their processor `preemptions` times
/// at most. They must be `executions` or more.
fn explore(preemptions: usize, executions: usize, scenario: impl Fn() + Send + Sync + 'static) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        scenario();
    });
    let count = count.load(Ordering::Relaxed);
    assert!(count >= executions, "only {count} executions");
}
