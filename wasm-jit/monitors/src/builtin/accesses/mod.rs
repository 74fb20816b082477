//! Passes all memory accesses to monitors that examine each access; those of one store are passed
//! in order.
//!
//! A probe at each instruction that accesses a memory appends a record of the access to a buffer of
//! the running store ([`Recorder`]). The consumer gets the records of a full buffer on the thread
//! that runs the store, and all others when a report is made. Thus the program calls a function,
//! which takes a lock, only once in several hundred accesses.

mod values;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use wasm_jit::probes::{Bound, Kind, Location, ProbeSpec, Recorder, StoreId};
use wasm_jit::wasmparser::Operator;
use wasm_jit_hooks::{AccessInfo, AccessKind, Period};

use super::graph::Graph;
use crate::lock::lock;
use crate::{Error, LazyProbes, Report, Setup};

/// An access of an instruction, which has one or two.
#[derive(Clone, Copy, Debug)]
pub(super) struct Site {
    pub(super) function: u32,
    pub(super) offset: u32,
    pub(super) kind: AccessKind,
    pub(super) memory: u32,
    /// The number of bytes, if all accesses have the same.
    pub(super) size: Option<u8>,
}

/// An access that is about to be made or, if values are observed, may have been made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    /// Index of the access's site.
    pub(super) site: usize,
    pub(super) address: u64,
    pub(super) size: u64,
    /// The value as in [`wasm_jit_hooks::Access`], if values are observed.
    pub(super) value: Option<u64>,
}

/// A user of the accesses.
pub(super) trait Consumer: Send + 'static {
    /// Consumes an access of a store. The accesses of one store arrive in order, several hundred at
    /// a time.
    fn consume(&mut self, site: &Site, access: Access);

    /// Called after several hundred accesses.
    fn pause(&mut self) {}
}

/// The accesses of an instruction. A notification has an address, but neither loads nor stores.
fn accesses_of(operator: &Operator<'_>) -> impl Iterator<Item = AccessInfo> {
    let all = wasm_jit_hooks::accesses(operator).into_iter();
    all.filter(|access| access.kind != AccessKind::Notify)
}

/// A recorder of accesses without values. A record has the index of the site, shifted left by a
/// bit, and the address; if the number of bytes differs, a second record, whose bit is set, has
/// that.
fn recorder<C: Consumer>(
    sites: Arc<[Site]>,
    consumer: Arc<Mutex<C>>,
    period: Period,
) -> Result<Recorder, Error> {
    // First records without the second one.
    let mut all: HashMap<StoreId, (usize, u64)> = HashMap::new();
    let mut of_period = period.current();
    let recorder = Recorder::new(move |store, records: &[[u64; 2]]| {
        forget_earlier(&mut all, &mut of_period, &period);
        let mut consumer = lock(&consumer);
        let mut begun = all.remove(&store);
        for &[first, second] in records {
            let site = (first >> 1) as usize;
            let (address, size) = match (sites[site].size, first & 1) {
                (Some(size), _) => (second, size.into()),
                (None, 0) => {
                    begun = Some((site, second));
                    continue;
                }
                (None, _) => match begun.take() {
                    Some((at, address)) if at == site => (address, second),
                    // The first one was switched on later.
                    _ => continue,
                },
            };
            consumer.consume(&sites[site], Access { site, address, size, value: None });
        }
        all.extend(begun.map(|begun| (store, begun)));
        consumer.pause();
    });
    Ok(recorder?)
}

/// Forgets accesses that have begun in an earlier period: they may have been completed while the
/// probes were off.
fn forget_earlier<K, T>(all: &mut HashMap<K, T>, of_period: &mut u64, period: &Period) {
    if period.has_changed(of_period) {
        all.clear();
    }
}

