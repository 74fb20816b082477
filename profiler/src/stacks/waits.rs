//! Estimates how long threads wait in each function, from snapshots of blocked threads
//! ([`super::blocked`]).
//!
//! The instants do not depend on what the program does, so waits, short or long, are found in
//! proportion to their share of the time. The time for which a thread has waited since it was last
//! seen waiting is known exactly, and attributed to where it is seen now: the sum over all
//! functions is correct, and its parts are estimated.
//!
//! Some threads move while their stacks are copied, more often if their waits are short. Their time
//! is divided like that of the stacks that were seen at the same [`Spot`]. That division is not
//! certain, so it is not part of lower limits, and all of this time is part of the upper limits of
//! each function seen at the spot. If nothing was seen there, it may be the time of any function.
//!
//! The variance is estimated from successive differences, as for strata ([`crate::strata`]): if a
//! thread was in a function in only one of two successive snapshots, the moment of the change in
//! between is unknown. A thread that always waits in the same function has no variance. Threads may
//! wait in step with each other, so their differences in one snapshot are added up before they are
//! squared. With few snapshots in which a function waits, the interval is at least Wilson's for
//! their share; a function without any may have been missed by as many threads as usually wait.

use std::collections::HashMap;

use super::blocked::{Moved, Spot};
use super::tally::{Functions, limits};
use crate::interval::{most_for, student};
use crate::report::Estimate;

/// Minimum number of snapshots for an estimate.
const FEW: u64 = 20;

/// With fewer snapshots in which a function waits, their number is not taken to be normally
/// distributed.
const FEW_SEEN: u64 = 10;

/// A statement about a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Place {
    /// It is in a function; this is the innermost one; and this one has called that one.
    In(u32),
    Innermost(u32),
    Arc(Option<u32>, u32),
    /// It is in this function, and not all of its other functions are known.
    InPartial(u32),
    /// Some of its functions are not known; or its innermost one is not.
    Partial,
    Headless,
}

/// The waits that belong to one `Place`, over all snapshots.
#[derive(Clone, Copy, Debug, Default)]
struct Series {
    /// The waiting time, in nanoseconds.
    time: f64,
    /// The number of snapshots with such waits, and the last of them.
    seen: u64,
    last: u64,
    /// The sum of the differences in a snapshot, in nanoseconds.
    difference: f64,
    differs_in: u64,
    /// Sums of the squares and of the fourth powers of such sums.
    squares: f64,
    fourth: f64,
}

impl Series {
    fn add(&mut self, snapshot: u64, waited: f64) {
        self.time += waited;
        if self.last != snapshot {
            self.last = snapshot;
            self.seen += 1;
        }
    }

    fn differs(&mut self, snapshot: u64, waited: f64) {
        if self.differs_in != snapshot {
            self.settle();
            self.differs_in = snapshot;
        }
        self.difference += waited;
    }

    fn settle(&mut self) {
        let square = std::mem::take(&mut self.difference).powi(2);
        self.squares += square;
        self.fourth += square * square;
    }
}

/// The last observation of a thread.
#[derive(Debug)]
struct Seen {
    /// In ascending order.
    places: Vec<Place>,
    /// If it was the first observation: how long the thread had waited before, in nanoseconds.
    first: Option<f64>,
}

/// Maximum number of spots that are known, and of different stacks at each.
const MAX_SPOTS: usize = 2048;
const MAX_STACKS: usize = 8;

/// What was seen at a spot.
#[derive(Debug, Default)]
struct AtSpot {
    /// Stacks, and their waiting time, in nanoseconds.
    stacks: Vec<(Vec<Place>, f64)>,
    /// The time of further stacks.
    others: f64,
    /// The time of threads that moved while they were looked at.
    moved: f64,
}

impl AtSpot {
    fn saw(&mut self, places: &[Place], waited: f64) {
        match self.stacks.iter().position(|(known, _)| known == places) {
            Some(number) => self.stacks[number].1 += waited,
            None if self.stacks.len() < MAX_STACKS => self.stacks.push((places.to_vec(), waited)),
            None => self.others += waited,
        }
    }

