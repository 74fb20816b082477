//! The work of the service thread: begins and ends the observations of every function, as
//! [`crate::observe::policy`] decides.
//!
//! Functions that are on need no attention: a thread that uses up an allowance puts its function on
//! a list and wakes the service thread. Each of the others has one event due: its window opens, or
//! its stratum is over. A tick handles what is due, and determines the time of the next tick; thus
//! the service thread sleeps as long as nothing is sampled.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use fastinst::{ProbeFn, ProbeId};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use wordpatch::tsc;

use crate::estimate::callers::FunctionAt;
use crate::estimate::strata::{Strata, Systematic};
use crate::observe::busiest::Queued;
use crate::observe::counting::Count;
use crate::observe::function::{Exceeded, FUNCTIONS, Function, PATIENT, REFILL, Window, take_exhausted};
use crate::observe::governor::{self, Demand};
use crate::observe::measured::{CountedStratum, Measured, ON, Observed, Selection, Stage, Unobserved};
use crate::observe::opening::{Due, Opening};
use crate::observe::own_time::OwnPart;
use crate::observe::policy::{CAP, Next, Open, Pace, Planned};
use crate::observe::probe_type::ProbeType;
use crate::observe::reclaiming::Reclaiming;
use crate::observe::{counting, fire, own_time, rare_calls, thread};
use crate::options::Counts;

/// Delay, in nanoseconds of own time, from the service thread's start of a window to its opening:
/// random, so that it does not coincide with the first call after the start.
const DELAY: Range<f64> = 500.0..2_500.0;

/// The same for a program that waits: perhaps for another process or thread whose processor the
/// service thread has at the moment. With a server and its client on two idle processors, windows
/// that opened within microseconds found a fifth of the calls too few.
const DELAY_IF_IT_WAITS: Range<f64> = 100_000.0..400_000.0;

/// Relative error of the cost of probes. It may be smaller than measured, because the processor
/// overlaps a part of it with other instructions; and larger, because the part that probes do not
/// see, from the call to the first reading of the clock and back from the second one, was measured
/// in a loop, with all code in the first caches.
pub(crate) const OVERHEAD_ERROR: Systematic = Systematic { below: 0.3, above: 1.0 };

/// Maximum error of the cost of a pair of probes, relative to that in a loop. What the first probes
/// of a window take longer, because their code is not in the caches or the thread has been
/// preempted, is mostly between their readings of the clock, and therefore known.
const COLD_ERROR: f64 = 2.0;

/// Minimum cost of a pair of probes, in ticks.
const MIN_OVERHEAD: u64 = 100;

/// Maximum number of ticks between two updates of the functions' importance.
const WEIGH_EVERY: u32 = 8;

/// It is updated as well when there are more new functions than the sampled ones divided by this:
/// an update looks at all of them, and in a program that begins, there are new ones in each tick.
const WEIGH_ALL: usize = 8;

/// Range of a function's importance; the mean is 1.
const IMPORTANCE: RangeInclusive<f64> = 0.03..=20.0;

/// See [`of_probes`].
const PROBES_OF_WINDOW: f64 = 10.0;

/// Minimum time of a call in ticks, even if it is below the resolution.
const MIN_CALL: f64 = 10.0;

/// The exponent of the time of a function's calls in its importance.
const VALUE_OF_TIME: f64 = 0.7;

/// Nanoseconds after which a function is tried again if a thread was toggling its probes
/// ([`crate::observe::switching`]).
const BUSY: f64 = 1e5;

/// Nanoseconds after which a window is looked at again if the program had no processor for it: a
/// part of a scheduler's time slice.
const NOT_RUN: f64 = 1e6;

/// The time between ticks while nothing is due. Samples of functions that are on are drained this
/// often.
const IDLE: Duration = Duration::from_millis(50);

/// Maximum number of samples that are kept for percentiles: of all functions with more than the
/// minimum number, and of one function.
const KEPT: usize = 500_000;
const KEPT_OF_ONE: RangeInclusive<usize> = 128..=2048;

