//! Probes in compiled code: versions of functions with sites, and frames that move between them.
//!
//! # The algorithm
//! 1. The first probe at a place that has no site compiles a *version* of the function with sites
//!    in front of the instructions that were asked for so far ([`version`]). Versions of a function
//!    have the same frames (`wasm_jit_codegen::Sites`). There are at most [`VERSIONS`]: the last
//!    one of a kind has sites everywhere. With `ProbeSites::All`, the first one has, too.
//! 2. The first activation in a function makes its last version the *current* one. A jump at the
//!    original's entry leads its calls there. Each frame moves at its next transfer point (a loop's
//!    label, or a call's return), where all other versions have a trap. The handler of SIGILL looks
//!    up where the frame continues ([`CodeImage::transfer`]).
//! 3. Switching a probe is one store of its site in each version: NOP, or JMP to the site's stub
//!    ([`switch`]). The active probes of a site are a list, and so is their stub ([`stubs`]).
//! 4. A frame of which a probe changes a value that the optimized code has in no place goes on in a
//!    *plain* version ([`plain`]), until its function returns.
//! 5. When the function has no probe left, its original becomes the current version again.
//!
//! Where a function has many counters, its versions count by themselves ([`counting`]), and have
//! sites for other probes only.
//!
//! An original has sites if the engine's settings say so; their stubs are made when its function is
//! first probed ([`original`]).
//!
//! # Write order of a change of version
//! 1. The traps in the version that becomes current are removed.
//! 2. It is recorded as the current one: from now on, traps lead to it.
//! 3. Traps are written into the version that was current.
//! 4. The original's entry becomes a JMP, or PUSH again.
//!
//! In whatever order a thread sees these stores, it executes valid code with a valid frame. A trap
//! is one byte, which no x86-64 processor executes, so each is one atomic store over an instruction
//! of any length. A frame executes at most one for each change.
//!
//! # Locks
//! All changes are made under a lock of the image ([`Changes`]), which no thread holds while it
//! executes compiled code. So a probe's function may change probes, including its own: no store
//! changes the stub in which it is.
//!
//! # Memory
//! Versions and stubs are freed with the image. Their memory is bounded: for each function six
//! times its code with sites and counters' stubs, or increments, and two plain versions; and for
//! each image a limit for the stubs of lists.

mod blocks;
mod callback;
pub(crate) mod counters;
pub(crate) mod counting;
pub(crate) mod enter;
mod frames;
pub(crate) mod ids;
mod listed;
mod original;
mod plain;
mod request;
mod stubs;
mod switch;
pub(crate) mod unwound;
mod version;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use wasm_jit_codegen::{
    CompiledFunction, CompiledSites, Counting, ENTRY_LENGTH, NoValue, Only, Position, Positions, Sites,
    TRANSFER_TRAP,
};
use wordpatch::{Bytes, Error, FetchWindow, TextRef};

use super::{CodeImage, ObserveError};
use blocks::{Arenas, Block, Blocks};
pub(crate) use callback::CallBack;
pub use callback::Callback;
use counting::{Choice, RunCells, Tally};
pub(crate) use listed::{Listed, ListedSite};
pub(crate) use plain::Plain;
pub(crate) use request::{Argument, NoProbe, Request, RequestedKind};
pub(crate) use stubs::Generic;
use stubs::{Form, Site, StubMemory, What};
pub(crate) use version::Version;
use version::{Found, Seen, SitePlace};

/// Versions of a function: the original, [`VERSIONS_OF_A_KIND`] with sites, as many that count, and
/// two plain ones.
const VERSIONS: usize = PLAIN + 2;
/// The plain version that does not count; the one that does follows it.
const PLAIN: usize = 1 + 2 * VERSIONS_OF_A_KIND;
/// The last one has sites everywhere; with `ProbeSites::All`, the first.
const VERSIONS_OF_A_KIND: usize = 3;

/// Whether this is the number of a plain version.
fn is_plain(version: usize) -> bool {
    version >= PLAIN
}

/// The patches are inside aligned quadwords, whatever the processor.
const WINDOW: FetchWindow = FetchWindow::Bytes8;

