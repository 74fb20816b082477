//! Probes in compiled code: versions of functions with sites, and frames that move between them.
//!
//! # The algorithm
//! 1. The first probe at a place that has no site compiles a *version* of the function with sites
//!    in front of the instructions that were asked for so far ([`version`]). Versions of a function
//!    have the same frames (`wasm_jit_codegen::Sites`). There are at most [`VERSIONS`]: the last
//!    one has sites everywhere.
//! 2. The first activation in a function makes its last version the *current* one. Its calls come
//!    there by a jump at the original's entry; its frames go over one by one, at their next
//!    transfer point (a loop's label, or a call's return), where a trap stands in all other
//!    versions. The handler of SIGILL finds where a frame goes on ([`CodeImage::transfer`]).
//! 3. To switch a probe on or off is one store of its site in each version: NOP, or JMP to the
//!    site's stub.
//! 4. When the function has no probe left, its original becomes the current version again.
//!
//! An original has sites if the engine's settings say so; their stubs are made when its function is
//! first probed ([`original`]).
//!
//! # Write order of a change of version
//! 1. The traps in the version that becomes current are taken out.
//! 2. It is noted as the current one: what meets a trap from now on goes there.
//! 3. Traps are put into the version that was current.
//! 4. The original's entry gets its JMP, or its PUSH back.
//!
//! In whatever order a thread sees these stores, it is in valid code with a valid frame. A trap is
//! one byte, which no x86-64 processor executes, so each is one atomic store over an instruction of
//! any length. A frame meets at most one for each change.
//!
//! # Counting
//! Probes of one place share a counter ([`counters`]), which counts while one of them is on. A
//! probe's own count is what the counter has gained while the probe was on.
//!
//! Versions are freed with the image. What they take is bounded: for each function three times its
//! code with sites and stubs.

mod blocks;
pub(crate) mod counters;
mod listed;
mod original;
mod version;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use wasm_jit_codegen::{CompiledFunction, ENTRY_LENGTH, Position, Positions, Sites, TRANSFER_TRAP};
use wordpatch::{Bytes, Error, FetchWindow, TextRef};

use super::{CodeImage, ObserveError};
use blocks::{Arenas, Blocks};
pub(crate) use listed::Listed;
use version::Seen;
pub(crate) use version::Version;

/// Versions of a function, the original counted.
const VERSIONS: usize = 4;

/// The patches are inside aligned quadwords, whatever the processor.
const WINDOW: FetchWindow = FetchWindow::Bytes8;

/// What a site does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Form {
    /// Nothing.
    #[default]
    Off,
    /// Jumps to a stub that does nothing.
    Empty,
    /// Counts.
    Count,
}

/// Why a place cannot have a probe, or a probe cannot be switched.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MakeError {
    #[error(transparent)]
    Compile(#[from] ObserveError),
    #[error(transparent)]
    Code(#[from] Error),
    #[error("no addresses for counters: {0}")]
    Counters(io::Error),
}

/// What is known of a place when a probe is asked for there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// No instruction begins there.
    No,
    /// No control comes there.
    Unreachable,
    Yes,
}

/// A function that was asked to be probed: read by signal handlers.
#[derive(Debug, Default)]
struct Function {
    /// The original first.
    versions: [OnceLock<Version>; VERSIONS],
    current: AtomicUsize,
}

impl Function {
    /// How many versions there are.
    fn made(&self) -> usize {
        self.versions.iter().filter(|version| version.get().is_some()).count()
    }
}

/// A site, in all versions that have it.
#[derive(Debug, Default)]
struct Site {
    cell: u32,
    form: Form,
    /// How many probes are here that are on, and how many of these count.
    active: u32,
    counting: u32,
}

/// A function's part of what the lock protects.
#[derive(Debug, Default)]
struct FunctionState {
    sites: BTreeMap<u32, Site>,
    probes: usize,
    active: usize,
    /// Versions with traps at their transfer points.
    trapped: [bool; VERSIONS],
    /// What stands at the original's entry, and what stood there at first.
    entry: Option<[Bytes; 2]>,
}

/// A probe.
#[derive(Debug)]
struct ProbeState {
    function: u32,
    position: u32,
    counts: bool,
    active: bool,
    /// What the counter showed when the probe went on.
    base: u64,
    /// What was counted until the probe went off.
    counted: u64,
}