/// All functions, and the events that are due.
pub(crate) struct Schedule {
    /// Indexed by function; the first one stands for the calibration, which is not reported.
    pub(crate) functions: Vec<Measured>,
    /// Nanoseconds since the start, and index of the function.
    due: BinaryHeap<Reverse<(u64, u32)>>,
    /// The number of calls before functions had probes, of which any may belong to any function.
    pub(crate) unassigned_calls: u64,
    /// The number of functions with more samples than the minimum that is always kept.
    often_timed: usize,
    random: SmallRng,
    start: u64,
    /// Whether the program's end was seen: there are no more observations.
    is_over: bool,
    ticks: u32,
    own: OwnPart,
    demand: Demand,
    /// The number of functions that begin to be sampled in the rest of this tick.
    beginning: f64,
    /// The number of functions that have begun to be sampled since their importance was updated.
    unweighed: usize,
    /// The mean [`Observed::value`] of the sampled functions.
    mean_value: f64,
    /// Windows that open at the end of this tick, or later.
    opening: Opening,
    reclaiming: Reclaiming,
    /// Functions that are turned on as soon as no thread is deactivating their probes.
    waiting: Vec<u32>,
    /// The functions that are observed in windows, and some that were: only a few of a large
    /// program's.
    sampled: Vec<u32>,
    /// See [`Schedule::queued`]; with the tick in which it was read.
    queued: Option<Queued>,
    queued_in: u32,
}

impl Schedule {
    pub(crate) fn new() -> Self {
        let start = tsc::now();
        Self {
            functions: vec![Measured::new(c"", c"", 0)],
            due: BinaryHeap::new(),
            unassigned_calls: 0,
            often_timed: 0,
            random: SmallRng::seed_from_u64(start),
            start,
            is_over: false,
            ticks: 0,
            own: OwnPart::new(),
            demand: Demand::default(),
            beginning: 0.0,
            unweighed: 0,
            mean_value: 0.0,
            opening: Opening::default(),
            reclaiming: Reclaiming::new(),
            waiting: Vec::new(),
            sampled: Vec::new(),
            queued: None,
            queued_in: 0,
        }
    }

    /// A schedule for `count` functions, off, in a process that has been profiled before.
    pub(crate) fn of_engine(count: usize) -> Self {
        let mut schedule = Self::new();
        schedule.own.begin(thread::seen());
        let functions = (1..=count).map(|address| Measured::new(c"", c"", address));
        schedule.functions.extend(functions);
        schedule
    }

    /// Nanoseconds since the start.
    fn now(&self) -> f64 {
        self.at(tsc::now())
    }

    fn at(&self, ticks: u64) -> f64 {
        governor::nanoseconds(ticks.saturating_sub(self.start))
    }

    /// Takes the samples that the threads have made.
    pub(crate) fn drain(&mut self) {
        thread::find_a_stack();
        let (functions, timed) = (&mut self.functions, &mut self.demand.timed);
        let empty = fire::empty();
        let often_timed = &mut self.often_timed;
        let (least, most) = KEPT_OF_ONE.into_inner();
        thread::drain(|sample| {
            *timed += 1;
            if let Some(measured) = functions.get_mut(sample.function as usize) {
                let is_often_timed = |measured: &Measured| measured.samples() >= least as u64;
                let before = is_often_timed(measured);
                measured.sample(&sample, empty, (KEPT / (*often_timed).max(1)).clamp(least, most));
                *often_timed += usize::from(is_often_timed(measured) && !before);
            }
        });
    }

    /// Begins to observe a function by switching it on.
    pub(crate) fn begin(&mut self, index: u32) {
        if !self.is_over {
            self.turn_on(index, None);
        }
    }

    /// Switches on a function that has been unobserved since the given time, before which it was
    /// called at the given rate, if it was observed at all.
    fn turn_on(&mut self, index: u32, unobserved: Option<Unobserved>) {
        let Some(function) = FUNCTIONS.get(index as usize) else { return };
        let allowance = governor::intensity().allowance as u64;
        let is_on = function.turn_on(tsc::now(), allowance, ON, switch_on);
        let now = self.now();
        let measured = &mut self.functions[index as usize];
        if !is_on {
            measured.set_stage(Stage::Waiting(unobserved.unwrap_or(Unobserved { since: now, rate: 0.0 })));
            self.waiting.push(index);
            return;
        }
        measured.set_stage(Stage::On { since: now });
        if let Some(unobserved) = unobserved {
            measured.observed_mut().strata.gap(now - unobserved.since, unobserved.rate);
        }
    }

    /// Switches on the functions with which a thread was busy.
    fn turn_waiting_on(&mut self) {
        for index in std::mem::take(&mut self.waiting) {
            if let Stage::Waiting(unobserved) = self.functions[index as usize].stage() {
                self.turn_on(index, Some(unobserved));
            }
        }
    }

