//! Assigns ids and stubs to sites.
//!
//! The stubs of an object are in blocks near its text, whose sizes are multiples of a page of
//! stubs. In a block, the code is followed by the cells: for each stub a cell with the probe
//! function and the probe's id, and, in blocks for sites that call through a pointer, a word with
//! the stub's address. A block is written and sealed before its stubs are assigned.
//!
//! Entry sites that are made lazily always call the old target, a relay ([`super::relays`]) or
//! their stub, each of which counts the entry.

use std::collections::{BTreeSet, HashMap};
use std::mem::offset_of;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use callpatch::stub::{CELL_SIZE, NUMBER, RELAY_SIZE, STUB_SIZE, relay, stub};
use callpatch::{CallSite, Clobbers, PackedSite, Shape, SiteText, State};
use fastinst_sigsafe::Segments;
use wordpatch::near::NearBlock;

use super::relays::{Relays, SLOTS};
use super::scan::Site;
use super::{Scan, arrivals, resolve};
use crate::error::Error;
use crate::loaded::LoadedObject;
use crate::permanent::{self, Cell, NewProbe, ObjectInfo, PROBES, Probe, SiteFunction};
use crate::probe::{ProbeFn, ProbeKind};

const _: () = assert!(size_of::<Cell>() == CELL_SIZE && offset_of!(Cell, number) == NUMBER);

/// Number of stubs per page; the capacity of a block is a multiple of it.
const PAGE_OF_STUBS: usize = 4096 / STUB_SIZE;

/// The addresses of the stubs of all blocks. Blocks stay for the life of the process.
static STUBS: Segments<Range<usize>> = Segments::new();

/// Whether the code at this address is in a block.
pub(super) fn contain(address: usize) -> bool {
    STUBS.iter().any(|stubs| stubs.contains(&address))
}

/// A new block has room for at least this part of the stubs that the object already has.
const SPARE: usize = 8;

/// The capacity of the largest block that fits between two relays.
const IN_REGION: usize = 6 * PAGE_OF_STUBS;

/// A block of stubs, of which those before `used` are assigned.
#[derive(Debug)]
struct Block {
    operand: Operand,
    /// The position in every 256 bytes at which slots are relays, if there are any.
    relays: Option<usize>,
    stubs: usize,
    cells: usize,
    /// The distance between cells, in bytes.
    stride: usize,
    used: usize,
    capacity: usize,
}

/// The operand of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operand {
    /// The address of the callee.
    Callee,
    /// The address of a pointer to the callee.
    Pointer,
}

impl Operand {
    fn of(shape: Shape) -> Self {
        match shape {
            Shape::Call | Shape::Jump => Self::Callee,
            Shape::IndirectCall | Shape::IndirectJump => Self::Pointer,
        }
    }
}

/// The addresses of a stub and its cell.
#[derive(Clone, Copy, Debug)]
struct Place {
    stub: usize,
    cell: usize,
}

impl Place {
    /// The target that the operand of a site must have.
    fn operand(self, shape: Shape) -> usize {
        if is_through_pointer(shape) { self.cell + CELL_SIZE } else { self.stub }
    }
}

fn is_through_pointer(shape: Shape) -> bool {
    Operand::of(shape) == Operand::Pointer
}

