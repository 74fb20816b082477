//! Where the program's processor time goes: stacks that are sampled by the processor time of its
//! threads.
//!
//! Windows of probes ([`crate::policy`]) measure how often a function is called and how long its
//! calls take; in a short run, or within a small budget, those of a function that is called
//! millions of times are too few to say how much time all of its calls took. That time is estimated
//! from samples of stacks instead, whose error depends on their number only. They cost the same for
//! any number of functions.
//!
//! # How
//! 1. The kernel takes the samples ([`events`]), and the service thread reads them in each tick.
//! 2. [`unwinding`] finds the frames, by the unwind tables of the objects' files ([`contents`]).
//! 3. [`contexts`] knows which functions have been entered and not left at each address, inlined
//!    ones included. Samples wait for [`DELAY`], until the probes of code that was executed for the
//!    first time are known.
//! 4. [`tally`] counts, and estimates times; [`waiting`] knows how much time has no samples.
//!
//! If the kernel refuses the events, times are those of windows alone, and the report has a note.

mod contents;
mod contexts;
mod events;
mod tally;
mod unwinding;
pub(crate) mod waiting;

use std::collections::VecDeque;
use std::ops::{Range, RangeInclusive};
use std::time::{Duration, Instant};

use rand::RngExt;

use contexts::{Contexts, FrameState};
use events::{Events, Record};
use tally::{Functions, Tally};
use unwinding::{End, Unwinder};

#[cfg(test)]
pub(crate) use tally::tests::of_chains;
pub(crate) use tally::{FunctionTime, Times};

use crate::own_time;
use crate::probe_type::ProbeType;

/// How long a sample waits until its functions are looked up.
const DELAY: Duration = Duration::from_millis(500);

/// What a sample costs the program, in nanoseconds: assumed. An interrupt, and a copy of the stack.
const COST_OF_SAMPLE: f64 = 5_000.0;

/// What unwinding a sample costs, in nanoseconds: assumed, to choose the period.
const COST_OF_UNWINDING: f64 = 10_000.0;

/// The part of the budget that samples may cost.
const SHARE: f64 = 0.4;

/// Nanoseconds between two samples of a thread.
const PERIODS: RangeInclusive<f64> = 5e5..=1e7;

/// By how much the period differs from run to run: a program that repeats itself in step with it
/// does not do so in the next run.
const JITTER: Range<f64> = 0.9..1.1;

/// The frames of a sample.
#[derive(Debug)]
struct Sample {
    at: Instant,
    /// Innermost first.
    frames: Box<[u64]>,
    end: End,
}

/// The samples of a session.
pub(crate) struct Stacks {
    /// Whether the user wants samples.
    is_wanted: bool,
    events: Option<Events>,
    /// Whether [`Stacks::start`] was called in this process.
    has_started: bool,
    /// Why there are no events.
    refusal: Option<String>,
    /// Nanoseconds.
    period: f64,
    unwinder: Unwinder,
    contexts: Contexts,
    waiting: VecDeque<Sample>,
    tally: Tally,
    /// The program's processor time when sampling began.
    running_before: f64,
    frames: Vec<u64>,
    /// Whether the objects must be brought up to date, because some may be new.
    has_new_sites: bool,
}

/// What a report without samples says.
fn without_samples(reason: &str) -> String {
    format!(
        "processor time is not sampled, so the total times of many functions have no upper limit ({reason})"
    )
}

impl Stacks {
    /// No samples yet; never any unless they are wanted.
    pub(crate) fn new(is_wanted: bool) -> Self {
        Self {
            is_wanted,
            events: None,
            has_started: false,
            refusal: None,
            period: 0.0,
            unwinder: Unwinder::new(),
            contexts: Contexts::default(),
            waiting: VecDeque::new(),
            tally: Tally::default(),
            running_before: 0.0,
            frames: Vec::new(),
            has_new_sites: false,
        }
    }