    /// Handles all events that are due. Returns whether functions have used up their allowances.
    pub(crate) fn tick(&mut self) -> bool {
        self.drain();
        if self.reclaiming.is_due() {
            thread::reclaim();
            // Calls in which threads have ended are samples, too.
            self.drain();
        }
        if self.is_over {
            return false;
        }
        self.own.look(self.now(), thread::seen());
        self.ticks = self.ticks.wrapping_add(1).max(1);
        self.turn_waiting_on();
        let exhausted = take_exhausted();
        self.beginning = exhausted.len() as f64;
        for index in &exhausted {
            self.exhausted(*index);
            self.beginning -= 1.0;
        }
        self.unweighed += exhausted.len();
        if self.ticks.is_multiple_of(WEIGH_EVERY) || self.unweighed > self.sampled.len() / WEIGH_ALL {
            self.weigh();
        }
        while let Some(Reverse((time, index))) = self.due.peek().copied()
            && time as f64 <= self.now()
        {
            self.due.pop();
            self.is_due(index);
        }
        !exhausted.is_empty()
    }

    /// The random time to the next tick, if ticks are this number of nanoseconds apart on average.
    pub(crate) fn pause(&mut self, mean: f64) -> Duration {
        // A window that is about to open is due when its stratum is over, not before the usual
        // time.
        let is_waiting = !self.opening.is_empty() || !self.waiting.is_empty();
        let Some(Reverse((next, _))) = self.due.peek().filter(|_| !is_waiting) else {
            return if is_waiting { self.jittered(mean) } else { IDLE };
        };
        let next = *next as f64 - self.now();
        self.jittered(mean).max(Duration::from_nanos(next.max(0.0) as u64))
    }

    fn jittered(&mut self, mean: f64) -> Duration {
        Duration::from_nanos((mean * self.random.random_range(0.5..1.5)) as u64)
    }

    /// The time for which the busiest thread has waited for a processor, as of this tick.
    fn queued(&mut self) -> Option<Queued> {
        if self.queued_in != self.ticks {
            let busiest = self.own.busiest().thread();
            let queued = busiest.and_then(|thread| Queued::read(thread, self.now()));
            (self.queued_in, self.queued) = (self.ticks, queued);
        }
        self.queued
    }

    /// Observes functions more closely that take more of the program's time, as measured so far.
    fn weigh(&mut self) {
        let functions = &mut self.functions;
        self.sampled.sort_unstable();
        self.sampled.dedup();
        self.sampled.retain(|index| functions[*index as usize].stage().is_sampled());
        let (mut sum, mut count) = (0.0, 0.0);
        for index in &self.sampled {
            if let Some(value) = functions[*index as usize].observed().value {
                sum += value;
                count += 1.0;
            }
        }
        self.unweighed = 0;
        self.mean_value = sum / f64::max(count, 1.0);
        self.demand.importance = 0.0;
        for index in &self.sampled {
            let observed = functions[*index as usize].observed_mut();
            if observed.value.is_some() {
                let importance = importance(observed.value, self.mean_value);
                observed.pace.matters(importance);
                self.demand.importance += importance;
            }
        }
    }

    /// The amount of work for observation, for the governor.
    pub(crate) fn demand(&self) -> Demand {
        self.demand
    }

    fn exhausted(&mut self, index: u32) {
        let Some(function) = FUNCTIONS.get(index as usize) else { return };
        let counted = function.counted();
        // A window that was cut short is examined when its stratum is over.
        if let (Stage::On { since }, Some(exceeded)) =
            (self.functions[index as usize].stage(), counted.exceeded)
        {
            let now = self.now();
            let (gap, rate) = self.gap(&exceeded, now);
            let observed = self.functions[index as usize].observed_mut();
            observed.strata.counted(counted.entries, now - gap - since);
            observed.strata.gap(gap, rate);
            observed.pace = Pace::new(rate, share(observed, rate));
            self.demand.importance += 1.0;
            // Its long calls have not earned enough, however long they are: it is observed in
            // windows first.
            self.plan(index, now, 0.0, None);
        }
    }

    /// The time for which a function that has used up its allowance is unobserved, and its rate
    /// before.
    fn gap(&self, exceeded: &Exceeded, now: f64) -> (f64, f64) {
        (now - self.at(exceeded.at), exceeded.rate * governor::ticks_per_ns() * self.own.get())
    }

