//! One run of a scenario: its progress, the counts of its threads, and its findings.
//!
//! A participating thread is a [`Worker`]. It calls [`Worker::continues`] in each iteration of its
//! loop, which the watchdog (`watchdog.rs`) also takes as a sign of life.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;

use crate::options::{Defect, Options};
use crate::random::Random;
use crate::report::Counts;

/// Number of parts of equal length in a run, for scenarios that change over time.
pub(crate) const PARTS: usize = 5;

/// Kinds of findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An execution that was neither the old nor the new instruction.
    Torn,
    /// A change that did not persist, or that was made although it was refused.
    Lost,
    /// A thread without progress.
    Hung,
    /// Any other violation.
    Other,
}

/// Maximum number of lines of each kind that are kept.
const LINES: u64 = 5;

/// A run.
pub(crate) struct Run {
    pub(crate) defect: Option<Defect>,
    pub(crate) patience: Duration,
    /// Whether no other scenario runs in this process.
    pub(crate) is_alone: bool,
    time: Duration,
    toggles: Option<u64>,
    seed: u64,
    start: Instant,
    part: AtomicUsize,
    is_over: AtomicBool,
    /// The states of the threads, each on separate cache lines.
    workers: Mutex<Vec<Arc<CachePadded<Life>>>>,
    found: [AtomicU64; 4],
    lines: Mutex<Vec<String>>,
}

/// The visible state of a thread.
#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) name: String,
    pub(crate) beats: AtomicU64,
    pub(crate) has_ended: AtomicBool,
    executions: AtomicU64,
    toggles: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Run {
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            defect: options.defect,
            patience: Duration::from_secs_f64(options.patience),
            is_alone: !options.scenario.iter().any(|name| name == "all"),
            time: options.time(),
            toggles: options.toggles,
            seed: options.seed,
            start: Instant::now(),
            part: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
            workers: Mutex::default(),
            found: Default::default(),
            lines: Mutex::default(),
        }
    }

    /// Registers the calling thread as a participant.
    pub(crate) fn worker(&self, name: impl Into<String>) -> Worker<'_> {
        let mut workers = lock(&self.workers);
        let life = Arc::new(CachePadded::new(Life {
            name: name.into(),
            beats: AtomicU64::new(0),
            has_ended: AtomicBool::new(false),
            executions: AtomicU64::new(0),
            toggles: AtomicU64::new(0),
        }));
        workers.push(Arc::clone(&life));
        let random = Random::new(self.seed, &life.name);
        Worker { run: self, life, random, is_new: Cell::new(true) }
    }

    /// All threads that have taken part.
    pub(crate) fn lives(&self) -> Vec<Arc<CachePadded<Life>>> {
        lock(&self.workers).clone()
    }

    /// The current part of the run, below [`PARTS`].
    pub(crate) fn part(&self) -> usize {
        self.part.load(Ordering::Relaxed)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Updates the progress of the run.
    pub(crate) fn advance(&self) {
        let share = |is: f64, of: f64| if of > 0.0 { is / of } else { 1.0 };
        let of_time = share(self.start.elapsed().as_secs_f64(), self.time.as_secs_f64());
        let of_toggles = self.toggles.map_or(0.0, |goal| share(self.counts("").toggles as f64, goal as f64));
        let done = of_time.max(of_toggles);
        self.part.store(((done * PARTS as f64) as usize).min(PARTS - 1), Ordering::Relaxed);
        if done >= 1.0 {
            self.is_over.store(true, Ordering::Relaxed);
        }
    }

    /// Records a violation.
    pub(crate) fn found(&self, kind: Kind, line: impl fmt::Display) {
        if self.found[kind as usize].fetch_add(1, Ordering::Relaxed) < LINES {
            lock(&self.lines).push(format!("{kind:?}: {line}").to_lowercase());
        }
    }

    /// Records a violation unless `holds`.
    pub(crate) fn check(&self, holds: bool, kind: Kind, line: impl FnOnce() -> String) {
        if !holds {
            self.found(kind, line());
        }
    }

    /// The counts so far.
    pub(crate) fn counts(&self, scenario: &str) -> Counts {
        let lives = self.lives();
        let sum =
            |of: fn(&Life) -> &AtomicU64| lives.iter().map(|life| of(life).load(Ordering::Relaxed)).sum();
        let found = |kind: Kind| self.found[kind as usize].load(Ordering::Relaxed);
        Counts {
            scenario: scenario.to_owned(),
            seconds: self.start.elapsed().as_secs_f64(),
            executions: sum(|life| &life.executions),
            toggles: sum(|life| &life.toggles),
            torn: found(Kind::Torn),
            lost: found(Kind::Lost),
            hung: found(Kind::Hung),
            other: found(Kind::Other),
            violations: lock(&self.lines).clone(),
        }
    }
}

/// A thread's handle of its [`Life`].
pub(crate) struct Worker<'a> {
    pub(crate) run: &'a Run,
    life: Arc<CachePadded<Life>>,
    pub(crate) random: Random,
    is_new: Cell<bool>,
}

impl Worker<'_> {
    /// Signals life.
    pub(crate) fn beat(&self) {
        self.life.beats.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether to run another iteration: at least one, then until the run is over.
    pub(crate) fn continues(&self) -> bool {
        self.beat();
        self.is_new.replace(false) || !self.run.is_over()
    }

    pub(crate) fn executed(&self, times: u64) {
        self.life.executions.fetch_add(times, Ordering::Relaxed);
    }

    pub(crate) fn toggled(&self, times: u64) {
        self.life.toggles.fetch_add(times, Ordering::Relaxed);
    }

    /// Records a finding of this thread, with its name.
    pub(crate) fn found(&self, kind: Kind, line: impl fmt::Display) {
        self.run.found(kind, format_args!("{}: {line}", self.life.name));
    }

    /// Records a finding unless `holds`.
    pub(crate) fn check(&self, holds: bool, kind: Kind, line: impl FnOnce() -> String) {
        if !holds {
            self.found(kind, line());
        }
    }
}

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        self.life.has_ended.store(true, Ordering::Relaxed);
        if std::thread::panicking() {
            self.run.found(Kind::Other, format_args!("{} has panicked", self.life.name));
        }
    }
}