    /// Begins to sample the main thread, and those that are created from now on, unless that was
    /// done in this process. Profiling may take this part of the processor time; `None` if every
    /// call is timed, and samples would add nothing.
    pub(crate) fn start(&mut self, budget: Option<f64>) {
        if std::mem::replace(&mut self.has_started, true) {
            return;
        }
        let Some(budget) = budget else { return };
        if !self.is_wanted {
            self.refusal = Some(without_samples("stacks=0"));
            return;
        }
        let wanted = (COST_OF_SAMPLE + COST_OF_UNWINDING) / (SHARE * budget);
        self.period =
            (wanted.clamp(*PERIODS.start(), *PERIODS.end()) * rand::rng().random_range(JITTER)).round();
        self.running_before = own_time::processor_time();
        match Events::open(self.period as u64) {
            Ok(events) => self.events = Some(events),
            Err(error) => {
                self.refusal = Some(without_samples(&format!(
                    "perf_event_open: {error}; a container may forbid it, or the setting kernel.perf_event_paranoid"
                )));
            }
        }
    }

    /// Adds a site: of this function, in the body with these addresses.
    pub(crate) fn add_site(&mut self, site: usize, kind: ProbeType, function: u32, body: Range<usize>) {
        self.has_new_sites = true;
        self.contexts.add(site as u64, kind, function, body.start as u64..body.end as u64);
    }

    /// Reads the samples that have been taken.
    pub(crate) fn drain(&mut self) {
        let Some(events) = &mut self.events else { return };
        let (unwinder, contexts, frames, tally, waiting) =
            (&mut self.unwinder, &mut self.contexts, &mut self.frames, &mut self.tally, &mut self.waiting);
        let at = Instant::now();
        let mut refresh = |unwinder: &mut Unwinder| {
            unwinder.refresh().iter().for_each(|range| contexts.remove(range));
        };
        // Before an object with known sites is unloaded, and another one loaded in its place.
        let mut is_current = std::mem::take(&mut self.has_new_sites);
        if is_current {
            refresh(unwinder);
        }
        events.drain(|record| match record {
            Record::Sample(sample) => {
                if !std::mem::replace(&mut is_current, true) {
                    refresh(unwinder);
                }
                match unwinder.frames(&sample, frames) {
                    End::Profiler => tally.profiler += 1,
                    end => waiting.push_back(Sample { at, frames: frames.as_slice().into(), end }),
                }
            }
            Record::Unreadable => tally.add_unreadable(),
            Record::Lost(number) => tally.lost += number,
        });
        while let Some(sample) = self.waiting.pop_front_if(|sample| at.duration_since(sample.at) > DELAY) {
            self.count(&sample);
        }
    }

    fn count(&mut self, sample: &Sample) {
        let mut functions = Functions { is_partial: sample.end == End::Unknown, ..Functions::default() };
        for (depth, address) in sample.frames.iter().enumerate() {
            let state = if depth == 0 { FrameState::Executing } else { FrameState::Calling };
            let unwinder = &self.unwinder;
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
        self.tally.add(&functions);
    }

    /// The longest time between two calls of [`Stacks::drain`] in which no sample is lost.
    pub(crate) fn max_pause(&self) -> Option<Duration> {
        let events = self.events.as_ref()?;
        Some(Duration::from_nanos((events.capacity() as f64 * self.period / 2.0) as u64))
    }

    /// Counts all samples that have been taken.
    pub(crate) fn finish(&mut self) {
        self.drain();
        while let Some(sample) = self.waiting.pop_front() {
            self.count(&sample);
        }
    }

    /// The times of all functions, if there are enough samples. The program's threads have waited
    /// for `waiting` nanoseconds.
    pub(crate) fn times(&self, waiting: f64) -> Option<Times<'_>> {
        let running = own_time::processor_time() - self.running_before;
        Times::new(&self.tally, self.period, running, waiting)
    }

    /// The number of samples.
    pub(crate) fn taken(&self) -> u64 {
        self.tally.taken() + self.waiting.len() as u64
    }

    /// What they have cost the program's threads, in nanoseconds.
    pub(crate) fn cost(&self) -> f64 {
        self.taken() as f64 * COST_OF_SAMPLE
    }

    /// Why no samples are taken, if they are not.
    pub(crate) fn note(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// Bytes of memory.
    pub(crate) fn memory(&self) -> usize {
        let events = self.events.as_ref().map_or(0, Events::memory);
        events + self.contexts.memory() + self.tally.memory() + self.waiting.capacity() * size_of::<Sample>()
    }

    /// In a forked child, which has no events: begins again, with the parent's sites.
    pub(crate) fn restart(&mut self) {
        if let Some(events) = self.events.take() {
            events.forget();
        }
        self.waiting.clear();
        self.tally = Tally::default();
        self.refusal = None;
        self.has_started = false;
    }
}
