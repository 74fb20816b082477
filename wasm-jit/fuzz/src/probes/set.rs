//! The probes of a case.

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wasm_jit::probes::{
    GlobalProbe, Location, Place, Probe, ProbeError, ProbeSpec, Recorder, Scope, StoreId, activate_all,
    deactivate_all,
};
use wasm_jit::wasmparser::Operator;
use wasm_jit::{Module, SharedMemory, Store, ValType};

use super::expected::Expected;
use super::kinds::{Making, Site, Sort, forget, recorder};
use super::monitor::{self, Functions};
use crate::random::Random;

/// Maximum number of probes of a case; the monitor has a counter for each.
const MAX_PROBES: usize = 3000;
const _: () = assert!(MAX_PROBES < monitor::SLOTS);

/// What happens to the probes while the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    /// The probes are switched, made and dropped.
    Changing,
    /// All probes are on.
    On,
    /// All probes are off.
    Off,
}

/// The probes of a case.
pub(crate) struct Set {
    module: Module,
    slots: Vec<Slot>,
    /// The probe on every instruction, if there is one; it uses the last counter.
    global: Option<Global>,
    /// For each slot, how often its function was called.
    counters: Arc<[AtomicU64]>,
    recorder: Recorder,
    /// The same for WebAssembly functions.
    memory: SharedMemory,
    monitor: Module,
    /// The functions of the store that was made last.
    functions: Mutex<Option<(Functions, StoreId)>>,
    phase: AtomicU8,
    changes: AtomicU64,
    /// Whether stubs have reached the limit of their memory, so that counts cannot be exact.
    is_full: AtomicBool,
}

impl fmt::Debug for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Set").field("slots", &self.slots.len()).finish_non_exhaustive()
    }
}

/// One probe, made or not.
struct Slot {
    site: Site,
    sort: Sort,
    /// Whether the probe fires in one store only, and is made again for each.
    is_of_store: bool,
    probe: Mutex<Option<Arc<Probe>>>,
    /// The counts of earlier probes in this slot in the same phase.
    earlier: AtomicU64,
}

/// A probe on every instruction, made or not.
struct Global {
    sort: Sort,
    /// One that stands for all places.
    site: Site,
    /// Positions of the instructions whose choices can be counted.
    choosing: HashSet<u32>,
    probe: Mutex<Option<Arc<GlobalProbe>>>,
}

impl Global {
    /// No probes are made.
    fn of(sort: Sort, sites: &[Site]) -> Self {
        let location = Location { function: 0, place: Place::Entry };
        let site = Site { location, position: None, locals: [].into(), chooses: true };
        let choosing = sites.iter().filter(|site| site.chooses).filter_map(|site| site.position).collect();
        Self { sort, site, choosing, probe: Mutex::new(None) }
    }

    fn probe(&self) -> Option<Arc<GlobalProbe>> {
        lock(&self.probe).clone()
    }

    /// Whether the probe fires at the place, which is that of an instruction or an entry.
    fn is_at(&self, position: Option<u32>) -> bool {
        match (self.sort, position) {
            (Sort::Empty, _) | (_, None) => false,
            (Sort::CountBranch, Some(position)) => self.choosing.contains(&position),
            _ => true,
        }
    }
}

impl Slot {
    fn probe(&self) -> Option<Arc<Probe>> {
        lock(&self.probe).clone()
    }

