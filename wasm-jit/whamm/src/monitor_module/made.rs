//! The probes of a monitor: created when functions are first called, and switched together.
//!
//! Rules are matched with the complete program when a monitor is attached, because matching calls
//! functions of the monitor. The probes of a function are created when it is first called, since
//! most functions of a large program never are. If the program already has instances, functions may
//! be running: then all probes are created at once.
//!
//! # Groups
//! Rules with a value `groupN` belong to group N. The monitor switches the group's probes by a
//! function, `switch`; `pause` switches them off until a time. They are off at first. At a place
//! where rules outside the group also match, the group's probes are always on: another rule there
//! may switch the group, which takes effect only from the next event on, and the order of rules
//! must not change. The functions of such rules therefore check the condition themselves. A group
//! is left on if switching it takes more than a twentieth of the time.
//!
//! # Order
//! Probes at entries of functions are switched on before all others, and off after them. A monitor
//! whose frames begin at entries therefore sees no event of a frame whose entry it has missed,
//! unless the frame is older than the monitor.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use wasm_jit::probes::{
    Bound, Callback, FirstCallWatch, Kind, NO_FUNCTION, OTHER_FUNCTION, Place, Probe, ProbeError, ProbeSpec,
    Scope, ValueError, WasmFn, activate_all, deactivate_all,
};
use wasm_jit::{AsContextMut, Caller, Error, Extern, Instance, Linker, Module};

use super::clock::Clock;
use super::counted::{Counting, RuleMatch};
use super::error::MonitorError;
use super::evaluate::Adds;
use crate::failure::{self, RuleFailure};

/// The module from which monitors import functions that control their probes.
pub(crate) const PROBES: &str = "wasm_jit:probe";

/// The function that switches off a probe, by its number.
pub(crate) const OFF: &str = "off";

/// The function that switches the probes of a group; its arguments are the number of the group, and
/// 1 or 0.
pub(crate) const SWITCH: &str = "switch";

/// The function that returns the time.
pub(crate) const NOW: &str = "now";

/// The function that returns the index of the function that is about to be called indirectly: -1 if
/// there is none, and -2 if the program has no index for it.
pub(crate) const CALLEE: &str = "callee";

thread_local! {
    /// The callee of the call that this thread is about to make. A probe sets it before the probe
    /// of the rule that asks for it: functions of monitors cannot get it as an argument.
    static CALLED: Cell<u64> = const { Cell::new(NO_FUNCTION) };
}

/// The function that reports that a rule has failed: the reason, and the address and length of the
/// rule's name in the memory of the monitor.
pub(crate) const FAILED: &str = "failed";

/// The function that switches the probes of a group off until a time.
pub(crate) const PAUSE: &str = "pause";

/// A group is left on if switching it takes more than this fraction of the time.
const MAX_SWITCHING: f64 = 0.05;

/// The total switching time that every group is allowed.
const FREE_SWITCHING: Duration = Duration::from_millis(1);

/// The function that a probe calls for a rule.
#[derive(Debug)]
pub(super) enum Callee {
    /// The rule's function, in the program's store.
    Function(WasmFn),
    /// A closure that calls the rule's function in another store.
    Closure(Callback),
}

/// Creates probes.
#[derive(Debug)]
pub(super) struct Maker {
    pub(super) program: Module,
    pub(super) scope: Scope,
    /// For each rule, the name of its export, and its function.
    pub(super) exports: Vec<String>,
    pub(super) callees: Vec<Callee>,
}

/// The probes of an attached monitor, off at first.
pub(super) struct Probes {
    shared: Arc<Shared>,
    /// Present while the probes are on and some functions have not been called yet.
    watch: Mutex<Option<FirstCallWatch>>,
}

struct Shared {
    maker: Maker,
    made: Mutex<MadeProbes>,
    /// Whether the program continues if a rule fails; otherwise the call to the rule's function
    /// ends.
    goes_on: AtomicBool,
}

/// Probes that are switched together.
#[derive(Default)]
struct Group {
    is_on: bool,
    /// Whether the group stays on.
    is_fixed: bool,
    /// The positions of its probes: whether at an entry, and the index.
    members: Vec<(bool, usize)>,
    /// The time at which the group was first switched.
    since: Option<Instant>,
    /// The total time that switching has taken.
    spent: Duration,
}