#[derive(Debug, Default)]
struct Changes {
    /// The image's code, as a place to patch at.
    text: Option<TextRef>,
    arenas: Arenas,
    functions: HashMap<u32, FunctionState>,
    probes: Vec<Option<ProbeState>>,
    free: Vec<usize>,
}

/// The part of an image that is about probes.
#[derive(Debug)]
pub(crate) struct Probed {
    /// By number among the image's functions.
    functions: Box<[OnceLock<Box<Function>>]>,
    /// Dropped before the memory.
    blocks: Blocks,
    changes: Mutex<Changes>,
}

impl Probed {
    fn new(image: &CodeImage) -> Self {
        Self {
            functions: image.indices().map(|_| OnceLock::new()).collect(),
            blocks: Blocks::default(),
            changes: Mutex::default(),
        }
    }

    fn function(&self, image: &CodeImage, index: u32) -> Option<&Function> {
        self.functions[(index - image.module.imported_functions) as usize].get().map(AsRef::as_ref)
    }

    /// The version with sites that the address is in: function, number, version. Atomics only.
    fn find(&self, image: &CodeImage, pc: usize) -> Option<(u32, usize, &Version)> {
        let block = self.blocks.find(pc)?;
        let version = self.function(image, block.function)?.versions[block.version].get()?;
        (pc < version.stub_address(version.stubs_end)).then_some((block.function, block.version, version))
    }
}

impl Changes {
    /// Where an address of a version can be patched.
    fn place(&self, address: usize) -> Option<(&TextRef, usize)> {
        let place = match self.arenas.of(address) {
            Some(arena) => arena.place(),
            None => self.text.as_ref()?,
        };
        Some((place, address - place.address()))
    }

    /// Puts `new` in the place of `old`, unless it stands there.
    fn exchange(&self, address: usize, old: &Bytes, new: &Bytes) -> Result<(), Error> {
        let not_mapped = Error::NotMapped { address };
        let (place, offset) = self.place(address).ok_or(not_mapped)?;
        // SAFETY: code of the image or of one of its arenas, which outlive these changes; both
        // forms are right wherever threads are: the frames of all versions are alike, and a
        // quadword holds all of the bytes.
        match unsafe { place.compare_exchange(WINDOW, offset, old, new) } {
            Err(Error::Mismatch { found, .. }) if found == *new => Ok(()),
            exchanged => exchanged,
        }
    }

    /// Sets the traps of a version, or takes them out.
    fn trap(&self, version: &Version, set: bool) -> Result<(), Error> {
        let trap = Bytes::new(&[TRANSFER_TRAP]).expect("a byte");
        for (point, byte) in version.points.iter().zip(&version.first_bytes) {
            let byte = Bytes::new(&[*byte]).expect("a byte");
            let (old, new) = if set { (&byte, &trap) } else { (&trap, &byte) };
            self.exchange(version.at(*point), old, new)?;
        }
        Ok(())
    }

    /// Makes a version the current one; see the write order.
    fn change_version(&mut self, index: u32, function: &Function, to: usize) -> Result<(), Error> {
        let from = function.current.load(Ordering::Relaxed);
        if from == to {
            return Ok(());
        }
        let done = self.change(index, function, from, to);
        if done.is_err() {
            // What the refusal has left undone is undone as far as it goes.
            let _ = self.change(index, function, to, from);
        }
        done
    }

    fn change(&mut self, index: u32, function: &Function, from: usize, to: usize) -> Result<(), Error> {
        let version = |number: usize| function.versions[number].get().expect("the version was made");
        if self.state(index).trapped[to] {
            self.trap(version(to), false)?;
        }
        function.current.store(to, Ordering::Release);
        let state = self.state(index);
        state.trapped[to] = false;
        state.trapped[from] = true;
        let [stands, first] = state.entry.expect("known since the first version");
        self.trap(version(from), true)?;
        let original = version(0);
        let entry = original.at(original.entry);
        let new = match to {
            0 => first,
            _ => version::jump(entry, version(to).at(version(to).entry)),
        };
        self.exchange(entry, &stands, &new)?;
        self.state(index).entry = Some([new, first]);
        Ok(())
    }