    /// Plans the next step, from `start` on, for a function whose mean call takes `mean`
    /// nanoseconds. `before` is what was known when the stratum before began, if there was one.
    fn plan(&mut self, index: u32, start: f64, mean: f64, before: Option<Queued>) {
        let (now, queued) = (self.now(), Queued::next(before, self.queued()));
        let measured = &mut self.functions[index as usize];
        let observed = measured.observed_mut();
        observed.value = value(index as usize, observed, now);
        let importance = importance(observed.value, self.mean_value);
        let before = observed.pace.matters(importance);
        self.demand.importance += importance - before;
        let mut intensity = governor::intensity();
        if !observed.pace.has_windows() {
            let least = governor::stratum_for(self.demand.importance + self.beginning);
            intensity.stratum = intensity.stratum.max(least);
        }
        match observed.pace.next(start, mean, &intensity, &mut self.random) {
            Next::On => {
                rare_calls::RESERVE.take_for(observed.pace.rate(), intensity.allowance);
                let unobserved = Unobserved { since: start, rate: observed.pace.rate() };
                self.turn_on(index, Some(unobserved));
            }
            Next::Window(planned) => {
                let counted_from = Self::is_counted(observed).then(counting::own_time);
                let planned = Planned { counted_from, queued, ..planned };
                if !measured.stage().is_sampled() {
                    self.sampled.push(index);
                }
                measured.set_stage(Stage::Planned(planned));
                if planned.opens <= self.now() {
                    self.open(index, &planned);
                } else {
                    self.due.push(Reverse((planned.opens as u64, index)));
                }
            }
        }
    }

    /// Adds a window that opens at the end of the tick, or later.
    fn open(&mut self, index: u32, planned: &Planned) {
        self.opening.push(Due { index, planned: *planned });
    }

    /// Opens the windows of this tick, or as many as may be open at the same time.
    pub(crate) fn release(&mut self) {
        if !self.opening.begin() {
            return;
        }
        let mut due = self.count();
        if !self.opening.may_wait_to_count() {
            let waiting = self.opening.take().into_iter();
            due.extend(waiting.map(|due| Due { planned: due.planned.longer(), ..due }));
        }
        let functions = &self.functions;
        let part = |due: &Due| load(functions[due.index as usize].observed().pace.rate());
        let due = self.opening.step(self.now(), due, part);
        let (spent, running, own_time) = (thread::spent(), self.own.get(), processor_time());
        let limit = u64::from(CAP) * governor::intensity().calls as u64;
        if !due.is_empty() {
            thread::note_processor_times();
        }
        let delays = self.delays();
        for (due, part) in due {
            let Due { index, planned } = due;
            let Some(function) = FUNCTIONS.get(index as usize) else { continue };
            let delay = self.random.random_range(delays.clone());
            let open = planned.open(self.now() + delay, running, own_time);
            let weight = open.weight() as f32;
            let ticks = [delay, open.length].map(|ns| (ns * governor::ticks_per_ns()) as u64);
            let is_patient = self.random.random_ratio(1, PATIENT);
            let window = Window { delay: ticks[0], length: Some(ticks[1]), limit, weight, spent, is_patient };
            let Some(number) = function.open(tsc::now(), &window, switch_on) else {
                self.opening.postpone(due);
                continue;
            };
            let measured = &mut self.functions[index as usize];
            let observed = measured.observed_mut();
            self.demand.windows += 1;
            observed.strata.opened(number, open.weight(), open.end - open.start);
            measured.set_stage(Stage::Open(open));
            self.opening.opened(part, self.now() + delay + open.length / running * (1.0 + part));
            self.due.push(Reverse((open.end as u64, index)));
        }
        self.opening.end(self.now());
    }

    /// The range of the delays of windows that are begun now.
    fn delays(&self) -> Range<f64> {
        if self.own.waits() { DELAY_IF_IT_WAITS } else { DELAY }
    }

    /// The time to the next attempt to open windows; `None` if none waits.
    pub(crate) fn until_release(&self) -> Option<Duration> {
        self.opening.until_next(self.now())
    }

    /// For the functions whose windows open: counts the calls to those that are called very often,
    /// then opens windows in which calls to them are timed. Returns the other functions, including
    /// those whose calls could not be counted.
    fn count(&mut self) -> Vec<Due> {
        let (mut counted, others): (Vec<_>, Vec<_>) =
            self.opening.take().into_iter().partition(|due| due.planned.counted_from.is_some());
        let mut counts = Vec::with_capacity(counted.len());
        let is_alone = self.own.busiest().is_alone();
        while !counted.is_empty() {
            let rates = counted.iter().map(|due| self.functions[due.index as usize].observed().pace.rate());
            let group: Vec<Due> = counted.drain(..counting::room(is_alone, rates)).collect();
            let functions: Vec<&Function> =
                group.iter().filter_map(|due| FUNCTIONS.get(due.index as usize)).collect();
            match counting::window(&functions, is_alone, self.random.random_range(0.0..1.0)) {
                Some(window) => counts.extend(group.into_iter().zip(window)),
                None => group.into_iter().for_each(|due| self.opening.postpone(due)),
            }
        }
        self.demand.windows += counts.len() as u64;
        for (due, count) in counts {
            self.counted(due.index, &due.planned, count);
        }
        others
    }

