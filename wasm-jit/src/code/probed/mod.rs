//! Probes in compiled code: versions of functions with sites, and frames that move between them.
//!
//! # The algorithm
//! 1. The first probe at a place that has no site compiles a *version* of the function with sites
//!    before the instructions that were requested so far ([`version`]). Versions of a function have
//!    the same frames (`wasm_jit_codegen::Sites`). There are at most [`VERSIONS`]: the last one of
//!    a kind has sites everywhere, and with `ProbeSites::All` also the first one.
//! 2. The first activation in a function makes its last version the *current* one. A jump at the
//!    original's entry leads its calls there. Each frame moves at its next transfer point (a loop's
//!    label, or a call's return), where all other versions have a trap. The handler of SIGILL looks
//!    up where the frame continues ([`CodeImage::transfer`]).
//! 3. Switching a probe is one store to its site in each version: NOP, or JMP to the site's stub
//!    ([`switch`]). The active probes of a site form a list, which its stub executes ([`stubs`]).
//! 4. If a probe changes a value of a frame that has no location in the optimized code, the frame
//!    continues in a *plain* version ([`plain`]), until its function returns.
//! 5. When the function has no active probes left, its original becomes the current version again,
//!    unless its probes are being toggled all the time ([`returns`]), or its frames have accessors
//!    ([`frames`]).
//!
//! If a function has counters, it gets counting versions ([`counting`]), which have sites for
//! other probes only.
//!
//! An original has sites if the engine's settings request them; their stubs are made when its
//! function is first probed ([`original`]).
//!
//! # Write order of a change of version
//! 1. The traps in the version that becomes current are removed.
//! 2. It is recorded as the current one: from now on, traps lead to it.
//! 3. Traps are written into the version that was current.
//! 4. The original's entry becomes a JMP, or PUSH again.
//!
//! A version calls its own function at the version's own entry. While the version is the current
//! one and the function's entry is not diverted ([`enter`]), the instruction there is PUSH.
//! Otherwise it is a JMP to the original's entry, so that such calls are led like all others. The
//! version that becomes current gets its PUSH in step 1, the other one its JMP after step 4.
//!
//! In whatever order a thread sees these stores, it executes valid code with a valid frame. A trap
//! is one byte that is an invalid instruction on all x86-64 processors, so setting it is one atomic
//! store over an instruction of any length. A frame executes at most one trap for each change.
//!
//! # Locks
//! All changes are made under a lock of the image ([`Changes`]), which no thread holds while it
//! executes compiled code. A probe function may therefore change probes, including its own: no
//! change modifies the stub that is being executed.
//!
//! # Memory
//! Versions are freed with the image, the stubs of lists possibly earlier ([`reclaim`]). Where
//! there is no memory for the stubs of a new version, the version is given up, and a later one is
//! written in its place. Their memory is bounded: for each function six times its code with sites
//! and counters' stubs, or increments, and two plain versions; and for each image a limit for the
//! stubs of lists.

pub(crate) mod accessor_users;
mod blocks;
pub(crate) mod buffers;
mod callback;
pub(crate) mod counters;
pub(crate) mod counting;
pub(crate) mod delays;
pub(crate) mod enter;
mod frames;
pub(crate) mod ids;
mod listed;
mod lookup;
mod make;
mod original;
mod plain;
mod reclaim;
mod request;
mod returns;
mod stack_types;
mod stub_memory;
mod stubs;
mod switch;
pub(crate) mod trapped;
pub(crate) mod unwound;
mod version;
mod watchers;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use wasm_jit_codegen::{ENTRY_LENGTH, Only, TRANSFER_TRAP};
use wordpatch::{Bytes, Error, FetchWindow, TextRef, internal, text};

