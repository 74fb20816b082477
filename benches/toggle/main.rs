//! Costs of switching a probe on and off.
//!
//! 1. A call site by shape, split and strategy, not executed and executed by another thread.
//! 2. Through `fastinst::activate` and `deactivate` on an application of 20,000 probes, as in
//!    section 8.3 of the paper; and the cost of discovering them (section 8.2).
//! 3. In the same run, the building blocks of other methods to change code: mprotect, membarrier,
//!    writes to /proc/self/mem, and `wordpatch::patch` with its INT3 protocol.
//! 4. Patches of many sites: as a batch, and asynchronously.
mod application;
mod batches;
mod call_sites;
mod peers;

use std::sync::atomic::{AtomicU64, Ordering};

use benches::options::Options;
use benches::report::Report;
use benches::sites::{self, E8_NOP};
use clap::Parser;
use wordpatch::{FetchModel, FetchWindow};

fn main() {
    let options = Options::parse();
    let mut report = Report::new("What does it cost, in ticks, to switch a probe on and off?");
    options.progress("peers");
    report.push(peers::table(&options));
    options.progress("batches");
    report.push(batches::table(&options));
    options.progress("call sites");
    let [quiet, executed] = call_sites::tables(&options);
    report.push(quiet);
    report.push(executed);
    options.progress("an application with many probes");
    let ticks_per_ns = report.host().ticks_per_ns;
    application::tables(&options, ticks_per_ns).into_iter().for_each(|table| report.push(table));
    options.print(&report);
}

static CALLS: AtomicU64 = AtomicU64::new(0);

/// The callee of the call sites.
extern "C" fn callee() {
    CALLS.fetch_add(1, Ordering::Relaxed);
}

fn callee_address() -> usize {
    callee as *const () as usize
}

/// The window for which the cases are generated.
fn window() -> FetchWindow {
    FetchModel::in_force().window
}

fn code_at<const N: usize>(address: usize) -> [u8; N] {
    // SAFETY: called with addresses of text that stays mapped, and is not written concurrently.
    unsafe { sites::code_at(address) }
}
