//! The probes of a site: their list, and the stubs that execute it.
//!
//! The active probes of a site form a list, in the order of their activation. While none of them
//! calls a function, the site needs only the stubs of its version: for a counter, or for no action.
//! Otherwise each version gets a stub that executes the list.
//!
//! **Stubs never change.** A site gets another list by another stub, to which one store redirects
//! the site's jump; a thread that has jumped to a stub executes that stub's list. Stubs are kept
//! with their list: toggling the same probes again generates nothing. Their memory is limited
//! ([`StubMemory`]), and that of lists that are no longer needed is freed
//! ([`reclaim`](super::reclaim)).

use std::any::Any;
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use wasm_jit_codegen::{
    self as codegen, Action, Callee, ListStub, Located, Only, SITE_LENGTH, SiteState, Value, list_stub,
};
use wordpatch::Error;

use super::blocks::{ALIGNMENT, Arenas, Block, Blocks};
use super::buffers::RecordBuffers;
use super::callback::BoundCallback;
use super::counting::Choice;
use super::stub_memory::{Change, StubMemory};
use super::version::{SitePlace, Version};
use super::{MakeError, VERSIONS};
use crate::code::CodeImage;

/// The first lists of a site are found by comparison.
const FEW_LISTS: usize = 4;

/// A function that a probe calls, with its arguments.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Call {
    pub callee: Callee,
    pub arguments: Box<[Value]>,
    /// The instances in which it is called, if not in all.
    pub only: Option<Only>,
}

/// A record that a probe appends to a buffer.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Record {
    /// The routine that the stub calls, with the address of the buffers, when there is no room.
    pub make_room: usize,
    pub buffers: Arc<RecordBuffers>,
    pub values: Box<[Value]>,
    /// The instances in which it appends records, if not in all.
    pub only: Option<Only>,
}

/// A generic probe: the routine that its stub calls with the address of this, and the data that the
/// routine needs.
#[derive(Debug)]
pub(crate) struct Generic {
    pub fire: usize,
    pub closure: Arc<dyn Any + Send + Sync>,
    pub function: u32,
    /// The position in the module.
    pub position: u32,
    /// The instances for which it is, if not for all.
    pub only: Option<Only>,
    /// The address of the fuel above which it is not called, in what `closure` keeps.
    pub fuel: Option<usize>,
    pub located: Arc<Located>,
    /// At an exit: how much of the store's buffer has results.
    pub results: usize,
}

/// Compares identities: each probe has its own.
impl PartialEq for Generic {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Generic {}

impl Hash for Generic {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::ptr::from_ref(self).hash(state);
    }
}

/// The action of a probe.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ProbeAction {
    Nothing,
    Count,
    /// Counts the choices of an instruction, which only counting versions do.
    CountChoice(Choice),
    Call(Arc<Call>),
    Callback(Arc<BoundCallback>),
    Generic(Arc<Generic>),
    Record(Arc<Record>),
}

impl ProbeAction {
    /// Number of the probe's counts.
    pub(super) fn counts(&self) -> usize {
        match self {
            Self::Count => 1,
            Self::CountChoice(choice) => choice.counts(),
            _ => 0,
        }
    }

    /// Whether the action has access to the frame.
    pub(super) fn is_generic(&self) -> bool {
        matches!(self, Self::Generic(_))
    }

    /// Whether the action requires the stub of a list.
    fn needs_list(&self) -> bool {
        match self {
            Self::Nothing | Self::Count | Self::CountChoice(_) => false,
            Self::Call(_) | Self::Callback(_) | Self::Generic(_) | Self::Record(_) => true,
        }
    }
}

/// The action of a site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Form {
    /// No action.
    #[default]
    Off,
    /// Jumps to a stub that does nothing.
    Empty,
    /// Counts.
    Count,
    /// Executes a list, by its number at the site.
    List(u32),
}

impl Form {
    /// The form, of those without lists, that performs the actions of both.
    pub(super) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Count, _) | (_, Self::Count) => Self::Count,
            (Self::Empty, _) | (_, Self::Empty) => Self::Empty,
            _ => Self::Off,
        }
    }
}