    /// Heap memory, in bytes.
    fn memory(&self) -> usize {
        let of_stacks = self.stacks.iter().map(|(places, _)| places.capacity() * size_of::<Place>());
        of_stacks.sum::<usize>() + self.stacks.capacity() * size_of::<(Vec<Place>, f64)>()
    }
}

/// The time of threads that moved while they were looked at which belongs to a place, in
/// nanoseconds: an estimate, and its upper limit.
#[derive(Clone, Copy, Debug, Default)]
struct OfMoved {
    time: f64,
    most: f64,
}

/// The snapshots so far.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    /// The number of snapshots, and the time that they represent, in nanoseconds.
    snapshots: u64,
    time: f64,
    /// The number of stacks, and the waiting time of their threads.
    stacks: f64,
    waited: f64,
    unseen: f64,
    places: HashMap<Place, Series>,
    /// Indexed by kernel thread id.
    threads: HashMap<u32, Seen>,
    spots: HashMap<Spot, AtSpot>,
    /// The time of threads that moved at other spots, in nanoseconds.
    moved_elsewhere: f64,
    /// Set by [`Waits::attribute_moved`]: the time of all threads that moved, by place, and where
    /// no stack was seen.
    of_moved: HashMap<Place, OfMoved>,
    moved_unknown: f64,
}

impl Waits {
    /// Begins the next snapshot, which represents `span` nanoseconds.
    pub(super) fn begin(&mut self, span: f64) {
        self.snapshots += 1;
        self.time += span;
    }

    /// Adds a thread that has waited for this time, in nanoseconds.
    pub(super) fn add(&mut self, spot: Spot, functions: &Functions, waited: f64) {
        let places = places(functions);
        self.saw(&places, waited);
        if let Some(at) = self.at_spot(spot) {
            at.saw(&places, waited);
        }
        let first = match self.threads.get(&spot.thread) {
            Some(before) => {
                for (one, other, waited) in
                    [(&places, &before.places, waited), (&before.places, &places, -waited)]
                {
                    for place in one.iter().filter(|place| other.binary_search(place).is_err()) {
                        self.places.entry(*place).or_default().differs(self.snapshots, waited);
                    }
                }
                None
            }
            None => Some(waited),
        };
        self.threads.insert(spot.thread, Seen { places, first });
    }

    /// Adds a thread that has moved while it was looked at.
    pub(super) fn add_moved(&mut self, moved: &Moved) {
        self.stacks += 1.0;
        self.waited += moved.waited;
        match self.at_spot(moved.spot) {
            Some(at) => at.moved += moved.waited,
            None => self.moved_elsewhere += moved.waited,
        }
    }

    fn at_spot(&mut self, spot: Spot) -> Option<&mut AtSpot> {
        let is_known = self.spots.contains_key(&spot);
        (is_known || self.spots.len() < MAX_SPOTS).then(|| self.spots.entry(spot).or_default())
    }

    /// Attributes the time of the threads that have moved so far. To be called before the estimates
    /// are used.
    pub(super) fn attribute_moved(&mut self) {
        self.of_moved.clear();
        self.moved_unknown = self.moved_elsewhere;
        for at in self.spots.values().filter(|at| at.moved > 0.0) {
            let seen = at.others + at.stacks.iter().map(|(_, time)| time).sum::<f64>();
            if seen <= 0.0 {
                self.moved_unknown += at.moved;
                continue;
            }
            for (number, (places, _)) in at.stacks.iter().enumerate() {
                for place in places {
                    let holds = |(places, _): &&(Vec<Place>, f64)| places.binary_search(place).is_ok();
                    // The place was handled with an earlier stack.
                    if at.stacks[..number].iter().any(|stack| holds(&stack)) {
                        continue;
                    }
                    let time: f64 = at.stacks.iter().filter(holds).map(|(_, time)| time).sum();
                    let of_moved = self.of_moved.entry(*place).or_default();
                    of_moved.time += at.moved * time / seen;
                    of_moved.most += at.moved;
                }
            }
        }
    }