use super::forks;
use super::lazy::LazyFunctions;
use super::{CodeImage, CompileError, ObserveError};
use blocks::{Arenas, Block, Blocks};
pub(crate) use callback::{BoundCallback, CalleeSource, ResolveCallee};
pub use callback::{Callback, Called};
use counting::{RunCells, Tally};
pub(crate) use listed::{Listed, ListedSite};
pub(crate) use lookup::Transfer;
use make::Needs;
pub(crate) use plain::Plain;
use reclaim::{ListAt, Unneeded};
pub(crate) use request::{Argument, NoProbe, Request, RequestedKind, Use};
use returns::Returns;
use stub_memory::{Change, MemoryState, StubMemory};
pub(crate) use stubs::Generic;
use stubs::{Form, List, ProbeAction, Site};
pub(crate) use version::Version;

/// Versions of a function: the original, [`VERSIONS_OF_A_KIND`] with sites, the same number that
/// count, and two plain ones.
const VERSIONS: usize = PLAIN + 2;
/// The plain version that does not count; the one that does follows it.
const PLAIN: usize = 1 + 2 * VERSIONS_OF_A_KIND;
/// The number of versions of a kind. The last one has sites everywhere; with `ProbeSites::All`, the
/// first.
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
    /// The function had not been compiled.
    #[error(transparent)]
    First(#[from] CompileError),
    #[error(transparent)]
    Code(#[from] Error),
    #[error("cannot reserve addresses for counters: {0}")]
    Counters(io::Error),
    #[error("the stubs of the module's probes take more than {limit} bytes")]
    StubMemory { limit: usize },
}

/// A function for which probes were requested. Read by signal handlers.
#[derive(Debug, Default)]
struct Function {
    /// The original first.
    versions: [OnceLock<Box<Version>>; VERSIONS],
    current: AtomicUsize,
    /// A period for which the function keeps a version, so that its frames can have accessors: that
    /// in which one was last requested; 0 for none ([`accessor_users`]).
    kept_for: AtomicU64,
}

impl Function {
    /// Number of versions that can be current.
    fn made(&self) -> usize {
        self.versions[..PLAIN].iter().filter(|version| version.get().is_some()).count()
    }

    /// Whether it has a counting version, plain ones aside. All versions after it are, too.
    fn has_counting(&self) -> bool {
        self.versions[..PLAIN].iter().filter_map(OnceLock::get).any(|version| version.runs.is_some())
    }

    /// The current version, if that is not the original. Called with the lock of changes.
    fn current_version(&self) -> Option<&Version> {
        let current = self.current.load(Ordering::Relaxed);
        (current > 0).then(|| &**self.versions[current].get().expect("the version was made"))
    }
}

/// A function's part of what the lock protects.
#[derive(Debug, Default)]
struct FunctionState {
    sites: BTreeMap<u32, Site>,
    /// The numbers of the function's probes.
    probes: BTreeSet<usize>,
    /// Number of probes that count executions of their place.
    counters: usize,
    active: usize,
    /// Whether new versions are counting versions.
    is_counting: bool,
    /// Known since the first version that counts.
    runs: Option<RunCells>,
    /// The state of the stubs' memory in which a plain version was refused last.
    plain_refused: Option<MemoryState>,
    /// The periods for which it does not return to its original, since its frames can have
    /// accessors ([`accessor_users`]).
    kept_for: BTreeSet<u64>,
    /// How often it has returned.
    returns: Returns,
    /// Versions with traps at their transfer points.
    trapped: [bool; VERSIONS],
    /// The original's entry, once it is known.
    entry: Option<Entry>,
}

/// The first bytes of a function's original.
#[derive(Clone, Copy, Debug)]
struct Entry {
    address: usize,
    /// The instruction there now.
    stands: Bytes,
    /// The original instruction.
    first: Bytes,
    /// Whether the entry leads to the function's stub in [`enter`]. It does so, even if the
    /// function gets another version, until all threads that wait for the function have been
    /// released.
    is_diverted: bool,
    /// Whether the waiting threads are making their probes.
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
        self.active == 0 && self.kept_for.is_empty()
    }
}

