//! The trap handler, the site table and asynchronous patches under loom: all orders of the threads'
//! steps within a bound, with all older values that a load may return in the memory model.
//! (`exploration` covers instruction fetch.)
//!
//! ```text
//! RUSTC_WORKSPACE_WRAPPER=scripts/cfg/loom cargo test --release -p wordpatch --lib interleavings
//! ```
//!
//! # Bounds
//! Each test states the maximum number of preemptions in an execution (switches at which a thread
//! waits are not counted), and the resulting number of executions; fewer executions fail the test.
//! loom keeps the last seven values of an atomic, and no load returns a value that is stored later.
//! The table has two segments here, with two and four sets of one record.
//!
//! # Not covered
//! Forked children; the locks of text, copies and fork handlers, which are those of std; the
//! delivery of signals.

mod queue;
mod table;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs the scenario in all executions with at most `preemptions` preemptions. There must be at
/// least `executions`.
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