    /// Gives a site the form that its probes ask for, in all versions.
    fn apply(&mut self, index: u32, position: u32, function: &Function) -> Result<(), Error> {
        let site = &self.functions[&index].sites[&position];
        let old = site.form;
        let new = match (site.active, site.counting) {
            (0, _) => Form::Off,
            (_, 0) => Form::Empty,
            _ => Form::Count,
        };
        if new == old {
            return Ok(());
        }
        let versions: Vec<&Version> = function.versions.iter().filter_map(OnceLock::get).collect();
        let store = |old, new| -> Result<(), Error> {
            for version in &versions {
                if let Some(place) = version.place(position) {
                    self.exchange(version.at(place.code), &place.bytes(old), &place.bytes(new))?;
                }
            }
            Ok(())
        };
        if let Err(error) = store(old, new) {
            let _ = store(new, old);
            return Err(error);
        }
        self.site(index, position).form = new;
        Ok(())
    }

    fn state(&mut self, index: u32) -> &mut FunctionState {
        self.functions.get_mut(&index).expect("the function is probed")
    }

    fn site(&mut self, index: u32, position: u32) -> &mut Site {
        self.state(index).sites.get_mut(&position).expect("the site was made")
    }

    fn probe(&mut self, number: usize) -> &mut ProbeState {
        self.probes[number].as_mut().expect("its handle is alive")
    }
}

impl CodeImage {
    /// The version with sites that the address is in, with its function and number. Atomics only.
    fn sited_at(&self, pc: usize) -> Option<(u32, usize, &Version)> {
        self.probed.get()?.find(self, pc)
    }

    /// The version with sites that the address is in, with its function. Atomics only.
    pub(crate) fn version_at(&self, pc: usize) -> Option<(u32, &Version)> {
        self.sited_at(pc).map(|(function, _, version)| (function, version))
    }

    /// Where the mapped code ends that the address is in.
    pub(crate) fn code_end(&self, pc: usize) -> usize {
        let pages = self.memory().pages();
        let probed = || self.probed.get().and_then(|probed| probed.blocks.end(pc));
        if pages.contains(&pc) { pages.end } else { probed().unwrap_or(pc) }
    }

    /// Where a thread goes on that has met a trap at a transfer point. Atomics only.
    pub(crate) fn transfer(&self, pc: usize) -> Option<usize> {
        let (function, number, point) = self.transfer_point_at(pc)?;
        let from = function.versions[number].get()?;
        let current = function.current.load(Ordering::Acquire);
        if current == number {
            // The trap was taken out meanwhile.
            return Some(pc);
        }
        Some(function.versions[current].get()?.arrival(point, from))
    }

    /// What stands at the address while no trap does.
    pub(crate) fn byte_under_trap(&self, pc: usize) -> Option<u8> {
        let (function, number, point) = self.transfer_point_at(pc)?;
        Some(function.versions[number].get()?.first_bytes[point])
    }

    /// The transfer point at the address: the function, the number of its version, and that of the
    /// point. Atomics only.
    fn transfer_point_at(&self, pc: usize) -> Option<(&Function, usize, usize)> {
        let function = self.probed.get()?.function(self, self.function_at(pc)?)?;
        let number = self.version_number(pc);
        let point = function.versions[number].get()?.point_at(pc)?;
        Some((function, number, point))
    }

    /// A number for the version of a function's code that the address is in; 0 is the original.
    pub(crate) fn version_number(&self, pc: usize) -> usize {
        self.sited_at(pc).map_or(0, |(_, number, _)| number)
    }

    /// The position of the instruction whose stub the address is in.
    pub(crate) fn stub_at(&self, pc: usize) -> Option<u32> {
        self.sited_at(pc)?.2.stub_at(pc)
    }

    /// Where the entry is executed, and the body, of the version that the address is in.
    pub(crate) fn prologue_at(&self, pc: usize) -> Option<(usize, usize)> {
        if let Some((_, _, version)) = self.sited_at(pc) {
            return Some((version.at(version.entry), version.at(version.body)));
        }
        let function = self.function(self.function_at(pc)?);
        Some((self.at(function.entry) as usize, self.at(function.body) as usize))
    }

    /// As [`CodeImage::positions`], of the version that the address is in.
    ///
    /// # Errors
    /// As [`CodeImage::observe`].
    pub(crate) fn positions_at(&self, pc: usize, function: u32) -> Result<Vec<Position>, ObserveError> {
        let sited = self.sited_at(pc).filter(|(_, number, _)| *number != 0);
        let Some((_, _, version)) = sited else { return self.positions(function) };
        let mut positions = Positions::default();
        let (_, again) = self.compile_again(function, &version.sites, &mut positions)?;
        let is_same =
            (again.entry, again.body, again.frame_size) == (version.entry, version.body, version.frame_size);
        if is_same { Ok(positions.in_function(&again)) } else { Err(ObserveError::Differs { function }) }
    }

