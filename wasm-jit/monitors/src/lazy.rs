//! [`LazyProbes`]: probes that are made in functions when they are first called.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex};

use wasm_jit::probes::{FirstCallWatch, Location, Place, Probe, ProbeSpec};
use wasm_jit::{FunctionInfo, Module};

use crate::lock::lock;
use crate::{Error, Report, Setup, make, switch};

/// Probes of the chosen functions, made in each function when it is first called. Thus, starting
/// costs one store for each function, and functions that do not run cost nothing more.
///
/// If instances already exist when the probes are activated, functions may be running: then all
/// probes are made at once.
pub struct LazyProbes {
    module: Module,
    shared: Arc<Shared>,
    watch: Mutex<Option<FirstCallWatch>>,
}

struct Shared {
    module: Module,
    specs: Box<Specs>,
    /// The functions to observe.
    chosen: Vec<bool>,
    order: Order,
    state: Mutex<State>,
}

type Specs = dyn Fn(&FunctionInfo<'_>) -> Vec<ProbeSpec> + Send + Sync;

/// The order in which probes are switched while the program runs. Those of a function are activated
/// in the order of their locations, and deactivated in the reverse order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Function by function.
    Functions,
    /// Probes at entries are activated after all others, and deactivated before them: a call that
    /// is observed at the entry of its callee is also observed where it is made.
    EntriesLast,
}

impl Order {
    /// Whether a probe is switched after those of all functions.
    fn is_last(self, probe: &Probe) -> bool {
        self == Self::EntriesLast && probe.spec().location.place == Place::Entry
    }

    /// Switches the probes (`last`) that are activated last, or the others.
    fn switch(self, probes: &[Probe], last: bool, on: bool) -> Result<(), Error> {
        switch(self.sequence(probes, last, on), on)
    }

    /// The probes that are then switched, in order.
    fn sequence(self, probes: &[Probe], last: bool, on: bool) -> Vec<&Probe> {
        let mut chosen: Vec<&Probe> = probes.iter().filter(|probe| self.is_last(probe) == last).collect();
        if !on {
            chosen.reverse();
        }
        chosen
    }
}

#[derive(Default)]
struct State {
    is_on: bool,
    /// Whether the probes are on that are activated last.
    are_last_on: bool,
    /// The functions whose probes a thread makes or has made: the thread that activates the probes
    /// may find a function at the same time as a thread that calls it for the first time.
    claimed: BTreeSet<u32>,
    /// Indexed by function; the probes are in the order of their locations.
    made: BTreeMap<u32, Vec<Probe>>,
    /// The functions whose probes cannot be made, with the reasons.
    refused: Vec<(u32, String)>,
}