/// Probed functions by their index. A toggle looks one up several times.
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
    what: ProbeAction,
    /// The instances in which the probe fires, if not all.
    only: Option<Only>,
    active: bool,
    /// The probe's first count.
    tally: Tally,
    /// The other counts of a choice.
    tallies: Box<[Tally]>,
}

#[derive(Debug, Default)]
struct Changes {
    /// Why no code may be changed, if so: it is still that of forked children.
    refused: Option<Error>,
    /// The image's code, as places to patch at.
    texts: Vec<(Range<usize>, TextRef)>,
    arenas: Arenas,
    stubs: StubMemory,
    functions: FunctionStates,
    probes: Vec<Option<ProbeState>>,
    free: Vec<usize>,
    /// What could not be changed when probes were removed, and is changed as soon as possible:
    /// sites of functions, and functions that are to return to their originals.
    unfinished: BTreeSet<(u32, Option<u32>)>,
    /// Lists that no site had when they were added, and whose stubs still exist.
    idle: Vec<ListAt>,
    /// Lists that were freed.
    dropped: Vec<List>,
}

/// [`Changes`], locked. Dropped lists are destroyed after the lock has been released, since their
/// destructors may change probes.
struct Locked<'a> {
    changes: forks::Locked<'a, Changes>,
    dropped: Vec<List>,
}

impl Deref for Locked<'_> {
    type Target = Changes;

    fn deref(&self) -> &Changes {
        &self.changes
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Changes {
        &mut self.changes
    }
}

impl Drop for Locked<'_> {
    /// The fields follow in their order.
    fn drop(&mut self) {
        self.dropped = std::mem::take(&mut self.changes.dropped);
    }
}

/// The part of an image that concerns probes.
#[derive(Debug)]
pub(crate) struct Probed {
    /// By number among the image's functions.
    functions: Box<[OnceLock<Box<Function>>]>,
    /// Dropped before the memory.
    blocks: Blocks,
    found: frames::KnownLocations,
    changes: Mutex<Changes>,
    entered: enter::EntryWatches,
}

impl Probed {
    fn new(image: &CodeImage) -> Self {
        Self {
            functions: image.indices().map(|_| OnceLock::new()).collect(),
            blocks: Blocks::default(),
            found: frames::KnownLocations::default(),
            changes: Mutex::default(),
            entered: enter::EntryWatches::default(),
        }
    }

    fn function(&self, image: &CodeImage, index: u32) -> Option<&Function> {
        self.functions[(index - image.module.imported_functions) as usize].get().map(AsRef::as_ref)
    }

    /// The version with sites that contains the address, or to which its stub belongs; and the
    /// block. Atomics only.
    fn find(&self, image: &CodeImage, pc: usize) -> Option<(Block, &Version)> {
        let block = self.blocks.find(pc).filter(|block| pc < block.end)?;
        let version = self.function(image, block.function)?.versions[block.version].get()?;
        Some((block, version))
    }
}

impl Changes {
    /// The text of an address of a version, and its offset there, for patching.
    fn place(&self, address: usize) -> Option<(&TextRef, usize)> {
        let place = match self.arenas.of(address) {
            Some(arena) => arena.place(),
            None => &self.texts.iter().find(|(pages, _)| pages.contains(&address))?.1,
        };
        Some((place, address - place.address()))
    }

    /// The first bytes of an original, at this address.
    fn read_entry(&self, address: usize) -> Bytes {
        let (place, offset) = self.place(address).expect("resolved before");
        // SAFETY: in the image's code.
        unsafe { place.read(offset, ENTRY_LENGTH as usize) }
    }

    /// Whether code may be changed.
    fn check(&self, address: usize) -> Result<(), Error> {
        match &self.refused {
            Some(Error::AliasRefused { source, .. }) => {
                let errno = source.raw_os_error();
                let source = errno.map_or(source.kind().into(), io::Error::from_raw_os_error);
                Err(Error::AliasRefused { address, source })
            }
            None if !text::is_shared_with_parent() => Ok(()),
            _ => Err(Error::SharedWithParent { address }),
        }
    }