/// A list of probes, without those that do nothing. It contains the counter at most once, and
/// first: an event is counted when it begins, as in counting versions.
#[derive(Debug)]
pub(super) struct List {
    items: Arc<[ProbeAction]>,
    /// By version: the address of the stub, or 0.
    pub stubs: [usize; VERSIONS],
    /// Whether a site may lead to the stubs although it should have another form, because it could
    /// not be patched.
    pub is_pinned: bool,
    /// Whether it is among the idle lists ([`reclaim`](super::reclaim)).
    pub is_idle: bool,
}

impl List {
    pub(super) fn items(&self) -> &[ProbeAction] {
        &self.items
    }

    /// Whether it keeps the buffers of a recorder.
    pub(super) fn has_recorder(&self) -> bool {
        self.items.iter().any(|item| matches!(item, ProbeAction::Record(_)))
    }

    /// The remaining form in a version whose site has no values; in a counting version, no action.
    pub(super) fn without_calls(&self) -> Form {
        if self.items.contains(&ProbeAction::Count) { Form::Count } else { Form::Off }
    }
}

/// A site, in all versions that have it.
#[derive(Debug, Default)]
pub(super) struct Site {
    pub cell: u32,
    /// The cell to which the original adds, if the instruction shares its site there.
    pub shared: Option<u32>,
    pub form: Form,
    /// The probes that are on, by their numbers, in the order of their activation.
    pub active: Active,
    more: Option<Box<RareParts>>,
}

/// Rarely used parts of sites, which are stored separately: a module has many sites, and the time
/// of switching them is mostly that of loading them from memory.
#[derive(Debug, Default)]
pub(super) struct RareParts {
    /// The state at the site; known once there is a probe that calls a function.
    pub state: Option<SiteState>,
    /// The next instruction, if it can be reached; known once choices are counted.
    pub next: Option<u32>,
    /// The first cell of the instruction's choices, if it needs some.
    pub choices: Option<u32>,
    /// At a branch whose ways were counted: the cell from which threads subtract in counting
    /// versions, instead of the site's own.
    pub taken_back: Option<u32>,
    /// The values at the site in plain versions; known if there is one, and a probe that calls a
    /// function.
    pub plain: Option<Arc<Located>>,
    lists: Vec<Option<List>>,
    /// Numbers of lists that were removed.
    free: Vec<u32>,
    /// The numbers of lists from [`FEW_LISTS`] on.
    numbers: HashMap<Arc<[ProbeAction]>, u32>,
}

/// A list of numbers, which needs no allocation for a single one.
#[derive(Debug, Default)]
pub(super) enum Active {
    #[default]
    None,
    One(usize),
    Several(Vec<usize>),
}

impl Active {
    pub(super) fn all(&self) -> &[usize] {
        match self {
            Self::None => &[],
            Self::One(number) => std::slice::from_ref(number),
            Self::Several(numbers) => numbers,
        }
    }

    pub(super) fn push(&mut self, number: usize) {
        self.insert(self.all().len(), number);
    }

    pub(super) fn insert(&mut self, at: usize, number: usize) {
        match self {
            Self::None => *self = Self::One(number),
            Self::One(first) => {
                let mut numbers = vec![*first];
                numbers.insert(at, number);
                *self = Self::Several(numbers);
            }
            Self::Several(numbers) => numbers.insert(at, number),
        }
    }

    /// Removes a number, and returns where it was.
    pub(super) fn remove(&mut self, number: usize) -> Option<usize> {
        let at = self.all().iter().position(|other| *other == number)?;
        match self {
            Self::Several(numbers) => drop(numbers.remove(at)),
            Self::None | Self::One(_) => *self = Self::None,
        }
        Some(at)
    }
}

impl Site {
    pub(super) fn new(cell: u32) -> Self {
        Self { cell, ..Self::default() }
    }

    pub(super) fn more(&self) -> Option<&RareParts> {
        self.more.as_deref()
    }

    pub(super) fn more_mut(&mut self) -> &mut RareParts {
        self.more.get_or_insert_default()
    }

    /// The cell from which a thread subtracts that has counted the instruction with its run, but
    /// does not execute it.
    pub(super) fn uncounting_cell(&self) -> u32 {
        self.more().and_then(|more| more.taken_back).unwrap_or(self.cell)
    }

