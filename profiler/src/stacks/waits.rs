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
//! # Certain and uncertain time
//! While a thread is not awake, it stays where it is: that time is attributed with certainty. If it
//! was awake once between two looks, it was in one of the two places only. Otherwise it may have
//! waited in other functions as well, which was not seen (*hidden* time). A function without any
//! hidden time may have been missed there: as often as has a probability of 2.5 %, for the mean
//! hidden time of all threads in one snapshot, but never for longer than all hidden time. With few
//! snapshots that attribute hidden time to a function, the interval is at least Wilson's for their
//! share.
//!
//! The variance is estimated from successive differences, as for strata
//! ([`crate::estimate::strata`]): if a thread was in a function in only one of two successive
//! snapshots, the moment of the change in between is unknown. A thread that always waits in the
//! same function has no variance. Threads may wait in step with each other, so their differences in
//! one snapshot are added up before they are squared.
//!
//! # Begin and end of threads
//! A thread that is seen for the first time is charged the time since the last snapshot. On
//! average, this error is offset by the time between the thread's last snapshot and its end, which
//! is not charged; a thread that is seen only once also stands for others that were not seen at
//! all. Both errors of a thread that was seen several times are bounded. The interval is that of
//! the bounds or of the variance, whichever is narrower: the former for a few threads that begin or
//! end together, the latter for many.
//!
//! A report is written at a moment that the program may choose. Its snapshot therefore does not
//! count as one more look at a random instant: certain time is charged exactly, for threads that
//! still exist from their creation on; hidden time is part of the upper limits of all functions.

use std::collections::HashMap;

use super::blocked::{Ended, Snapshot};
use super::tally::{Functions, limits};
use super::watched::{Own, Spot, Wait};
use crate::estimate::interval::{most_for, student};
use crate::report::Estimate;

/// Minimum number of snapshots for an estimate.
const FEW: u64 = 20;

/// With fewer snapshots that attribute hidden time to a function, their number is not taken to be
/// normally distributed.
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

/// Squares of errors that are added up in each snapshot.
#[derive(Clone, Copy, Debug, Default)]
struct Squares {
    /// The sum of the differences in a snapshot, in nanoseconds.
    difference: f64,
    differs_in: u64,
    /// Sums of the squares and of the fourth powers of such sums.
    squares: f64,
    fourth: f64,
}

impl Squares {
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

    fn plus(self, other: Self) -> Self {
        Self { squares: self.squares + other.squares, fourth: self.fourth + other.fourth, ..self }
    }

    /// Half of the interval.
    fn half(self) -> f64 {
        let degrees = self.squares * self.squares / self.fourth.max(f64::MIN_POSITIVE);
        student(degrees) * (self.squares / 2.0).sqrt()
    }
}

/// Time that was attributed with no certainty.
#[derive(Clone, Copy, Debug, Default)]
struct Hidden {
    /// In nanoseconds.
    time: f64,
    /// The number of snapshots with such time, and the last of them.
    snapshots: u64,
    last: u64,
}

impl Hidden {
    fn add(&mut self, snapshot: u64, time: f64) {
        self.time += time;
        if self.last != snapshot {
            self.last = snapshot;
            self.snapshots += 1;
        }
    }

    /// The mean time in one of the snapshots.
    fn of_one(self) -> f64 {
        self.time / self.snapshots.max(1) as f64
    }
}

/// The waits that belong to one `Place`, over all snapshots.
#[derive(Clone, Copy, Debug, Default)]
struct Series {
    /// The waiting time, in nanoseconds.
    time: f64,
    hidden: Hidden,
    /// Threads that have come to the place or left it.
    changes: Squares,
    /// Threads that have begun or ended there; and how much less and how much more than `time` they
    /// have waited at most: more may be negative.
    ends: Squares,
    below: f64,
    above: f64,
    /// The time between the last looks at threads that were there and their ends.
    tails: f64,
}

/// The last observation of a thread.
#[derive(Debug)]
struct Seen {
    spot: Spot,
    /// In ascending order.
    places: Vec<Place>,
    /// The first observation, if the thread was new.
    first: Option<First>,
    is_first: bool,
}

/// The first observation of a thread.
#[derive(Debug)]
struct First {
    places: Vec<Place>,
    /// The time that was attributed to these, and how long the thread had waited, in nanoseconds.
    charged: f64,
    own: Own,
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

/// The time since the last snapshots which belongs to a place, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct UntilReport {
    least: f64,
    time: f64,
    most: f64,
}

