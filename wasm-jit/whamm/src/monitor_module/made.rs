//! The probes of a monitor: made when functions are first called, and switched together.
//!
//! Rules are matched with the whole program when a monitor is attached, because matching calls
//! functions of the monitor. Probes are made in a function when it is first called, since most
//! functions of a large program are not. If there are instances of the program already, functions
//! may be running: then all probes are made at once.
//!
//! Probes at entries of functions are switched on before all others, and off after them. A monitor
//! whose frames begin at entries therefore sees no event of a frame whose entry it has missed,
//! unless the frame is older than the monitor.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wasm_jit::probes::{
    Callback, FirstCallWatch, Kind, Place, Probe, ProbeError, ProbeSpec, Scope, ValueError, WasmFn,
    activate_all, deactivate_all,
};
use wasm_jit::{AsContextMut, Instance, Module};

use super::counted::{Counting, Found};
use super::error::MonitorError;
use super::evaluate::Adds;

/// What a probe calls for a rule.
#[derive(Debug)]
pub(super) enum Callee {
    /// The rule's function, in the program's store.
    Function(WasmFn),
    /// A closure, which calls it in another store.
    Closure(Callback),
}

/// What it takes to make probes.
#[derive(Debug)]
pub(super) struct Maker {
    pub(super) program: Module,
    pub(super) scope: Scope,
    /// By rule: the name of the export, and what is called.
    pub(super) exports: Vec<String>,
    pub(super) callees: Vec<Callee>,
}

/// The probes of an attached monitor, off at first.
pub(super) struct Probes {
    shared: Arc<Shared>,
    /// There is one while the probes are on and some may still have to be made.
    watch: Mutex<Option<FirstCallWatch>>,
}

struct Shared {
    maker: Maker,
    made: Mutex<Made>,
}

#[derive(Default)]
struct Made {
    is_on: bool,
    /// What is to become probes, by function.
    waiting: HashMap<u32, Vec<Found>>,
    /// Those that call functions, at entries and elsewhere.
    at_entries: Vec<Probe>,
    others: Vec<Probe>,
    counting: Vec<Counting>,
    /// The first of the probes that could not be made.
    refused: Option<MonitorError>,
}

/// A probe that was made for a rule, with what it adds if it counts.
struct New {
    rule: usize,
    probe: Probe,
    adds: Option<Arc<[Adds]>>,
}

impl New {
    fn is_entry(&self) -> bool {
        self.probe.spec().location.place == Place::Entry
    }
}

/// The name of a rule whose probe was refused, and why.
type Refused = (String, ProbeError);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Probes {
    pub(super) fn new(maker: Maker, found: Vec<Found>) -> Self {
        let mut made = Made::default();
        for found in found {
            made.waiting.entry(found.location.function).or_default().push(found);
        }
        Self { shared: Arc::new(Shared { maker, made: Mutex::new(made) }), watch: Mutex::default() }
    }

    /// Switches them on or off, those included that are made later; does nothing if they are.
    ///
    /// # Errors
    /// [`MonitorError::Probe`], [`MonitorError::Switch`], [`MonitorError::Watch`]: some are
    /// switched, others are not.
    pub(super) fn switch(&self, on: bool) -> Result<(), MonitorError> {
        // Held until the end: one switches after the other.
        let mut watch = lock(&self.watch);
        {
            let mut made = lock(&self.shared.made);
            if made.is_on == on {
                return Ok(());
            }
            made.is_on = on;
            made.switch(on).map_err(MonitorError::Switch)?;
        }
        *watch = None;
        if !on {
            return Ok(());
        }
        let shared = self.shared.clone();
        let called = move |function| {
            if let Err((export, source)) = shared.called(&[function]) {
                let incomplete = MonitorError::Incomplete { export, function, source };
                lock(&shared.made).refused.get_or_insert(incomplete);
            }
        };
        // Before the question whether there are instances: otherwise, one that is created between
        // the two would not be observed.
        let new = self.shared.maker.program.watch_first_calls(called).map_err(MonitorError::Watch)?;
        if !self.shared.maker.program.has_instances() {
            *watch = Some(new);
            return Ok(());
        }
        let mut all: Vec<u32> = lock(&self.shared.made).waiting.keys().copied().collect();
        all.sort_unstable();
        self.shared.called(&all).map_err(|(export, source)| MonitorError::Probe { export, source })
    }

    pub(super) fn is_on(&self) -> bool {
        lock(&self.shared.made).is_on
    }

    /// The number of places in functions that were called so far, and that of those that count.
    pub(super) fn count(&self) -> (usize, usize) {
        let made = lock(&self.shared.made);
        (made.at_entries.len() + made.others.len() + made.counting.len(), made.counting.len())
    }

    /// Brings the numbers of the monitor up to date.
    pub(super) fn settle(&self, instance: &Instance, store: impl AsContextMut) {
        Counting::settle(&mut lock(&self.shared.made).counting, instance, store);
    }

    /// The reason why what was observed is incomplete, if it is; once.
    pub(super) fn take_refused(&self) -> Option<MonitorError> {
        lock(&self.shared.made).refused.take()
    }
}