    /// A list by its number.
    pub(super) fn list(&self, number: u32) -> &List {
        let list = self.more().and_then(|more| more.lists[number as usize].as_ref());
        list.expect("a list that is in use")
    }

    /// All lists, with their numbers.
    pub(super) fn lists(&self) -> impl Iterator<Item = (u32, &List)> {
        let lists = self.more().map_or(&[][..], |more| &more.lists);
        (0..).zip(lists).filter_map(|(number, list)| Some((number, list.as_ref()?)))
    }

    /// The values at the site, if a stub of a version, with this address, has a generic probe.
    pub(super) fn values_in_stub(&self, version: usize, stub: usize) -> Option<Arc<Located>> {
        let (_, list) = self.lists().find(|(_, list)| list.stubs[version] == stub)?;
        list.items.iter().find_map(|item| match item {
            ProbeAction::Generic(generic) => Some(generic.located.clone()),
            _ => None,
        })
    }

    /// A list by its number, if there still is one.
    pub(super) fn find_list_mut(&mut self, number: u32) -> Option<&mut List> {
        self.more.as_mut()?.lists.get_mut(number as usize)?.as_mut()
    }

    /// Records that the site may lead to the stubs of a form for ever.
    pub(super) fn pin(&mut self, form: Form) {
        if let Form::List(number) = form {
            self.more_mut().list_mut(number).is_pinned = true;
        }
    }

    /// Forgets the stubs of a version, and returns where they are.
    pub(super) fn take_stubs(&mut self, version: usize) -> impl Iterator<Item = usize> {
        let lists = self.more.iter_mut().flat_map(|more| more.lists.iter_mut().flatten());
        let taken = lists.map(move |list| std::mem::take(&mut list.stubs[version]));
        taken.filter(|start| *start != 0)
    }

    /// The form for probes that do this, in their order.
    pub(super) fn form_of<'a>(&mut self, active: impl Iterator<Item = &'a ProbeAction> + Clone) -> Form {
        let (mut needs_list, mut counts, mut is_empty) = (false, false, true);
        for what in active.clone() {
            is_empty &= matches!(what, ProbeAction::CountChoice(_));
            counts |= *what == ProbeAction::Count;
            needs_list |= what.needs_list();
        }
        match (is_empty, needs_list, counts) {
            (true, ..) => Form::Off,
            (_, false, false) => Form::Empty,
            (_, false, true) => Form::Count,
            (_, true, _) => {
                let mut has_counter = false;
                let is_item = |what: &&ProbeAction| match what {
                    ProbeAction::Count => !std::mem::replace(&mut has_counter, true),
                    what => what.needs_list(),
                };
                let mut items: Vec<&ProbeAction> = active.filter(is_item).collect();
                // Before what the others change.
                items.sort_by_key(|what| **what != ProbeAction::Count);
                Form::List(self.more_mut().number(&items))
            }
        }
    }
}

impl RareParts {
    /// The number of a list, which may be new.
    fn number(&mut self, items: &[&ProbeAction]) -> u32 {
        // Most sites have few lists, which are compared without an allocation.
        let is_it = |list: &Option<List>| {
            list.as_ref().is_some_and(|list| list.items.iter().eq(items.iter().copied()))
        };
        if let Some(number) = self.lists.iter().take(FEW_LISTS).position(is_it) {
            return number as u32;
        }
        let items: Arc<[ProbeAction]> = items.iter().map(|what| (*what).clone()).collect();
        if let Some(number) = self.numbers.get(&items) {
            return *number;
        }
        let number = self.free.pop().unwrap_or_else(|| {
            if self.lists.is_empty() {
                // Most sites have one list for ever.
                self.lists.reserve_exact(1);
            }
            self.lists.push(None);
            self.lists.len() as u32 - 1
        });
        if number as usize >= FEW_LISTS {
            self.numbers.insert(items.clone(), number);
        }
        self.lists[number as usize] =
            Some(List { items, stubs: [0; VERSIONS], is_pinned: false, is_idle: false });
        number
    }

    fn list_mut(&mut self, number: u32) -> &mut List {
        self.lists[number as usize].as_mut().expect("a list that is in use")
    }