    fn probed(&self) -> &Probed {
        self.probed.get_or_init(|| Box::new(Probed::new(self)))
    }

    fn changes(&self) -> MutexGuard<'_, Changes> {
        self.probed().changes.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Makes probes in a function, off: for each position of the module, and whether it counts.
    /// Gives for each what the place is, with the number of the probe if it can have one.
    ///
    /// # Errors
    /// None is made.
    pub(crate) fn make_probes(
        self: &Arc<Self>,
        index: u32,
        wanted: &[(u32, bool)],
    ) -> Result<Vec<(Reach, usize)>, MakeError> {
        let (first, end) = (self.indices().start, self.indices().end - 1);
        let code = self.function(end).wasm_end - self.function(first).wasm_start;
        self.counters.enable(8 * code as usize).map_err(MakeError::Counters)?;
        let probed = self.probed();
        let changes = &mut *self.changes();
        if changes.text.is_none() {
            // SAFETY: the image's code, which wordpatch has mapped.
            changes.text = Some(unsafe { TextRef::resolve(self.memory().address(), 1)? });
        }
        let mut seen = Seen::default();
        let compiled = self.observe(index, &mut seen)?;
        let entry = self.function(index).wasm_start;
        let mut reach: HashMap<u32, Reach> = HashMap::from([(entry, Reach::Yes)]);
        for (_, position, reachable) in &seen.instructions {
            reach.insert(*position, if *reachable { Reach::Yes } else { Reach::Unreachable });
        }
        let reach = |position: &u32| reach.get(position).copied().unwrap_or(Reach::No);
        let positions: BTreeSet<u32> =
            wanted.iter().map(|(position, _)| *position).filter(|at| reach(at) == Reach::Yes).collect();
        if !positions.is_empty() {
            let slot = &probed.functions[(index - self.module.imported_functions) as usize];
            let function = slot.get_or_init(Box::default);
            if function.versions[0].get().is_none() {
                self.prepare_original(index, function, (&compiled, &seen), changes)?;
            }
            self.lay_out(index, function, &positions, (&compiled, &seen), changes)?;
        }
        let mut make = |(position, counts): &(u32, bool)| {
            let reach = reach(position);
            if reach != Reach::Yes {
                return (reach, 0);
            }
            changes.functions.entry(index).or_default().probes += 1;
            let (position, counts) = (*position, *counts);
            let probe = ProbeState { function: index, position, counts, active: false, base: 0, counted: 0 };
            let number = changes.free.pop().unwrap_or(changes.probes.len());
            if number == changes.probes.len() {
                changes.probes.push(None);
            }
            changes.probes[number] = Some(probe);
            (reach, number)
        };
        Ok(wanted.iter().map(&mut make).collect())
    }

    /// Makes a version that has these sites, unless the last one has them.
    fn lay_out(
        self: &Arc<Self>,
        index: u32,
        function: &Function,
        positions: &BTreeSet<u32>,
        original: (&CompiledFunction, &Seen),
        changes: &mut Changes,
    ) -> Result<(), MakeError> {
        let count = function.made();
        let last = function.versions[count - 1].get().expect("the last that there is");
        if positions.iter().all(|position| last.place(*position).is_some()) {
            return Ok(());
        }
        let state = changes.functions.entry(index).or_default();
        if state.entry.is_none() {
            let original = function.versions[0].get().expect("made before");
            let text = changes.text.as_ref().expect("resolved before");
            // SAFETY: in the image's code.
            let first = unsafe { text.read(original.entry as usize, ENTRY_LENGTH as usize) };
            state.entry = Some([first, first]);
        }
        let sites = if count == VERSIONS - 1 {
            let reachable = original.1.instructions.iter().filter(|(.., reachable)| *reachable);
            let all = reachable.map(|(_, position, _)| *position).chain([self.function(index).wasm_start]);
            self.add_counters(state, all);
            Sites::All
        } else {
            let used: BTreeSet<u32> = changes
                .probes
                .iter()
                .flatten()
                .filter(|probe| probe.function == index)
                .map(|probe| probe.position)
                .chain(positions.iter().copied())
                .collect();
            self.add_counters(state, used.iter().copied());
            Sites::At(used.into_iter().collect())
        };
        let memory = (&mut changes.arenas, &self.probed().blocks);
        let version = Version::with_sites(self, index, sites, original, &state.sites, memory)?;
        let block = version.block(index, count);
        let place = version.place_of_code(index, count);
        let _ = function.versions[count].set(version);
        self.probed().blocks.push(block);
        self.shown.version_made(&place);
        if function.current.load(Ordering::Relaxed) != 0 {
            changes.change_version(index, function, count)?;
        }
        Ok(())
    }