    /// Records that a thread has ended.
    pub(super) fn ended(&mut self, thread: u32) {
        self.spots.retain(|spot, at| spot.thread != thread || at.moved > 0.0);
        // For each thread that was seen once, others may not have been seen at all.
        if let Some(Seen { places, first: Some(waited) }) = self.threads.remove(&thread) {
            for place in places {
                self.places.entry(place).or_default().differs(self.snapshots, waited);
            }
        }
    }

    fn saw(&mut self, places: &[Place], waited: f64) {
        self.stacks += 1.0;
        self.waited += waited;
        for place in places {
            self.places.entry(*place).or_default().add(self.snapshots, waited);
        }
    }

    /// Adds waiting time without a stack; `unseen` is the total so far that was not attributed to
    /// any snapshot.
    pub(super) fn add_unknown(&mut self, unknown: f64, unseen: f64) {
        self.unseen = unseen;
        if unknown > 0.0 {
            self.saw(&[Place::Partial, Place::Headless], unknown);
        }
    }

    /// The waiting time that was not attributed to any snapshot, in nanoseconds.
    pub(super) fn unseen(&self) -> f64 {
        self.unseen
    }

    /// Whether there are enough snapshots for an estimate.
    pub(super) fn are_known(&self) -> bool {
        self.snapshots >= FEW
    }

    /// The waiting time of calls to a function, in nanoseconds.
    pub(super) fn of(&self, function: u32) -> Estimate {
        let partial = self.most(Place::Partial) - self.series(Place::InPartial(function)).time;
        self.estimate(Place::In(function), partial)
    }

    /// The waiting time of a function without its callees, in nanoseconds.
    pub(super) fn of_own(&self, function: u32) -> Estimate {
        self.estimate(Place::Innermost(function), self.most(Place::Headless))
    }

    /// The waiting time of calls along an arc, in nanoseconds.
    pub(super) fn of_arc(&self, (caller, callee): (Option<u32>, u32)) -> Estimate {
        self.estimate(Place::Arc(caller, callee), self.most(Place::Partial))
    }

    /// The arcs that were seen.
    pub(super) fn arcs(&self) -> impl Iterator<Item = (Option<u32>, u32)> {
        self.places.keys().filter_map(|place| match *place {
            Place::Arc(caller, callee) => Some((caller, callee)),
            _ => None,
        })
    }

    /// Bytes of memory of the waits.
    pub(super) fn memory(&self) -> usize {
        let of_threads = self.threads.values().map(|seen| seen.places.capacity() * size_of::<Place>());
        self.places.capacity() * size_of::<(Place, Series)>()
            + self.threads.capacity() * size_of::<(u32, Seen)>()
            + of_threads.sum::<usize>()
            + self.spots.capacity() * size_of::<(Spot, AtSpot)>()
            + self.spots.values().map(AtSpot::memory).sum::<usize>()
            + self.of_moved.capacity() * size_of::<(Place, OfMoved)>()
    }

    fn series(&self, place: Place) -> Series {
        self.places.get(&place).copied().unwrap_or_default()
    }

    fn of_moved(&self, place: Place) -> OfMoved {
        self.of_moved.get(&place).copied().unwrap_or_default()
    }

    /// The longest possible time of a place whose stacks are not known, in nanoseconds.
    fn most(&self, place: Place) -> f64 {
        self.series(place).time + self.of_moved(place).most
    }

    /// The waiting time of a place, to which `unknown` nanoseconds may belong as well.
    fn estimate(&self, place: Place, unknown: f64) -> Estimate {
        let (series, moved) = (self.series(place), self.of_moved(place));
        let (low, high) = self.limits(series);
        let high = high + moved.most + self.moved_unknown + unknown.max(0.0);
        Estimate::within(series.time + moved.time, low, high)
    }

    fn limits(&self, mut series: Series) -> (f64, f64) {
        if series.seen == 0 {
            let of_stack = self.waited / self.stacks.max(1.0);
            let of_snapshot = (self.time / self.snapshots.max(1) as f64) * (self.waited / self.time.max(1.0));
            let of_one = of_stack.max(of_snapshot);
            return (0.0, most_for(0.0) * of_one);
        }
        series.settle();
        let degrees = series.squares * series.squares / series.fourth.max(f64::MIN_POSITIVE);
        let half = student(degrees) * (series.squares / 2.0).sqrt();
        let (mut low, mut high) = (series.time - half, series.time + half);
        if series.seen < FEW_SEEN {
            let (least, most) = limits(series.seen as f64, self.snapshots as f64);
            let of_one = series.time / series.seen as f64;
            low = low.min(of_one * least);
            high = high.max(of_one * most);
        }
        (low.max(0.0), high)
    }
}