impl Block {
    /// Allocates a block for this number of stubs, or as many as fit between two relays.
    fn new(
        near: &Range<usize>,
        operand: Operand,
        stubs: usize,
        relays: Option<&mut Relays>,
    ) -> Result<Self, Error> {
        let stride = match operand {
            Operand::Callee => CELL_SIZE,
            Operand::Pointer => CELL_SIZE + size_of::<usize>(),
        };
        let sizes = |capacity: usize| (capacity * STUB_SIZE, capacity * stride);
        let mut relays = relays.filter(|_| operand == Operand::Callee);
        let between_relays = match &mut relays {
            Some(relays) => {
                // One slot in sixteen is a relay, and those before the first and after the last one
                // are not used.
                let capacity = (stubs + stubs / 15 + 18).next_multiple_of(PAGE_OF_STUBS).min(IN_REGION);
                let (code, data) = sizes(capacity);
                relays.allocate(code, data)?.map(|block| (block, capacity))
            }
            None => None,
        };
        let (mut block, capacity) = match between_relays {
            Some(block) => block,
            None => {
                let capacity = stubs.next_multiple_of(PAGE_OF_STUBS);
                let (code, data) = sizes(capacity);
                relays = None;
                (NearBlock::allocate(near, code, data)?, capacity)
            }
        };
        let (stubs, cells) = (block.code_address(), block.data_address());
        let relays = relays
            .filter(|relays| (0..SLOTS / STUB_SIZE).any(|slot| relays.is_in_slot(stubs + slot * STUB_SIZE)));
        let place_of_relays = relays.as_ref().map(|relays| relays.target() % SLOTS);
        let mut made = Self { operand, relays: place_of_relays, stubs, cells, stride, used: 0, capacity };
        for (index, code) in block.code_mut().chunks_exact_mut(STUB_SIZE).take(capacity).enumerate() {
            let place = made.place(index);
            match &relays {
                Some(relays) if made.is_relay(place.stub) => {
                    code[..RELAY_SIZE].copy_from_slice(&relay(place.stub, relays.target())?);
                }
                _ => code.copy_from_slice(&stub(place.stub, place.cell)?),
            }
        }
        block.seal()?;
        // Without memory for this, the stubs are code that nobody knows.
        let _ = STUBS.push_with(|_| stubs..stubs + capacity * STUB_SIZE);
        made.keep_between_relays();
        Ok(made)
    }

    /// Whether there is a relay at this address.
    fn is_relay(&self, address: usize) -> bool {
        (self.stubs..self.stubs + self.capacity * STUB_SIZE).contains(&address)
            && self.relays == Some(address % SLOTS)
    }

    /// Leaves only stubs that have a relay on either side: which of the two a site calls between
    /// two stores depends on the site.
    fn keep_between_relays(&mut self) {
        if self.relays.is_some() {
            let mut relays = (0..self.capacity).filter(|index| self.is_relay(self.place(*index).stub));
            let (first, last) = (relays.next().unwrap_or(0), relays.next_back().unwrap_or(0));
            (self.used, self.capacity) = (first, last + 1);
            self.skip_relays();
        }
    }

    fn skip_relays(&mut self) {
        while self.used < self.capacity && self.is_relay(self.place(self.used).stub) {
            self.used += 1;
        }
    }

    /// Assigns a stub. There must be a free one.
    fn take(&mut self) -> Place {
        let place = self.place(self.used);
        self.used += 1;
        self.skip_relays();
        place
    }

    /// Number of free stubs.
    fn room(&self) -> usize {
        (self.used..self.capacity).filter(|index| !self.is_relay(self.place(*index).stub)).count()
    }

    fn place(&self, index: usize) -> Place {
        Place { stub: self.stubs + index * STUB_SIZE, cell: self.cells + index * self.stride }
    }

    /// The place of the stub that has this cell.
    fn of_cell(&self, cell: usize) -> Option<Place> {
        let index = cell.checked_sub(self.cells)? / self.stride;
        (index < self.capacity).then(|| self.place(index))
    }

    fn memory(&self) -> usize {
        self.capacity * (STUB_SIZE + self.stride)
    }
}

/// The stubs of one object.
#[derive(Debug, Default)]
pub(super) struct Stubs {
    blocks: Vec<Block>,
    /// Present once an entry site was made lazily.
    relays: Option<Relays>,
}

/// The state of a site while it is being retargeted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DuringRetarget {
    /// It is off, and stays off.
    Off,
    /// It stays on, and leads to a stub or a function that counts.
    On,
    /// It is off, and on again immediately afterwards.
    Interrupted,
}

/// Which of the probes of an object are restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RestoreExtent {
    All,
    Some,
}

/// The results of [`Stubs::make`] or [`Stubs::restore`].
pub(super) struct NewProbes {
    /// The new ids.
    pub(super) new: Range<u32>,
    /// The reasons for sites that were left unchanged.
    pub(super) refused: Vec<Error>,
}

