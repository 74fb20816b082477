//! Callers of a function, identified by where its calls come from: the entry probe that has fired,
//! and the return address that it got.
//!
//! Every observed call counts for its caller with its weight for the function, so arcs have the
//! guarantees of [`crate::observe::policy`]. Probes that were inlined with their function get the
//! return address of the code that contains them, so the caller is
//!
//! 1. the innermost function that has been entered and not left at the probe, if there is one: the
//!    call was inlined into it;
//! 2. otherwise, the innermost such function at the return address.
//!
//! Return addresses in a library that is unloaded are replaced by the functions
//! ([`Callers::settle`]) before another library has the same addresses.

use std::collections::HashMap;

use fastinst::ProbeId;

use crate::report::Estimate;

/// The number of origins of a function that are searched one by one.
const FEW: usize = 32;

/// Maximum number of origins of a function. Instrumented programs have fewer calls to one function;
/// more come from code that is made at run time, which has no probes. Calls of further origins are
/// those of a caller that is not instrumented.
const MAX_PLACES: usize = 1 << 16;

/// The number of a probe that an engine reports.
pub(crate) const NO_PROBE: u32 = u32::MAX;

/// Stands for all callers that are not instrumented.
const NOWHERE: Origin = Origin { return_address: 0, probe: NO_PROBE };

/// Added to the number of a function that stands for addresses in its code: no address of a process
/// is as large.
const SETTLED: usize = 1 << 63;

/// Where a call comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Origin {
    /// The return address that the probes get, or the caller in a library that was unloaded.
    pub(crate) return_address: usize,
    /// The number of the entry probe, or [`NO_PROBE`].
    pub(crate) probe: u32,
}

impl Origin {
    /// What stands for this one from now on: see [`Callers::settle`].
    pub(crate) fn settled(self, function_at: &FunctionAt<'_>) -> Self {
        let known = match self.caller() {
            Err(address) => function_at(address),
            Ok(_) => None,
        };
        let settled = known.map(|function| SETTLED | function as usize);
        Self { return_address: settled.unwrap_or(self.return_address), ..self }
    }

    /// The entry probe.
    pub(crate) fn probe(self) -> Option<ProbeId> {
        (self.probe != NO_PROBE).then_some(ProbeId(self.probe))
    }

    /// The function to which the code returns, if it is known, or the address.
    pub(crate) fn caller(self) -> Result<u32, usize> {
        if self.return_address & SETTLED == 0 {
            Err(self.return_address)
        } else {
            Ok(self.return_address as u32)
        }
    }
}

/// The calls of one origin.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct From {
    /// The weighted number of calls.
    pub(crate) calls: f64,
    pub(crate) ticks: f64,
    /// The number of calls that were observed in windows.
    pub(crate) seen: f64,
}

impl From {
    pub(crate) fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.ticks += other.ticks;
        self.seen += other.seen;
    }
}

/// The callers of one function.
#[derive(Debug, Default)]
pub(crate) struct Callers {
    /// The first origins; the most recent one is first.
    few: Vec<(Origin, From)>,
    /// The others, if there are any.
    #[expect(clippy::box_collection, reason = "most functions have none, and there may be a million")]
    others: Option<Box<HashMap<Origin, From>>>,
}

impl Callers {
    /// Adds a call.
    pub(crate) fn call(&mut self, origin: Origin, weight: f64, ticks: f64) {
        let seen = if weight > 1.0 { 1.0 } else { 0.0 };
        self.add(origin, &From { calls: weight, ticks, seen });
    }

    fn add(&mut self, origin: Origin, call: &From) {
        match self.few.iter().position(|(known, _)| *known == origin) {
            Some(index) => {
                self.few[index].1.add(call);
                self.few.swap(0, index);
            }
            None if self.few.len() < FEW => {
                if self.few.is_empty() {
                    // Most functions have one caller.
                    self.few.reserve_exact(1);
                }
                self.few.push((origin, *call));
            }
            None => {
                let others = self.others.get_or_insert_default();
                let is_full = others.len() >= MAX_PLACES && !others.contains_key(&origin);
                others.entry(if is_full { NOWHERE } else { origin }).or_default().add(call);
            }
        }
    }

    /// Replaces the return addresses that are in functions of an unloaded library by these
    /// functions.
    pub(crate) fn settle(&mut self, function_at: &FunctionAt<'_>) {
        if self.iter().all(|(origin, _)| origin.settled(function_at) == origin) {
            return;
        }
        let before = std::mem::take(self);
        for (origin, from) in before.iter() {
            self.add(origin.settled(function_at), from);
        }
    }

