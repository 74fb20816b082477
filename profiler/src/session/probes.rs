//! The probes of a session: the function to which each belongs, and the calls that were made before
//! that was known.

use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::Ordering;

use fastinst::internal;
use fastinst::provider::{EarlyCalls, KnownFunction};
use fastinst::{ProbeId, ProbeMetadata};

use super::{OVER, Session, with_session};
use crate::estimate::callers::Bodies;
use crate::observe::function::{Executed, FUNCTIONS, Function};
use crate::observe::measured::Measured;
use crate::observe::probe_type::ProbeType;
use crate::observe::schedule::switch_on;

/// The calls of a function before its probes were ready.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Early {
    counted: u64,
    is_interrupted: bool,
}

/// The probes of libraries that were unloaded.
#[derive(Debug, Default)]
pub(super) struct Unloaded {
    probes: HashSet<ProbeId>,
    /// [`fastinst::internal::load_count`] when this was brought up to date.
    loads: u64,
}

/// The probes of the process.
pub(super) fn all_probes() -> impl Iterator<Item = ProbeId> {
    (0..fastinst::probe_count() as u32).map(ProbeId)
}

/// Adds the code of the function whose entry probe this is.
fn add_body(id: ProbeId, bodies: &mut Bodies) {
    if let Some(Executed { index, .. }) = Function::of_probe(id)
        && let Some(probe) = fastinst::lasting_metadata(id)
        && ProbeType::of(probe.kind) == Some(ProbeType::Entry)
        && probe.function_address == probe.body_start
    {
        bodies.insert(probe.body_start, probe.body_end, index);
    }
}

/// Called for every probe: assigns it to its function, and activates it. Only functions whose code
/// is never unloaded as a group are observed: a report names them when the process ends.
pub(super) fn discovered(probe: &ProbeMetadata<'_>) {
    let Some(kind) = ProbeType::of(probe.kind) else { return };
    let Some(probe) = fastinst::lasting_metadata(probe.id) else { return };
    with_session(|session| {
        let offset = probe.function_address.wrapping_sub(probe.object_base);
        if session.wants(probe.function_name, probe.object_path, offset) {
            session.adopt(&probe, kind);
        } else {
            session.stacks.leave_out();
        }
    });
}

impl Session {
    /// Assigns a probe to its function, and activates it: it has not been executed
    /// ([`crate::observe::function`]). Returns the index of the function.
    pub(super) fn adopt(&mut self, probe: &ProbeMetadata<'static>, kind: ProbeType) -> Option<u32> {
        let index = self.function_of(probe)?;
        Function::adopt(index, probe.id, kind)?;
        self.schedule.functions[index as usize].probes += 1;
        self.stacks.add_site(probe.id);
        if FUNCTIONS.get(index as usize)?.wants_probes() && !OVER.load(Ordering::Relaxed) {
            switch_on(probe.id, kind);
        }
        Some(index)
    }

    /// The index of a probe's function, which is created if it is new.
    fn function_of(&mut self, probe: &ProbeMetadata<'static>) -> Option<u32> {
        let function = KnownFunction {
            name: probe.function_name,
            object_path: probe.object_path,
            object_base: probe.object_base,
        };
        self.function_at(probe.function_address, function)
    }

    /// The index of a function, which is created if it is new.
    fn function_at(&mut self, address: usize, function: KnownFunction) -> Option<u32> {
        let offset = address.wrapping_sub(function.object_base);
        let loaded = (function.object_path, function.object_base);
        let (object, known) = self.known.function(&self.schedule.functions, loaded, offset, function.name);
        if known.is_some() {
            return known;
        }
        let index = FUNCTIONS.push_with(|_| Function::default())? as u32;
        FUNCTIONS.get(index as usize)?.reset();
        self.schedule.functions.push(Measured::new(function.name, object, offset));
        self.known.insert(&self.schedule.functions, index);
        // Its probes are activated one by one as they are discovered.
        self.schedule.begin(index);
        Some(index)
    }

    /// The code of the observed functions, for their calls, without that of libraries whose calls
    /// were settled.
    pub(super) fn bodies(&self) -> Bodies {
        let mut bodies = Bodies::default();
        all_probes().filter(|id| !self.unloaded.probes.contains(id)).for_each(|id| add_body(id, &mut bodies));
        bodies.sort();
        bodies
    }

