//! Estimates where the program's time goes, from samples of the stacks of running and waiting
//! threads.
//!
//! Windows of probes ([`crate::observe::policy`]) measure how often a function is called and how
//! long its calls take. In a short run, or within a small budget, a function that is called
//! millions of times has too few windows to tell how much time all of its calls took. That time is
//! estimated from stack samples instead: their error depends only on their number, and their cost
//! does not depend on the number of functions.
//!
//! # How
//! 1. The kernel takes the samples ([`events`]), as often as the budget permits ([`interruption`]),
//!    and the service thread reads them in each tick. If unwinding exceeds its budget, some samples
//!    are left out ([`thinning`]). If the program begins so many threads that this alone exceeds
//!    the budget, sampling ends ([`begun`]).
//! 2. [`unwinding`] finds the frames, by the unwind tables of the objects' files ([`contents`]).
//! 3. [`contexts`] knows which functions have been entered and not left at each address, inlined
//!    ones included. Samples wait for [`DELAY`], until the probes of code that was executed for the
//!    first time are known.
//! 4. [`tally`] counts, and estimates times.
//! 5. Threads that wait use no processor time. [`blocked`] takes snapshots of their stacks, and
//!    [`waits`] estimates how long calls have waited. Without snapshots, [`waiting`] says how much
//!    time may have been in any function.
//!
//! If the kernel refuses the events, times are those of windows alone, and the report has a note.

mod begun;
mod blocked;
mod contents;
mod contexts;
mod events;
mod interruption;
mod tally;
mod thinning;
mod unwinding;
pub(crate) mod waiting;
mod waits;
mod watched;

use std::collections::{HashSet, VecDeque};
use std::ops::{Range, RangeInclusive};
use std::time::{Duration, Instant};

use fastinst::ProbeId;
use rand::RngExt;

use begun::Begun;
use blocked::{Companion, Snapshot};
use contexts::{Contexts, FrameState, Site, Sites};
use events::{Events, RawSample, Record};
use tally::{Functions, Tally};
use thinning::Thinning;
use unwinding::{End, Unwinder};
use waits::Waits;
use watched::Wait;

#[cfg(test)]
pub(crate) use tally::tests::of_chains;
pub(crate) use tally::{FunctionTime, Times};

use crate::observe::function::Function;
use crate::observe::own_time;
use crate::observe::probe_type::ProbeType;
use crate::processor_time;

/// How long a sample is kept before its functions are looked up.
const DELAY: Duration = Duration::from_millis(500);

/// The assumed cost of unwinding a sample, in nanoseconds, from which the period is chosen.
const COST_OF_UNWINDING: f64 = 15_000.0;

/// The part of the budget that samples may cost.
const SHARE: f64 = 0.4;

/// Range of the nanoseconds between two samples of a thread.
const PERIODS: RangeInclusive<f64> = 5e5..=1e7;

/// Samples are read again before a thread that runs all the time can have filled this part of its
/// processor's ring. The larger one is used if the last samples have filled less than a quarter.
const ROOM: f64 = 0.5;
const ROOM_IF_SELDOM: f64 = 0.9;

/// The range of a random factor of the period: a program that repeats itself in step with the
/// period in one run does not do so in the next.
const JITTER: Range<f64> = 0.9..1.1;

/// The frames of a sample.
#[derive(Debug)]
struct Sample {
    at: Instant,
    of: Of,
}

/// The kind of a sample.
#[derive(Debug)]
enum Of {
    /// A thread that ran, and the number of samples that this one represents.
    Running(Frames, f64),
    /// A snapshot of the waiting threads, and the stacks of those that have moved since the last
    /// one; none in the profiler's code.
    Waiting(Snapshot, Vec<(Wait, Option<Frames>)>),
}

#[derive(Debug)]
struct Frames {
    /// Code addresses, innermost first.
    frames: Box<[u64]>,
    end: End,
}

/// The stack samples of a session.
pub(crate) struct Stacks {
    /// Whether the user wants samples.
    is_wanted: bool,
    events: Option<Events>,
    /// Whether [`Stacks::start`] was called in this process.
    has_started: bool,
    /// Why there are no samples by processor time, or no more.
    refusal: Option<String>,
    /// The number of samples of running threads whose outer functions are not in the part of the
    /// stack that was copied.
    not_copied: u64,
    begun: Begun,
    /// Nanoseconds between two samples of a thread.
    period: f64,
    /// The cost of a sample for the program's threads, in nanoseconds.
    cost_of_sample: f64,
    /// When the samples were last read, and the time from then until they are read again.
    drained: Instant,
    pause: Duration,
    thinning: Thinning,
    unwinder: Unwinder,
    contexts: Contexts<Probes>,
    /// Samples whose functions have not been looked up yet.
    delayed: VecDeque<Sample>,
    tally: Tally,
    companion: Option<Companion>,
    waits: Waits,
    /// The program's processor time when sampling began.
    running_before: f64,
    frames: Vec<u64>,
    /// Whether the objects must be brought up to date, because some may be new.
    has_new_sites: bool,
    /// [`fastinst::internal::load_count`] when the objects were last brought up to date.
    loads: u64,
}