    /// All origins.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Origin, &From)> {
        let others = self.others.iter().flat_map(|others| others.iter());
        self.few.iter().map(|(origin, from)| (*origin, from)).chain(others.map(|(at, from)| (*at, from)))
    }

    /// Heap memory, in bytes.
    pub(crate) fn memory(&self) -> usize {
        // A hash table has a byte of its own for each slot.
        let of_others = self.others.as_ref().map_or(0, |others| others.capacity());
        (self.few.capacity() + of_others) * size_of::<(Origin, From)>() + of_others
    }
}

/// The code ranges of functions.
#[derive(Debug, Default)]
pub(crate) struct Bodies {
    /// By start address, if they are sorted. Of several with the same start, the last one is used.
    bodies: Vec<Body>,
    is_sorted: bool,
}

/// A function's code range: there may be a million of them.
#[derive(Clone, Copy, Debug)]
struct Body {
    start: usize,
    length: u32,
    function: u32,
}

impl Bodies {
    /// Adds the code range of this function.
    pub(crate) fn insert(&mut self, start: usize, end: usize, function: u32) {
        let length = u32::try_from(end.saturating_sub(start)).unwrap_or(u32::MAX);
        self.bodies.push(Body { start, length, function });
        self.is_sorted = false;
    }

    /// Prepares it for [`Bodies::function_at`].
    pub(crate) fn sort(&mut self) {
        if !std::mem::replace(&mut self.is_sorted, true) {
            self.bodies.sort_by_key(|body| body.start);
        }
    }

    /// The function whose code contains the return address, which is taken to be after the call.
    /// Call [`Bodies::sort`] before.
    pub(crate) fn function_at(&self, return_address: usize) -> Option<u32> {
        debug_assert!(self.is_sorted);
        let after = self.bodies.partition_point(|body| body.start < return_address);
        let body = self.bodies.get(after.checked_sub(1)?)?;
        (return_address - body.start <= body.length as usize).then_some(body.function)
    }
}

/// Finds the calling function by the return address.
pub(crate) type FunctionAt<'a> = dyn Fn(usize) -> Option<u32> + 'a;

/// Finds the caller of a function by the origin of its calls.
pub(crate) type CallerOf<'a> = dyn FnMut(u32, Origin) -> Option<u32> + 'a;

/// Calls by caller and callee, as shares of the callee's calls.
#[derive(Debug, Default)]
pub(crate) struct Arcs {
    /// By caller (`None` if it is not an instrumented function) and callee.
    pub(crate) arcs: HashMap<(Option<u32>, u32), From>,
}

impl Arcs {
    /// Adds the callers of a function.
    pub(crate) fn add(&mut self, callee: u32, callers: &Callers, caller_of: &mut CallerOf<'_>) {
        for (origin, from) in callers.iter() {
            self.arcs.entry((caller_of(callee, origin), callee)).or_default().add(from);
        }
    }
}

/// A part of an estimate, from observations in `groups` that are independent of each other.
///
/// The variance of the share is that of a binomial distribution with as many trials as there are
/// groups, as if all calls of a group had the same caller. It is added to that of the total.
pub(crate) fn part(whole: &Estimate, share: f64, groups: f64) -> Estimate {
    let share = share.clamp(0.0, 1.0);
    if share >= 1.0 {
        return *whole;
    }
    let value = whole.value * share;
    let of_share =
        if groups > 0.0 { 1.96 * (share * (1.0 - share) / groups).sqrt() * whole.value } else { 0.0 };
    let distance = |limit: f64| ((limit - whole.value) * share).hypot(of_share);
    let low = (value - distance(whole.low)).max(0.0);
    Estimate { value, low, high: whole.high.map(|high| value + distance(high)) }
}