/// Why a place cannot have a probe, or a probe cannot be switched.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MakeError {
    #[error(transparent)]
    Compile(#[from] ObserveError),
    #[error(transparent)]
    Code(#[from] Error),
    #[error("no addresses for counters: {0}")]
    Counters(io::Error),
    #[error("the stubs of the module's probes take more than {limit} bytes")]
    StubMemory { limit: usize },
}

/// A function that was asked to be probed: read by signal handlers.
#[derive(Debug, Default)]
struct Function {
    /// The original first.
    versions: [OnceLock<Box<Version>>; VERSIONS],
    current: AtomicUsize,
    /// Whether its frames can have accessors: then it keeps its version.
    has_accessors: AtomicBool,
}

impl Function {
    /// How many versions there are that can be current.
    fn made(&self) -> usize {
        self.versions[..PLAIN].iter().filter(|version| version.get().is_some()).count()
    }
}

/// A function's part of what the lock protects.
#[derive(Debug, Default)]
struct FunctionState {
    sites: BTreeMap<u32, Site>,
    /// Its probes, by their numbers.
    probes: BTreeSet<usize>,
    /// Those that count how often control comes to their place.
    counters: usize,
    active: usize,
    /// Whether versions that are made count by themselves.
    is_counting: bool,
    /// Known since the first version that counts.
    runs: Option<RunCells>,
    /// Whether it does not return to its original.
    keeps_version: bool,
    /// Versions with traps at their transfer points.
    trapped: [bool; VERSIONS],
    /// The original's entry, once it is known.
    entry: Option<Entry>,
}

/// The first bytes of a function's original.
#[derive(Clone, Copy, Debug)]
struct Entry {
    address: usize,
    /// What stands there.
    stands: Bytes,
    /// What stood there at first.
    first: Bytes,
    /// Whether it leads to the function's stub in [`enter`]. It stays like this when the function
    /// gets another version, until those who wait for the function are done.
    is_diverted: bool,
    /// Whether they are making their probes.
    is_held: bool,
}

impl Entry {
    fn new(address: usize, first: Bytes) -> Self {
        Self { address, stands: first, first, is_diverted: false, is_held: false }
    }
}

impl FunctionState {
    /// Whether the function may return to its original.
    fn may_return(&self) -> bool {
        self.active == 0 && !self.keeps_version
    }
}

/// Probed functions, by their index: a toggle looks one up several times.
#[derive(Debug, Default)]
struct FunctionStates(Vec<Option<Box<FunctionState>>>);

impl FunctionStates {
    fn get(&self, index: u32) -> Option<&FunctionState> {
        self.0.get(index as usize)?.as_deref()
    }

    fn get_mut(&mut self, index: u32) -> Option<&mut FunctionState> {
        self.0.get_mut(index as usize)?.as_deref_mut()
    }

    /// The state of a function, which may be new.
    fn or_default(&mut self, index: u32) -> &mut FunctionState {
        let index = index as usize;
        if self.0.len() <= index {
            self.0.resize_with(index + 1, || None);
        }
        self.0[index].get_or_insert_default()
    }

    fn site(&self, index: u32, position: u32) -> Option<&Site> {
        self.get(index)?.sites.get(&position)
    }

    fn site_mut(&mut self, index: u32, position: u32) -> Option<&mut Site> {
        self.get_mut(index)?.sites.get_mut(&position)
    }
}

/// A probe.
#[derive(Debug)]
struct ProbeState {
    function: u32,
    position: u32,
    what: What,
    /// The instances for which it is, if not for all.
    only: Option<Only>,
    active: bool,
    /// Its first count.
    tally: Tally,
    /// The other counts of a choice.
    tallies: Box<[Tally]>,
}

#[derive(Debug, Default)]
struct Changes {
    /// The image's code, as a place to patch at.
    text: Option<TextRef>,
    arenas: Arenas,
    stubs: StubMemory,
    functions: FunctionStates,
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
    found: frames::Found,
    changes: Mutex<Changes>,
    entered: enter::Entered,
}

impl Probed {
    fn new(image: &CodeImage) -> Self {
        Self {
            functions: image.indices().map(|_| OnceLock::new()).collect(),
            blocks: Blocks::default(),
            found: frames::Found::default(),
            changes: Mutex::default(),
            entered: enter::Entered::default(),
        }
    }

    fn function(&self, image: &CodeImage, index: u32) -> Option<&Function> {
        self.functions[(index - image.module.imported_functions) as usize].get().map(AsRef::as_ref)
    }

    /// The version with sites in which the address is, or to which its stub belongs; and the block.
    /// Atomics only.
    fn find(&self, image: &CodeImage, pc: usize) -> Option<(Block, &Version)> {
        let block = self.blocks.find(pc).filter(|block| pc < block.end)?;
        let version = self.function(image, block.function)?.versions[block.version].get()?;
        Some((block, version))
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
            // Reverts what was done before the error.
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
        let entry = state.entry.expect("known since the first version");
        self.trap(version(from), true)?;
        if entry.is_diverted { Ok(()) } else { self.enter_current(index, Some(function)) }
    }

    /// Makes a function begin in its current version.
    fn enter_current(&mut self, index: u32, function: Option<&Function>) -> Result<(), Error> {
        let entry = self.state(index).entry.expect("known since the first version, or it waited");
        let current = function.map_or(0, |function| function.current.load(Ordering::Relaxed));
        let new = match function.and_then(|function| function.versions[current].get()) {
            Some(version) if current > 0 => version::jump(entry.address, version.at(version.entry)),
            _ => entry.first,
        };
        self.exchange(entry.address, &entry.stands, &new)?;
        self.state(index).entry = Some(Entry { stands: new, is_diverted: false, ..entry });
        Ok(())
    }

    /// Gives a site the form that its probes ask for, in all versions.
    fn apply(
        &mut self,
        image: &Arc<CodeImage>,
        (index, position): (u32, u32),
        function: &Function,
        is_activation: bool,
    ) -> Result<(), MakeError> {
        let Self { functions, probes, .. } = self;
        let site = functions.site_mut(index, position).expect("the site was made");
        let old = site.form;
        let probe = |number: &usize| &probes[*number].as_ref().expect("it is on").what;
        let active = std::mem::take(&mut site.active);
        let new = site.form_of(active.all().iter().map(probe));
        site.active = active;
        if new == old {
            return Ok(());
        }
        let versions = || function.versions.iter().filter_map(OnceLock::get);
        for version in versions() {
            self.make_stub(image, (index, version), position, new, is_activation)?;
        }
        let site = self.functions.site(index, position).expect("the site was made");
        let site_at = |position| self.functions.site(index, position).expect("the site was made");
        let store = |old, new| -> Result<(), Error> {
            for version in versions() {
                if let Some(place) = version.place(position) {
                    let others = version.others(place, site_at);
                    let bytes = |form| version.bytes(place, form, site, others);
                    self.exchange(version.at(place.code), &bytes(old), &bytes(new))?;
                }
            }
            Ok(())
        };
        if let Err(error) = store(old, new) {
            let _ = store(new, old);
            return Err(error.into());
        }
        self.site(index, position).form = new;
        Ok(())
    }

    /// Makes the stub of a form in a version, if it is one of a list.
    fn make_stub(
        &mut self,
        image: &Arc<CodeImage>,
        (index, version): (u32, &Version),
        position: u32,
        form: Form,
        is_activation: bool,
    ) -> Result<(), MakeError> {
        let (Form::List(list), Some(place)) = (form, version.place(position)) else { return Ok(()) };
        let Self { functions, stubs, arenas, .. } = self;
        let site = functions.site_mut(index, position).expect("the site was made");
        let memory = (stubs, arenas, &image.probed().blocks);
        let made = stubs::make_stub(image, (index, version), place, (site, list), is_activation, memory);
        if made.is_err() {
            site.more_mut().forget_last_list();
        }
        made
    }

    fn state(&mut self, index: u32) -> &mut FunctionState {
        self.functions.get_mut(index).expect("the function is probed")
    }

    fn site(&mut self, index: u32, position: u32) -> &mut Site {
        self.functions.site_mut(index, position).expect("the site was made")
    }

    fn probe(&mut self, number: usize) -> &mut ProbeState {
        self.probes[number].as_mut().expect("its handle is alive")
    }
}

impl CodeImage {
    /// The version with sites in which the address is, or to which its stub belongs; and the block.
    /// Atomics only.
    fn sited_at(&self, pc: usize) -> Option<(Block, &Version)> {
        self.probed.get()?.find(self, pc)
    }

    /// The version with sites that the address is in, with its function. Atomics only.
    pub(crate) fn version_at(&self, pc: usize) -> Option<(u32, &Version)> {
        self.sited_at(pc).map(|(block, version)| (block.function, version))
    }

    /// Where the mapped code ends that the address is in.
    pub(crate) fn code_end(&self, pc: usize) -> usize {
        let pages = self.memory().pages();
        let probed = || self.probed.get().and_then(|probed| probed.blocks.end(pc));
        if pages.contains(&pc) { pages.end } else { probed().unwrap_or(pc) }
    }

    /// Where a thread continues that has executed a trap at a transfer point. Atomics only.
    pub(crate) fn transfer(&self, pc: usize) -> Option<usize> {
        let (function, number, point) = self.transfer_point_at(pc)?;
        let current = function.current.load(Ordering::Acquire);
        if current == number {
            // The trap was removed meanwhile.
            return Some(pc);
        }
        Some(function.versions[current].get()?.point(point))
    }

    /// The version whose handlers are for a frame of a function that waits in this code; none for
    /// the original. Atomics only.
    pub(in crate::code) fn version_for_handler(&self, index: u32, pc: usize) -> Option<&Version> {
        let function = self.probed.get()?.function(self, index)?;
        let current = function.current.load(Ordering::Acquire);
        let number = if is_plain(self.version_number(pc)) { self.version_number(pc) } else { current };
        function.versions[number].get().map(AsRef::as_ref).filter(|version| version.number != 0)
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
        self.sited_at(pc).map_or(0, |(block, _)| block.version)
    }

    /// The position of the instruction whose stub the address is in.
    pub(crate) fn stub_at(&self, pc: usize) -> Option<u32> {
        let position = self.place_of_stub_at(pc)?;
        let (block, _) = self.sited_at(pc)?;
        // The exit belongs to the last `end`, of one byte.
        let is_exit = position == self.function(block.function).wasm_end;
        Some(position - u32::from(is_exit))
    }

    /// The position of the place whose stub the address is in: that of an exit is the end of the
    /// body.
    pub(crate) fn place_of_stub_at(&self, pc: usize) -> Option<u32> {
        let (block, version) = self.sited_at(pc)?;
        block.stub.or_else(|| version.stub_at(pc))
    }

    /// Where the entry is executed, and the body, of the version that the address is in. In a stub,
    /// the frame is complete: it counts as a body.
    pub(crate) fn prologue_at(&self, pc: usize) -> Option<(usize, usize)> {
        if let Some((block, version)) = self.sited_at(pc) {
            // The block of an original has its stubs only.
            if block.stub.is_some() || block.version == 0 {
                return Some((block.start, block.start));
            }
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
        let sited = self.sited_at(pc).filter(|(block, _)| block.version != 0);
        let Some((_, version)) = sited else { return self.positions(function) };
        let mut positions = Positions::default();
        if let Some(runs) = &version.runs {
            // The increment at the entry is no instruction's.
            let body = self.function(function).wasm_start;
            let own = runs.positions.iter().filter(|position| position.wasm != body);
            let entry = version.entry;
            return Ok(own.map(|at| Position { code: at.code - entry, ..*at }).collect());
        }
        let (_, again) = self.compile_again(function, (&version.sites, None), &mut positions)?;
        let is_same =
            (again.entry, again.body, again.frame_size) == (version.entry, version.body, version.frame_size);
        if is_same { Ok(positions.in_function(&again)) } else { Err(ObserveError::Differs { function }) }
    }

    /// The position of the instruction that the address in a function is in, among
    /// [those](CodeImage::positions_at) of the version that it is in; `None` if it is in none.
    pub(crate) fn position_among(&self, pc: usize, positions: &[Position]) -> Option<u32> {
        if let Some(instruction) = self.stub_at(pc) {
            return Some(instruction);
        }
        let entry = self.prologue_at(pc).map_or(pc, |(entry, _)| entry);
        let offset = (pc - entry) as u32;
        let after = positions.partition_point(|position| position.code <= offset);
        after.checked_sub(1).map(|at| positions[at].wasm)
    }

    /// The position of the instruction that the address in a function is in; `None` if it is in
    /// none, or after a defect of the compiler.
    pub(crate) fn position_at(&self, pc: usize, function: u32) -> Option<u32> {
        if let Some(instruction) = self.stub_at(pc) {
            return Some(instruction);
        }
        self.position_among(pc, &self.positions_at(pc, function).ok()?)
    }

    fn probed(&self) -> &Probed {
        self.probed.get_or_init(|| Box::new(Probed::new(self)))
    }

    fn changes(&self) -> MutexGuard<'_, Changes> {
        self.probed().changes.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Makes the image's code a place to patch at.
    fn resolve_text(&self, changes: &mut Changes) -> Result<(), MakeError> {
        if changes.text.is_none() {
            // SAFETY: the image's code, which wordpatch has mapped.
            changes.text = Some(unsafe { TextRef::resolve(self.memory().address(), 1)? });
        }
        Ok(())
    }

    /// Makes probes in a function, off. Gives for each its number, or why there is none.
    ///
    /// # Errors
    /// None is made.
    pub(crate) fn make_probes(
        self: &Arc<Self>,
        index: u32,
        requests: &[Request],
    ) -> Result<Vec<Result<usize, NoProbe>>, MakeError> {
        let sees_frame = requests.iter().any(|request| request.what.is_generic());
        self.make_probes_where(index, requests, sees_frame)
    }

    /// As [`CodeImage::make_probes`]; `end_accessors` says whether frames must end their accessors.
    fn make_probes_where(
        self: &Arc<Self>,
        index: u32,
        requests: &[Request],
        end_accessors: bool,
    ) -> Result<Vec<Result<usize, NoProbe>>, MakeError> {
        let (first, end) = (self.indices().start, self.indices().end - 1);
        let code = self.function(end).wasm_end - self.function(first).wasm_start;
        // Site, run and choices: less than three counters for each byte, and one for the exit of
        // the last function.
        self.counters.enable(24 * code as usize + 64).map_err(MakeError::Counters)?;
        let probed = self.probed();
        let changes = &mut *self.changes();
        self.resolve_text(changes)?;
        let mut seen = Seen::default();
        for request in requests.iter().filter(|request| request.what.calls()) {
            seen.wanted.entry(request.position).or_default().extend(request.what.wanted());
        }
        let generic = requests.iter().filter(|request| request.what.is_generic());
        seen.located.extend(generic.map(|request| (request.position, None)));
        let compiled = self.observe(index, &mut seen)?;
        let (entry, exit) = (self.function(index).wasm_start, self.function(index).wasm_end);
        let mut reach: HashMap<u32, bool> = HashMap::from([(entry, true), (exit, true)]);
        reach.extend(seen.instructions.iter().map(|(_, position, reachable)| (*position, *reachable)));
        // Values of one place follow each other in the order of its requests.
        let mut values: HashMap<u32, std::slice::Iter<'_, Result<Found, NoValue>>> =
            seen.found.iter().map(|(position, (_, values))| (*position, values.iter())).collect();
        let mut what = |request: &Request| -> Result<What, NoProbe> {
            match reach.get(&request.position) {
                None => return Err(NoProbe::NoInstruction),
                Some(false) => return Err(NoProbe::Unreachable),
                Some(true) => {}
            }
            let values = values.get_mut(&request.position).into_iter().flatten();
            let found: Vec<_> = values.take(request.what.wanted().count()).collect();
            let located = seen.located.get(&request.position).and_then(Option::as_ref);
            let place = (index, request.position, request.only);
            request.what.with_values(found, located, place, || self.choice(index, request.position))
        };
        let made: Vec<Result<(&Request, What), NoProbe>> =
            requests.iter().map(|request| Ok((request, what(request)?))).collect();
        let mut places: BTreeMap<u32, Needs> = BTreeMap::new();
        for (request, what) in made.iter().flatten() {
            places.entry(request.position).or_default().add(what, request.position == exit);
        }
        if !places.is_empty() {
            let slot = &probed.functions[(index - self.module.imported_functions) as usize];
            let function = slot.get_or_init(Box::default);
            if function.versions[0].get().is_none() {
                self.prepare_original(index, function, (&compiled, &seen), changes)?;
            }
            let state = changes.functions.or_default(index);
            let counters = made.iter().flatten().filter(|(_, what)| *what == What::Count).count();
            let is_chosen = places.values().any(|needs| needs.choice.is_some());
            let limit = self.module.settings.counter_stubs;
            let instructions = seen.instructions.len();
            state.is_counting |=
                is_chosen || counting::has_many(state.counters + counters, instructions, limit);
            self.lay_out(index, function, (&places, end_accessors), (&compiled, &seen), changes)?;
        }
        self.locate_in_plain(index, seen.located.keys().chain(seen.found.keys()), changes)?;
        let mut add = |made: Result<(&Request, What), NoProbe>| {
            let (&Request { position, only, .. }, what) = made?;
            if let Some((state, _)) = seen.found.get(&position) {
                changes.site(index, position).more_mut().state = Some(*state);
            }
            if let Some(Some(located)) = seen.located.get(&position) {
                changes.site(index, position).more_mut().located = Some(located.clone());
            }
            let state = changes.state(index);
            state.counters += usize::from(what == What::Count);
            if let Some(only) = only {
                let cells = state.counts(position, &what).flatten().flatten();
                cells.for_each(|cell| self.counters.watch(only, cell));
            }
            let number = changes.free.pop().unwrap_or(changes.probes.len());
            changes.state(index).probes.insert(number);
            let tallies = vec![Tally::default(); what.counts().saturating_sub(1)].into();
            let (active, tally) = (false, Tally::default());
            let probe = ProbeState { function: index, position, what, only, active, tally, tallies };
            if number == changes.probes.len() {
                changes.probes.push(None);
            }
            changes.probes[number] = Some(probe);
            Ok(number)
        };
        Ok(made.into_iter().map(&mut add).collect())
    }

    /// Makes a version that has what these places need, unless the last one has it.
    fn lay_out(
        self: &Arc<Self>,
        index: u32,
        function: &Function,
        (places, end_accessors): (&BTreeMap<u32, Needs>, bool),
        original: (&CompiledFunction, &Seen),
        changes: &mut Changes,
    ) -> Result<(), MakeError> {
        let number = function.made();
        let last = function.versions[number - 1].get().expect("the last that there is");
        let Changes { functions, probes, text, arenas, .. } = changes;
        let state = functions.or_default(index);
        self.add_sites(state, function, places, original.1);
        let is_counting = state.is_counting;
        let (entry, exit) = (self.function(index).wasm_start, self.function(index).wasm_end);
        let has = |(position, needs): (&u32, &Needs)| {
            let is_settled = |place: &SitePlace| match needs.settled {
                true if *position == exit => last.sites.settles(exit),
                is_needed => !is_needed || place.settled,
            };
            let has_choice = || last.runs.as_ref().is_some_and(|runs| runs.counts_choice(*position));
            (!needs.site(is_counting) || last.place(*position).is_some_and(is_settled))
                && (!needs.cells() || has_choice())
        };
        let ends_accessors = !end_accessors || last.sites.end_accessors();
        if last.runs.is_some() == is_counting && places.iter().all(has) && ends_accessors {
            return Ok(());
        }
        if state.entry.is_none() {
            let original = function.versions[0].get().expect("made before");
            let text = text.as_ref().expect("resolved before");
            // SAFETY: in the image's code.
            let first = unsafe { text.read(original.entry as usize, ENTRY_LENGTH as usize) };
            state.entry = Some(Entry::new(original.at(original.entry), first));
        }
        let made = function.versions[1..PLAIN].iter().filter_map(OnceLock::get);
        let made = made.filter(|made| made.runs.is_some() == is_counting).count();
        let is_last = made == VERSIONS_OF_A_KIND - 1 || self.module.settings.sites == CompiledSites::All;
        let mut used = places.clone();
        for probe in state.probes.iter().filter_map(|number| probes[*number].as_ref()) {
            used.entry(probe.position).or_default().add(&probe.what, probe.position == exit);
        }
        if (end_accessors || state.keeps_version) && !used.values().any(|needs| needs.settled) {
            // Versions with a settled site end accessors.
            let needs = used.entry(entry).or_default();
            (needs.site, needs.settled) = (true, true);
        }
        if is_last {
            let reachable = original.1.instructions.iter().filter(|(.., reachable)| *reachable);
            let all = reachable.map(|(_, position, _)| *position).chain([entry, exit]);
            for position in all {
                let choice = if is_counting { self.choice(index, position) } else { None };
                used.entry(position).or_default().choice = choice;
            }
        }
        self.add_sites(state, function, &used, original.1);
        let sites = if is_last {
            Sites::All { settled: true }
        } else {
            let sites = || used.iter().filter(|(_, needs)| needs.site(is_counting));
            let settled = sites().filter(|(_, needs)| needs.settled);
            Sites::At {
                settled: settled.map(|(position, _)| *position).collect(),
                positions: sites().map(|(position, _)| *position).collect(),
            }
        };
        let counting = is_counting.then(|| {
            let choices =
                used.keys().filter_map(|position| Some((*position, state.sites[position].more()?.choices?)));
            let first_cell = state.runs.as_ref().map_or_else(|| self.counters.next(), RunCells::first);
            Counting { first_cell, choices: choices.collect(), runs: None }
        });
        let memory = (arenas, &self.probed().blocks);
        let sites = (sites, counting);
        let (seen, sites_made) = (Seen::default(), &state.sites);
        let (version, _) =
            Version::with_sites(self, (index, number), sites, Some(original), sites_made, memory, seen)?;
        if let Some(runs) = &version.runs
            && state.runs.is_none()
        {
            let runs = state.runs.insert(runs.cells());
            self.counters.add(runs.count());
            let state = &*state;
            // Counters that are not for all instances get one more cell each.
            let own = state.probes.iter().filter_map(|number| probes[*number].as_ref());
            let counters = own.filter(|probe| probe.what == What::Count);
            for (only, position) in counters.filter_map(|probe| Some((probe.only?, probe.position))) {
                let [_, run, _] = state.cells(position);
                run.iter().for_each(|cell| self.counters.watch(only, *cell));
            }
        }
        self.install(index, function, version, changes)?;
        if function.current.load(Ordering::Relaxed) != 0 {
            changes.change_version(index, function, number)?;
        }
        Ok(())
    }

    /// Makes a version one of its function's, with the probes that are on.
    fn install(
        self: &Arc<Self>,
        index: u32,
        function: &Function,
        version: Version,
        changes: &mut Changes,
    ) -> Result<(), MakeError> {
        let number = version.number;
        // Nothing finds a version before it is complete, so its block comes before those of stubs.
        self.probed().blocks.push(version.block(index));
        if let Err(error) = changes.equip(self, index, &version) {
            let state = changes.state(index);
            state.sites.values_mut().for_each(|site| site.forget_stubs(number));
            return Err(error);
        }
        let place = version.place_of_code(index);
        let _ = function.versions[number].set(Box::new(version));
        self.shown.version_made(&place);
        Ok(())
    }

    /// Makes these places sites, unless they are.
    fn add_sites(
        &self,
        state: &mut FunctionState,
        function: &Function,
        places: &BTreeMap<u32, Needs>,
        original: &Seen,
    ) {
        for (&position, &Needs { choice, .. }) in places {
            let site = state.sites.entry(position).or_insert_with(|| {
                let cell = self.counters.add(1);
                let versions = function.versions.iter().filter_map(OnceLock::get);
                let counting = versions.filter_map(|version| version.runs.as_ref());
                counting.for_each(|runs| runs.add_site(position, cell));
                Site::new(cell)
            });
            let Some(choice) = choice else { continue };
            let more = site.more_mut();
            more.next = original.next(position);
            if choice.cells() > 0 {
                more.choices.get_or_insert_with(|| self.counters.add(choice.cells()));
            }
        }
    }
}

/// What the probes of a place need of a version.
#[derive(Clone, Copy, Debug, Default)]
struct Needs {
    counter: bool,
    /// A site, also in a version that counts.
    site: bool,
    /// A settled one.
    settled: bool,
    choice: Option<Choice>,
}

impl Needs {
    fn add(&mut self, what: &What, is_exit: bool) {
        match what {
            What::Nothing => self.site = true,
            What::Count => {
                self.counter = true;
                // The exit is in no run.
                self.site |= is_exit;
            }
            What::CountChoice(choice) => self.choice = Some(*choice),
            // At the exit, the results are in their places, but the locals are not.
            What::Call(_) | What::CallBack(_) => (self.site, self.settled) = (true, self.settled || !is_exit),
            What::Generic(_) => (self.site, self.settled) = (true, true),
        }
    }

    /// Whether there must be a site.
    fn site(&self, is_counting: bool) -> bool {
        self.site || (self.counter && !is_counting)
    }

    /// Whether there must be cells of the instruction.
    fn cells(&self) -> bool {
        self.choice.is_some_and(|choice| choice.cells() > 0)
    }
}

impl Changes {
    /// Gives the sites of a version, which are off, the forms that they have in the others.
    fn equip(&mut self, image: &Arc<CodeImage>, index: u32, version: &Version) -> Result<(), MakeError> {
        for place in &version.places {
            let form = self.site(index, place.position).form;
            if form == Form::Off {
                continue;
            }
            self.make_stub(image, (index, version), place.position, form, true)?;
            let site = self.functions.site(index, place.position).expect("the site was made");
            let bytes = version.bytes(place, form, site, Form::Off);
            self.exchange(version.at(place.code), &place.off(), &bytes)?;
        }
        Ok(())
    }
}