/// The probes that append the records of an access, whose site has this index, to the recorder.
fn specs(
    recorder: &Recorder,
    location: Location,
    number: u64,
    access: AccessInfo,
) -> impl Iterator<Item = ProbeSpec> {
    let spec = move |(bit, value): (u64, Bound)| {
        let values = [Bound::Const(number << 1 | bit), value].into();
        ProbeSpec { location, kind: Kind::Record { recorder: recorder.clone(), values } }
    };
    let size = match access.size {
        Bound::Const(_) => None,
        size => Some((1, size)),
    };
    std::iter::once((0, access.address)).chain(size).map(spec)
}

/// The accesses of a module's instructions.
pub(super) struct Accesses<C: Consumer> {
    sites: Arc<[Site]>,
    consumer: Arc<Mutex<C>>,
    recorder: Recorder,
    period: Period,
    probes: LazyProbes,
}

impl<C: Consumer> Accesses<C> {
    /// The accesses of the chosen functions; `consumer` gets the sites. With values, accesses with
    /// a result are observed after they have been made.
    pub(super) fn of(
        setup: &Setup<'_>,
        has_values: bool,
        consumer: impl FnOnce(&[Site]) -> Result<C, Error>,
    ) -> Result<Self, Error> {
        let mut sites = Vec::new();
        // Site indices by function.
        let mut first: HashMap<u32, u64> = HashMap::new();
        for graph in setup.functions().filter_map(|function| Graph::of(&function)) {
            first.insert(graph.function, sites.len() as u64);
            for (offset, operator) in &graph.flow.instructions {
                for AccessInfo { kind, memory, size, .. } in accesses_of(operator) {
                    let size = if let Bound::Const(size) = size { Some(size as u8) } else { None };
                    sites.push(Site { function: graph.function, offset: *offset, kind, memory, size });
                }
            }
        }
        let consumer = Arc::new(Mutex::new(consumer(&sites)?));
        let sites: Arc<[Site]> = sites.into();
        let make = if has_values { values::recorder } else { recorder };
        let period = Period::default();
        let recorder = make(sites.clone(), consumer.clone(), period.clone())?;
        let of_probes = recorder.clone();
        let probes = LazyProbes::new(setup, move |info| {
            let known = Graph::of(info).zip(first.get(&info.index()));
            let Some((graph, first)) = known else { return Vec::new() };
            let instructions = graph.flow.instructions.iter().enumerate();
            let found = instructions
                .flat_map(|(index, (_, operator))| accesses_of(operator).map(move |access| (index, access)));
            let found = (*first..).zip(found);
            if has_values {
                return values::specs(&of_probes, &graph, found);
            }
            let specs = |(number, (index, access))| specs(&of_probes, graph.location(index), number, access);
            found.flat_map(specs).collect()
        });
        Ok(Self { sites, consumer, recorder, period, probes })
    }

    pub(super) fn switch(&self, on: bool) -> Result<(), Error> {
        if on {
            self.period.begin();
            return self.probes.switch(true);
        }
        let switched = self.probes.switch(false);
        // What was recorded belongs to the period that ends.
        self.recorder.flush();
        self.period.end();
        switched
    }

    /// Adds the functions that could not be observed to a report.
    pub(super) fn report_refused(&self, report: &mut Report) {
        self.probes.report_refused(report);
    }

    /// Calls `f` with the consumer, which has got all accesses so far.
    pub(super) fn with<R>(&self, f: impl FnOnce(&[Site], &mut C) -> R) -> R {
        self.recorder.flush();
        f(&self.sites, &mut lock(&self.consumer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_of_earlier_periods_are_forgotten() {
        let period = Period::default();
        period.begin();
        let (mut all, mut of_period) = (HashMap::from([(1, "begun")]), period.current());
        // It is on already.
        period.begin();
        forget_earlier(&mut all, &mut of_period, &period);
        assert_eq!(all.len(), 1);
        period.end();
        period.begin();
        forget_earlier(&mut all, &mut of_period, &period);
        assert!(all.is_empty());
    }
}