    /// Replaces `old` by `new`, unless `new` is there already.
    fn exchange(&self, address: usize, old: &Bytes, new: &Bytes) -> Result<(), Error> {
        self.check(address)?;
        let not_mapped = Error::NotMapped { address };
        let (place, offset) = self.place(address).ok_or(not_mapped)?;
        // SAFETY: code of the image or of one of its arenas, which outlive these changes; both
        // forms are correct wherever threads are: the frames of all versions are alike, and a
        // quadword holds all of the bytes.
        match unsafe { place.compare_exchange(WINDOW, offset, old, new) } {
            Err(Error::Mismatch { found, .. }) if found == *new => Ok(()),
            exchanged => exchanged,
        }
    }

    /// Sets or removes the traps of a version.
    fn trap(&self, version: &Version, set: bool) -> Result<(), Error> {
        let trap = Bytes::new(&[TRANSFER_TRAP]).expect("a byte");
        for (point, byte) in version.points.iter().zip(&version.first_bytes) {
            let byte = Bytes::new(&[*byte]).expect("a byte");
            let (old, new) = if set { (&byte, &trap) } else { (&trap, &byte) };
            self.exchange(version.at(*point), old, new)?;
        }
        Ok(())
    }

    /// Makes the calls of a version to its own function lead to the function's entry in the
    /// original, or go straight to the version.
    fn lead_own_calls(&self, version: &Version, entry: &Entry, to_original: bool) -> Result<(), Error> {
        if version.number == 0 {
            return Ok(());
        }
        let own = version.at(version.entry);
        let jump = version::jump(own, entry.address);
        let (old, new) = if to_original { (&version.first, &jump) } else { (&jump, &version.first) };
        if self.read_entry(own) == *new { Ok(()) } else { self.exchange(own, old, new) }
    }

    /// Makes a version the current one; see the write order.
    fn change_version(&mut self, index: u32, function: &Function, to: usize) -> Result<(), Error> {
        let from = function.current.load(Ordering::Relaxed);
        if from == to {
            return Ok(());
        }
        let address = self.state(index).entry.map_or(0, |entry| entry.address);
        self.check(address)?;
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
        let entry = self.state(index).entry.expect("known since the first version");
        self.lead_own_calls(version(to), &entry, entry.is_diverted)?;
        function.current.store(to, Ordering::Release);
        let state = self.state(index);
        state.trapped[to] = false;
        state.trapped[from] = true;
        self.trap(version(from), true)?;
        if !entry.is_diverted {
            self.enter_current(index, Some(function))?;
        }
        self.lead_own_calls(version(from), &entry, true)
    }

    /// Makes calls to a function begin in its current version.
    fn enter_current(&mut self, index: u32, function: Option<&Function>) -> Result<(), Error> {
        let entry = self.state(index).entry.expect("known since the first version, or it waited");
        let new = match function.and_then(Function::current_version) {
            Some(version) => {
                self.lead_own_calls(version, &entry, false)?;
                version::jump(entry.address, version.at(version.entry))
            }
            None => entry.first,
        };
        self.exchange(entry.address, &entry.stands, &new)?;
        self.state(index).entry = Some(Entry { stands: new, is_diverted: false, ..entry });
        Ok(())
    }

    /// Gives a site the form that its probes require, in all versions.
    fn apply(
        &mut self,
        image: &Arc<CodeImage>,
        (index, position): (u32, u32),
        function: &Function,
        change: Change,
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
        self.check(image.at(image.function(index).entry) as usize)
            .inspect_err(|_| self.leave((index, position), new))?;
        let versions = || function.versions.iter().filter_map(OnceLock::get);
        for version in versions() {
            let made = self.make_stub(image, (index, version), position, new, change);
            made.inspect_err(|_| self.leave((index, position), new))?;
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
            if store(new, old).is_err() {
                self.site(index, position).pin(new);
            }
            self.leave((index, position), new);
            return Err(error.into());
        }
        self.site(index, position).form = new;
        self.stubs.form_changed();
        self.leave((index, position), old);
        Ok(())
    }