#[derive(Default)]
struct MadeProbes {
    is_on: bool,
    /// Matches for which no probes have been created yet, by function.
    waiting: HashMap<u32, Vec<(usize, RuleMatch)>>,
    /// Probes that call functions, at entries and elsewhere.
    at_entries: Vec<Calling>,
    others: Vec<Calling>,
    /// The positions of numbered probes: whether at an entry, and the index.
    by_number: HashMap<usize, (bool, usize)>,
    counting: Vec<Counting>,
    groups: HashMap<u32, Group>,
    /// The error of the first probe that could not be created.
    refused: Option<MonitorError>,
    /// The first rule that failed while the program continued.
    failure: Option<RuleFailure>,
}

/// A probe that calls a function.
struct Calling {
    probe: Probe,
    rule: usize,
    group: Option<u32>,
    /// Whether the monitor has switched it off.
    has_ended: bool,
}

/// A probe that was created for a rule, with the amounts that it adds if it counts.
struct NewProbe {
    rule: usize,
    /// The number of its match, if this is the match's own probe.
    number: Option<usize>,
    probe: Probe,
    adds: Option<Arc<[Adds]>>,
    group: Option<u32>,
}

impl NewProbe {
    fn is_entry(&self) -> bool {
        self.probe.spec().location.place == Place::Entry
    }
}

/// The name of a rule whose probe was refused, and why.
type Refused = (String, ProbeError);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets the functions of a monitor switch probes that are created later.
#[derive(Clone, Default)]
pub(super) struct Switches(Arc<SwitchesOf>);

#[derive(Default)]
struct SwitchesOf {
    probes: OnceLock<Weak<Shared>>,
    /// The groups that are on, as long as there are no probes.
    early: Mutex<HashSet<u32>>,
}

impl Switches {
    /// Defines the functions for the monitor.
    pub(super) fn define<T: 'static>(
        &self,
        linker: &mut Linker<T>,
        clock: &Arc<dyn Clock>,
    ) -> Result<(), Error> {
        let this = self.clone();
        linker.func_wrap(PROBES, OFF, move |number: i32| {
            if let Some(shared) = this.probes() {
                shared.off(number as u32 as usize);
            }
        })?;
        let this = self.clone();
        linker.func_wrap(PROBES, SWITCH, move |group: i32, on: i32| {
            let (group, on) = (group as u32, on != 0);
            match this.probes() {
                Some(shared) => shared.switch(group, on),
                None if on => _ = lock(&this.0.early).insert(group),
                None => _ = lock(&this.0.early).remove(&group),
            }
        })?;
        linker.func_wrap(PROBES, CALLEE, || match CALLED.get() {
            NO_FUNCTION => -1,
            OTHER_FUNCTION => -2,
            function => function as i32,
        })?;
        let this = self.clone();
        let failed = move |mut caller: Caller<'_, T>, reason: u32, address: u32, length: u32| {
            let memory = caller.get_export("memory").and_then(Extern::into_memory);
            let range = address as usize..(address as usize).saturating_add(length as usize);
            let name = memory.as_ref().and_then(|memory| memory.data(&caller).get(range));
            let rule = match name.unwrap_or_default() {
                [] => "a map of the script".to_owned(),
                name => String::from_utf8_lossy(name).into_owned(),
            };
            let failure = RuleFailure { rule, reason: failure::reason(reason) };
            match this.probes().filter(|shared| shared.goes_on.load(Ordering::Relaxed)) {
                Some(shared) => {
                    shared.failed(failure);
                    Ok(())
                }
                None => Err(Error::host(failure)),
            }
        };
        linker.func_wrap(PROBES, FAILED, failed)?;
        let now = clock.clone();
        linker.func_wrap(PROBES, NOW, move || now.now() as i64)?;
        let (this, clock) = (self.clone(), clock.clone());
        linker.func_wrap(PROBES, PAUSE, move |group: i32, until: i64| {
            let Some(shared) = this.probes() else { return };
            shared.switch(group as u32, false);
            let shared = Arc::downgrade(&shared);
            let resume = move || {
                if let Some(shared) = shared.upgrade() {
                    shared.switch(group as u32, true);
                }
            };
            clock.call_at(until as u64, Box::new(resume));
        })?;
        Ok(())
    }

    fn probes(&self) -> Option<Arc<Shared>> {
        self.0.probes.get().and_then(Weak::upgrade)
    }
}

