//! Kinds of probe, with random values, and their checks.
//!
//! A closure that gets values keeps them for the generic probes that fire after it at the same
//! place, which must read the same values from the frame. Generic probes also write back values
//! that they have read, so that the frame continues in another version of its function, and use
//! accessors of the frame and its callers.

use std::cell::RefCell;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use wasm_jit::probes::{
    AccessError, Bound, Callback, Frame, FrameAccessor, GenericFn, Kind, Lane, Location, NativeFn, Operand,
    Place, Quadword, Recorder, Shortcut, Step, StoreId, Temp, Values,
};
use wasm_jit::{Val, ValType};

use super::monitor::Functions;
use super::{change_sometimes, is_changing, with_current};
use crate::random::Random;

/// A place for probes.
#[derive(Clone, Debug)]
pub(super) struct Site {
    pub location: Location,
    /// Offset of the instruction in the module; none for entries and exits.
    pub position: Option<u32>,
    /// Types of the function's parameters and locals.
    pub locals: Arc<[ValType]>,
    /// Whether the choices of the instruction can be counted.
    pub chooses: bool,
}

/// A kind of probe, without its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Empty,
    Count,
    CountBranch,
    Native,
    /// Counts by a step, or by the function where there is no free register.
    Shortcut,
    Callback,
    Generic,
    Record,
    /// Calls a function of another instance.
    Wasm,
    /// Calls a host function by the same means.
    Host,
}

const SORTS: [Sort; 10] = [
    Sort::Empty,
    Sort::Count,
    Sort::CountBranch,
    Sort::Native,
    Sort::Shortcut,
    Sort::Callback,
    Sort::Generic,
    Sort::Record,
    Sort::Wasm,
    Sort::Host,
];

/// The components of a probe of a case.
pub(super) struct Making<'a> {
    /// The number of its counter.
    pub number: usize,
    pub site: &'a Site,
    /// Whether it fires after those of smaller numbers when all are on.
    pub is_ordered: bool,
    pub counters: &'a Arc<[AtomicU64]>,
    /// For records of a slot and a value.
    pub recorder: &'a Recorder,
    /// The functions of the running store.
    pub functions: Option<&'a Functions>,
}

impl Sort {
    /// The sorts of probe that a case uses.
    pub(super) fn chosen(random: &mut Random) -> Vec<Self> {
        match random.below(4) {
            0 => vec![random.choose(&SORTS)],
            1 => vec![Self::Count, random.choose(&SORTS), random.choose(&SORTS)],
            _ => SORTS.to_vec(),
        }
    }

    /// Whether its function belongs to a store.
    pub(super) fn is_of_store(self) -> bool {
        matches!(self, Self::Wasm | Self::Host)
    }

    /// Kinds of this sort: the first one has random values, which the place may not have, the last
    /// one only values that all places have. None without the functions that it needs.
    pub(super) fn kinds(self, making: &Making<'_>, random: &mut Random) -> Vec<Kind> {
        let Making { number, site, .. } = *making;
        let slot = Bound::Const(number as u64);
        match self {
            Self::Empty => vec![Kind::Empty],
            Self::CountBranch if site.chooses => vec![Kind::CountBranch],
            Self::Count | Self::CountBranch => vec![Kind::Count],
            Self::Native => {
                let counter = ptr::from_ref(&making.counters[number]).expose_provenance();
                let counter = Bound::Const(counter as u64);
                let more = random.choose(&[0, 2, 5]);
                let kind = |values: Vec<Bound>| Kind::Native {
                    function: native(values.len()),
                    values: Values::from(&values[..]),
                };
                let with_random = [&[counter], &values(site, random, more)[..]].concat();
                vec![kind(with_random), kind(vec![counter])]
            }
            Self::Shortcut => vec![shortcut(making)],
            Self::Record => {
                let kind =
                    |value| Kind::Record { recorder: making.recorder.clone(), values: [slot, value].into() };
                vec![kind(values(site, random, 1)[0]), kind(Bound::Offset)]
            }
            Self::Callback => {
                let more = random.choose(&[0, 1, 2, 5, 12]);
                let with_random = values(site, random, more);
                vec![callback(making, with_random), callback(making, Vec::new())]
            }
            Self::Generic => vec![Kind::Generic(generic(making))],
            Self::Wasm => {
                let Some(functions) = making.functions else { return Vec::new() };
                let mut kinds = Vec::new();
                if !site.locals.is_empty() {
                    let local = random.below(site.locals.len() as u64) as usize;
                    let function = functions.with(Some(site.locals[local])).clone();
                    let all = [slot, Bound::Local(local as u32)];
                    let values = Values::from(&all[..function.parameters().len()]);
                    kinds.push(Kind::Wasm { function, values });
                }
                let function = if random.one_in(2) { &functions.short } else { functions.with(None) };
                kinds.push(Kind::Wasm { function: function.clone(), values: [slot].into() });
                kinds
            }
            Self::Host => {
                let Some(functions) = making.functions else { return Vec::new() };
                vec![Kind::Wasm { function: functions.host.clone(), values: [slot].into() }]
            }
        }
    }
}