fn add(all: &mut HashMap<Place, UntilReport>, places: &[Place], time: UntilReport) {
    for place in places {
        let until = all.entry(*place).or_default();
        until.least += time.least;
        until.time += time.time;
        until.most += time.most;
    }
}

/// The snapshots so far.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    /// The number of snapshots.
    snapshots: u64,
    unseen: f64,
    places: HashMap<Place, Series>,
    /// The hidden time of all threads.
    hidden: Hidden,
    /// The time of threads that were seen only once.
    seen_once: Hidden,
    /// Indexed by kernel thread id.
    threads: HashMap<u32, Seen>,
    spots: HashMap<Spot, AtSpot>,
    /// The time of threads that moved at other spots, in nanoseconds.
    moved_elsewhere: f64,
    /// Set by [`Waits::end_report`]: the time of all threads that moved, by place, and where
    /// no stack was seen.
    of_moved: HashMap<Place, OfMoved>,
    moved_unknown: f64,
    /// The last snapshot for a report.
    until_report: HashMap<Place, UntilReport>,
    /// The time since the last snapshot if there was none for the report, in nanoseconds.
    unlooked: f64,
}

impl Waits {
    /// Adds a snapshot, with the functions of the stacks in it.
    pub(super) fn add(&mut self, snapshot: &Snapshot, stacks: &[(Wait, Functions)]) {
        let Snapshot { span, moved, same, unknown, unseen, .. } = snapshot;
        // The snapshot for an earlier report may have come after that had been written.
        self.until_report.clear();
        if span.is_none() {
            return self.add_for_report(snapshot, stacks);
        }
        self.begin();
        stacks.iter().for_each(|(wait, functions)| self.waits(wait, functions));
        same.iter().for_each(|(thread, waited)| self.still_waits(*thread, *waited));
        moved.iter().for_each(|wait| self.moves(wait));
        self.add_unknown(*unknown, *unseen);
    }

    fn begin(&mut self) {
        self.snapshots += 1;
    }

    /// Adds a thread that waits.
    fn waits(&mut self, wait: &Wait, functions: &Functions) {
        let &Wait { spot, waited, hides, own } = wait;
        let places = places(functions);
        self.saw(&places, waited, hides);
        if let Some(at) = self.at_spot(spot) {
            at.saw(&places, waited);
        }
        let is_first = own.is_some();
        let first = match self.threads.remove(&spot.thread) {
            Some(before) => {
                for (one, other, waited) in
                    [(&places, &before.places, waited), (&before.places, &places, -waited)]
                {
                    for place in one.iter().filter(|place| other.binary_search(place).is_err()) {
                        self.places.entry(*place).or_default().changes.differs(self.snapshots, waited);
                    }
                }
                before.first
            }
            None => own.map(|mut own| {
                if hides {
                    // What is more than that may have been waited elsewhere.
                    own.least = own.least.min(waited);
                    self.hidden.add(self.snapshots, (own.most - waited).max(0.0));
                }
                First { places: places.clone(), charged: waited, own }
            }),
        };
        self.threads.insert(spot.thread, Seen { spot, places, first, is_first });
    }

    /// Adds a thread that waits where it was last seen.
    fn still_waits(&mut self, thread: u32, waited: f64) {
        let Some(mut seen) = self.threads.remove(&thread) else { return };
        self.saw(&seen.places, waited, false);
        if let Some(at) = self.at_spot(seen.spot) {
            at.saw(&seen.places, waited);
        }
        seen.is_first = false;
        self.threads.insert(thread, seen);
    }

    /// Adds a thread that has moved while it was looked at.
    fn moves(&mut self, wait: &Wait) {
        if wait.hides {
            self.hidden.add(self.snapshots, wait.waited);
        }
        match self.at_spot(wait.spot) {
            Some(at) => at.moved += wait.waited,
            None => self.moved_elsewhere += wait.waited,
        }
    }

    fn at_spot(&mut self, spot: Spot) -> Option<&mut AtSpot> {
        let is_known = self.spots.contains_key(&spot);
        (is_known || self.spots.len() < MAX_SPOTS).then(|| self.spots.entry(spot).or_default())
    }

