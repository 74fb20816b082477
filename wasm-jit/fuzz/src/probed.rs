//! Cases with probes: a program must behave as without them, and what they count must be exact.
//!
//! For each seed:
//! 1. The reference engine runs the module, rewritten so that it counts executions itself.
//! 2. Random places of the module get probes of random kinds. While the program runs several times,
//!    probes are switched, made and dropped by another thread, by the closures of firing probes,
//!    and by the program's thread between probes. Every run must have the results of the reference
//!    engine.
//! 3. All probes are on, and nothing is switched: the counts of another run must be those of the
//!    rewritten module.
//! 4. All probes are off: another run must count nothing.
//!
//! A third of the seeds begin with step 3. Probes of different kinds must observe the same values
//! of a frame.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use wasm_jit::{Config, ProbeSites};

use crate::case::Case;
use crate::engine::{Engine, run_loaded};
use crate::ours::Ours;
use crate::probes::{Phase, Running, Set, expected};
use crate::random::{Random, mixed};
use crate::record::Record;

/// How long and how often a program runs while its probes are switched.
const CHANGING_TIME: Duration = Duration::from_millis(40);
const CHANGING_RUNS: u32 = 40;

/// What was done for a case.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// How many probes were made at first.
    pub probes: u64,
    /// How many changes were made while the program ran.
    pub changes: u64,
    /// How many counts were compared with the rewritten module's.
    pub counts: u64,
}

/// Chooses where the code of a seed's module has sites from the start, and which functions get
/// counting versions.
pub fn configure(config: &mut Config, seed: u64) {
    let mut random = Random::new(mixed(seed) ^ 0x636f_6e66);
    config.probe_sites(random.choose(&[
        ProbeSites::None,
        ProbeSites::None,
        ProbeSites::Functions,
        ProbeSites::Branches,
        ProbeSites::All,
    ]));
    if random.one_in(2) {
        config.counter_stubs(random.choose(&[0, 3, u32::MAX]));
    }
}

/// Runs a case with probes in `ours`. Each run's record must pass `check`.
///
/// # Errors
/// A description of the difference or of the inexact count.
pub fn run(
    ours: &Ours,
    theirs: &impl Engine,
    case: &Case,
    mut check: impl FnMut(Record) -> Result<(), String>,
) -> Result<Done, String> {
    let expected = expected::of(theirs, case)?;
    let mut loaded = ours.load(case)?;
    let mut random = Random::new(mixed(case.seed) ^ 0x7072_6f62);
    let set = Arc::new(Set::of(loaded.module(), &mut random)?);
    loaded.attach(set.clone());
    let mut done = Done { probes: set.len() as u64, ..Done::default() };
    let mut exhausted = false;
    let mut once = || {
        let record = run_loaded(ours, &loaded, case)?;
        exhausted |= record.is_exhausted();
        check(record)
    };

    if !random.one_in(3) {
        let _running = Running::new(&set, Random::new(random.number()));
        done.changes = run_while_changing(&set, random.number(), &mut once)?;
    }
    set.activate_all_in_order()?;
    let before = set.counts()?;
    let running = Running::new(&set, Random::new(random.number()));
    once()?;
    drop(running);
    let counted = set.counts()?;
    set.deactivate_all(&mut random)?;
    once()?;
    // Where a stack was exhausted depends on the engine, the version of a function, and its probes.
    if exhausted {
        return Ok(done);
    }
    if let (Some(expected), false) = (&expected, set.is_full()) {
        done.counts = set.check(&before, &counted, expected)?;
    }
    if set.is_full() {
        return Ok(done);
    }
    match set.counts()? == counted {
        true => Ok(done),
        false => Err("probes have counted that were off".to_owned()),
    }
}

/// Runs the program while probes are switched; returns how many changes were made.
fn run_while_changing(
    set: &Arc<Set>,
    seed: u64,
    once: &mut impl FnMut() -> Result<(), String>,
) -> Result<u64, String> {
    let is_over = AtomicBool::new(false);
    let ends = Ends(&is_over);
    set.begin(Phase::Changing);
    thread::scope(|scope| {
        let toggler = scope.spawn(|| {
            let mut random = Random::new(seed);
            while !is_over.load(Ordering::Acquire) {
                set.change(&mut random);
            }
        });
        let end = Instant::now() + CHANGING_TIME;
        let mut outcome = Ok(());
        for _ in 0..CHANGING_RUNS {
            outcome = once();
            if outcome.is_err() || Instant::now() > end {
                break;
            }
        }
        drop(ends);
        let toggled = toggler.join();
        outcome?;
        toggled.map_err(|_| "the thread that switches probes has panicked".to_owned())?;
        Ok(set.changes())
    })
}

/// Sets a flag when it is dropped, including by a panic.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}