impl Sort {
    /// One of all.
    pub(super) fn any(random: &mut Random) -> Self {
        random.choose(&SORTS)
    }

    /// A kind of this sort that every instruction can have. None without the functions that it
    /// needs.
    pub(super) fn everywhere(self, making: &Making<'_>, random: &mut Random) -> Option<Kind> {
        match self {
            Self::Generic => Some(Kind::Generic(generic_everywhere(making))),
            _ => self.kinds(making, random).pop(),
        }
    }
}

const LANES: [Lane; 2] = [Lane::Low, Lane::High];

/// Random values, which the place may not have.
fn values(site: &Site, random: &mut Random, count: usize) -> Vec<Bound> {
    let locals = (site.locals.len() as u64).max(1);
    let value = |_| match random.below(11) {
        0 => Bound::Const(random.number()),
        1 => random.choose(&[Bound::Function, Bound::Offset]),
        2 => random.choose(&[Bound::Context, Bound::Frame, Bound::ReturnAddress]),
        3 if site.location.place == Place::Exit => Bound::Result(0),
        3 if random.one_in(4) => Bound::Address,
        3..7 => Bound::Operand(random.choose(&[0, 0, 0, 1, 1, 2, 3])),
        7 if site.location.place == Place::Exit => Bound::ResultLane(0, random.choose(&LANES)),
        7 => Bound::OperandLane(random.choose(&[0, 0, 1, 2]), random.choose(&LANES)),
        _ => {
            let local = random.below(locals) as u32;
            match site.locals.get(local as usize) {
                Some(ValType::V128) => Bound::LocalLane(local, random.choose(&LANES)),
                _ => Bound::Local(local),
            }
        }
    };
    (0..count).map(value).collect()
}

/// Counts, and switches probes.
///
/// `counter` is the address of a counter of the case that this thread runs.
fn fired(counter: u64) {
    let counter = ptr::with_exposed_provenance::<AtomicU64>(counter as usize);
    // SAFETY: the probe has the address from a reference to one of the counters, which the case
    // keeps until its last run has ended.
    unsafe { (*counter).fetch_add(1, Ordering::Relaxed) };
    change_sometimes();
}

extern "C" fn native_1(counter: u64) {
    fired(counter);
}

extern "C" fn native_3(counter: u64, first: u64, second: u64) {
    std::hint::black_box(first ^ second);
    fired(counter);
}

extern "C" fn native_6(counter: u64, first: u64, second: u64, third: u64, fourth: u64, fifth: u64) {
    std::hint::black_box(first ^ second ^ third ^ fourth ^ fifth);
    fired(counter);
}

fn native(values: usize) -> NativeFn {
    // SAFETY: the functions are part of the program, do not unwind unless a defect was found, and
    // use little of the stack. They are called with the address of a counter first.
    unsafe {
        match values {
            1 => NativeFn::new(native_1 as extern "C" fn(u64)),
            3 => NativeFn::new(native_3 as extern "C" fn(u64, u64, u64)),
            _ => NativeFn::new(native_6 as extern "C" fn(u64, u64, u64, u64, u64, u64)),
        }
    }
}

/// Counts by a step; where the code has no register for it, by the function.
fn shortcut(making: &Making<'_>) -> Kind {
    let counters = Arc::clone(making.counters);
    let counter = ptr::from_ref(&counters[making.number]).expose_provenance() as u64;
    let count = Step::AddTo(Quadword { base: Temp::A, offset: 0 }, Operand::Const(1));
    let steps = [Step::SetConst(Temp::A, counter), count];
    // SAFETY: the shortcut keeps the counters, which only threads change that run a case, and one
    // case is run by one thread; the function is as those of `native`.
    let shortcut = unsafe { Shortcut::new(steps, counters) };
    let shortcut = shortcut.expect("there are instructions for these steps");
    Kind::Shortcut { shortcut, function: native(1), values: [Bound::Const(counter)].into() }
}