/// The note in a report without samples.
fn without_samples(reason: &str) -> String {
    format!(
        "processor time is not sampled, so the total times of many functions have no upper limit ({reason})"
    )
}

/// The sites of permanent probes, by the numbers of the probes.
#[derive(Debug, Default)]
struct Probes;

impl Sites for Probes {
    fn site(&self, number: u32) -> Option<Site> {
        let probe = fastinst::lasting_metadata(ProbeId(number))?;
        Some(Site {
            address: probe.site_address as u64,
            body_start: probe.body_start as u64,
            body_end: probe.body_end as u64,
            function: Function::of_probe(probe.id)?.index,
            begins_there: probe.function_address == probe.body_start,
            kind: ProbeType::of(probe.kind)?,
        })
    }

    fn is_loaded(&self, number: u32) -> bool {
        fastinst::is_loaded(ProbeId(number))
    }
}

/// Brings the objects up to date.
fn refresh(unwinder: &mut Unwinder, contexts: &mut Contexts<Probes>, loads: &mut u64) {
    let now = fastinst::internal::load_count();
    if unwinder.refresh() | (std::mem::replace(loads, now) != now) {
        contexts.reload(|address| unwinder.is_mapped(address));
    }
}

/// Finds the instrumented function that an instruction is in, inlined ones included. What is known
/// of code in which no sample was is only kept as long as this.
pub(crate) struct Enclosing<'a> {
    unwinder: &'a mut Unwinder,
    contexts: &'a mut Contexts<Probes>,
    /// See [`Contexts::renew`].
    before: HashSet<u64>,
}

impl Enclosing<'_> {
    /// The innermost function that has been entered and not left at this address, in the body that
    /// contains it: `Some(None)` if there is none, `None` if that is not known.
    pub(crate) fn at(&mut self, address: usize) -> Option<Option<u32>> {
        self.innermost(address, FrameState::Executing)
    }

    /// The same for the instruction before a return address, which is a call.
    pub(crate) fn before(&mut self, return_address: usize) -> Option<Option<u32>> {
        self.innermost(return_address.wrapping_sub(1), FrameState::Calling)
    }

    fn innermost(&mut self, address: usize, state: FrameState) -> Option<Option<u32>> {
        let unwinder = &mut *self.unwinder;
        let context = self.contexts.at(address as u64, state, |range| unwinder.code(range));
        Some(self.contexts.innermost(context?))
    }
}

impl Drop for Enclosing<'_> {
    fn drop(&mut self) {
        self.contexts.forget_others(&self.before);
    }
}

impl Stacks {
    /// Has no samples yet, and never gets any unless they are wanted.
    pub(crate) fn new(is_wanted: bool) -> Self {
        Self {
            is_wanted,
            events: None,
            has_started: false,
            refusal: None,
            not_copied: 0,
            begun: Begun::default(),
            period: 0.0,
            cost_of_sample: 0.0,
            drained: Instant::now(),
            pause: Duration::ZERO,
            thinning: Thinning::new(),
            unwinder: Unwinder::new(),
            contexts: Contexts::default(),
            delayed: VecDeque::new(),
            tally: Tally::default(),
            companion: None,
            waits: Waits::default(),
            running_before: 0.0,
            frames: Vec::new(),
            has_new_sites: false,
            loads: 0,
        }
    }

    /// Begins to sample the main thread and the threads created from now on, unless that was done
    /// in this process. `budget` is the part of the processor time that profiling may take; `None`
    /// means that every call is timed: samples would say little of the program without probes,
    /// whose instructions the processor executes at the same time as those of its functions.
    pub(crate) fn start(&mut self, budget: Option<f64>) {
        if std::mem::replace(&mut self.has_started, true) {
            return;
        }
        let Some(budget) = budget else { return };
        if !self.is_wanted {
            self.refusal = Some(without_samples("stacks=0"));
            return;
        }
        self.cost_of_sample = interruption::time();
        let wanted = (self.cost_of_sample + COST_OF_UNWINDING) / (SHARE * budget);
        self.period =
            (wanted.clamp(*PERIODS.start(), *PERIODS.end()) * rand::rng().random_range(JITTER)).round();
        self.running_before = own_time::processor_time();
        match Events::open(self.period as u64) {
            Ok(events) => {
                self.begun = Begun::new(SHARE * budget, events.number(), self.cost_of_sample);
                self.events = Some(events);
                let affordable = SHARE * budget * self.period - self.cost_of_sample;
                self.thinning.begin(affordable, COST_OF_UNWINDING);
                // Without snapshots, all waiting time may belong to any function.
                self.companion = Companion::start(budget).ok();
            }
            Err(error) => {
                self.refusal = Some(without_samples(&format!(
                    "perf_event_open: {error}; a container may forbid it, or the setting kernel.perf_event_paranoid"
                )));
            }
        }
    }

