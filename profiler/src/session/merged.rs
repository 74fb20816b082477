//! Functions whose calls the compiler has merged with those of others: a site that several
//! functions execute counts as one of them ([`fastinst::MergedSite`]).
//!
//! The figures of that function are those of all of them: upper limits. Those of the others, if
//! they have rows, are lower limits. A note names them. At an exit, such a site means only that
//! exits of the others are not observed, as after an exception ([`crate::observe::pairing`]).

use std::ffi::CStr;

use fastinst::{MergedSite, ProbeKind, merged_sites};

use crate::binary::symbol::demangle;
use crate::report::{Estimate, FunctionReport};

/// Makes the figures of the functions upper limits. Returns the notes.
pub(super) fn settle(functions: &mut [FunctionReport]) -> Vec<String> {
    let note = |site: MergedSite| {
        let (kind, name, object) = fastinst::with_metadata(site.probe, |metadata| {
            let text = |text: &CStr| text.to_string_lossy().into_owned();
            (metadata.kind, text(metadata.function_name), text(metadata.object_path))
        })
        .ok()?;
        if kind != ProbeKind::ENTRY {
            return None;
        }
        let is_it = |row: &&mut FunctionReport| row.name == name && row.object == object;
        functions.iter_mut().filter(is_it).for_each(limit);
        let other = match site.name.map(|name| name.to_string_lossy()) {
            Some(other) => {
                functions.iter_mut().filter(|row| row.name == other).for_each(unlimit);
                demangle(&other)
            }
            None => format!("the function at {:#x}", site.other),
        };
        Some(format!(
            "{} includes calls of {other}: the compiler has merged the two calls of the instrumentation function",
            demangle(&name)
        ))
    };
    let mut notes: Vec<String> = merged_sites().into_iter().filter_map(note).collect();
    notes.sort_unstable();
    notes.dedup();
    notes
}

/// Some of the function's calls are not in its figures.
fn unlimit(row: &mut FunctionReport) {
    change(row, |estimate| Estimate::at_least(estimate.low));
}

/// Nothing is known of a function's own share of these figures.
fn limit(row: &mut FunctionReport) {
    change(row, |estimate| Estimate { low: 0.0, ..estimate });
}

fn change(row: &mut FunctionReport, change: impl Fn(Estimate) -> Estimate) {
    row.calls = change(row.calls);
    row.total_ns = row.total_ns.map(&change);
    row.self_ns = row.self_ns.map(&change);
}