/// Where records of a slot and a value are counted.
pub(super) fn recorder(counters: &Arc<[AtomicU64]>) -> Result<Recorder, String> {
    let counters = Arc::clone(counters);
    let counted = move |_: StoreId, records: &[[u64; 2]]| {
        for [slot, _] in records {
            counters[*slot as usize].fetch_add(1, Ordering::Relaxed);
        }
        change_sometimes();
    };
    Recorder::new(counted).map_err(|error| error.to_string())
}

/// The values that a closure has received.
struct Seen {
    location: Location,
    number: usize,
    values: Vec<(Bound, u64)>,
}

thread_local! {
    /// The values of the last closure whose order is known.
    static SEEN: RefCell<Option<Seen>> = const { RefCell::new(None) };
    /// An accessor of some frame, which may have gone.
    static KEPT: RefCell<Option<FrameAccessor>> = const { RefCell::new(None) };
}

/// Forgets what this thread has seen, before the order of probes changes.
pub(super) fn forget() {
    SEEN.set(None);
}

fn callback(making: &Making<'_>, bounds: Vec<Bound>) -> Kind {
    let Making { number, site, is_ordered, counters, .. } = making;
    let (number, location, is_ordered) = (*number, site.location, *is_ordered);
    let counters = Arc::clone(counters);
    let values = Values::from(&bounds[..]);
    let function = Callback::new(move |values| {
        counters[number].fetch_add(1, Ordering::Relaxed);
        if is_ordered && !is_changing() {
            let values = bounds.iter().copied().zip(values.iter().copied()).collect();
            SEEN.set(Some(Seen { location, number, values }));
        }
        change_sometimes();
    });
    Kind::Callback { function, values }
}

/// A closure that may be at any place.
fn generic_everywhere(making: &Making<'_>) -> GenericFn {
    let (number, counters) = (making.number, Arc::clone(making.counters));
    GenericFn::new(move |frame| {
        counters[number].fetch_add(1, Ordering::Relaxed);
        std::hint::black_box((frame.location(), frame.operands()));
        change_sometimes();
        Ok(())
    })
}

fn generic(making: &Making<'_>) -> GenericFn {
    let Making { number, site, is_ordered, counters, .. } = making;
    let (number, site, is_ordered) = (*number, (*site).clone(), *is_ordered);
    let counters = Arc::clone(counters);
    GenericFn::new(move |frame| {
        counters[number].fetch_add(1, Ordering::Relaxed);
        if is_ordered && !is_changing() {
            compare(frame, &site, number);
        }
        let mut choices = None;
        with_current(|_, random| choices = Some(Random::new(random.number())));
        if let Some(mut random) = choices
            && let Err(error) = inspect(frame, &site, &mut random)
        {
            panic!("{:?}: {error}", site.location);
        }
        change_sometimes();
        Ok(())
    })
}

/// Compares the frame's values with those that a closure has got just before.
fn compare(frame: &mut Frame<'_>, site: &Site, number: usize) {
    let Some(seen) = SEEN.take() else { return };
    if seen.location == site.location && seen.number < number {
        for (bound, value) in &seen.values {
            let (read, lane) = match *bound {
                Bound::Local(index) => (frame.local(index), None),
                Bound::Operand(depth) => (frame.operand(depth), None),
                Bound::LocalLane(index, lane) => (frame.local(index), Some(lane)),
                Bound::OperandLane(depth, lane) => (frame.operand(depth), Some(lane)),
                _ => continue,
            };
            let read = read.unwrap_or_else(|error| panic!("{:?}: {bound:?}: {error}", site.location));
            let bits = match lane {
                None => bits(&read),
                Some(Lane::Low) => Some(read.unwrap_v128() as u64),
                Some(Lane::High) => Some((read.unwrap_v128() >> 64) as u64),
            };
            if let Some(bits) = bits {
                assert_eq!(bits, *value, "{:?}: {bound:?} is {read:?}", site.location);
            }
        }
    }
    SEEN.set(Some(seen));
}