/// Removes matches from their groups at places that also have rules outside the group.
fn separate(found: &mut [RuleMatch]) {
    let mut of_place: HashMap<(u32, Place), (Option<u32>, bool)> = HashMap::new();
    for RuleMatch { location, group, .. } in &*found {
        let (first, is_mixed) =
            of_place.entry((location.function, location.place)).or_insert((*group, false));
        *is_mixed |= first != group;
    }
    for RuleMatch { location, group, .. } in found {
        if of_place[&(location.function, location.place)].1 {
            *group = None;
        }
    }
}

impl Probes {
    /// `goes_on` says whether the program continues without the monitor if a rule of a script
    /// fails.
    pub(super) fn new(maker: Maker, mut found: Vec<RuleMatch>, switches: &Switches, goes_on: bool) -> Self {
        separate(&mut found);
        let mut made = MadeProbes::default();
        for group in lock(&switches.0.early).drain() {
            made.groups.entry(group).or_default().is_on = true;
        }
        for (number, found) in found.into_iter().enumerate() {
            made.waiting.entry(found.location.function).or_default().push((number, found));
        }
        let shared = Arc::new(Shared { maker, made: Mutex::new(made), goes_on: goes_on.into() });
        // There is one for each.
        let _ = switches.0.probes.set(Arc::downgrade(&shared));
        Self { shared, watch: Mutex::default() }
    }

    /// Switches the probes on or off, including those that are created later; does nothing if they
    /// are in that state.
    ///
    /// # Errors
    /// [`MonitorError::Probe`], [`MonitorError::Switch`], [`MonitorError::Watch`]: some are
    /// switched, others are not.
    pub(super) fn switch(&self, on: bool) -> Result<(), MonitorError> {
        // Held until the end, so that concurrent calls switch one after the other.
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

    /// What switches the probes off when a rule has failed.
    pub(super) fn stop(&self) -> Stop {
        Stop(Arc::downgrade(&self.shared))
    }

    /// The number of places in functions that have been called so far, and the number of those
    /// where the engine counts.
    pub(super) fn count(&self) -> (usize, usize) {
        let made = lock(&self.shared.made);
        (made.at_entries.len() + made.others.len() + made.counting.len(), made.counting.len())
    }

    /// Brings the numbers of the monitor up to date.
    pub(super) fn settle(&self, instance: &Instance, store: impl AsContextMut) {
        Counting::settle(&mut lock(&self.shared.made).counting, instance, store);
    }

    /// Called when the program has ended: from now on, a rule that fails ends the call.
    ///
    /// # Errors
    /// [`MonitorError::Failed`]: a rule has failed before.
    pub(super) fn end(&self) -> Result<(), MonitorError> {
        self.shared.goes_on.store(false, Ordering::Relaxed);
        let failure = lock(&self.shared.made).failure.clone();
        failure.map_or(Ok(()), |RuleFailure { rule, reason }| {
            Err(MonitorError::Failed { export: rule, reason: reason.to_owned() })
        })
    }

    /// The reason why what was observed is incomplete, if it is; once.
    pub(super) fn take_refused(&self) -> Option<MonitorError> {
        lock(&self.shared.made).refused.take()
    }
}

impl Shared {
    /// Creates the probes of functions that are called, or may be running.
    fn called(&self, functions: &[u32]) -> Result<(), Refused> {
        // Each place is made by one thread only.
        let found: Vec<(usize, RuleMatch)> = {
            let mut made = lock(&self.made);
            functions.iter().flat_map(|function| made.waiting.remove(function)).flatten().collect()
        };
        if found.is_empty() {
            return Ok(());
        }
        // Without the lock, for which a thread may wait that requests the number of probes.
        let new = self.maker.make(found)?;
        let at_once = || new.iter().filter(|new| new.group.is_none());
        let entries = at_once().filter(|new| new.is_entry());
        let in_order: Vec<&NewProbe> = entries.chain(at_once().filter(|new| !new.is_entry())).collect();
        let switched = activate_all(in_order.iter().map(|new| &new.probe));
        let named = switched
            .into_iter()
            .zip(&in_order)
            .map(|(switched, new)| switched.map_err(|source| (self.maker.exports[new.rule].clone(), source)));
        let switched: Result<(), Refused> = named.collect();
        let mut made = lock(&self.made);
        let mut of_groups = made.add(new);
        if !made.is_on {
            // They were switched off in the meantime. An error leaves them on.
            let _ = made.switch(false);
            return switched;
        }
        of_groups.retain(|position| made.is_wanted(made.calling(*position)));
        let of_groups = made.switch_at(&of_groups, true);
        let of_groups = of_groups.map_err(|(rule, source)| (self.maker.exports[rule].clone(), source));
        switched.and(of_groups)
    }
}

/// Switches off the probes of a monitor that has failed.
pub(super) struct Stop(Weak<Shared>);

impl Stop {
    pub(super) fn stop(&self) {
        if let Some(shared) = self.0.upgrade() {
            lock(&shared.made).stop();
        }
    }
}

impl Shared {
    /// Switches a probe off by its number.
    fn off(&self, number: usize) {
        let mut made = lock(&self.made);
        let Some((is_entry, index)) = made.by_number.get(&number).copied() else { return };
        let calling = if is_entry { &mut made.at_entries[index] } else { &mut made.others[index] };
        calling.has_ended = true;
        // The monitor must not depend on it: another thread may still call the function.
        let _ = deactivate_all([&calling.probe]);
    }