    fn add_counters(&self, state: &mut FunctionState, positions: impl Iterator<Item = u32>) {
        for position in positions {
            let new = || Site { cell: self.counters.add(), ..Site::default() };
            state.sites.entry(position).or_insert_with(new);
        }
    }

    /// Switches a probe on.
    ///
    /// # Errors
    /// It stays off.
    pub(crate) fn activate_probe(&self, number: usize) -> Result<(), Error> {
        let changes = &mut *self.changes();
        let &mut ProbeState { function: index, position, counts, active, .. } = changes.probe(number);
        if active {
            return Ok(());
        }
        let function = self.probed().function(self, index).expect("the function is probed");
        changes.switch(index, position, counts, true);
        let last = function.made() - 1;
        let before = self.counters.total(changes.site(index, position).cell);
        let on = changes.apply(index, position, function);
        let on = on.and_then(|()| changes.change_version(index, function, last));
        if on.is_err() {
            changes.switch(index, position, counts, false);
            let _ = changes.apply(index, position, function);
            return on;
        }
        let probe = changes.probe(number);
        (probe.active, probe.base) = (true, before);
        Ok(())
    }

    /// Switches a probe off. With `settle`, a function that has no active probe any more goes back
    /// to its original.
    ///
    /// # Errors
    /// It stays on.
    pub(crate) fn deactivate_probe(&self, number: usize, settle: bool) -> Result<(), Error> {
        let changes = &mut *self.changes();
        self.deactivate(changes, number)?;
        let index = changes.probe(number).function;
        if settle && changes.functions[&index].active == 0 {
            let function = self.probed().function(self, index).expect("the function is probed");
            changes.change_version(index, function, 0)?;
        }
        Ok(())
    }

    fn deactivate(&self, changes: &mut Changes, number: usize) -> Result<(), Error> {
        let &mut ProbeState { function: index, position, counts, active, .. } = changes.probe(number);
        if !active {
            return Ok(());
        }
        let function = self.probed().function(self, index).expect("the function is probed");
        changes.switch(index, position, counts, false);
        if let Err(error) = changes.apply(index, position, function) {
            changes.switch(index, position, counts, true);
            return Err(error);
        }
        let total = self.counters.total(changes.site(index, position).cell);
        let probe = changes.probe(number);
        probe.active = false;
        if probe.counts {
            probe.counted = probe.counted.wrapping_add(total.wrapping_sub(probe.base));
        }
        Ok(())
    }

    /// What a probe has counted.
    pub(crate) fn probe_count(&self, number: usize) -> u64 {
        let changes = &mut *self.changes();
        let &mut ProbeState { function, position, counts, active, base, counted } = changes.probe(number);
        if !(counts && active) {
            return counted;
        }
        let total = self.counters.total(changes.site(function, position).cell);
        counted.wrapping_add(total.wrapping_sub(base))
    }

    /// Removes a probe. A function without any goes back to its original.
    pub(crate) fn remove_probe(&self, number: usize) {
        let changes = &mut *self.changes();
        // A site that cannot be patched, as in a forked child, stays as it is.
        let _ = self.deactivate(changes, number);
        let Some(probe) = changes.probes[number].take() else { return };
        changes.free.push(number);
        let state = changes.state(probe.function);
        state.probes -= 1;
        if state.probes == 0 {
            let function = self.probed().function(self, probe.function).expect("the function is probed");
            let _ = changes.change_version(probe.function, function, 0);
        }
    }
}

impl Changes {
    /// Counts a probe of a site among those that are on, or no more.
    fn switch(&mut self, index: u32, position: u32, counts: bool, on: bool) {
        let add = |count: &mut u32, by: bool| match on {
            true => *count += u32::from(by),
            false => *count -= u32::from(by),
        };
        let site = self.site(index, position);
        add(&mut site.active, true);
        add(&mut site.counting, counts);
        let state = self.state(index);
        state.active = if on { state.active + 1 } else { state.active - 1 };
    }
}