    /// Removes a list that no site has any more. Its number may be reused.
    pub(super) fn take_list(&mut self, number: u32) -> Option<List> {
        let list = self.lists[number as usize].take()?;
        self.numbers.remove(&list.items);
        self.free.push(number);
        Some(list)
    }

    /// Removes a list, as [`RareParts::take_list`], if no stub of it could be made.
    pub(super) fn take_if_without_stubs(&mut self, number: u32) -> Option<List> {
        let has_none = self.list_mut(number).stubs == [0; VERSIONS];
        has_none.then(|| self.take_list(number)).flatten()
    }
}

/// The code of a list's stub in a version, which has the values that the list needs.
pub(super) fn generate(
    image: &CodeImage,
    (function, version): (u32, &Version),
    place: &SitePlace,
    (site, list): (&Site, u32),
) -> ListStub {
    let more = site.more().expect("has lists");
    let items = site.list(list).items();
    let plain = version.is_plain().then(|| more.plain.as_deref().expect("known since it is asked for"));
    let in_version = |values: &[Value]| -> Box<[Value]> {
        values.iter().map(|value| plain.map_or(*value, |located| value.in_plain(located))).collect()
    };
    let values = |item: &ProbeAction| match item {
        ProbeAction::Call(call) => in_version(&call.arguments),
        ProbeAction::Callback(call) => in_version(&call.values),
        ProbeAction::Record(record) => in_version(&record.values),
        _ => Box::default(),
    };
    let values: Vec<Box<[Value]>> = items.iter().map(values).collect();
    let cell = 8 * site.cell as i32;
    let actions = items.iter().zip(&values).filter_map(|(item, values)| match item {
        ProbeAction::Nothing | ProbeAction::CountChoice(_) => None,
        ProbeAction::Count => (!version.counts(place.position)).then_some(Action::Count { cell }),
        ProbeAction::Call(call) => {
            let Call { callee, only, .. } = &**call;
            Some(Action::Call { callee, arguments: values, only: *only })
        }
        ProbeAction::Callback(call) => {
            let (function, callback) = (call.routine, Arc::as_ptr(call) as usize);
            Some(Action::Callback { function, callback, values, only: call.only })
        }
        ProbeAction::Generic(generic) => Some(Action::Generic {
            function: generic.fire,
            // The site keeps the list.
            description: Arc::as_ptr(generic).expose_provenance(),
            only: generic.only,
            fuel: generic.fuel,
        }),
        ProbeAction::Record(record) => Some(Action::Record(codegen::Record {
            cursor: record.buffers.cursor(),
            make_room: record.make_room,
            // The site keeps the list.
            recorder: Arc::as_ptr(&record.buffers).expose_provenance(),
            values,
            only: record.only,
        })),
    });
    let actions: Vec<Action<'_>> = actions.collect();
    let is_exit = place.position == image.body_range(function).end;
    let state = more.state.expect("known since a probe was made that calls a function");
    // Results are in their registers.
    let state = if plain.is_some() && !is_exit { SiteState::PLAIN } else { state };
    let frame_size = plain.map(|_| version.frame_size);
    list_stub(&state, &actions, version.at(place.code), frame_size)
}