impl Shared {
    /// Makes the probes of functions that are called, or may be running.
    fn called(&self, functions: &[u32]) -> Result<(), Refused> {
        // Each place is made by one thread only.
        let found: Vec<Found> = {
            let mut made = lock(&self.made);
            functions.iter().flat_map(|function| made.waiting.remove(function)).flatten().collect()
        };
        if found.is_empty() {
            return Ok(());
        }
        // Not under the lock, which a thread may wait for that asks for the number of probes.
        let new = self.maker.make(found)?;
        let entries = new.iter().filter(|new| new.is_entry());
        let in_order: Vec<&New> = entries.chain(new.iter().filter(|new| !new.is_entry())).collect();
        let switched = activate_all(in_order.iter().map(|new| &new.probe));
        let named = switched
            .into_iter()
            .zip(&in_order)
            .map(|(switched, new)| switched.map_err(|source| (self.maker.exports[new.rule].clone(), source)));
        let switched: Result<(), Refused> = named.collect();
        let mut made = lock(&self.made);
        made.add(new);
        if !made.is_on {
            // They were switched off meanwhile. An error leaves them on.
            let _ = made.switch(false);
        }
        switched
    }
}

impl Made {
    fn add(&mut self, new: Vec<New>) {
        for new in new {
            let is_entry = new.is_entry();
            match new.adds {
                Some(adds) => self.counting.push(Counting::new(new.probe, adds)),
                None if is_entry => self.at_entries.push(new.probe),
                None => self.others.push(new.probe),
            }
        }
    }

    /// Switches those that were made.
    fn switch(&self, on: bool) -> Result<(), ProbeError> {
        let counting = self.counting.iter().map(Counting::probe);
        let switched = if on {
            activate_all(self.at_entries.iter().chain(&self.others).chain(counting))
        } else {
            deactivate_all(counting.chain(&self.others).chain(&self.at_entries))
        };
        switched.into_iter().collect()
    }
}

impl Maker {
    /// Makes probes, off.
    fn make(&self, found: Vec<Found>) -> Result<Vec<New>, Refused> {
        let spec = |found: &Found| ProbeSpec { location: found.location, kind: self.kind(found) };
        let specs: Vec<ProbeSpec> = found.iter().map(spec).collect();
        let mut new = Vec::with_capacity(specs.len());
        for (found, made) in found.into_iter().zip(self.program.scoped_probes(self.scope, &specs)) {
            match made {
                Ok(probe) => new.push(New { rule: found.rule, probe, adds: found.adds }),
                Err(refused) if is_no_match(&refused) => {}
                Err(refused) => return Err((self.exports[found.rule].clone(), refused)),
            }
        }
        Ok(new)
    }

    /// What a probe does.
    fn kind(&self, found: &Found) -> Kind {
        let values = found.values.clone();
        match (found.adds.as_deref(), &self.callees[found.rule]) {
            (Some([_]), _) => Kind::Count,
            (Some(_), _) => Kind::CountBranch,
            (None, Callee::Function(function)) => Kind::Wasm { function: function.clone(), values },
            (None, Callee::Closure(function)) => Kind::Callback { function: function.clone(), values },
        }
    }
}

/// Whether the place has no such value, or control never comes there.
fn is_no_match(refused: &ProbeError) -> bool {
    use ValueError::{NoLocal, NoOperand, Type};
    match refused {
        ProbeError::Unreachable { .. } => true,
        ProbeError::Value { reason, .. } => matches!(reason, NoOperand | NoLocal | Type { .. }),
        _ => false,
    }
}

impl fmt::Debug for Probes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Probes").field("is_on", &self.is_on()).finish_non_exhaustive()
    }
}