    /// Replaces the probe; returns the previous one.
    fn put(&self, probe: Option<Probe>) -> Option<Arc<Probe>> {
        std::mem::replace(&mut *lock(&self.probe), probe.map(Arc::new))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Set {
    /// Chooses places and kinds, and makes some of the probes, off.
    pub(crate) fn of(module: &Module, random: &mut Random) -> Result<Self, String> {
        let mut sites = sites(module);
        let global = random.one_in(4).then(|| Global::of(Sort::any(random), &sites));
        let wanted = random.choose(&[1, 10, 100, MAX_PROBES, MAX_PROBES]);
        while sites.len() > wanted {
            sites.swap_remove(random.below(sites.len() as u64) as usize);
        }
        let most = random.choose(&[1, 1, 2, 4]);
        let sorts = Sort::chosen(random);
        let of_stores = random.one_in(3);
        let mut slots = Vec::new();
        for site in sites {
            for _ in 0..=random.below(most) {
                if slots.len() < MAX_PROBES {
                    let sort = random.choose(&sorts);
                    let is_of_store = sort.is_of_store() || (of_stores && random.one_in(8));
                    let slot = Slot {
                        site: site.clone(),
                        sort,
                        is_of_store,
                        probe: Mutex::new(None),
                        earlier: AtomicU64::new(0),
                    };
                    slots.push(slot);
                }
            }
        }
        let counters: Arc<[AtomicU64]> = (0..=slots.len()).map(|_| AtomicU64::new(0)).collect();
        let set = Self {
            module: module.clone(),
            slots,
            global,
            recorder: recorder(&counters)?,
            counters,
            memory: monitor::memory()?,
            monitor: monitor::module(module.engine())?,
            functions: Mutex::new(None),
            phase: AtomicU8::new(Phase::Off as u8),
            changes: AtomicU64::new(0),
            is_full: AtomicBool::new(false),
        };
        set.make_many(random)?;
        set.make_global(random)?;
        Ok(set)
    }

    /// The maximum number of probes.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// From now on, this happens to the probes.
    pub(crate) fn begin(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Release);
    }

    fn is_in(&self, phase: Phase) -> bool {
        self.phase.load(Ordering::Acquire) == phase as u8
    }

    /// Whether the probes are switched while the program runs.
    pub(crate) fn is_changing(&self) -> bool {
        self.is_in(Phase::Changing)
    }

    /// How many changes were made while the program ran.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Whether counts cannot be exact.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// Makes a random part of the probes in one call.
    fn make_many(&self, random: &mut Random) -> Result<(), String> {
        let part = random.choose(&[0, 1, 2, 4]);
        let mut chosen = Vec::new();
        let mut specs = Vec::new();
        for (number, slot) in self.slots.iter().enumerate() {
            if !slot.is_of_store && random.below(4) < part {
                chosen.push(number);
                let kind = slot.sort.kinds(&self.making(number, None), random).swap_remove(0);
                specs.push(ProbeSpec { location: slot.site.location, kind });
            }
        }
        for (number, made) in chosen.into_iter().zip(self.module.probes(&specs)) {
            match made {
                Ok(probe) => drop(self.slots[number].put(Some(probe))),
                Err(error) if is_of_place(&error) => {}
                Err(error) => return Err(self.describe(number, &error)),
            }
        }
        Ok(())
    }

    fn making<'a>(&'a self, number: usize, functions: Option<&'a Functions>) -> Making<'a> {
        let slot = &self.slots[number];
        let is_ordered = !slot.is_of_store;
        let (site, counters, recorder) = (&slot.site, &self.counters, &self.recorder);
        Making { number, site, is_ordered, counters, recorder, functions }
    }

    /// Makes the global probe anew, switched off; no probe if its function belongs to a store and
    /// there is none.
    fn make_global(&self, random: &mut Random) -> Result<(), String> {
        let Some(global) = &self.global else { return Ok(()) };
        let functions = lock(&self.functions).clone().map(|(functions, _)| functions);
        let (number, counters, recorder) = (self.slots.len(), &self.counters, &self.recorder);
        let (site, functions) = (&global.site, functions.as_ref());
        let making = Making { number, site, is_ordered: false, counters, recorder, functions };
        let made = match global.sort.everywhere(&making, random) {
            Some(kind) => Some(self.module.global_probe(kind).map_err(|error| error.to_string())?),
            None => None,
        };
        let old = std::mem::replace(&mut *lock(&global.probe), made.map(Arc::new));
        drop(old);
        Ok(())
    }

    /// Switches the global probe, if there is one.
    fn switch_global(
        &self,
        switch: impl FnOnce(&GlobalProbe) -> Result<(), ProbeError>,
    ) -> Result<(), String> {
        match self.global.as_ref().and_then(Global::probe) {
            Some(global) => switch(&global).map_err(|error| error.to_string()),
            None => Ok(()),
        }
    }

    fn describe(&self, number: usize, problem: &dyn std::fmt::Display) -> String {
        let Slot { site, sort, .. } = &self.slots[number];
        let position = site.position.map_or(String::new(), |at| format!(" ({at:#x} in the module)"));
        format!("probe {number}, {sort:?} at {:?}{position}: {problem}", site.location)
    }

    /// Makes the probe of a slot anew, switched off; no probe at an unreachable place.
    fn make(&self, number: usize, random: &mut Random) -> Result<(), String> {
        let slot = &self.slots[number];
        let (functions, store) = lock(&self.functions).clone().unzip();
        let scope = match store {
            Some(store) if slot.is_of_store => Scope::Store(store),
            None if slot.is_of_store => return Ok(()),
            _ => Scope::Module,
        };
        let location = slot.site.location;
        let mut made = None;
        for kind in slot.sort.kinds(&self.making(number, functions.as_ref()), random) {
            match self
                .module
                .scoped_probes(scope, &[ProbeSpec { location, kind }])
                .pop()
                .expect("one for one")
            {
                Ok(probe) => {
                    made = Some(probe);
                    break;
                }
                Err(error) if is_of_place(&error) => {}
                Err(error) => return Err(self.describe(number, &error)),
            }
        }
        drop(slot.put(made));
        Ok(())
    }

    /// Prepares a store that is about to instantiate the module.
    pub(crate) fn enter(&self, store: &mut Store<()>) -> Result<(), String> {
        let functions = Functions::new(store, &self.monitor, &self.memory, &self.counters)?;
        *lock(&self.functions) = Some((functions, store.id()));
        if self.global.as_ref().is_some_and(|global| global.sort.is_of_store()) {
            self.make_global(&mut Random::new(0))?;
            if self.is_in(Phase::On) {
                self.switch_global(GlobalProbe::activate)?;
            }
        }
        if self.is_in(Phase::On) {
            // Which values they get does not matter here.
            let mut random = Random::new(0);
            for (number, slot) in self.slots.iter().enumerate().filter(|(_, slot)| slot.is_of_store) {
                let before = slot.probe().map_or(0, |probe| probe.count());
                slot.earlier.fetch_add(before, Ordering::Relaxed);
                self.make(number, &mut random)?;
                if let Some(probe) = slot.probe() {
                    self.switched(number, probe.activate())?;
                }
            }
        }
        Ok(())
    }

    /// The outcome of switching: stubs may have reached the limit of their memory.
    fn switched(&self, number: usize, outcome: Result<(), ProbeError>) -> Result<(), String> {
        match outcome {
            Ok(()) => Ok(()),
            Err(ProbeError::StubMemory { .. }) => {
                self.is_full.store(true, Ordering::Relaxed);
                Ok(())
            }
            Err(error) => Err(self.describe(number, &error)),
        }
    }

    /// Changes something at random.
    ///
    /// # Panics
    /// If the change is refused.
    pub(crate) fn change(&self, random: &mut Random) {
        self.try_to_change(random).unwrap_or_else(|problem| panic!("{problem}"));
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    fn try_to_change(&self, random: &mut Random) -> Result<(), String> {
        if self.slots.is_empty() {
            return Ok(());
        }
        let number = random.below(self.slots.len() as u64) as usize;
        let slot = &self.slots[number];
        match random.below(200) {
            0 => self.switch_all(|probes| deactivate_all(probes)),
            1 => self.switch_all(|probes| activate_all(probes)),
            2 => self.switch_global(GlobalProbe::activate),
            3 => self.switch_global(GlobalProbe::deactivate),
            4..6 => {
                drop(slot.put(None));
                Ok(())
            }
            6..20 => self.make(number, random),
            way => {
                let Some(probe) = slot.probe() else { return self.make(number, random) };
                self.switched(number, if way < 110 { probe.activate() } else { probe.deactivate() })
            }
        }
    }

    fn switch_all(
        &self,
        switch: impl FnOnce(Vec<&Probe>) -> Vec<Result<(), ProbeError>>,
    ) -> Result<(), String> {
        let (numbers, probes): (Vec<usize>, Vec<Arc<Probe>>) =
            self.slots.iter().enumerate().filter_map(|(number, slot)| Some((number, slot.probe()?))).unzip();
        for (number, outcome) in
            numbers.into_iter().zip(switch(probes.iter().map(|probe| &**probe).collect()))
        {
            self.switched(number, outcome)?;
        }
        Ok(())
    }

    /// Switches all probes on, so that they fire in the order of their slots. Probes for one store
    /// follow when there is a store.
    pub(crate) fn activate_all_in_order(&self) -> Result<(), String> {
        self.begin(Phase::On);
        forget();
        let mut random = Random::new(0);
        for (number, slot) in self.slots.iter().enumerate() {
            if slot.is_of_store {
                drop(slot.put(None));
                continue;
            }
            if slot.probe().is_none() {
                self.make(number, &mut random)?;
            }
            if let Some(probe) = slot.probe() {
                self.switched(number, probe.deactivate())?;
                self.switched(number, probe.activate())?;
            }
        }
        self.switch_global(GlobalProbe::activate)
    }

    /// Switches all probes off, in one of two ways.
    pub(crate) fn deactivate_all(&self, random: &mut Random) -> Result<(), String> {
        self.begin(Phase::Off);
        if random.one_in(2) {
            self.switch_all(|probes| deactivate_all(probes))?;
        } else {
            self.switch_all(|probes| probes.into_iter().map(Probe::deactivate).collect())?;
        }
        self.switch_global(GlobalProbe::deactivate)
    }

    /// What each slot has counted so far, and the global probe.
    pub(crate) fn counts(&self) -> Result<Vec<u64>, String> {
        let mut shared = vec![0; 8 * (self.slots.len() + 1)];
        self.memory.read(0, &mut shared).map_err(|error| error.to_string())?;
        self.recorder.flush();
        let called = |number: usize| self.counters[number].load(Ordering::Relaxed);
        let called_there = |number: usize| {
            u64::from_le_bytes(shared[8 * number..8 * number + 8].try_into().expect("eight bytes"))
        };
        let of_slot = |(number, slot): (usize, &Slot)| match slot.sort {
            Sort::Empty => 0,
            Sort::Count | Sort::CountBranch => {
                let now = slot.probe().map_or(0, |probe| probe.count());
                slot.earlier.load(Ordering::Relaxed) + now
            }
            Sort::Native | Sort::Shortcut | Sort::Callback | Sort::Generic | Sort::Record | Sort::Host => {
                called(number)
            }
            Sort::Wasm => called_there(number),
        };
        let mut counts: Vec<u64> = self.slots.iter().enumerate().map(of_slot).collect();
        let global = self.global.as_ref().and_then(Global::probe);
        let last = self.slots.len();
        counts.push(global.map_or(0, |global| global.count()) + called(last) + called_there(last));
        Ok(counts)
    }

    /// Compares what was counted between two times with what was executed. Returns how many counts
    /// were compared.
    pub(crate) fn check(&self, before: &[u64], after: &[u64], expected: &Expected) -> Result<u64, String> {
        let mut compared = 0;
        let mut problems = Vec::new();
        for (number, slot) in self.slots.iter().enumerate() {
            let counted = after[number] - before[number];
            let Location { function, place } = slot.site.location;
            let executed = match place {
                Place::Exit => continue,
                _ => expected.get(&(function, slot.site.position)).copied().unwrap_or(0),
            };
            if slot.sort != Sort::Empty && counted != executed {
                let problem = format!("counted {counted}, executed {executed}");
                problems.push(self.describe(number, &problem));
            }
            compared += 1;
        }
        if let Some(global) = &self.global {
            let counted = after[self.slots.len()] - before[self.slots.len()];
            let executed: u64 =
                expected.iter().filter(|((_, at), _)| global.is_at(*at)).map(|(_, count)| count).sum();
            let refused = global.probe().map_or_else(Vec::new, |probe| probe.refused());
            if refused.is_empty() && counted != executed {
                let sort = global.sort;
                problems.push(format!("global {sort:?}: counted {counted} of {executed} instructions"));
            }
            compared += 1;
        }
        if problems.is_empty() { Ok(compared) } else { Err(problems.join("\n")) }
    }
}

/// Whether the error concerns the place, not the engine.
fn is_of_place(error: &ProbeError) -> bool {
    matches!(error, ProbeError::Unreachable { .. } | ProbeError::Value { .. } | ProbeError::AtExit { .. })
}

/// All places of a module.
fn sites(module: &Module) -> Vec<Site> {
    let mut sites = Vec::new();
    for function in module.functions() {
        let Some(body) = function.body() else { continue };
        let locals: Arc<[ValType]> = function.ty().params().chain(body.locals()).collect();
        let start = body.range().start;
        let mut add = |place, position, chooses| {
            let location = Location { function: function.index(), place };
            sites.push(Site { location, position, locals: locals.clone(), chooses });
        };
        add(Place::Entry, None, false);
        add(Place::Exit, None, false);
        for instruction in body.instructions() {
            let at = instruction.offset();
            let chooses = matches!(
                instruction.operator(),
                Operator::BrIf { .. }
                    | Operator::If { .. }
                    | Operator::BrTable { .. }
                    | Operator::BrOnNull { .. }
                    | Operator::BrOnNonNull { .. }
                    | Operator::BrOnCast { .. }
                    | Operator::BrOnCastFail { .. }
                    | Operator::Select
                    | Operator::TypedSelect { .. }
            );
            add(Place::Instruction { offset: (at - start) as u32 }, Some(at as u32), chooses);
        }
    }
    sites
}