/// Makes the stub of a list in a version, unless the version has it, or has no values at the site.
pub(super) fn make_stub(
    image: &Arc<CodeImage>,
    (function, version): (u32, &Version),
    place: &SitePlace,
    (site, list): (&mut Site, u32),
    change: Change,
    (memory, arenas, blocks): (&mut StubMemory, &mut Arenas, &Blocks),
) -> Result<(), MakeError> {
    let List { items, stubs, .. } = site.list(list);
    let has_no_frame = || {
        let is_exit = place.position == image.body_range(function).end;
        !version.sites.end_accessors() || is_exit && !version.sites.settles(place.position)
    };
    let has_no_values = !place.settled || items.iter().any(ProbeAction::is_generic) && has_no_frame();
    if stubs[version.number] != 0 || has_no_values {
        return Ok(());
    }
    let at = version.at(place.code);
    let mut stub = generate(image, (function, version), place, (site, list));
    let length = stub.code.len();
    let freed = memory.reuse(length);
    let start = match freed {
        Some(start) => start,
        None => {
            memory.check(length, image, change)?;
            arenas.with_room(image, blocks, length)?.next_address(ALIGNMENT)
        }
    };
    let reaches = |from: usize, to: usize| i32::try_from(to as isize - from as isize).is_ok();
    let (back, next) = (at + SITE_LENGTH as usize, start + stub.back as usize + 4);
    if !reaches(next, back) || !reaches(back, start) {
        freed.iter().for_each(|start| memory.free(*start, length));
        return Err(Error::OutOfReach { address: start, length }.into());
    }
    stub.code[stub.back as usize..][..4].copy_from_slice(&(back.wrapping_sub(next) as u32).to_le_bytes());
    let end = start + length;
    let uninterrupted = [stub.uninterrupted.start, stub.uninterrupted.end];
    let stub_of = Some(place.position);
    let block = Block { start, end, function, version: version.number, stub: stub_of, uninterrupted };
    let arena = arenas.of_mut(start).expect("all stubs are in arenas");
    if freed.is_some() {
        // SAFETY: the block was freed because no thread was in it, nor a forked child, and nothing
        // has led there since.
        let written = unsafe { arena.overwrite(start, &stub.code) };
        written.inspect_err(|_| memory.free(start, length))?;
        blocks.fill(block);
    } else {
        arena.append(&stub.code, ALIGNMENT)?;
        memory.add(length);
        blocks.push(block);
    }
    image.shown.version_made(&block.place_of_stub());
    site.more_mut().list_mut(list).stubs[version.number] = start;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A list is found again by what it does, whatever its number is.
    #[test]
    fn equal_lists_of_a_site_have_one_number() {
        let native = |function| {
            let call = Call { callee: Callee::Native(function), arguments: Box::default(), only: None };
            ProbeAction::Call(Arc::new(call))
        };
        let actions: Vec<ProbeAction> = (0..3 * FEW_LISTS).map(native).collect();
        let mut parts = RareParts::default();
        let expected: Vec<u32> = (0..actions.len() as u32).collect();
        for _ in 0..2 {
            let numbers: Vec<u32> = actions.iter().map(|action| parts.number(&[action])).collect();
            assert_eq!(numbers, expected);
        }
        for removed in [1, FEW_LISTS + 1] {
            assert!(parts.take_list(removed as u32).is_some());
            let other = native(1000 + removed);
            assert_eq!(parts.number(&[&other]), removed as u32, "a number is used again");
            assert_eq!(parts.number(&[&other]), removed as u32);
            assert_eq!(parts.number(&[&actions[removed]]), parts.lists.len() as u32 - 1);
        }
    }

    /// The values at a place are found by the stub in which a frame waits, and freed with its list.
    #[test]
    fn values_at_a_site_are_those_of_the_stub() {
        let located = |slot_bytes| {
            let (locals, operands) = (codegen::LocatedLocals::default(), Box::default());
            Arc::new(Located { locals, operands, zero_flag: None, slot_bytes })
        };
        let generic = |located: &Arc<Located>| {
            let (fire, closure, function, position, results) = (0, Arc::new(()), 0, 1, 0);
            let (only, fuel, located) = (None, None, located.clone());
            let generic = Generic { fire, closure, function, position, only, fuel, located, results };
            ProbeAction::Generic(Arc::new(generic))
        };
        let (first, second) = (located(8), located(16));
        let mut site = Site::new(0);
        for (located, stub) in [(&first, 0x100), (&second, 0x200)] {
            let action = generic(located);
            let number = site.more_mut().number(&[&ProbeAction::Count, &action]);
            site.more_mut().list_mut(number).stubs[1] = stub;
        }
        assert_eq!(site.values_in_stub(1, 0x100).as_deref(), Some(&*first));
        assert_eq!(site.values_in_stub(1, 0x200).as_deref(), Some(&*second));
        assert_eq!(site.values_in_stub(2, 0x100), None, "a stub of another version");
        drop(site.more_mut().take_list(0));
        assert_eq!(site.values_in_stub(1, 0x100), None);
        assert_eq!((Arc::strong_count(&first), Arc::strong_count(&second)), (1, 2));
    }
}