    /// Adds the result of a counting window. If it contains calls, a window opens in which the next
    /// calls are timed.
    fn counted(&mut self, index: u32, planned: &Planned, count: Count) {
        let Some(function) = FUNCTIONS.get(index as usize) else { return };
        let Some(own_time) = planned.counted_from else { return };
        let length = planned.end - planned.start;
        let limit = governor::intensity().calls;
        let weight = (count.rate() * length * self.own.get() / limit).max(1.0);
        let delay = (self.random.random_range(self.delays()) * governor::ticks_per_ns()) as u64;
        let window = Window {
            delay,
            length: None,
            limit: limit as u64,
            weight: weight as f32,
            spent: thread::spent(),
            is_patient: self.random.random_ratio(1, PATIENT),
        };
        let number = (count.calls > 0).then(|| function.open(tsc::now(), &window, switch_on)).flatten();
        if number.is_some() {
            let part = load(count.rate());
            self.opening.opened(part, self.now() + limit / count.rate() * (1.0 + part));
        }
        // No call has this number.
        let number = number.unwrap_or(function.observation().wrapping_add(1 << 31));
        let measured = &mut self.functions[index as usize];
        let strata = &mut measured.observed_mut().strata;
        strata.opened_apart(number, length / count.own, length);
        strata.closed(count.calls, 0.0, count.systematic);
        measured.set_stage(Stage::Counted(CountedStratum { start: planned.start, count, own_time }));
        self.due.push(Reverse((planned.end.max(self.now()) as u64, index)));
    }

    /// Ends, at `now`, a stratum in which calls were counted.
    fn end_counted(strata: &mut Strata, counted: &CountedStratum, now: f64) {
        let own = counting::own_time() - counted.own_time;
        strata.resize_last(now - counted.start, (own / counted.count.own).max(1.0));
    }

    fn is_due(&mut self, index: u32) {
        let Some(function) = FUNCTIONS.get(index as usize) else { return };
        match self.functions[index as usize].stage() {
            Stage::Planned(planned) => self.open(index, &planned),
            Stage::Open(open) if Self::is_unfinished(function, &open.measured(self.queued())) => {
                // The calls that the program would make in the rest of the window are not known.
                let open = Open { end: self.now() + open.length.max(NOT_RUN), ..open };
                self.functions[index as usize].set_stage(Stage::Open(open));
                self.due.push(Reverse((open.end as u64, index)));
            }
            Stage::Open(_) | Stage::Counted(_) if function.is_busy() => {
                self.due.push(Reverse(((self.now() + BUSY) as u64, index)));
            }
            Stage::Open(open) => {
                let open = open.measured(self.queued());
                let (closed, now) = (self.closed(function, &open, open.length), self.now());
                let observed = self.functions[index as usize].observed_mut();
                if closed.cut_off > 0.0 {
                    observed.pace.exceeded(closed.rate);
                } else {
                    observed.pace.observed(closed.rate);
                }
                // A stratum in which calls are counted begins now, because its processor time is
                // measured; this one lasts until now.
                let end = if Self::is_counted(observed) { open.end.max(now) } else { open.end };
                let open = Open { end, ..open };
                observed.strata.resize_last(open.end - open.start, open.weight());
                closed.fill(&mut observed.strata);
                let mean = observed.strata.known_mean().unwrap_or(0.0) / governor::ticks_per_ns();
                observed.pace.took(share(observed, closed.rate));
                self.plan(index, open.end, mean, open.queued);
            }
            Stage::Counted(counted) => {
                let (now, running) = (self.now(), self.own.get());
                let observed = self.functions[index as usize].observed_mut();
                Self::end_counted(&mut observed.strata, &counted, now);
                observed.pace.observed(counted.count.rate() * running);
                let mean = observed.strata.known_mean().unwrap_or(0.0) / governor::ticks_per_ns();
                observed.pace.took(share(observed, counted.count.rate() * running));
                self.plan(index, now, mean, None);
            }
            Stage::Off | Stage::On { .. } | Stage::Waiting(_) => {}
        }
    }

    /// Whether calls are counted and timed in separate windows.
    fn is_counted(observed: &Observed) -> bool {
        observed.pace.is_frequent() && counting::is_possible()
    }

    /// Whether no call was seen since the window began, and the program could not have made any in
    /// it.
    fn has_not_run(function: &Function, open: &Open) -> bool {
        function.is_pending() && ran(open) < open.length
    }