    /// If libraries were unloaded, replaces the callers in them by their functions: another library
    /// may be loaded at the same addresses. To be called after each look for libraries.
    pub(super) fn settle_unloaded(&mut self) {
        let loads = fastinst::internal::load_count();
        if std::mem::replace(&mut self.unloaded.loads, loads) == loads {
            return;
        }
        self.schedule.drain();
        let mut bodies = Bodies::default();
        for id in all_probes() {
            if fastinst::is_loaded(id) {
                self.unloaded.probes.remove(&id);
            } else if self.unloaded.probes.insert(id) {
                add_body(id, &mut bodies);
            }
        }
        bodies.sort();
        self.schedule.settle(&|address| bodies.function_at(address));
    }

    /// Whether the user selected a function with this address in its object.
    pub(super) fn wants(&mut self, name: &CStr, object: &CStr, address: usize) -> bool {
        let locations = &mut self.locations;
        let file = || {
            let object = Path::new(OsStr::from_bytes(object.to_bytes()));
            locations.of(object, address as u64).map(|location| location.file)
        };
        self.settings.filter.wants(name, object, file)
    }

    /// Adds the calls that were made before their function's probes were ready. They were counted,
    /// but not timed.
    pub(super) fn take_early_calls(&mut self) {
        let (early, of_unloaded) = (&mut self.early_calls, &mut self.calls_of_unloaded);
        let mut new = Vec::new();
        let unassigned = internal::take_early_calls(|address, calls| {
            let (counted, is_interrupted) = match calls {
                EarlyCalls::Counted(calls) => (calls, false),
                EarlyCalls::Interrupted => (0, true),
                // Of this or another function that was loaded at the same address.
                EarlyCalls::OfUnloaded(calls) => return *of_unloaded += calls,
            };
            let known = early.entry(address).or_insert_with(|| {
                new.push(address);
                Early::default()
            });
            known.counted += counted;
            known.is_interrupted |= is_interrupted;
        });
        self.schedule.unassigned_calls += unassigned;
        let (functions, known) = (&mut self.schedule.functions, &self.known);
        // The others are those of functions whose probes had not been made yet, or never are.
        if std::mem::replace(&mut self.known_at_early_calls, known.size()) != known.size() {
            new = early.keys().copied().collect();
        }
        for address in new {
            if let Some(index) = known.at(functions, address)
                && let Some(calls) = early.remove(&address)
            {
                functions[index as usize].counted_early(calls.counted, calls.is_interrupted);
            }
        }
    }

    /// The number of early calls whose functions are not known, because their library was unloaded
    /// before its probes were made: they may be calls of any function of such a library.
    pub(super) fn calls_of_unloaded(&self) -> u64 {
        let counted = self.early_calls.iter().filter(|(_, calls)| calls.counted > 0);
        let unknown = counted.filter(|(address, _)| internal::function_at(**address).is_none());
        let mut unknown: HashMap<_, _> = unknown.map(|(address, calls)| (*address, calls.counted)).collect();
        if !unknown.is_empty() {
            for id in all_probes() {
                // Its function was not selected.
                if Function::of_probe(id).is_none()
                    && let Some(probe) = fastinst::lasting_metadata(id)
                {
                    unknown.remove(&probe.function_address);
                }
            }
        }
        self.calls_of_unloaded + unknown.values().sum::<u64>()
    }

    /// Adds the early calls of functions that have no probes when the process ends: their sites
    /// could not be determined, or cannot be changed. The numbers of such calls are lower limits.
    pub(super) fn add_functions_without_probes(&mut self) {
        for (address, calls) in std::mem::take(&mut self.early_calls) {
            if calls.counted == 0 {
                continue;
            }
            let function = internal::function_at(address).filter(|function| {
                self.wants(function.name, function.object_path, address.wrapping_sub(function.object_base))
            });
            let Some(function) = function else {
                self.early_calls.insert(address, calls);
                continue;
            };
            if let Some(index) = self.function_at(address, function) {
                self.schedule.functions[index as usize].observed_mut().strata.counted_at_least(calls.counted);
            }
        }
    }
}
