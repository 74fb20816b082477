//! Completion events of instructions, observed by probes at all instructions that may follow.

use std::collections::BTreeMap;
use std::sync::Arc;

use wasm_jit::probes::{Bound, InstanceId, Place, ProbeError};

use crate::attach::{Instances, Probes, Site, callback, each_site};
use crate::hook::Hook;
use crate::pending::Records;

/// An instruction has completed: control is about to execute the next one of its frame, or to leave
/// the function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct After {
    /// The function's index, imports included.
    pub function: u32,
    /// The offset of the instruction from the start of the function's body.
    pub offset: u32,
    /// The offset at which control continues, from the start of the function's body: that of the
    /// next instruction, or for the exit, the length of the body.
    pub next: u32,
    /// The instance that executes the instruction.
    pub instance: InstanceId,
}

/// Calls a closure whenever one of the chosen instructions has completed.
///
/// A call has completed when it has returned. Instructions that trap or throw do not complete, and
/// tail calls do not in their frame. An instruction that began before the hook was switched on is
/// not reported.
///
/// # Errors
/// As [`Module::probes`](wasm_jit::Module::probes) and
/// [`Probe::activate`](wasm_jit::probes::Probe::activate).
pub fn after<'a>(
    of: impl Into<Instances<'a>>,
    filter: impl Fn(&Site<'_>) -> bool,
    hook: impl Fn(&After) + Send + Sync + 'static,
) -> Result<Hook, ProbeError> {
    let of = of.into();
    // By number: function and offset.
    let mut sites = Vec::new();
    // The places that follow: their offsets, and the numbers of the instructions before them.
    let mut followers: BTreeMap<(u32, Place), (u32, Vec<usize>)> = BTreeMap::new();
    let mut specs = Vec::new();
    each_site(of.module, filter, |site, flow, index| {
        for next in &flow.successors[index] {
            let of_place = followers.entry((site.function, flow.place(*next)));
            let (_, before) = of_place.or_insert_with(|| (flow.offset(*next), Vec::new()));
            // An instruction may have the same successor twice.
            if before.last() != Some(&sites.len()) {
                before.push(sites.len());
            }
        }
        specs.push((site.function, Place::Instruction { offset: site.offset }));
        sites.push((site.function, site.offset));
    });
    let (records, watch) = Records::new(of.module);
    let (began, period) = (records.clone(), records.period());
    let (places, before): (Vec<_>, Vec<_>) = followers.into_iter().unzip();
    let sites: Arc<[(u32, u32)]> = sites.into();
    let completes = callback(move |number, instance, values| {
        let (next, before) = &before[number];
        if let Some((site, _)) = records.complete(values[0], before) {
            let (function, offset) = sites[site];
            hook(&After { function, offset, next: *next, instance });
        }
    });
    let begins = callback(move |number, _, values| began.begin(values[0], number, 0));
    let mut probes = Probes::default();
    // An instruction completes before the next one begins.
    for (number, place) in places.into_iter().enumerate() {
        probes.add(place, &completes, number, &[Bound::Frame]);
    }
    for (number, place) in specs.into_iter().enumerate() {
        probes.add(place, &begins, number, &[Bound::Frame]);
    }
    Hook::with_period(probes.make(of)?, period, Some(watch))
}