/// The statements about a stack with these functions, in ascending order.
fn places(functions: &Functions) -> Vec<Place> {
    let is_partial = functions.are_incomplete();
    let mut places = Vec::new();
    let mut arcs = Vec::new();
    functions.each(
        |function, is_own| {
            places.push(Place::In(function));
            places.extend(is_own.then_some(Place::Innermost(function)));
            places.extend(is_partial.then_some(Place::InPartial(function)));
        },
        |(caller, callee)| arcs.push(Place::Arc(caller, callee)),
    );
    places.extend(is_partial.then_some(Place::Partial));
    places.extend(functions.is_headless.then_some(Place::Headless));
    places.append(&mut arcs);
    places.sort_unstable();
    places
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    fn spot(thread: u32) -> Spot {
        Spot { thread, ip: 0, sp: 0 }
    }

    fn in_function(function: u32) -> Functions {
        Functions { chain: vec![Some(function)], ..Functions::default() }
    }

    #[test]
    fn a_thread_that_waits_all_the_time_is_known_exactly() {
        let mut waits = Waits::default();
        for _ in 0..100 {
            waits.begin(10.0);
            waits.add(spot(7), &in_function(1), 10.0);
        }
        waits.add_unknown(0.0, 5.0);
        assert_eq!(waits.of(1), Estimate::exact(1000.0));
        assert_eq!((waits.of_own(1).value, waits.of_arc((None, 1)).value), (1000.0, 1000.0));
        assert_eq!(waits.unseen(), 5.0);
        assert_eq!(waits.arcs().collect::<Vec<_>>(), [(None, 1)]);
        let other = waits.of(2);
        assert!(other.value == 0.0 && (30.0..50.0).contains(&other.high.unwrap()), "{other:?}");
    }

    #[test]
    fn stacks_that_are_not_known_may_be_of_any_function() {
        let mut waits = Waits::default();
        for _ in 0..100 {
            waits.begin(10.0);
            waits.add(spot(7), &in_function(1), 10.0);
            waits.add_unknown(20.0, 0.0);
        }
        assert!(waits.of(1).high.unwrap() >= 3000.0 && waits.of(2).high.unwrap() >= 2000.0);
        assert!(waits.of_own(1).high.unwrap() >= 3000.0, "also in the innermost one");
        let mut waits = Waits::default();
        for _ in 0..100 {
            waits.begin(10.0);
            waits.add(spot(7), &Functions { is_partial: true, ..in_function(1) }, 10.0);
        }
        assert_eq!(waits.of(1).high, Some(1000.0), "it is in all of them");
        assert!(waits.of_own(2).high.unwrap() < 100.0, "the innermost one is known");
    }

    /// How a thread of the test waits: in which function, at a time.
    type Waiter = fn(f64) -> Option<u32>;

    /// Threads wait in step with each other, now and then, in one long phase, and for all of their
    /// short life; in some runs, only half of them are looked at.
    #[test]
    fn limits_hold_the_truth() {
        // In the units 3, 13, 23 ... of time, and in 8, 18, 28 ...
        let in_step: Waiter = |at| match at as u64 % 10 {
            3 => Some(1),
            8 => Some(8),
            _ => None,
        };
        let seldom: Waiter = |at| (at as u64).is_multiple_of(50).then_some(2);
        let first_fifth: Waiter = |at| Some(if at < 200.0 { 3 } else { 4 });
        let alternates: Waiter = |at| Some(if (at as u64).is_multiple_of(3) { 5 } else { 6 });
        let short_lived: Waiter = |at| (at as u64 % 7 < 3).then_some(7);
        let waiters = [[in_step; 8].as_slice(), &[seldom, first_fifth, alternates]].concat();
        let truths =
            [(1, 800.0), (8, 800.0), (2, 20.0), (3, 200.0), (4, 800.0), (5, 334.0), (6, 666.0), (7, 429.0)];
        let mut random = SmallRng::seed_from_u64(11);
        for share in [1.0, 0.5] {
            let runs = 200;
            let mut held = [0; 9];
            for _ in 0..runs {
                let mut waits = Waits::default();
                let (mut at, mut last): (f64, f64) = (0.0, 0.0);
                let mut seen = [0.0; 16];
                // For how long a thread has waited since it was last seen.
                let waited_by = |waiter: Waiter, since: f64, until: f64| {
                    let steps = (0..).map(|step| since + 0.05 * f64::from(step));
                    let steps = steps.take_while(|time| *time < until);
                    0.05 * steps.filter(|time| waiter(*time).is_some()).count() as f64
                };
                loop {
                    at += random.random_range(2.5..7.5_f64);
                    if at >= 1000.0 {
                        break;
                    }
                    waits.begin(at - last);
                    for (thread, waiter) in waiters.iter().enumerate() {
                        let is_looked_at = random.random_bool(share);
                        let Some(function) = waiter(at).filter(|_| is_looked_at) else { continue };
                        let waited = waited_by(*waiter, seen[thread], at);
                        waits.add(spot(thread as u32), &in_function(function), waited);
                        seen[thread] = at;
                    }
                    if short_lived(at).is_some() {
                        // A new thread each time.
                        let thread = 100 + (at / 7.0) as u32;
                        waits.add(spot(thread), &in_function(7), at - last);
                        waits.ended(thread);
                    }
                    last = at;
                }
                let unseen = waiters.iter().zip(seen).map(|(waiter, seen)| waited_by(*waiter, seen, 1000.0));
                waits.add_unknown(0.0, unseen.sum());
                for (function, truth) in truths {
                    let Estimate { low, high, .. } = waits.of(function);
                    // The units of time here are added up from steps.
                    let slack = 0.01 * truth;
                    let high = high.unwrap() + waits.unseen();
                    held[function as usize] += u32::from((low - slack..=high + slack).contains(&truth));
                }
            }
            for (function, _) in truths {
                let held = held[function as usize];
                assert!(held > runs * 92 / 100, "{function}: {held} of {runs}, {share} of the threads");
            }
        }
    }
    /// A thread waits in short waits and in long ones, for half of the time each. A look takes a
    /// tenth of a short wait, so a tenth of those are over before the stack is copied.
    #[test]
    fn short_waits_that_end_while_they_are_looked_at_are_not_lost() {
        let (short, long) = (100.0, 10_000.0);
        let mut random = SmallRng::seed_from_u64(3);
        for is_same_spot in [false, true] {
            let (runs, mut held, mut sum) = (200, [0; 2], 0.0);
            for _ in 0..runs {
                let mut waits = Waits::default();
                let (mut at, mut last) = (0.0, 0.0);
                while at < 2e6 {
                    at += random.random_range(2500.0..7500.0_f64);
                    let in_cycle = at % (2.0 * long);
                    let (function, rest) = if in_cycle < long {
                        (1, short - in_cycle % short)
                    } else {
                        (2, 2.0 * long - in_cycle)
                    };
                    let spot = Spot { sp: if is_same_spot { 0 } else { function.into() }, ..spot(7) };
                    waits.begin(at - last);
                    if rest > short / 10.0 {
                        waits.add(spot, &in_function(function), at - last);
                    } else {
                        waits.add_moved(&Moved { spot, waited: at - last });
                    }
                    last = at;
                }
                waits.attribute_moved();
                for (function, held) in [1, 2].into_iter().zip(&mut held) {
                    let Estimate { low, high, .. } = waits.of(function);
                    *held += u32::from((low..=high.unwrap()).contains(&(at / 2.0)));
                }
                sum += waits.of(1).value / (at / 2.0);
            }
            assert!(held.iter().all(|held| *held > runs * 93 / 100), "{held:?} of {runs}");
            let mean = sum / f64::from(runs);
            let truth = if is_same_spot { 0.90..0.98 } else { 0.99..1.01 };
            assert!(truth.contains(&mean), "{mean}");
        }
    }
}