    /// Whether the program has not had a processor for as long as the window takes, so that the
    /// window is not over.
    fn is_unfinished(function: &Function, open: &Open) -> bool {
        function.is_unfinished(has_run_alone(open))
            && ran(open) < DELAY_IF_IT_WAITS.end + governor::nanoseconds(REFILL) + open.length
    }

    /// The result of the function's window, of which `length` nanoseconds have passed.
    fn closed(&self, function: &Function, open: &Open, length: f64) -> Closed {
        let counted = function.counted();
        let overhead = governor::nanoseconds(counted.overhead.max(counted.entries * MIN_OVERHEAD));
        // What other threads have spent in the window before their first entries is not known, nor
        // what the threads have waited for each other's cache lines. And threads that wait for a
        // processor may wait for each other: then the program had one in all of the time.
        let (error, of_part) = match open.others {
            _ if has_run_alone(open) => (overhead_error(overhead, counted.entries), Systematic::NONE),
            // While others ran, the program had a processor, even if the busiest thread had none.
            Some(others) => {
                (Systematic::of_both(1.0), Systematic { below: 0.0, above: others / open.running })
            }
            None => (Systematic::of_both(1.0), self.own.error()),
        };
        let of_probes = error_of_probes(overhead, open.length, error);
        let systematic =
            Systematic { below: of_probes.below + of_part.below, above: of_probes.above + of_part.above };
        // Relative to elapsed time, not to the program's own time.
        let rate = |calls_per_ns: f64| calls_per_ns * open.running;
        match counted.exceeded {
            Some(exceeded) => {
                let calls_per_ns = exceeded.rate * governor::ticks_per_ns();
                let seen = counted.entries as f64 / calls_per_ns;
                let cut_off = (calls_per_ns * (length - seen)).max(0.0);
                Closed { entries: counted.entries, rate: rate(calls_per_ns), cut_off, systematic }
            }
            None => Closed {
                entries: counted.entries,
                rate: rate(counted.entries as f64 / length),
                cut_off: 0.0,
                systematic,
            },
        }
    }

    /// What is known now of a function's calls, as if the program ended here. `observed` are its
    /// observations.
    pub(crate) fn strata_now(&self, index: u32, observed: &Observed) -> Strata {
        let mut strata = self.strata_until_now(index, observed).finished();
        strata.missed(self.unassigned_calls);
        FUNCTIONS.get(index as usize).into_iter().for_each(|function| strata.missed(function.lost_entries()));
        strata
    }

    /// As [`Schedule::strata_now`], but calls that have not returned can still be added, and
    /// without calls that were missed.
    fn strata_until_now(&self, index: u32, observed: &Observed) -> Strata {
        let measured = &self.functions[index as usize];
        let mut strata = observed.strata.clone();
        let Some(function) = FUNCTIONS.get(index as usize) else { return strata };
        let now = self.now();
        match measured.stage() {
            Stage::Off => {}
            Stage::Waiting(Unobserved { since, rate }) => strata.gap(now - since, rate),
            Stage::On { since } => {
                let counted = function.counted();
                let (gap, rate) = counted.exceeded.map_or((0.0, 0.0), |exceeded| self.gap(&exceeded, now));
                strata.counted(counted.entries, now - gap - since);
                if gap > 0.0 {
                    strata.gap(gap, rate);
                }
            }
            Stage::Counted(counted) => Self::end_counted(&mut strata, &counted, now),
            Stage::Planned(planned) => strata.unobserved(now - planned.start, observed.pace.rate()),
            Stage::Open(open) => {
                let passed = function.passed(tsc::now());
                if Self::has_not_run(function, &open) || passed == 0.0 {
                    strata.forget_last();
                    strata.unobserved(now - open.start, observed.pace.rate());
                    return strata;
                }
                let then = open.queued.and_then(|queued| Queued::read(queued.thread(), now));
                let open = open.measured(then);
                let part = Open { length: passed * open.length, end: now.min(open.end), ..open };
                let closed = self.closed(function, &part, part.length);
                strata.resize_last(part.end - part.start, part.weight());
                closed.fill(&mut strata);
                if now > open.end {
                    strata.unobserved(now - open.end, closed.rate);
                }
            }
        }
        strata
    }

    /// Replaces callers in an unloaded library by its functions.
    pub(crate) fn settle(&mut self, function_at: &FunctionAt<'_>) {
        self.functions.iter_mut().for_each(|measured| measured.settle(function_at));
    }

    /// Takes everything that threads have reported, before observations are changed.
    pub(crate) fn take_all(&mut self) {
        self.drain();
        take_exhausted().into_iter().for_each(|index| self.exhausted(index));
    }

