//! The threads that run sites for as long as a run takes.

use crate::run::{Kind, Run, Worker};
use crate::sites::{bytes_at, execute};

/// Runs the sites round and round.
pub(crate) fn run_all(run: &Run, name: String, sites: &[usize]) {
    let worker = run.worker(name);
    while worker.goes_on() {
        for _ in 0..64 {
            run_once(&worker, sites);
        }
    }
}

/// Runs each site once.
pub(crate) fn run_once(worker: &Worker<'_>, sites: &[usize]) {
    for site in sites {
        if execute(*site).is_none() {
            worker.found(
                Kind::Torn,
                format_args!("a mixture was executed at {site:#x}, where {:02x?} stands", bytes_at(*site)),
            );
        }
    }
    worker.executed(sites.len() as u64);
}