    /// A rule has failed: nothing more is observed.
    fn failed(&self, failure: RuleFailure) {
        let mut made = lock(&self.made);
        if made.failure.is_some() {
            return;
        }
        made.failure = Some(failure);
        made.stop();
    }

    /// Switches a group.
    fn switch(&self, group: u32, on: bool) {
        let mut made = lock(&self.made);
        if let Err((rule, source)) = made.switch_group(group, on) {
            let incomplete = MonitorError::Probe { export: self.maker.exports[rule].clone(), source };
            made.refused.get_or_insert(incomplete);
        }
    }
}

impl MadeProbes {
    /// Switches all probes off.
    fn stop(&mut self) {
        self.is_on = false;
        // An error leaves some on, which observe more than the message says.
        let _ = self.switch(false);
    }

    /// Returns the positions of those that belong to groups.
    fn add(&mut self, new: Vec<NewProbe>) -> Vec<(bool, usize)> {
        let mut of_groups = Vec::new();
        for new in new {
            let is_entry = new.is_entry();
            match new.adds {
                Some(adds) => self.counting.push(Counting::new(new.probe, adds)),
                None => {
                    let probes = if is_entry { &mut self.at_entries } else { &mut self.others };
                    let position = (is_entry, probes.len());
                    self.by_number.extend(new.number.map(|number| (number, position)));
                    let NewProbe { rule, probe, group, .. } = new;
                    probes.push(Calling { probe, rule, group, has_ended: false });
                    if let Some(group) = group {
                        self.groups.entry(group).or_default().members.push(position);
                        of_groups.push(position);
                    }
                }
            }
        }
        of_groups
    }

    fn calling(&self, (is_entry, index): (bool, usize)) -> &Calling {
        if is_entry { &self.at_entries[index] } else { &self.others[index] }
    }

    /// Whether the monitor wants a probe to be on.
    fn is_wanted(&self, calling: &Calling) -> bool {
        let is_on = |group| self.groups.get(&group).is_some_and(|group| group.is_on);
        !calling.has_ended && calling.group.is_none_or(is_on)
    }