/// A cell in the data pages of a block.
fn cell(address: usize) -> &'static Cell {
    // SAFETY: the pages are mapped read-write and zeroed for the life of the process, and cells in
    // them are aligned.
    unsafe { &*std::ptr::with_exposed_provenance(address) }
}

/// The word that a site through a pointer uses, for such a place.
fn stub_cell(place: Place) -> &'static AtomicUsize {
    // SAFETY: as above.
    unsafe { &*std::ptr::with_exposed_provenance(place.cell + CELL_SIZE) }
}

impl Stubs {
    /// Allocates blocks, so that there is room for these sites.
    fn reserve(&mut self, near: &Range<usize>, sites: &[Site]) -> Result<(), Error> {
        for operand in [Operand::Callee, Operand::Pointer] {
            let wants = |site: &&Site| Operand::of(site.shape) == operand;
            let wanted = sites.iter().filter(wants).count();
            let mut room: usize = self.with_room(operand).map(|block| block.room()).sum();
            // Only a few blocks in total: finding a place for one takes as long as making ten
            // probes.
            let in_all: usize = self.blocks.iter().map(|block| block.capacity).sum();
            while wanted > room {
                let stubs = (wanted - room).max(in_all / SPARE);
                let block = Block::new(near, operand, stubs, self.relays.as_mut())?;
                room += block.room();
                self.blocks.push(block);
            }
        }
        Ok(())
    }

    fn with_room(&mut self, operand: Operand) -> impl Iterator<Item = &mut Block> {
        let has_room = move |block: &&mut Block| block.operand == operand && block.used < block.capacity;
        self.blocks.iter_mut().rev().filter(has_room)
    }

    /// Assigns a free stub; [`Stubs::reserve`] has ensured that there is one.
    fn take(&mut self, shape: Shape) -> Place {
        self.with_room(Operand::of(shape)).next().expect("there is room").take()
    }

    /// The state of a site that counts from now on, while it is retargeted to this stub.
    fn meanwhile(&self, site: &CallSite, place: Place) -> DuringRetarget {
        let is_relay = |address: usize| {
            self.relays.as_ref().is_some_and(|relays| {
                site.target() == relays.target()
                    && (relays.is_on_own_page(address)
                        || self.blocks.iter().any(|block| block.is_relay(address)))
            })
        };
        match site.intermediate_target(place.operand(site.shape())) {
            Some(between) if !is_relay(between) => DuringRetarget::Interrupted,
            _ => DuringRetarget::On,
        }
    }

    fn of_cell(&self, cell: usize) -> Option<Place> {
        self.blocks.iter().find_map(|block| block.of_cell(cell))
    }

    /// The memory of the stubs, in bytes.
    pub(super) fn memory(&self) -> usize {
        let relays = self.relays.as_ref().map_or(0, Relays::memory);
        self.blocks.iter().map(Block::memory).sum::<usize>() + relays
    }

