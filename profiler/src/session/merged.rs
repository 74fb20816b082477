//! Functions whose calls the compiler has merged with those of others: a site that several
//! functions execute counts as one of them ([`fastinst::internal::MergedSite`]).
//!
//! The numbers of calls and the times of that function, of its callers and of what it calls are
//! those of all of them: upper limits. Those of the others are lower limits. Latencies of calls of
//! several functions are not those of one of them, and some calls of a function say nothing of the
//! latencies of the rest: no mean or percentile is known of either. A note names the functions. At
//! an exit, such a site means only that exits of the others are not observed, as after an exception
//! (`observe/pairing.rs`).

use std::ffi::CStr;
use std::fmt;

use fastinst::internal::merged_sites;
use fastinst::{ProbeId, ProbeKind};

use crate::binary::symbol::demangle;
use crate::report::{Arc, Caller, Estimate, FunctionReport, Latency};

/// A function whose entries fire the probe of another one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct MergedEntry {
    /// The probe.
    pub probe: ProbeId,
    /// The symbol of the function to which the probe belongs.
    first: String,
    /// The path of the file that contains it.
    object: String,
    /// The symbol of the other function, or its address if it has none.
    other: Result<String, usize>,
}

impl MergedEntry {
    /// All that have been noticed so far.
    #[must_use]
    pub fn all() -> Vec<MergedEntry> {
        let text = |text: &CStr| text.to_string_lossy().into_owned();
        let entries = merged_sites().into_iter().filter_map(|site| {
            let (kind, first, object) = fastinst::with_metadata(site.probe, |metadata| {
                (metadata.kind, text(metadata.function_name), text(metadata.object_path))
            })
            .ok()?;
            let other = site.name.map(text).ok_or(site.other);
            (kind == ProbeKind::ENTRY).then_some(MergedEntry { probe: site.probe, first, object, other })
        });
        entries.collect()
    }
}

/// The note for the user.
impl fmt::Display for MergedEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} includes calls of ", demangle(&self.first))?;
        match &self.other {
            Ok(other) => f.write_str(&demangle(other))?,
            Err(address) => write!(f, "the function at {address:#x}")?,
        }
        f.write_str(": the compiler has merged the two calls of the instrumentation function")
    }
}

/// Makes the figures of the functions limits. Returns the notes.
pub(super) fn settle(functions: &mut [FunctionReport], arcs: &mut [Arc]) -> Vec<String> {
    let entries = MergedEntry::all();
    for row in functions {
        if entries.iter().any(|entry| entry.other.as_ref() == Ok(&row.name)) {
            row.limit(arcs, at_least);
            row.latency_ns = row.latency_ns.map(only_of_timed_calls);
        }
        if entries.iter().any(|entry| entry.first == row.name && entry.object == row.object) {
            row.limit(arcs, at_most);
            row.latency_ns = None;
            row.off_cpu = None;
            row.samples = 0;
        }
    }
    let mut notes: Vec<String> = entries.iter().map(MergedEntry::to_string).collect();
    notes.sort_unstable();
    notes.dedup();
    notes
}

/// Nothing is known of a function's own share of this figure.
fn at_most(estimate: Estimate) -> Estimate {
    Estimate { low: 0.0, ..estimate }.or_least()
}

/// Some of the function's calls are not in this figure.
fn at_least(estimate: Estimate) -> Estimate {
    Estimate::at_least(estimate.low)
}

fn only_of_timed_calls(latency: Latency) -> Latency {
    let unknown = Estimate::at_least(0.0);
    Latency { mean: unknown, p50: unknown, p90: unknown, p99: unknown, ..latency }
}

impl FunctionReport {
    /// Changes the figures of the function, and those of calls to and from it: in merged code, the
    /// first function counts as the caller.
    fn limit(&mut self, arcs: &mut [Arc], limit: fn(Estimate) -> Estimate) {
        self.calls = limit(self.calls);
        self.total_ns = self.total_ns.map(limit);
        self.self_ns = self.self_ns.map(limit);
        let function = self.key();
        let is_caller = |arc: &Arc| matches!(&arc.caller, Caller::Function(caller) if *caller == function);
        for arc in arcs.iter_mut().filter(|arc| arc.callee == function || is_caller(arc)) {
            arc.calls = limit(arc.calls);
            arc.total_ns = arc.total_ns.map(limit);
        }
    }
}