    /// Whether the user has asked for a report without samples.
    pub(crate) fn are_unwanted(&self) -> bool {
        !self.is_wanted
    }

    /// Adds the site of a probe, which belongs to a function.
    pub(crate) fn add_site(&mut self, probe: ProbeId) {
        self.has_new_sites = true;
        self.contexts.add(probe.0);
    }

    /// The sites of some functions are not added.
    pub(crate) fn leave_out(&mut self) {
        self.contexts.leave_out();
    }

    /// Reads the samples taken since the last call.
    pub(crate) fn drain(&mut self) {
        if self.events.is_none() && self.companion.is_none() {
            return;
        }
        let mut events = self.events.as_mut();
        let (unwinder, contexts, frames, tally, delayed) =
            (&mut self.unwinder, &mut self.contexts, &mut self.frames, &mut self.tally, &mut self.delayed);
        let (thinning, begin, mut unwound) = (&mut self.thinning, processor_time::of_thread(), 0);
        let (capacity, mut taken) = (events.as_ref().map_or(0, |events| events.capacity()), 0);
        let begun = &mut self.begun;
        let at = Instant::now();
        self.drained = at;
        let loads = &mut self.loads;
        let mut refresh = |unwinder: &mut Unwinder| refresh(unwinder, contexts, loads);
        // Must be done before an object with known sites is unloaded and another one loaded in its
        // place.
        let mut is_current = std::mem::take(&mut self.has_new_sites);
        if is_current {
            refresh(unwinder);
        }
        let mut unwind = |sample: &RawSample<'_>| {
            if !std::mem::replace(&mut is_current, true) {
                refresh(unwinder);
            }
            let end = unwinder.frames(sample, frames);
            (end != End::Profiler).then(|| Frames { frames: frames.as_slice().into(), end })
        };
        let mut take = |record: Record<'_>| match record {
            Record::Sample(sample) => {
                taken += 1;
                let Some(weight) = thinning.weight() else { return };
                unwound += 1;
                match unwind(&sample) {
                    Some(frames) => delayed.push_back(Sample { at, of: Of::Running(frames, weight) }),
                    None => tally.add_of_profiler(weight),
                }
            }
            Record::Unreadable => tally.add_unreadable(),
            Record::Lost(number) => tally.lost += number,
            Record::Begun => begun.add(1),
        };
        events.iter_mut().for_each(|events| events.drain(&mut take));
        for mut snapshot in self.companion.iter().flat_map(Companion::take) {
            let stacks = std::mem::take(&mut snapshot.stacks);
            let stacks = stacks.iter().inspect(|_| unwound += 1);
            let stacks = stacks.map(|blocked| (blocked.wait, unwind(&blocked.sample())));
            let of = Of::Waiting(snapshot, stacks.collect());
            delayed.push_back(Sample { at, of });
        }
        while let Some(sample) = self.delayed.pop_front_if(|sample| at.duration_since(sample.at) > DELAY) {
            self.count(&sample.of);
        }
        let learning = self.contexts.take_learning_time();
        self.thinning.has_cost(processor_time::of_thread() - begin - learning, unwound);
        let part = if taken * 4 < capacity { ROOM_IF_SELDOM } else { ROOM };
        self.pause = Duration::from_nanos((part * capacity as f64 * self.period) as u64);
        if self.events.is_some() && self.begun.exceed(own_time::processor_time() - self.running_before) {
            self.end_events();
        }
    }

    /// Takes no more samples of running threads: the threads that the program begins cost too much.
    /// The time from now on is part of the upper ends of times.
    fn end_events(&mut self) {
        self.events = None;
        let begun = self.begun.number();
        self.refusal = Some(without_samples(&format!(
            "the program began {begun} threads until sampling ended; each of them costs the kernel time"
        )));
    }

    fn count(&mut self, sample: &Of) {
        match sample {
            Of::Running(frames, weight) => {
                self.not_copied += u64::from(frames.end == End::NotCopied);
                let functions = self.functions(frames);
                self.tally.add(&functions, *weight);
            }
            Of::Waiting(snapshot, stacks) => {
                // Must be done before another thread gets the same id.
                snapshot.ended.iter().for_each(|ended| self.waits.ended(ended));
                let stacks = stacks.iter().map(|(wait, frames)| {
                    // A thread that waits in the profiler's code does so because of the profiler.
                    let functions = frames.as_ref().map(|frames| self.functions(frames));
                    (*wait, functions.unwrap_or_default())
                });
                let stacks: Vec<_> = stacks.collect();
                self.waits.add(snapshot, &stacks);
            }
        }
    }

    /// The functions that have been entered and not left.
    fn functions(&mut self, stack: &Frames) -> Functions {
        let mut functions = Functions { is_partial: stack.end != End::Outermost, ..Functions::default() };
        for (depth, address) in stack.frames.iter().enumerate() {
            let state = if depth == 0 { FrameState::Executing } else { FrameState::Calling };
            let unwinder = &mut self.unwinder;
            match self.contexts.at(*address, state, |range| unwinder.code(range)) {
                Some(context) => {
                    let before = functions.chain.len();
                    self.contexts.functions(context, |function| functions.chain.push(Some(function)));
                    if functions.chain.len() == before && before > 0 {
                        functions.chain.push(None);
                    }
                }
                None if functions.chain.is_empty() => functions.is_headless = true,
                None => functions.is_partial = true,
            }
        }
        functions
    }

    /// The time within which [`Stacks::drain`] must be called again, so that no sample is lost.
    pub(crate) fn until_drain(&self) -> Option<Duration> {
        self.events.as_ref()?;
        Some(self.pause.saturating_sub(self.drained.elapsed()))
    }

    /// Counts all samples that have been taken, and the time that threads have waited until now.
    /// For a report.
    pub(crate) fn finish(&mut self) {
        let unlooked = self.companion.as_ref().map_or(0.0, Companion::request);
        self.waits.begin_report(unlooked);
        self.drain();
        while let Some(sample) = self.delayed.pop_front() {
            self.count(&sample.of);
        }
        self.waits.end_report();
    }

    /// Takes no more snapshots of threads that wait, and waits until their thread has ended.
    pub(crate) fn end_companion(&mut self) {
        if let Some(companion) = self.companion.take() {
            companion.stop();
        }
    }

    /// The times of all functions, if there are enough samples, and the functions at addresses.
    /// `waiting` is the time for which the program's threads have waited, in nanoseconds.
    pub(crate) fn report(&mut self, waiting: f64) -> (Option<Times<'_>>, Enclosing<'_>) {
        refresh(&mut self.unwinder, &mut self.contexts, &mut self.loads);
        let running = own_time::processor_time() - self.running_before;
        let times = Times::new(&self.tally, Some(&self.waits), self.period, running, waiting);
        let (unwinder, contexts) = (&mut self.unwinder, &mut self.contexts);
        let before = contexts.renew();
        (times, Enclosing { unwinder, contexts, before })
    }

    /// The number of samples of running threads.
    pub(crate) fn taken(&self) -> u64 {
        let delayed = self.delayed.iter().filter(|sample| matches!(sample.of, Of::Running(..)));
        self.tally.taken() + delayed.count() as u64
    }

    /// The cost of the samples for the program's threads, in nanoseconds.
    pub(crate) fn cost(&self) -> f64 {
        (self.taken() + self.thinning.left_out()) as f64 * self.cost_of_sample + self.begun.cost()
    }

    /// The reason, if no samples are taken, or no more.
    pub(crate) fn note(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// A note, if at least a tenth of the samples lack the outer functions: the limits of their
    /// times are wide then.
    pub(crate) fn note_of_depth(&self) -> Option<String> {
        /// Fewer are no cause of wide limits.
        const FEW: u64 = 10;
        let (lacking, all) = (self.not_copied, self.taken());
        (lacking >= FEW.max(all / 10)).then(|| {
            format!(
                "{lacking} of {all} stack samples lack the outer functions, whose times have wider limits for it: the kernel copies at most 32 KiB of a stack"
            )
        })
    }

    /// Bytes of memory of the samples and what they need.
    pub(crate) fn memory(&self) -> usize {
        let events = self.events.as_ref().map_or(0, Events::memory);
        events
            + self.contexts.memory()
            + self.tally.memory()
            + self.waits.memory()
            + self.delayed.capacity() * size_of::<Sample>()
    }

    /// Begins again with the parent's sites, in a forked child, which has no events.
    pub(crate) fn restart(&mut self) {
        if let Some(events) = self.events.take() {
            events.forget();
        }
        if let Some(companion) = self.companion.take() {
            companion.forget();
        }
        self.delayed.clear();
        self.tally = Tally::default();
        self.waits = Waits::default();
        self.thinning = Thinning::new();
        self.refusal = None;
        self.not_copied = 0;
        self.begun = Begun::default();
        self.has_started = false;
    }
}