    /// Makes probes of sites of an object. They are off, except for those whose functions are not
    /// known and are determined by execution and, with [`Scan::Lazy`], entries, which are counted
    /// until [`settle`] is called.
    pub(super) fn make(
        &mut self,
        loaded: &LoadedObject,
        object: &'static ObjectInfo,
        sites: &[Site],
        scan: Scan,
    ) -> Result<NewProbes, Error> {
        let first = PROBES.len();
        if first + sites.len() > Segments::<Probe>::LIMIT {
            return Err(Error::TooManyProbes { limit: Segments::<Probe>::LIMIT });
        }
        if !sites.is_empty() {
            // A child that executes the text has no memory where the new stubs are. SAFETY: the
            // object is loaded during the call.
            unsafe { wordpatch::text::leave_text_to_children(&loaded.range)? };
        }
        if self.relays.is_none() {
            self.relays = relays_for(loaded, sites, scan);
        }
        self.reserve(&loaded.range, sites)?;
        let mut retargeted = Retargeted::default();
        let mut interrupted = BTreeSet::new();
        // Each site that can be decoded gets a stub.
        retargeted.retarget(loaded, sites.iter().map(|site| (site, site)), |site, decoded| {
            let place = self.take(site.shape);
            if !is_counted(site, scan) {
                return (place, DuringRetarget::Off);
            }
            // Before the code.
            cell(place.cell).function.store(COUNT as usize, Ordering::Release);
            let meanwhile = self.meanwhile(decoded, place);
            if meanwhile == DuringRetarget::Interrupted {
                interrupted.insert(site.address);
            }
            (place, meanwhile)
        });
        let mut made = NewProbes { new: first as u32..first as u32, refused: retargeted.refused };
        let mut functions = Functions { object, known: HashMap::new() };
        for ((text, packed), (site, place)) in retargeted.sites.iter().zip(retargeted.owners) {
            let Some(probe) = functions.new_probe(site, (text, *packed), place, scan) else {
                // The site is off, or leads to a stub that counts, for ever.
                made.refused.push(Error::TooManyProbes { limit: Segments::<Probe>::LIMIT });
                continue;
            };
            made.new.end = probe.id().0 + 1;
            if interrupted.contains(&site.address) {
                match site.function {
                    Some(function) => arrivals::interrupted(function),
                    None => arrivals::interrupted_unknown(probe.id()),
                }
            }
        }
        Ok(made)
    }