/// A part of a figure of a function whose calls were all counted, but perhaps not all timed:
/// `known` of the figure belongs to calls whose callers are known, and `part` of that to one of the
/// callers. The rest may belong to any caller.
pub(crate) fn part_of_counted(whole: &Estimate, part: f64, known: f64) -> Estimate {
    let share = if known > 0.0 { part / known } else { 0.0 };
    let rest = |figure: f64| (figure - known).max(0.0);
    Estimate {
        value: part + share * (whole.value - known),
        low: part.min(whole.low * share),
        high: whole.high.map(|high| (part + rest(high)).max(whole.value * share)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_return_address_belongs_to_the_function_that_made_the_call() {
        let mut bodies = Bodies::default();
        // A library that was loaded at the address of another one, which was unloaded.
        bodies.insert(200, 250, 3);
        bodies.insert(200, 300, 2);
        bodies.insert(100, 200, 1);
        bodies.sort();
        #[track_caller]
        fn check(bodies: &Bodies, address: usize, expected: Option<u32>) {
            assert_eq!(bodies.function_at(address), expected);
        }
        check(&bodies, 100, None);
        check(&bodies, 150, Some(1));
        // The call is the last instruction of the first function, which does not return.
        check(&bodies, 200, Some(1));
        check(&bodies, 205, Some(2));
        check(&bodies, 301, None);
    }

    /// The origin with this return address.
    fn at(return_address: usize) -> Origin {
        Origin { return_address, probe: 7 }
    }

    /// A function that is inlined at two places in another one.
    #[test]
    fn calls_by_different_probes_are_told_apart() {
        let mut callers = Callers::default();
        let origins = [3, NO_PROBE, 4, 3].map(|probe| Origin { return_address: 100, probe });
        origins.into_iter().for_each(|origin| callers.call(origin, 1.0, 5.0));
        let mut arcs = Arcs::default();
        arcs.add(9, &callers, &mut |callee, origin| origin.probe().map(|probe| callee + probe.0));
        let mut calls: Vec<_> = arcs.arcs.iter().map(|(arc, from)| (*arc, from.calls)).collect();
        calls.sort_by_key(|(arc, _)| *arc);
        assert_eq!(calls, [((None, 9), 1.0), ((Some(12), 9), 2.0), ((Some(13), 9), 1.0)]);
    }

    /// A function that allocates memory is called at thousands of places.
    #[test]
    fn callers_at_many_places_are_told_apart() {
        let mut callers = Callers::default();
        for round in 1..=3 {
            (1..=5000).for_each(|place| callers.call(at(place), 2.0, f64::from(round)));
        }
        let mut arcs = Arcs::default();
        arcs.add(9, &callers, &mut |_, origin| Some(if origin.return_address <= 2000 { 1 } else { 2 }));
        let calls_and_ticks = |caller| {
            let from: &From = &arcs.arcs[&(Some(caller), 9)];
            (from.calls, from.ticks)
        };
        assert_eq!(calls_and_ticks(1), (2.0 * 2000.0 * 3.0, 2000.0 * 6.0));
        assert_eq!(calls_and_ticks(2), (2.0 * 3000.0 * 3.0, 3000.0 * 6.0));
        assert!(callers.memory() >= 5000 * size_of::<(usize, From)>());
    }

    /// Two libraries, one after the other at the same place, and a caller that stays.
    #[test]
    fn callers_in_an_unloaded_library_stay_its_functions() {
        let mut callers = Callers::default();
        let of_first = |address: usize| (100..200).contains(&address).then_some(7);
        let of_second = |address: usize| match address {
            100..200 => Some(8),
            500 => Some(9),
            _ => None,
        };
        let call_all = |callers: &mut Callers| {
            (100..200).chain([500]).for_each(|place| callers.call(at(place), 1.0, 2.0))
        };
        call_all(&mut callers);
        callers.settle(&of_first);
        assert_eq!(callers.iter().count(), 2);
        // The number of a function is no address.
        callers.settle(&|address| (address == 7).then_some(99));
        call_all(&mut callers);
        let mut arcs = Arcs::default();
        arcs.add(1, &callers, &mut |_, origin| origin.caller().map_or_else(of_second, Some));
        let mut calls: Vec<_> = arcs.arcs.iter().map(|(arc, from)| (*arc, from.calls, from.ticks)).collect();
        calls.sort_by_key(|(arc, ..)| *arc);
        let expected = [((Some(7), 1), 100.0, 200.0), ((Some(8), 1), 100.0, 200.0), ((Some(9), 1), 2.0, 4.0)];
        assert_eq!(calls, expected);
    }

    #[test]
    fn the_number_of_places_is_limited() {
        let mut callers = Callers::default();
        let places = MAX_PLACES + 2 * FEW;
        (1..=2 * places).for_each(|place| callers.call(at(place), 1.0, 0.0));
        let sum: f64 = callers.iter().map(|(_, from)| from.calls).sum();
        assert_eq!(sum, 2.0 * places as f64);
        assert!(callers.iter().count() < places);
    }

    #[test]
    fn calls_that_were_counted_and_not_timed_may_have_any_caller() {
        let whole = Estimate::exact(10.0);
        assert_eq!(part_of_counted(&whole, 3.0, 10.0), Estimate::exact(3.0));
        assert_eq!(part_of_counted(&whole, 4.0, 8.0), Estimate::within(5.0, 4.0, 6.0));
        assert_eq!(part_of_counted(&whole, 0.0, 0.0), Estimate::within(0.0, 0.0, 10.0));
        let at_least = Estimate { value: 10.0, low: 10.0, high: None };
        assert_eq!(part_of_counted(&at_least, 5.0, 10.0), Estimate { value: 5.0, low: 5.0, high: None });
    }

    #[test]
    fn a_part_of_an_estimate_is_less_certain() {
        let whole = Estimate::within(100.0, 90.0, 110.0);
        assert_eq!(part(&whole, 1.0, 5.0), whole);
        let half = part(&whole, 0.5, 100.0);
        assert!(half.value == 50.0 && half.low < 45.0 && half.high.unwrap() > 55.0, "{half:?}");
    }
}