/// A number as it is passed to closures.
fn bits(value: &Val) -> Option<u64> {
    match *value {
        Val::I32(value) => Some(value as u32 as u64),
        Val::I64(value) => Some(value as u64),
        Val::F32(bits) => Some(bits.into()),
        Val::F64(bits) => Some(bits),
        _ => None,
    }
}

/// Whether two values are the same, as far as they can be compared.
fn are_same(left: &Val, right: &Val) -> bool {
    match (left, right) {
        (Val::V128(left), Val::V128(right)) => left == right,
        _ => left.ty() == right.ty() && bits(left) == bits(right),
    }
}

/// Reads values of the frame and of its callers, and writes some of them back.
fn inspect(frame: &mut Frame<'_>, site: &Site, random: &mut Random) -> Result<(), AccessError> {
    assert_eq!(frame.location(), site.location);
    let (locals, operands) = (site.locals.len() as u64, frame.operands() as u64);
    for _ in 0..random.below(8) {
        let is_local = random.one_in(2);
        let count = if is_local { locals } else { operands };
        if count == 0 {
            continue;
        }
        let index = random.below(count) as u32;
        let value = if is_local { frame.local(index)? } else { frame.operand(index)? };
        if random.one_in(4) {
            let written =
                if is_local { frame.set_local(index, &value) } else { frame.set_operand(index, &value) };
            permitted(&value, written)?;
            let again = if is_local { frame.local(index)? } else { frame.operand(index)? };
            assert!(
                are_same(&value, &again),
                "{:?}: {value:?} was written, {again:?} is read",
                site.location
            );
        }
    }
    if random.one_in(8) {
        let Some(own) = existing(frame.accessor())? else { return Ok(()) };
        assert_eq!(own, frame.accessor()?);
        assert_eq!(own.location(frame)?, site.location);
        assert_eq!(own.operands(frame)? as u64, operands);
        walk(frame, own, random)?;
        let last = KEPT.replace(random.one_in(2).then_some(own));
        if let Some(last) = last {
            match last.location(frame) {
                Ok(_) | Err(AccessError::FrameGone | AccessError::OtherStore) => {}
                Err(error) => return Err(error),
            }
        }
    }
    if random.one_in(32) {
        assert_eq!(frame.locations().len(), frame.depth() + 1);
        assert_eq!(frame.locations()[0], Some(site.location));
    }
    Ok(())
}

/// Reads the values of some callers, and writes some back.
fn walk(frame: &mut Frame<'_>, own: FrameAccessor, random: &mut Random) -> Result<(), AccessError> {
    let (mut at, mut depth) = (own, own.depth(frame)?);
    for _ in 0..random.below(4) {
        let Some(Some(caller)) = existing(at.caller(frame))? else { break };
        depth -= 1;
        assert_eq!(caller.depth(frame)?, depth);
        caller.location(frame)?;
        for operand in 0..(caller.operands(frame)? as u32).min(8) {
            let value = caller.operand(frame, operand)?;
            if random.one_in(8) {
                permitted(&value, caller.set_operand(frame, operand, &value))?;
            }
        }
        for local in 0..8 {
            match caller.local(frame, local) {
                Ok(value) if random.one_in(16) => {
                    permitted(&value, caller.set_local(frame, local, &value))?;
                }
                Ok(_) => {}
                Err(AccessError::NoLocal { .. }) => break,
                Err(error) => return Err(error),
            }
        }
        at = caller;
    }
    Ok(())
}

/// A write of the value that was read. It may be refused: a local of a non-nullable type is null
/// before it is assigned.
fn permitted(value: &Val, written: Result<(), AccessError>) -> Result<(), AccessError> {
    match written {
        Err(AccessError::Value(_)) if matches!(value, Val::FuncRef(None)) => Ok(()),
        Err(AccessError::Fixed | AccessError::StackOverflow | AccessError::ShadowStack) => Ok(()),
        other => other,
    }
}

/// An accessor, unless the frame waits for the function of another probe.
fn existing<T>(accessor: Result<T, AccessError>) -> Result<Option<T>, AccessError> {
    match accessor {
        Ok(accessor) => Ok(Some(accessor)),
        Err(AccessError::InStub) => Ok(None),
        Err(error) => Err(error),
    }
}