    /// Ends a function's observation: its probes are off, and the measurements are in its strata.
    /// Returns the last known rate of its calls, per nanosecond.
    fn suspend(&mut self, index: u32) -> f64 {
        let Some(function) = FUNCTIONS.get(index as usize) else { return 0.0 };
        let stage = self.functions[index as usize].stage();
        // Entries while a function is on are counted to the last. In a window, only the part that
        // has passed counts, which would be all of it once the observation has ended.
        if let Stage::On { .. } = stage {
            function.stop();
        }
        let strata = self.strata_until_now(index, &self.functions[index as usize].observed());
        function.stop();
        let rate = match stage {
            Stage::On { since } => function.counted().entries as f64 / (self.now() - since).max(1.0),
            Stage::Waiting(unobserved) => unobserved.rate,
            _ => self.functions[index as usize].observed().pace.rate(),
        };
        let measured = &mut self.functions[index as usize];
        // Nothing needs to be kept of a function that was not called.
        if strata.calls().value > 0.0 || measured.is_observed() {
            measured.observed_mut().strata = strata;
        }
        measured.set_stage(Stage::Off);
        rate
    }

    /// Removes the events of observations that were suspended.
    pub(crate) fn forget_what_is_not_due(&mut self) {
        let functions = &self.functions;
        let is_sampled = |index: u32| functions[index as usize].stage().is_sampled();
        self.due.retain(|Reverse((_, index))| is_sampled(*index));
        self.opening.retain(is_sampled);
    }

    /// Stops measuring a function, and keeps its measurements. The caller calls
    /// [`Schedule::forget_what_is_not_due`] after the last one.
    pub(crate) fn exclude(&mut self, index: u32) {
        self.suspend(index);
        FUNCTIONS.get(index as usize).into_iter().for_each(Function::suspend);
        self.functions[index as usize].selection = Selection::Excluded;
    }

    /// Ends all observations, and deactivates all probes. The measurements are kept.
    pub(crate) fn suspend_all(&mut self) {
        self.take_all();
        for index in 1..self.functions.len() as u32 {
            self.suspend(index);
            FUNCTIONS.get(index as usize).into_iter().for_each(Function::end);
        }
        self.due.clear();
        self.often_timed = 0;
        self.opening.clear();
        self.waiting.clear();
        take_exhausted();
    }

    /// Measures a function again.
    pub(crate) fn include(&mut self, index: u32) {
        self.functions[index as usize].selection = Selection::Partly;
        self.begin(index);
    }

    /// Begins new observations of all functions whose way of counting has changed: of those that
    /// were sampled if every call is counted, of the others if not.
    pub(crate) fn begin_again(&mut self, counts: Counts) {
        for index in 1..self.functions.len() as u32 {
            let stage = self.functions[index as usize].stage();
            let is_counted_otherwise = match counts {
                Counts::Exact => stage.is_sampled(),
                Counts::Sampled => matches!(stage, Stage::On { .. }),
            };
            if is_counted_otherwise {
                let rate = self.suspend(index);
                let since = self.now();
                self.turn_on(index, Some(Unobserved { since, rate }));
            }
        }
        self.forget_what_is_not_due();
    }

    /// Ends every observation: the program is at its end, and later calls are not measured.
    pub(crate) fn end(&mut self) {
        self.is_over = true;
    }

    /// Starts again in a forked child, whose code is in whatever state the parent left: nothing was
    /// measured, and every function is on.
    pub(crate) fn restart(&mut self) {
        self.due.clear();
        self.often_timed = 0;
        self.opening.clear();
        self.waiting.clear();
        self.is_over = false;
        self.unassigned_calls = 0;
        self.start = tsc::now();
        self.own = OwnPart::new();
        // The parent's time does not count.
        self.own.begin(thread::seen());
        self.demand = Demand::default();
        for measured in &mut self.functions {
            measured.forget();
        }
        FUNCTIONS.iter().for_each(Function::reset);
        take_exhausted();
    }

    /// Switches on every selected function; in a forked child, only once it has its own text.
    pub(crate) fn begin_all(&mut self) {
        for index in 1..self.functions.len() as u32 {
            if self.functions[index as usize].selection != Selection::Excluded {
                self.begin(index);
            }
        }
    }

    /// The memory of functions, samples and callers, in bytes.
    pub(crate) fn memory(&self) -> usize {
        let own = size_of::<Measured>() + size_of::<Function>();
        self.functions.iter().map(|measured| measured.memory() + own).sum::<usize>() + thread::memory()
    }
}