    /// Switches the probes at these positions, except those that the monitor has switched off. An
    /// error has the rule of the first one that could not be switched, and the reason.
    fn switch_at(&self, positions: &[(bool, usize)], on: bool) -> Result<(), (usize, ProbeError)> {
        let members = positions.iter().map(|position| self.calling(*position));
        let members: Vec<&Calling> = members.filter(|calling| !calling.has_ended).collect();
        let probes = members.iter().map(|calling| &calling.probe);
        let switched = if on { activate_all(probes) } else { deactivate_all(probes) };
        let failed =
            members.iter().zip(switched).map(|(calling, done)| done.map_err(|error| (calling.rule, error)));
        failed.collect()
    }

    /// Switches a group, unless that has taken too much time: then it stays on.
    fn switch_group(&mut self, number: u32, on: bool) -> Result<(), (usize, ProbeError)> {
        let group = self.groups.entry(number).or_default();
        if group.is_fixed || group.is_on == on {
            return Ok(());
        }
        let since = *group.since.get_or_insert_with(Instant::now);
        let is_expensive = group.spent > FREE_SWITCHING.max(since.elapsed().mul_f64(MAX_SWITCHING));
        group.is_fixed = is_expensive;
        group.is_on = on || is_expensive;
        if !self.is_on || is_expensive && !on {
            return Ok(());
        }
        let start = Instant::now();
        let switched = self.switch_at(&self.groups[&number].members, on);
        if let Some(group) = self.groups.get_mut(&number) {
            group.spent += start.elapsed();
        }
        switched
    }

    /// Switches the existing probes, except those that the monitor has switched off.
    fn switch(&self, on: bool) -> Result<(), ProbeError> {
        let counting = self.counting.iter().map(Counting::probe);
        let [at_entries, others] = [&self.at_entries, &self.others].map(|all| {
            all.iter().filter(|calling| !on || self.is_wanted(calling)).map(|calling| &calling.probe)
        });
        let switched = if on {
            activate_all(at_entries.chain(others).chain(counting))
        } else {
            deactivate_all(counting.chain(others).chain(at_entries))
        };
        switched.into_iter().collect()
    }
}

impl Maker {
    /// Creates probes, off.
    fn make(&self, found: Vec<(usize, RuleMatch)>) -> Result<Vec<NewProbe>, Refused> {
        let mut specs = Vec::with_capacity(found.len());
        let mut of_specs = Vec::with_capacity(found.len());
        for (number, found) in &found {
            if found.asks_for_callee {
                let function = Callback::new(|values| CALLED.set(values[0]));
                let kind = Kind::Callback { function, values: [Bound::Callee].into() };
                specs.push(ProbeSpec { location: found.location, kind });
                of_specs.push((None, found));
            }
            specs.push(ProbeSpec { location: found.location, kind: self.kind(found) });
            of_specs.push((Some(*number), found));
        }
        let mut new = Vec::with_capacity(specs.len());
        for ((number, found), made) in
            of_specs.into_iter().zip(self.program.scoped_probes(self.scope, &specs))
        {
            let RuleMatch { rule, adds, group, .. } = found;
            match made {
                Ok(probe) => {
                    new.push(NewProbe { rule: *rule, number, probe, adds: adds.clone(), group: *group });
                }
                Err(refused) if is_no_match(&refused) => {}
                Err(refused) => return Err((self.exports[*rule].clone(), refused)),
            }
        }
        Ok(new)
    }

    /// The kind of probe for a match.
    fn kind(&self, found: &RuleMatch) -> Kind {
        let values = found.values.clone();
        match (found.adds.as_deref(), &self.callees[found.rule]) {
            (Some([_]), _) => Kind::Count,
            (Some(_), _) => Kind::CountBranch,
            (None, Callee::Function(function)) => Kind::Wasm { function: function.clone(), values },
            (None, Callee::Closure(function)) => Kind::Callback { function: function.clone(), values },
        }
    }
}

/// Whether the place has no such value, or control never reaches it.
fn is_no_match(refused: &ProbeError) -> bool {
    use ValueError::{NoLocal, NoOperand, NotReference, Type};
    match refused {
        ProbeError::Unreachable { .. } => true,
        ProbeError::Value { reason, .. } => {
            matches!(reason, NoOperand | NoLocal | NotReference | Type { .. })
        }
        _ => false,
    }
}

impl fmt::Debug for Probes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Probes").field("is_on", &self.is_on()).finish_non_exhaustive()
    }
}
