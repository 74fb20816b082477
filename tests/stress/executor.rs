//! The threads that execute sites during a run.

use crate::run::{Kind, Run, Worker};
use crate::sites::{bytes_at, execute};

/// Executes the sites repeatedly.
pub(crate) fn run_all(run: &Run, name: String, sites: &[usize]) {
    let worker = run.worker(name);
    while worker.continues() {
        for _ in 0..64 {
            run_once(&worker, sites);
        }
    }
}

/// Executes each site once.
pub(crate) fn run_once(worker: &Worker<'_>, sites: &[usize]) {
    for site in sites {
        if execute(*site).is_none() {
            worker.found(
                Kind::Torn,
                format_args!("a mixture was executed at {site:#x}, whose bytes are {:02x?}", bytes_at(*site)),
            );
        }
    }
    worker.executed(sites.len() as u64);
}