impl LazyProbes {
    /// Probes of the functions that the option `function` chooses, all off. `specs` returns the
    /// probes of a function.
    pub fn new(
        setup: &Setup<'_>,
        specs: impl Fn(&FunctionInfo<'_>) -> Vec<ProbeSpec> + Send + Sync + 'static,
    ) -> Self {
        let functions = setup.functions().map(|function| function.index());
        Self::of(setup.module, functions, Order::Functions, specs)
    }

    /// Probes of these functions, all off.
    pub(crate) fn of(
        module: &Module,
        functions: impl IntoIterator<Item = u32>,
        order: Order,
        specs: impl Fn(&FunctionInfo<'_>) -> Vec<ProbeSpec> + Send + Sync + 'static,
    ) -> Self {
        let mut chosen = vec![false; module.functions().len()];
        functions.into_iter().for_each(|function| chosen[function as usize] = true);
        let (specs, state) = (Box::new(specs), Mutex::default());
        let shared = Arc::new(Shared { module: module.clone(), specs, chosen, order, state });
        Self { module: module.clone(), shared, watch: Mutex::default() }
    }

    /// Activates (`on`) or deactivates the probes; does nothing if that is their state.
    ///
    /// # Errors
    /// As [`Module::watch_first_calls`], [`Probe::activate`] and [`Probe::deactivate`].
    pub fn switch(&self, on: bool) -> Result<(), Error> {
        let mut watch = lock(&self.watch);
        if watch.is_some() == on {
            return Ok(());
        }
        if !on {
            // No more are made, except by a thread that is about to call a function.
            *watch = None;
        }
        if !on {
            return self.shared.switch(true, false).and(self.shared.switch(false, false));
        }
        let switched = self.shared.switch(false, true);
        let shared = self.shared.clone();
        *watch = Some(self.module.watch_first_calls(move |function| shared.make(function))?);
        if self.module.has_instances() {
            self.module.functions().for_each(|function| self.shared.make(function.index()));
        }
        switched.and(self.shared.switch(true, true))
    }

    /// Whether a function is one of the chosen ones.
    pub fn observes(&self, function: u32) -> bool {
        self.shared.chosen.get(function as usize).copied().unwrap_or_default()
    }

    /// Visits the probes made so far, in module order.
    pub fn for_each(&self, visit: impl FnMut(&Probe)) {
        lock(&self.shared.state).made.values().flatten().for_each(visit);
    }

    /// The functions in which probes were made, which are those that were called, in module order.
    pub fn functions(&self) -> Vec<u32> {
        lock(&self.shared.state).made.keys().copied().collect()
    }

    /// The result of `read` for the probe at a location, if it was made; for the first one if there
    /// are several.
    pub fn get<T>(&self, location: Location, read: impl FnOnce(&Probe) -> T) -> Option<T> {
        lock(&self.shared.state).at(location).first().map(read)
    }

    /// Deactivates the probes at a location, until all probes are activated again.
    ///
    /// # Errors
    /// As [`Probe::deactivate`].
    pub fn deactivate_at(&self, location: Location) -> Result<(), Error> {
        switch(lock(&self.shared.state).at(location), false)
    }

    /// Adds the functions that could not be observed, and their number, to a report.
    pub fn report_refused(&self, report: &mut Report) {
        let refused = lock(&self.shared.state).refused.len();
        if refused > 0 {
            report.value("functions_not_observed", refused);
        }
        self.report_refused_as(report, "was not observed");
    }

    /// As [`report_refused`](Self::report_refused), with a text that states the consequence.
    pub(crate) fn report_refused_as(&self, report: &mut Report, what: &str) {
        let state = lock(&self.shared.state);
        let symbols = (!state.refused.is_empty()).then(|| self.module.symbols());
        for (function, reason) in &state.refused {
            let name = symbols.as_ref().map(|symbols| symbols.function(*function)).unwrap_or_default();
            report.text(format!("`{name}` {what}: {reason}\n"));
        }
    }
}

impl State {
    fn at(&self, location: Location) -> &[Probe] {
        let made = self.made.get(&location.function).map_or(&[][..], |probes| probes);
        let first = made.partition_point(|probe| probe.spec().location < location);
        let end = made.partition_point(|probe| probe.spec().location <= location);
        &made[first..end]
    }
}

impl Shared {
    /// Switches the probes made so far that are activated last, or the others.
    fn switch(&self, last: bool, on: bool) -> Result<(), Error> {
        let mut state = lock(&self.state);
        *(if last { &mut state.are_last_on } else { &mut state.is_on }) = on;
        let switched = state.made.values().map(|probes| self.order.switch(probes, last, on));
        switched.fold(Ok(()), Result::and)
    }

    /// Makes the probes of a function, if they are wanted and no other thread has begun to make
    /// them.
    fn make(&self, function: u32) {
        if !self.chosen.get(function as usize).copied().unwrap_or_default()
            || !lock(&self.state).claimed.insert(function)
        {
            return;
        }
        // Not under the lock: a report may wait for it.
        let specs = self.module.function(function).map(|info| (self.specs)(&info)).unwrap_or_default();
        let on = |probes: Vec<Probe>, last| self.order.switch(&probes, last, true).map(|()| probes);
        let probes = make(&self.module, &specs).and_then(|mut probes| {
            probes.sort_by_key(|probe| probe.spec().location);
            on(probes, false)
        });
        let mut state = lock(&self.state);
        let probes = if state.are_last_on { probes.and_then(|probes| on(probes, true)) } else { probes };
        match probes {
            Ok(probes) => {
                if !state.is_on {
                    // An error leaves them on: they are deactivated with the others.
                    let _ = switch(probes.iter().rev(), false);
                }
                state.made.insert(function, probes);
            }
            Err(error) => state.refused.push((function, error.to_string())),
        }
    }
}

impl fmt::Debug for LazyProbes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LazyProbes").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use wasm_jit::probes::Kind;
    use wasm_jit::{Engine, Instance, Linker, Store};

    use super::*;

    #[test]
    fn probes_are_deactivated_in_the_reverse_order() {
        let module = Module::new(&Engine::default(), "(module (func nop nop))").unwrap();
        let places = [Place::Entry, Place::Instruction { offset: 1 }, Place::Instruction { offset: 2 }];
        let spec = |place| ProbeSpec { location: Location { function: 0, place }, kind: Kind::Count };
        let probes = make(&module, &places.map(spec)).unwrap();
        let order = |order: Order, on| {
            order
                .sequence(&probes, false, on)
                .iter()
                .map(|probe| probe.spec().location.place)
                .collect::<Vec<_>>()
        };
        let [entry, first, second] = places;
        assert_eq!(order(Order::Functions, true), places);
        assert_eq!(order(Order::Functions, false), [second, first, entry]);
        assert_eq!(order(Order::EntriesLast, false), [second, first]);
    }

    #[test]
    fn probes_that_are_made_while_they_are_switched_off_are_off() {
        let module = Module::new(&Engine::default(), "(module (func (export \"run\")))").unwrap();
        let (making, is_making) = channel();
        let (off, is_off) = channel();
        let is_off = Mutex::new(is_off);
        let specs = move |function: &FunctionInfo<'_>| {
            making.send(()).unwrap();
            lock(&is_off).recv().unwrap();
            let location = Location { function: function.index(), place: Place::Entry };
            vec![ProbeSpec { location, kind: Kind::Count }]
        };
        let probes = LazyProbes::of(&module, [0], Order::Functions, specs);
        probes.switch(true).unwrap();
        let count = || probes.get(Location { function: 0, place: Place::Entry }, Probe::count);
        std::thread::scope(|scope| {
            let program = scope.spawn(|| {
                let mut store = Store::new(module.engine(), ());
                let instance = Instance::new(&mut store, &module, &[]).unwrap();
                let run = instance.get_typed_func::<(), ()>(&mut store, "run").unwrap();
                run.call(&mut store, ()).unwrap();
                assert_eq!(count(), Some(0), "off");
                probes.switch(true).unwrap();
                run.call(&mut store, ()).unwrap();
                assert_eq!(count(), Some(1), "on");
            });
            is_making.recv().unwrap();
            probes.switch(false).unwrap();
            off.send(()).unwrap();
            program.join().unwrap();
        });
    }
    /// A program that waits in a host function until it may go on.
    struct Steps {
        goes_on: Sender<bool>,
        arrived: Receiver<()>,
    }