    /// Records that a site no longer has this form, or could not get it.
    fn leave(&mut self, (function, position): (u32, u32), form: Form) {
        if let Form::List(number) = form {
            self.add_idle(ListAt { function, position, number });
        }
    }

    /// Makes the stub of a form in a version, if it is one of a list.
    fn make_stub(
        &mut self,
        image: &Arc<CodeImage>,
        (index, version): (u32, &Version),
        position: u32,
        form: Form,
        change: Change,
    ) -> Result<(), MakeError> {
        let (Form::List(list), Some(place)) = (form, version.place(position)) else { return Ok(()) };
        let of = ListAt { function: index, position, number: list };
        if self.stubs.is_reclaim_due() {
            self.reclaim(image, Unneeded::Removed, of);
        }
        let make = |changes: &mut Self| {
            let Self { functions, stubs, arenas, .. } = changes;
            let site = functions.site_mut(index, position).expect("the site was made");
            let memory = (stubs, arenas, &image.probed().blocks);
            stubs::make_stub(image, (index, version), place, (site, list), change, memory)
        };
        let mut made = make(self);
        if matches!(made, Err(MakeError::StubMemory { .. }))
            && !self.idle.is_empty()
            && self.stubs.may_reclaim()
        {
            let has_freed = self.reclaim(image, Unneeded::Off, of);
            self.stubs.tried(has_freed);
            if has_freed {
                made = make(self);
            }
        }
        if made.is_err()
            && let Some(list) = self.site(index, position).more_mut().take_if_without_stubs(list)
        {
            if list.is_idle {
                self.idle.retain(|at| *at != of);
            }
            self.dropped.push(list);
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
    fn probed(&self) -> &Probed {
        self.probed.get().unwrap_or_else(|| {
            // A child that is forked meanwhile would wait for this thread forever.
            let _no_forks = internal::no_forks();
            self.probed.get_or_init(|| {
                self.must_call.store(1, Ordering::Release);
                Box::new(Probed::new(self))
            })
        })
    }

    /// The state of probes, to be read: while it is locked, no thread forks.
    fn state(&self) -> Locked<'_> {
        Locked { changes: forks::lock(&self.probed().changes), dropped: Vec::new() }
    }

    /// Leaves the code that is written with the lock of changes to forked children. Returns whether
    /// it may be changed.
    pub(super) fn is_own_code(&self) -> bool {
        self.own_code().refused.is_none()
    }

    /// The state of probes, to be changed. What was to be changed before is changed first.
    fn changes(self: &Arc<Self>) -> Locked<'_> {
        let mut locked = self.own_code();
        locked.finish_removals(self);
        locked
    }

    /// The state of probes. Children that were forked before keep the code.
    fn own_code(&self) -> Locked<'_> {
        let mut locked = self.state();
        locked.refused = None;
        if self.forks.have_children() {
            let _linking = self.lazy().map(LazyFunctions::linking);
            let code: Vec<Range<usize>> = [self.pages()].into_iter().chain(locked.arenas.pages()).collect();
            // SAFETY: all of the image's code; the locks are those of its writers.
            locked.refused = unsafe { self.forks.leave_code(&code) }.err();
        }
        locked
    }

    /// Makes the image's code a place to patch at.
    fn resolve_text(&self, changes: &mut Changes) -> Result<(), MakeError> {
        if changes.texts.is_empty() {
            self.make_patchable()?;
            let lazy = self.lazy().map(LazyFunctions::pages);
            for pages in [self.memory().pages()].into_iter().chain(lazy) {
                // SAFETY: the image's code, which wordpatch has mapped.
                let place = unsafe { TextRef::resolve(pages.start, 1)? };
                changes.texts.push((pages, place));
            }
        }
        Ok(())
    }
}