    /// Assigns sites of an object that was loaded again to their previous probes, which return to
    /// their previous states.
    pub(super) fn restore(
        &mut self,
        loaded: &LoadedObject,
        sites: &[(Site, &'static Probe)],
        restored: RestoreExtent,
    ) -> NewProbes {
        let mut retargeted = Retargeted::default();
        retargeted.retarget(loaded, sites.iter().map(|(site, probe)| (site, *probe)), |probe, _| {
            let place = self.of_cell(std::ptr::from_ref(probe.cell()).addr());
            (place.expect("the stub of a probe belongs to its object"), DuringRetarget::Off)
        });
        let probes = retargeted.owners.iter().map(|(probe, _)| *probe);
        let mut made = NewProbes { new: 0..0, refused: retargeted.refused };
        for (probe, _) in &retargeted.owners {
            let function = probe.function().address.load(Ordering::Relaxed);
            if probe.kind == ProbeKind::ENTRY && function != 0 {
                arrivals::interrupted(function);
            }
        }
        let is_all = restored == RestoreExtent::All && made.refused.is_empty();
        let mut back: Vec<&Probe> = Vec::with_capacity(retargeted.owners.len());
        if is_all && are_revived(&retargeted.sites, probes.clone()) {
            back.extend(probes.inspect(|probe| probe.revive()));
        } else {
            for (probe, (text, packed)) in probes.zip(&retargeted.sites) {
                if probe.reassign(text, *packed) {
                    back.push(probe);
                } else {
                    made.refused.push(Error::TooManyProbes { limit: Segments::<Probe>::LIMIT });
                }
            }
        }
        permanent::start_again(&back);
        made
    }
}

/// Whether a site counts its entries from when it is retargeted to its stub until it is announced.
fn is_counted(site: &Site, scan: Scan) -> bool {
    scan == Scan::Lazy && site.kind == ProbeKind::ENTRY
}

/// The relays of an object, for the callee of its first entry that is counted.
fn relays_for(loaded: &LoadedObject, sites: &[Site], scan: Scan) -> Option<Relays> {
    let direct = |site: &&Site| is_counted(site, scan) && site.shape == Shape::Call;
    let first = sites.iter().find(direct)?;
    // SAFETY: as in `retarget`.
    let decoded = unsafe { CallSite::decode(first.address, Clobbers::CallerSaved) }.ok()?;
    Some(Relays::new(decoded.target(), &loaded.range))
}

/// Sites that were retargeted to their stubs.
struct Retargeted<O> {
    sites: Vec<(SiteText, PackedSite)>,
    /// Their owners and stubs, in the same order.
    owners: Vec<(O, Place)>,
    /// The reasons for sites that were left unchanged.
    refused: Vec<Error>,
}

impl<O> Default for Retargeted<O> {
    fn default() -> Self {
        Self { sites: Vec::new(), owners: Vec::new(), refused: Vec::new() }
    }
}

impl<O> Retargeted<O> {
    /// Retargets these sites of an object, each to the stub that `place` returns for its owner.
    fn retarget<'a>(
        &mut self,
        loaded: &LoadedObject,
        sites: impl Iterator<Item = (&'a Site, O)>,
        mut place: impl FnMut(&O, &CallSite) -> (Place, DuringRetarget),
    ) {
        let mut batches: [Vec<(CallSite, usize, State)>; 2] = Default::default();
        let mut owners: [Vec<(O, Place)>; 2] = Default::default();
        for (site, owner) in sites {
            // SAFETY: the scan has found an instruction there, in text that the loader keeps mapped
            // during this step (`while_loaded`). A compiler has inserted the call, of a function
            // without result, so the program is correct without it and with changed caller-saved
            // registers.
            match unsafe { CallSite::decode(site.address, Clobbers::CallerSaved) } {
                Ok(decoded) => {
                    let (place, meanwhile) = place(&owner, &decoded);
                    if is_through_pointer(site.shape) {
                        stub_cell(place).store(place.stub, Ordering::Relaxed);
                    }
                    let state = if meanwhile == DuringRetarget::On { State::Active } else { State::Inactive };
                    let batch = usize::from(meanwhile == DuringRetarget::Interrupted);
                    batches[batch].push((decoded, place.operand(site.shape), state));
                    owners[batch].push((owner, place));
                }
                Err(error) => self.refused.push(error.into()),
            }
        }
        let [batch, interrupted] = batches;
        let [owners, owners_of_interrupted] = owners;
        // SAFETY: a stub accepts the site's arguments and returns to it; stubs and their cells
        // exist as long as the process. A relay does the same (`Stubs::meanwhile`).
        let results = unsafe { callpatch::retarget_as(&batch) };
        self.add(loaded, results, owners);
        // One at a time, so that each is off for as short a time as possible. SAFETY: as above.
        let results = unsafe { callpatch::retarget_as(&interrupted) };
        for site in results.iter().flatten() {
            // An error is returned to the next caller that toggles the site.
            let _ = site.activate();
        }
        self.add(loaded, results, owners_of_interrupted);
    }

    fn add(
        &mut self,
        loaded: &LoadedObject,
        results: Vec<Result<CallSite, callpatch::Error>>,
        owners: Vec<(O, Place)>,
    ) {
        for (result, owner) in results.into_iter().zip(owners) {
            match result {
                Ok(site) => {
                    // SAFETY: the loader never unloads such an object.
                    let site = if loaded.stays { unsafe { site.staying_mapped() } } else { site };
                    let packed = site.pack(loaded.range.start);
                    self.sites.push(packed.expect("a site that may change registers has no island"));
                    self.owners.push(owner);
                }
                Err(error) => self.refused.push(error.into()),
            }
        }
    }
}

/// Revives the text that these probes had before their object was unloaded, if all of their sites
/// are equivalent to the `new` ones, so that loading an object again uses no memory. Then the `new`
/// ones must not be used any more. Returns whether it was revived.
///
/// A thread may have started to toggle an old site before the object was unloaded. Until all sites
/// are retargeted to their stubs, its store goes to memory that is not executed; after that, its
/// toggle is like any other.
fn are_revived(
    new: &[(SiteText, PackedSite)],
    mut probes: impl Iterator<Item = &'static Probe> + Clone,
) -> bool {
    let Some(first) = probes.clone().next().and_then(Probe::previous_site) else { return false };
    let is_equivalent = |(probe, (text, packed)): (&'static Probe, &(SiteText, PackedSite))| {
        let Some(old) = probe.previous_site() else { return false };
        let offset = probe.site_address() - text.base();
        // SAFETY: the site was packed with this text, and is at the address of the probe's.
        let new = unsafe { packed.switch(text, offset) };
        old.is_equivalent(&new) && old.shares_text_with(&first)
    };
    let are_equivalent = probes.by_ref().zip(new).all(is_equivalent);
    // SAFETY: the new sites are used by our caller only, which drops them. The old ones are the
    // same calls, in text that is mapped.
    are_equivalent && unsafe { first.revive() }
}

/// The functions of new probes of an object.
struct Functions {
    object: &'static ObjectInfo,
    /// The numbers of known functions, by their addresses and the bodies that contain their sites.
    known: HashMap<(usize, Range<usize>), u32>,
}

impl Functions {
    /// The number of the function of a site: all sites of a known function in a body share it.
    fn number(&mut self, site: &Site) -> Option<u32> {
        // The stubs are within reach of the object, so offsets in the object have 32 bits.
        let offset = |address: usize| (address - self.object.base) as u32;
        let body = offset(site.body.start)..offset(site.body.end);
        let Some(address) = site.function else { return SiteFunction::add(0, self.object, body) };
        let key = (address, site.body.clone());
        if let Some(number) = self.known.get(&key) {
            return Some(*number);
        }
        let number = SiteFunction::add(address, self.object, body)?;
        self.known.insert(key, number);
        Some(number)
    }

    /// Adds a probe; `None` if there are too many.
    fn new_probe(
        &mut self,
        site: &Site,
        (text, packed): (&SiteText, PackedSite),
        place: Place,
        scan: Scan,
    ) -> Option<&'static Probe> {
        let cell = cell(place.cell);
        if !is_counted(site, scan) {
            cell.function.store(RESOLVE as usize, Ordering::Relaxed);
        }
        let probe = Probe::add(&NewProbe {
            text: *text,
            site: packed,
            site_offset: (site.address - self.object.base) as u32,
            cell,
            function: self.number(site)?,
            kind: site.kind,
        })?;
        if site.function.is_none() {
            // After it was counted; the probe can be found now.
            cell.function.store(RESOLVE as usize, Ordering::Release);
            // After an error the site stays off, which is correct: its function is determined later
            // or never.
            let _ = probe.site().map(|site| site.switch.activate());
        }
        Some(probe)
    }
}

const COUNT: ProbeFn = arrivals::count;
const RESOLVE: ProbeFn = resolve::resolve;

/// Lets a site at an entry, which is on to determine its function, count its entries instead.
pub(super) fn count_from_now_on(probe: &Probe) {
    let cell = &probe.cell().function;
    let _ = cell.compare_exchange(RESOLVE as usize, COUNT as usize, Ordering::Relaxed, Ordering::Relaxed);
}

/// Ends the counting of entries that [`Stubs::make`] or [`count_from_now_on`] has started, for
/// probes that were announced to the callbacks and not toggled by them.
pub(super) fn settle(probes: impl Iterator<Item = &'static Probe>) {
    let (count, resolve) = (COUNT as usize, RESOLVE as usize);
    let stop = |probe: &&Probe| {
        let cell = &probe.cell().function;
        let stops = cell.compare_exchange(count, resolve, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if stops && let Ok(site) = probe.site() {
            let _ = site.switch.deactivate();
        }
        stops
    };
    let stopped: Vec<_> = probes.filter(stop).collect();
    if stopped.is_empty() {
        return;
    }
    // Another thread that has toggled one of them in the meantime may have found it still on,
    // before it was deactivated here.
    permanent::wait_for_requests();
    stopped.into_iter().for_each(Probe::restore);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn direct_calls_lead_to_the_stub_and_calls_through_pointers_to_its_cell() {
        let place = Place { stub: 1, cell: 100 };
        let check = |shape, expected| assert_eq!(place.operand(shape), expected, "{shape:?}");
        check(Shape::Call, 1);
        check(Shape::Jump, 1);
        check(Shape::IndirectCall, 100 + CELL_SIZE);
        check(Shape::IndirectJump, 100 + CELL_SIZE);
    }

    #[test]
    fn sites_of_a_function_share_it() {
        let start = 9 << 40;
        let object: &ObjectInfo = Box::leak(Box::new(ObjectInfo {
            provider: c"tests",
            path: c"/object",
            base: start,
            of_functions: None,
        }));
        let mut functions = Functions { object, known: HashMap::new() };
        let mut number = |body: Range<usize>, function| {
            let body = start + body.start..start + body.end;
            let (shape, kind) = (Shape::Call, ProbeKind::ENTRY);
            functions.number(&Site { address: body.start, body, kind, shape, function }).expect("room")
        };
        let one = number(16..32, Some(start + 16));
        assert_eq!(number(16..32, Some(start + 16)), one);
        // Another one, inlined into the first; the same one, inlined elsewhere; and two that are
        // not known yet.
        let others = [
            number(16..32, Some(start + 64)),
            number(32..48, Some(start + 16)),
            number(16..32, None),
            number(16..32, None),
        ];
        assert_eq!(BTreeSet::from(others).len(), 4);
        assert!(!others.contains(&one));
    }

    #[test]
    fn stubs_are_assigned_once_and_found_by_their_cells() {
        let near = cell as *const () as usize;
        let mut stubs = Stubs::default();
        let mut given = std::collections::BTreeSet::new();
        for shape in [Shape::Call, Shape::IndirectCall, Shape::Jump] {
            let site =
                Site { address: near, body: near..near + 1, kind: ProbeKind::ENTRY, shape, function: None };
            let sites = vec![site; PAGE_OF_STUBS - 1];
            stubs.reserve(&(near..near + 1), &sites).unwrap();
            for site in &sites {
                let place = stubs.take(site.shape);
                assert!(given.insert(place.stub) && given.insert(place.cell));
                assert_eq!(stubs.of_cell(place.cell).unwrap().stub, place.stub);
                assert!(contain(place.stub + STUB_SIZE - 1) && !contain(place.cell));
            }
        }
        assert_eq!(stubs.blocks.len(), 3, "a page, one for sites through pointers, and a page for the rest");
        assert!(stubs.of_cell(near).is_none());
    }

    /// Assigns stubs below an imagined object, in several blocks. What a site calls between two
    /// stores is congruent to `target` modulo 2^8 or 2^16, on either side of the stub.
    #[test]
    fn every_stub_is_between_two_relays_and_none_is_one() {
        let object = (7 << 40)..(7 << 40) + 0x20_0000;
        for target in [0x1_2340, 0x1_2300, 0x1_23f0].map(|offset| object.start + offset) {
            let mut stubs = Stubs { relays: Some(Relays::new(target, &object)), ..Stubs::default() };
            let (shape, kind) = (Shape::Call, ProbeKind::ENTRY);
            let site = Site { address: object.start, body: object.clone(), kind, shape, function: None };
            let sites = vec![site; 5000];
            stubs.reserve(&object, &sites).unwrap();
            assert!(stubs.blocks.len() > 1);
            let mut given = BTreeSet::new();
            for _ in &sites {
                let Place { stub, .. } = stubs.take(shape);
                assert!(given.insert(stub), "{stub:#x} was assigned twice");
                for modulo in [SLOTS, 1 << 16] {
                    let below = stub - stub.wrapping_sub(target) % modulo;
                    for address in [below, below + modulo] {
                        assert_ne!(address, stub);
                        let is_relay = stubs.blocks.iter().any(|block| block.is_relay(address))
                            || stubs.relays.as_ref().unwrap().is_on_own_page(address);
                        assert!(is_relay, "{address:#x}, for a stub at {stub:#x}");
                        let expected = relay(address, target).unwrap();
                        // SAFETY: in a block or on a page of its own, which stay mapped.
                        let found = unsafe { std::slice::from_raw_parts(address as *const u8, RELAY_SIZE) };
                        assert_eq!(found, &expected[..]);
                    }
                }
            }
        }
    }

    /// Slots are 16 bytes apart: none is congruent to such a target.
    #[test]
    fn without_slots_for_relays_every_place_is_a_stub() {
        let object = (8 << 40)..(8 << 40) + 0x20_0000;
        let mut relays = Relays::new(object.start + 0x1_2348, &object);
        let mut block = Block::new(&object, Operand::Callee, 100, Some(&mut relays)).unwrap();
        assert_eq!((block.used, block.room()), (0, block.capacity));
        let first = block.take().stub;
        assert_eq!(block.take().stub, first + STUB_SIZE);
    }
}