    impl Steps {
        /// Lets the program run until it is in the host function again, this many times.
        fn make(&self, number: usize) {
            for _ in 0..number {
                self.goes_on.send(true).unwrap();
                self.arrived.recv().unwrap();
            }
        }
    }

    /// While the probes of the second function are made, the third one calls the first one.
    #[test]
    fn calls_are_counted_where_they_are_made_before_they_are_counted_at_entries() {
        const TEXT: &str = r#"(module (import "host" "go_on" (func $go_on (result i32)))
            (func $callee) (func $between)
            (func (export "run") (loop (call $callee) (br_if 0 (call $go_on)))))"#;
        let module = Module::new(&Engine::default(), TEXT).unwrap();
        let (goes_on, may_go_on) = channel();
        let (arrives, arrived) = channel();
        let steps = Arc::new(Mutex::new(Steps { goes_on, arrived }));
        let between = steps.clone();
        let specs = move |function: &FunctionInfo<'_>| {
            let place = match function.index() {
                1 => Place::Entry,
                2 => {
                    lock(&between).make(10);
                    return Vec::new();
                }
                _ => {
                    let body = function.body().unwrap();
                    let call = body.instructions().nth(1).unwrap();
                    Place::Instruction { offset: (call.offset() - body.range().start) as u32 }
                }
            };
            let location = Location { function: function.index(), place };
            vec![ProbeSpec { location, kind: Kind::Count }]
        };
        let probes = LazyProbes::of(&module, 1..4, Order::EntriesLast, specs);
        let counts = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut linker = Linker::new(module.engine());
                let go_on = move || {
                    arrives.send(()).unwrap();
                    i32::from(may_go_on.recv().unwrap())
                };
                let go_on = Mutex::new(go_on);
                linker.func_wrap("host", "go_on", move || lock(&go_on)()).unwrap();
                let mut store = Store::new(module.engine(), ());
                let instance = linker.instantiate(&mut store, &module).unwrap();
                instance.get_typed_func::<(), ()>(&mut store, "run").unwrap().call(&mut store, ()).unwrap();
            });
            lock(&steps).arrived.recv().unwrap();
            let switched = probes.switch(true);
            lock(&steps).make(5);
            let mut counts = Vec::new();
            probes.for_each(|probe| counts.push((probe.spec().location.function, probe.count())));
            lock(&steps).goes_on.send(false).unwrap();
            switched.map(|()| counts)
        });
        assert_eq!(counts.unwrap(), [(1, 5), (3, 5)]);
    }
}