/// The factor that reduces a function's sampling rate for the number of its executed probes, which
/// each window switches: with different costs, the total variance is least if observations are in
/// inverse proportion to the square root of their cost (Neyman allocation, 1934). The rest of a
/// window costs about as much as [`PROBES_OF_WINDOW`].
fn of_probes(function: &Function) -> f64 {
    ((2.0 + PROBES_OF_WINDOW) / (f64::from(function.executed_probes()) + PROBES_OF_WINDOW)).sqrt()
}

/// The part of the program's time that the calls of a function take at this rate; `None` if none
/// was timed.
fn share(observed: &Observed, rate: f64) -> Option<f64> {
    let mean = observed.strata.known_mean()?.max(MIN_CALL) / governor::ticks_per_ns();
    Some(rate * mean)
}

/// The value of observing a function: for the part of the program's time that its calls take,
/// lately or in all the time up to `now`, and for its cost. `None` if no call was timed.
fn value(index: usize, observed: &Observed, now: f64) -> Option<f64> {
    let of_all = observed.strata.known_ticks() / governor::ticks_per_ns() / now.max(1.0);
    let share = observed.pace.share()?.max(of_all).min(1.0);
    Some(share.powf(VALUE_OF_TIME) * FUNCTIONS.get(index).map_or(1.0, of_probes))
}

/// The factor by which a function of this value is observed more than the average.
fn importance(value: Option<f64>, mean: f64) -> f64 {
    match value {
        Some(value) if mean > 0.0 => (value / mean).clamp(*IMPORTANCE.start(), *IMPORTANCE.end()),
        _ => 1.0,
    }
}

/// The time of a call's probes in a loop, in nanoseconds.
fn cost_of_call() -> f64 {
    governor::nanoseconds(1) * fire::cost_of_call()
}

/// The part of the program's time that the probes of a function take which is called at this rate.
fn load(rate: f64) -> f64 {
    rate * cost_of_call()
}

/// The relative error of the time `overhead` that the probes of this number of calls have taken.
fn overhead_error(overhead: f64, calls: u64) -> Systematic {
    let most = COLD_ERROR * calls as f64 * cost_of_call() / overhead;
    Systematic { above: OVERHEAD_ERROR.above.min(most), ..OVERHEAD_ERROR }
}

/// The relative error of the number of calls in a window of this length, without its probes, of
/// which the time `overhead` is known with this relative error.
fn error_of_probes(overhead: f64, length: f64, error: Systematic) -> Systematic {
    let part = overhead / length;
    Systematic {
        // The window is longer by the time of its probes, since they delay the program; but a
        // program that waits for a point in time is not delayed, and has made more calls in it.
        below: (error.below * part).max(overhead / (length + overhead)),
        above: Systematic::of_shorter_window(error.above * part),
    }
}

/// The program's processor time without that of probes, in nanoseconds.
fn processor_time() -> f64 {
    own_time::processor_time() - counting::spent_in_probes()
}

/// The program's processor time since a window was begun.
fn ran(open: &Open) -> f64 {
    processor_time() - open.own_time
}

/// Whether only one thread has run since the stratum began, as far as is known.
fn has_run_alone(open: &Open) -> bool {
    open.others == Some(0.0) || !thread::are_many()
}

/// The result of a window.
struct Closed {
    entries: u64,
    /// The rate in calls per nanosecond.
    rate: f64,
    cut_off: f64,
    /// The error due to what is not known of the probes' time.
    systematic: Systematic,
}

impl Closed {
    fn fill(&self, strata: &mut Strata) {
        strata.closed(self.entries, self.cut_off, self.systematic);
    }
}

/// Activates a probe of the profiler.
pub(crate) fn switch_on(id: ProbeId, kind: ProbeType) {
    switch_on_with(
        id,
        match kind {
            ProbeType::Entry => fire::ENTRY,
            ProbeType::Exit => fire::EXIT,
        },
    );
}

/// Activates an entry probe that is to count calls.
pub(crate) fn switch_on_counting(id: ProbeId) {
    switch_on_with(id, fire::COUNT);
}

pub(crate) fn switch_on_counting_alone(id: ProbeId) {
    switch_on_with(id, fire::COUNT_ALONE);
}

fn switch_on_with(id: ProbeId, function: ProbeFn) {
    // A refusal concerns a library that was unloaded, or a site that something else has patched:
    // nothing to measure there. SAFETY: the probe functions are never unloaded, and keep the
    // contract of `ProbeFn`.
    let _ = unsafe { fastinst::activate(id, function) };
}

#[cfg(test)]
mod tests;
