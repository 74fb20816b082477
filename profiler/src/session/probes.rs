//! The probes of a session: the function to which each belongs, and the calls that were made before
//! that was known.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::Ordering;

use fastinst::ProbeMetadata;
use fastinst::provider::{self, EarlyCalls, KnownFunction};

use super::{OVER, Session, with_session};
use crate::function::{FUNCTIONS, Function};
use crate::measured::Measured;
use crate::probe_type::ProbeType;
use crate::schedule::switch_on;

/// The calls of a function before its probes were ready.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Early {
    counted: u64,
    is_interrupted: bool,
    /// Calls to this or another function that was loaded at the same address.
    of_unloaded: u64,
}

impl Early {
    fn add(&mut self, calls: EarlyCalls) {
        match calls {
            EarlyCalls::Counted(calls) => self.counted += calls,
            EarlyCalls::Interrupted => self.is_interrupted = true,
            EarlyCalls::OfUnloaded(calls) => self.of_unloaded += calls,
        }
    }
}

/// The observed objects, by number.
#[derive(Debug, Default)]
pub(super) struct Objects {
    /// The paths and numbers of the objects. An object that was loaded again may have the same path
    /// at another address.
    known: Vec<(&'static CStr, u32)>,
}

impl Objects {
    /// The number of the object with this path; a new object gets the next number.
    fn number(&mut self, path: &'static CStr) -> u32 {
        // Nearly always the same string, which was last used.
        if let Some((_, number)) = self.known.iter().rev().find(|(known, _)| std::ptr::eq(*known, path)) {
            return *number;
        }
        let same = self.known.iter().find(|(known, _)| *known == path);
        let number = same.map_or(self.known.len() as u32, |(_, number)| *number);
        self.known.push((path, number));
        number
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
        }
    });
}

impl Session {
    /// Assigns a probe to its function, and activates it: it has not been executed
    /// ([`crate::function`]). Returns the index of the function.
    pub(super) fn adopt(&mut self, probe: &ProbeMetadata<'static>, kind: ProbeType) -> Option<u32> {
        let index = self.function_of(probe)?;
        Function::adopt(index, probe.id, kind)?;
        self.schedule.functions[index as usize].probes += 1;
        self.stacks.add_site(probe.site_address, kind, index, probe.body_start..probe.body_end);
        if kind == ProbeType::Entry && probe.function_address == probe.body_start {
            self.bodies.insert(probe.body_start, probe.body_end, index);
        }
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
        let key = (self.objects.number(function.object_path), offset);
        if let Some(index) = self.indices.get(&key) {
            return Some(*index);
        }
        let index = FUNCTIONS.push_with(|_| Function::default())? as u32;
        FUNCTIONS.get(index as usize)?.reset();
        let mut measured = Measured::new(function.name, function.object_path, offset);
        if self.unassigned_calls > 0 {
            measured.observed_mut().strata.missed(self.unassigned_calls);
        }
        self.schedule.functions.push(measured);
        self.indices.insert(key, index);
        self.by_address.insert(address, index);
        // Its probes are activated one by one as they are discovered.
        self.schedule.begin(index);
        Some(index)
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
        let early = &mut self.early_calls;
        let unassigned =
            provider::take_early_calls(|address, calls| early.entry(address).or_default().add(calls));
        if unassigned > 0 {
            self.unassigned_calls += unassigned;
            self.schedule
                .functions
                .iter_mut()
                .for_each(|function| function.observed_mut().strata.missed(unassigned));
        }
        self.calls_of_unloaded +=
            early.values_mut().map(|calls| std::mem::take(&mut calls.of_unloaded)).sum::<u64>();
        let (functions, by_address) = (&mut self.schedule.functions, &self.by_address);
        early.retain(|address, calls| match by_address.get(address) {
            Some(index) => {
                functions[*index as usize].observed_mut().strata.counted_early(calls.counted);
                if calls.is_interrupted {
                    functions[*index as usize].observed_mut().strata.interrupted();
                }
                false
            }
            // Its probes have not been made yet.
            None => true,
        });
    }

    /// The number of early calls whose functions are not known, because their library was unloaded
    /// before its probes were made: they may be calls of any function of such a library.
    pub(super) fn calls_of_unloaded(&self) -> u64 {
        let counted = self.early_calls.iter().filter(|(_, calls)| calls.counted > 0);
        let unknown = counted.filter(|(address, _)| provider::function_at(**address).is_none());
        self.calls_of_unloaded + unknown.map(|(_, calls)| calls.counted).sum::<u64>()
    }

    /// Adds the early calls of functions that have no probes when the process ends: their sites
    /// could not be determined, or cannot be changed. The numbers of such calls are lower limits.
    pub(super) fn add_functions_without_probes(&mut self) {
        for (address, calls) in std::mem::take(&mut self.early_calls) {
            if calls.counted == 0 {
                continue;
            }
            let function = provider::function_at(address).filter(|function| {
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