    /// To be called when all snapshots are added, before the estimates are used.
    pub(super) fn end_report(&mut self) {
        self.attribute_moved();
        for First { places, charged, own } in self.threads.values().filter_map(|seen| seen.first.as_ref()) {
            // Threads that have not ended are charged from their creation on.
            let [least, most] = [own.least, own.most].map(|own| own - charged);
            let time = f64::midpoint(least, most);
            add(&mut self.until_report, places, UntilReport { least, time, most });
        }
    }

    /// Attributes the time of the threads that have moved so far.
    fn attribute_moved(&mut self) {
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
    pub(super) fn ended(&mut self, &Ended { thread, since }: &Ended) {
        self.spots.retain(|spot, at| spot.thread != thread || at.moved > 0.0);
        let snapshot = self.snapshots;
        let Some(Seen { places, first, is_first, .. }) = self.threads.remove(&thread) else {
            // It was awake whenever it was looked at.
            return self.hidden.add(snapshot, since);
        };
        match first {
            // For each thread that was seen once, others may not have been seen at all.
            Some(First { charged, .. }) if is_first => {
                self.seen_once.add(snapshot, charged);
                for place in places {
                    let series = self.places.entry(place).or_default();
                    series.changes.differs(snapshot, charged);
                    series.hidden.add(snapshot, charged);
                }
                return;
            }
            Some(First { places, charged, own }) => {
                for place in places {
                    let series = self.places.entry(place).or_default();
                    series.ends.differs(snapshot, charged);
                    series.below += charged - own.least;
                    series.above += own.most - charged;
                }
            }
            None => {}
        }
        self.hidden.add(snapshot, since);
        for place in places {
            let series = self.places.entry(place).or_default();
            series.ends.differs(snapshot, since);
            series.above += since;
            series.tails += since;
        }
    }

    fn saw(&mut self, places: &[Place], waited: f64, hides: bool) {
        for place in places {
            let series = self.places.entry(*place).or_default();
            series.time += waited;
            if hides {
                series.hidden.add(self.snapshots, waited);
            }
        }
        if hides {
            self.hidden.add(self.snapshots, waited);
        }
    }

    /// Adds waiting time without a stack; `unseen` is the total so far that was not attributed to
    /// any snapshot.
    fn add_unknown(&mut self, unknown: f64, unseen: f64) {
        self.unseen = unseen;
        if unknown > 0.0 {
            self.saw(&[Place::Partial, Place::Headless], unknown, false);
        }
    }

    /// To be called before the snapshot for a report is added. `unlooked` is the time since the
    /// last snapshot if there is none, in nanoseconds.
    pub(super) fn begin_report(&mut self, unlooked: f64) {
        self.until_report.clear();
        self.unlooked = unlooked;
    }

    /// Adds what is known of the time until a report.
    fn add_for_report(&mut self, snapshot: &Snapshot, stacks: &[(Wait, Functions)]) {
        let Self { until_report, threads, .. } = self;
        let mut add = |places: &[Place], least: f64, time: f64, most: f64| {
            add(until_report, places, UntilReport { least, time, most });
        };
        for (thread, waited) in &snapshot.same {
            if let Some(seen) = threads.get(thread) {
                add(&seen.places, *waited, *waited, *waited);
            }
        }
        for (wait, functions) in stacks {
            let places = places(functions);
            let Own { least, most } = wait.own.unwrap_or(Own { least: wait.waited, most: wait.waited });
            let time = f64::midpoint(least, most);
            if wait.hides {
                // It is part of what was not seen.
                add(&places, 0.0, time, 0.0);
                continue;
            }
            let before = threads.get(&wait.spot.thread).map_or(&places, |seen| &seen.places);
            let (both, now): (Vec<_>, Vec<_>) =
                places.iter().partition(|place| before.binary_search(place).is_ok());
            let only_before = before.iter().filter(|place| places.binary_search(place).is_err());
            add(&both, least, time, most);
            add(&now, 0.0, time, most);
            add(&only_before.copied().collect::<Vec<_>>(), 0.0, 0.0, most);
        }
        self.unseen = snapshot.unseen + snapshot.unknown;
    }

    /// The waiting time that was not attributed to any snapshot, in nanoseconds.
    pub(super) fn unseen(&self) -> f64 {
        self.unseen + self.unlooked
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
        let of_threads = self.threads.values().map(|seen| {
            let of_first = seen.first.as_ref().map_or(0, |first| first.places.capacity());
            (seen.places.capacity() + of_first) * size_of::<Place>()
        });
        self.places.capacity() * size_of::<(Place, Series)>()
            + self.threads.capacity() * size_of::<(u32, Seen)>()
            + of_threads.sum::<usize>()
            + self.spots.capacity() * size_of::<(Spot, AtSpot)>()
            + self.spots.values().map(AtSpot::memory).sum::<usize>()
            + self.of_moved.capacity() * size_of::<(Place, OfMoved)>()
            + self.until_report.capacity() * size_of::<(Place, UntilReport)>()
    }

    fn series(&self, place: Place) -> Series {
        self.places.get(&place).copied().unwrap_or_default()
    }

    fn of_moved(&self, place: Place) -> OfMoved {
        self.of_moved.get(&place).copied().unwrap_or_default()
    }

    fn until_report(&self, place: Place) -> UntilReport {
        self.until_report.get(&place).copied().unwrap_or_default()
    }

    /// The longest possible time of a place whose stacks are not known, in nanoseconds.
    fn most(&self, place: Place) -> f64 {
        self.series(place).time + self.of_moved(place).most + self.until_report(place).most
    }

    /// The waiting time of a place, to which `unknown` nanoseconds may belong as well.
    fn estimate(&self, place: Place, unknown: f64) -> Estimate {
        let (series, moved, until) = (self.series(place), self.of_moved(place), self.until_report(place));
        let (low, high) = self.limits(series);
        // More may have been charged than is possible.
        let time = series.time.clamp(low, high.max(low));
        let high = high + moved.most + self.moved_unknown + until.most + unknown.max(0.0);
        Estimate::within(time + moved.time + until.time, (low + until.least).max(0.0), high)
    }

    fn limits(&self, mut series: Series) -> (f64, f64) {
        series.changes.settle();
        series.ends.settle();
        let (changes, all) = (series.changes.half(), series.changes.plus(series.ends).half());
        let mut low = series.time - all.min(changes + series.below);
        let mut high = series.time + all.min(changes + series.above);
        let Hidden { time, snapshots, .. } = series.hidden;
        if snapshots == 0 {
            high += self.most_missed(series.tails);
        } else if snapshots < FEW_SEEN {
            let (least, most) = limits(snapshots as f64, self.snapshots as f64);
            let [least, most] = [least, most].map(|number| series.hidden.of_one() * number);
            // Of all threads, unless there are some that were not seen.
            let all = if self.seen_once.snapshots == 0 { self.hidden.time } else { f64::INFINITY };
            let most = most.min(all);
            low = low.min(series.time - time + least);
            high = high.max(series.time - time + most);
        }
        (low, high)
    }

    /// The time for which threads may have waited in a function without being seen there, in
    /// nanoseconds. The hidden time `known` is not part of that.
    fn most_missed(&self, known: f64) -> f64 {
        let all = (self.hidden.time - known).max(0.0);
        let of_unseen_threads = most_for(0.0) * self.seen_once.of_one();
        (most_for(0.0) * self.hidden.of_one()).min(all) + of_unseen_threads
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

    fn wait(thread: u32, waited: f64) -> Wait {
        Wait { spot: Spot { thread, ip: 0, sp: 0 }, waited, hides: false, own: None }
    }

    fn in_function(function: u32) -> Functions {
        Functions { chain: vec![Some(function)], ..Functions::default() }
    }

    /// The time of a function without an error.
    #[track_caller]
    fn assert_is(estimate: Estimate, time: f64) {
        assert_eq!(estimate, Estimate::exact(time));
    }

    #[test]
    fn a_thread_that_waits_all_the_time_is_known_exactly() {
        let mut waits = Waits::default();
        for number in 0..100 {
            waits.begin();
            match number {
                0 => waits.waits(&wait(7, 10.0), &in_function(1)),
                _ => waits.still_waits(7, 10.0),
            }
        }
        waits.add_unknown(0.0, 5.0);
        assert_is(waits.of(1), 1000.0);
        assert_eq!((waits.of_own(1).value, waits.of_arc((None, 1)).value), (1000.0, 1000.0));
        assert_eq!(waits.unseen(), 5.0);
        assert_eq!(waits.arcs().collect::<Vec<_>>(), [(None, 1)]);
        assert_is(waits.of(2), 0.0);
    }

    /// Ten threads may have waited elsewhere between two snapshots, or have ended.
    #[test]
    fn hidden_time_may_belong_to_any_function() {
        let hidden = |snapshots: u64| {
            let mut waits = Waits::default();
            for number in 0..100 {
                waits.begin();
                let hides = number < snapshots;
                (0..10).for_each(|thread| {
                    waits.waits(&Wait { hides, ..wait(thread, 10.0) }, &in_function(1));
                });
            }
            waits
        };
        let most = |waits: &Waits, function| waits.of(function).high.expect("there is an upper limit");
        assert_eq!(most(&hidden(1), 2), 100.0, "not more than all hidden time");
        let often = most(&hidden(50), 2);
        assert!((300.0..500.0).contains(&often), "{often}: a few snapshots may have missed it");
        assert_eq!(hidden(50).of(1).low, 10_000.0, "it was seen often enough");
        let few = hidden(2).of(1);
        assert!(few.low < 9900.0, "{few:?}: two snapshots say little");
        assert_eq!(few.high, Some(10_000.0), "not more than all hidden time");
        let mut ended = hidden(0);
        (0..10).for_each(|thread| ended.ended(&Ended { thread, since: 7.0 }));
        assert_eq!((most(&ended, 2), most(&ended, 1)), (70.0, 10_070.0));
        ended.ended(&Ended { thread: 10, since: 3.0 });
        assert_eq!(most(&ended, 2), 73.0, "it was awake whenever it was looked at");
    }

    /// Threads that begin and end together.
    #[test]
    fn the_begin_and_the_end_of_threads_are_not_certain() {
        let run = |looks: u64| {
            let mut waits = Waits::default();
            for look in 0..looks {
                waits.begin();
                for thread in 0..10 {
                    let own = Own { least: 3.0, most: 4.0 };
                    match look {
                        0 => waits.waits(&Wait { own: Some(own), ..wait(thread, 10.0) }, &in_function(1)),
                        _ => waits.still_waits(thread, 10.0),
                    }
                }
            }
            (0..10).for_each(|thread| waits.ended(&Ended { thread, since: 5.0 }));
            waits
        };
        let long = run(30).of(1);
        // They have waited for 3 to 4 before the first look, and for up to 5 after the last one.
        assert_eq!(long, Estimate::within(2990.0, 2930.0, 2990.0));
        let waits = run(1);
        let (once, other) = (waits.of(1), waits.of(2));
        assert!(once.low == 0.0 && once.high > Some(300.0), "{once:?}: others were not seen at all");
        assert!(other.high > Some(300.0), "{other:?}: nor in this function");
    }

    /// A thread that was watched late may have waited anywhere before.
    #[test]
    fn the_hidden_life_of_a_thread_before_its_first_look_is_uncertain() {
        let mut waits = Waits::default();
        for _ in 0..30 {
            waits.begin();
        }
        let own = Some(Own { least: 500.0, most: 510.0 });
        waits.waits(&Wait { own, hides: true, ..wait(0, 10.0) }, &in_function(1));
        waits.end_report();
        let (one, other) = (waits.of(1), waits.of(2));
        assert!(one.low < 10.0 && one.high >= Some(510.0), "{one:?}");
        assert!(other.low == 0.0 && other.high >= Some(510.0), "{other:?}");
    }

    /// Two threads have always waited in function 1: since they were created, one of them before
    /// the first snapshot. The third has come from there to function 2 at an unknown time.
    #[test]
    fn a_report_charges_the_time_until_it_is_written() {
        let mut waits = Waits::default();
        for _ in 0..30 {
            waits.begin();
            (0..3).for_each(|thread| waits.waits(&wait(thread, 10.0), &in_function(1)));
        }
        waits.begin();
        let own = Some(Own { least: 4.0, most: 6.0 });
        waits.waits(&Wait { own, ..wait(3, 10.0) }, &in_function(1));
        waits.end_report();
        let before = [1, 2, 3].map(|function| waits.of(function));
        assert_eq!(before[0], Estimate::within(905.0, 904.0, 906.0), "without the time before its life");
        let same = [0, 3].map(|thread| (thread, 8.0)).to_vec();
        let snapshot = Snapshot { same, unseen: 3.0, unknown: 2.0, ..Snapshot::default() };
        let hidden = Wait { hides: true, ..wait(1, 3.0) };
        let created = Wait { own: Some(Own { least: 1.0, most: 3.0 }), ..wait(4, 0.0) };
        let stacks = [(wait(2, 7.0), in_function(2)), (hidden, in_function(2)), (created, in_function(3))];
        waits.begin_report(0.0);
        // That of an earlier report comes late.
        waits.add(&snapshot, &stacks);
        waits.add(&snapshot, &stacks);
        waits.end_report();
        // 310, less 5 that the last thread did not exist; the third one's 7 are there or here.
        assert_eq!(waits.of(1), Estimate::within(921.0, 920.0, 929.0));
        assert_eq!(waits.of(2), Estimate::within(10.0, 0.0, 10.0));
        assert_eq!(waits.of(3), Estimate::within(2.0, 1.0, 3.0));
        assert_eq!(waits.unseen(), 5.0, "the hidden time is part of that");
        waits.begin_report(1e3);
        waits.end_report();
        assert_eq!(waits.unseen(), 1005.0, "the companion gave no answer");
        assert_eq!([1, 2, 3].map(|function| waits.of(function)), before, "the program goes on");
        waits.add(&snapshot, &stacks);
        let same = vec![(0, 9.0)];
        waits.add(&Snapshot { span: Some(9.0), same, ..Snapshot::default() }, &[]);
        waits.end_report();
        let later = Estimate::within(914.0, 913.0, 915.0);
        assert_eq!(waits.of(1), later, "a snapshot that came late is part of the next one");
    }

    #[test]
    fn stacks_that_are_not_known_may_be_of_any_function() {
        let mut waits = Waits::default();
        for _ in 0..100 {
            waits.begin();
            waits.waits(&wait(7, 10.0), &in_function(1));
            waits.add_unknown(20.0, 0.0);
        }
        assert!(waits.of(1).high.unwrap() >= 3000.0 && waits.of(2).high.unwrap() >= 2000.0);
        assert!(waits.of_own(1).high.unwrap() >= 3000.0, "also in the innermost one");
        let mut waits = Waits::default();
        for _ in 0..100 {
            waits.begin();
            waits.waits(&wait(7, 10.0), &Functions { is_partial: true, ..in_function(1) });
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
                // What a thread has done since it was last seen.
                let done = |waiter: Waiter, since: f64, until: f64| {
                    let steps = (0..).map(move |step| since + 0.05 * f64::from(step));
                    steps.take_while(move |time| *time < until).map(waiter)
                };
                let waited_by = |waiter: Waiter, since: f64, until: f64| {
                    0.05 * done(waiter, since, until).filter(Option::is_some).count() as f64
                };
                loop {
                    at += random.random_range(2.5..7.5_f64);
                    if at >= 1000.0 {
                        break;
                    }
                    waits.begin();
                    for (thread, waiter) in waiters.iter().enumerate() {
                        let is_looked_at = random.random_bool(share);
                        let Some(function) = waiter(at).filter(|_| is_looked_at) else { continue };
                        let since = std::mem::replace(&mut seen[thread], at);
                        let mut done: Vec<_> = done(*waiter, since, at).collect();
                        done.dedup();
                        let wait = wait(thread as u32, waited_by(*waiter, since, at));
                        match done.len() {
                            1 if since > 0.0 => waits.still_waits(thread as u32, wait.waited),
                            // Where it was at first is known, unless that was nowhere.
                            turns => waits.waits(&Wait { hides: turns > 2, ..wait }, &in_function(function)),
                        }
                    }
                    if short_lived(at).is_some() {
                        // A new thread each time.
                        let thread = 100 + (at / 7.0) as u32;
                        let own = Some(Own { least: at % 7.0, most: at % 7.0 });
                        waits.waits(&Wait { own, ..wait(thread, at - last) }, &in_function(7));
                        waits.ended(&Ended { thread, since: 0.0 });
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
                    let mut wait = Wait { hides: true, ..wait(7, at - last) };
                    wait.spot.sp = if is_same_spot { 0 } else { function.into() };
                    waits.begin();
                    if rest > short / 10.0 {
                        waits.waits(&wait, &in_function(function));
                    } else {
                        waits.moves(&wait);
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
