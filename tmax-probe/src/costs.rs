//! Costs of the kinds of stores, traps and waits on this machine, in TSC ticks.
//!
//! The cost of `membarrier` depends on the state of the other processors during the call: it
//! interrupts those that run a thread of this process. On one machine, runs minutes apart had
//! medians of 1,200 and of 29,600 ticks. Therefore it is measured as a distribution, in both
//! situations, and the advice uses the worse one.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use region::Protection;
use serde::{Deserialize, Serialize};
use wordpatch::{Bytes, FetchWindow, TextRef, serialize_all_cores, text, tsc};

use crate::error::Error;
use crate::kernel::{pin, usable_processors};

/// Number of samples of each cost.
const SAMPLES: usize = 501;

/// Samples of `membarrier` in each situation, and the pause between two, in ticks: together long
/// enough for several time slices, so that the processor use of other processes is sampled too.
const MEMBARRIERS: usize = 1_000;
const PAUSE: u64 = 500_000;

/// Stores per sample: a single one is too short for the TSC.
const STORES: u64 = 100;

/// Costs of stores, traps and waits, in TSC ticks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// TSC ticks per microsecond.
    pub ticks_per_us: f64,
    /// A patch inside a fetch window, in memory that is writable where it is executed, in ticks. It
    /// is not executed concurrently.
    pub store: u64,
    /// The same patch through a second mapping, in ticks.
    pub alias_store: u64,
    /// Making a page writable and read-execute again, in ticks.
    pub mprotect_pair: u64,
    /// From an INT3 into a SIGTRAP handler that does nothing, and back, in ticks.
    pub int3_round_trip: u64,
    /// `membarrier` SYNC_CORE, by the number of other running threads of the process.
    pub membarrier: Vec<Membarrier>,
}

/// The cost of `membarrier` SYNC_CORE, as a distribution in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membarrier {
    /// The number of other running threads of the process.
    pub running: usize,
    /// The median, in ticks.
    pub p50: u64,
    /// The 90th percentile, in ticks.
    pub p90: u64,
    /// The 99th percentile, in ticks.
    pub p99: u64,
}

impl Costs {
    /// The cost of a wait by `membarrier` in the worst case, in ticks: the larger 90th percentile.
    pub fn membarrier_at_worst(&self) -> u64 {
        self.membarrier.iter().map(|at| at.p90).max().unwrap_or(0)
    }
}

/// This number of samples, in ascending order.
fn sorted(number: usize, mut sample: impl FnMut() -> Result<u64, Error>) -> Result<Vec<u64>, Error> {
    let mut samples = (0..number).map(|_| sample()).collect::<Result<Vec<_>, _>>()?;
    samples.sort_unstable();
    Ok(samples)
}

fn median(sample: impl FnMut() -> Result<u64, Error>) -> Result<u64, Error> {
    Ok(sorted(SAMPLES, sample)?[SAMPLES / 2])
}

/// One `membarrier`, after a pause.
fn membarrier() -> Result<u64, Error> {
    let start = tsc::now();
    while tsc::now().wrapping_sub(start) < PAUSE {
        spin_loop();
    }
    ticks(|| Ok(serialize_all_cores()?))
}

fn ticks(act: impl FnOnce() -> Result<(), Error>) -> Result<u64, Error> {
    let start = tsc::now();
    act()?;
    Ok(tsc::now().wrapping_sub(start))
}

/// Measures all costs. Blocks for about a second.
///
/// # Errors
/// The system refuses one of the measured calls.
pub(crate) fn measure(ticks_per_us: f64) -> Result<Costs, Error> {
    Ok(Costs {
        ticks_per_us,
        store: store(Protection::READ_WRITE_EXECUTE)?,
        alias_store: store(Protection::READ_EXECUTE)?,
        mprotect_pair: mprotect_pair()?,
        int3_round_trip: int3_round_trip()?,
        membarrier: membarriers()?,
    })
}

fn store(protection: Protection) -> Result<u64, Error> {
    let refused = |source| Error::Memory { source };
    let page = region::alloc(region::page::size(), protection).map_err(refused)?;
    let range = page.as_ptr_range::<u8>();
    let range = range.start as usize..range.end as usize;
    // SAFETY: a page of our own, known to nothing else, mapped until the end of this function.
    let place = unsafe { TextRef::resolve(range.start, 8)?.staying_mapped() };
    let forms = [[0; 5], [1; 5]].map(|form| Bytes::new(&form).expect("five bytes"));
    let ticks = median(|| {
        let all = ticks(|| {
            for number in 0..STORES as usize {
                let (from, to) = (&forms[number % 2], &forms[1 - number % 2]);
                // SAFETY: as above; it is not executed.
                unsafe { place.compare_exchange(FetchWindow::Bytes8, 0, from, to)? };
            }
            Ok(())
        })?;
        Ok(all / STORES)
    });
    drop(page);
    // SAFETY: the page is no longer mapped.
    unsafe { text::release(&range) };
    ticks
}

fn mprotect_pair() -> Result<u64, Error> {
    let refused = |source| Error::Memory { source };
    let page = region::alloc(region::page::size(), Protection::READ_EXECUTE).map_err(refused)?;
    let start = page.as_ptr::<u8>();
    let protect = |protection| {
        // SAFETY: a page of our own, known to nothing else.
        unsafe { region::protect(start, region::page::size(), protection) }.map_err(refused)
    };
    median(|| ticks(|| protect(Protection::READ_WRITE).and_then(|()| protect(Protection::READ_EXECUTE))))
}

extern "C" fn return_at_once(_: libc::c_int) {}

fn int3_round_trip() -> Result<u64, Error> {
    let failed =
        |errno: nix::Error| Error::System { what: "installing a SIGTRAP handler", source: errno.into() };
    let action = SigAction::new(SigHandler::Handler(return_at_once), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler does nothing.
    let before = unsafe { sigaction(Signal::SIGTRAP, &action) }.map_err(failed)?;
    let ticks = median(|| {
        ticks(|| {
            // SAFETY: the handler returns after the INT3; the kernel restores every register.
            unsafe { std::arch::asm!("int3") };
            Ok(())
        })
    });
    // SAFETY: the previous action.
    unsafe { sigaction(Signal::SIGTRAP, &before) }.map_err(failed)?;
    ticks
}

/// With zero to as many running threads as there are other processors.
fn membarriers() -> Result<Vec<Membarrier>, Error> {
    let processors = usable_processors()?;
    // Registers the process: the first call differs from the others.
    serialize_all_cores()?;
    (0..processors.len())
        .map(|running| {
            let ready = AtomicUsize::new(0);
            let over = AtomicBool::new(false);
            let samples = thread::scope(|scope| {
                for processor in &processors[1..=running] {
                    scope.spawn(|| {
                        pin(Some(*processor));
                        ready.fetch_add(1, Ordering::Relaxed);
                        while !over.load(Ordering::Relaxed) {
                            spin_loop();
                        }
                    });
                }
                let caller = scope.spawn(|| {
                    pin(processors.first().copied());
                    while ready.load(Ordering::Relaxed) < running {
                        thread::yield_now();
                    }
                    sorted(MEMBARRIERS, membarrier)
                });
                let samples = caller.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                over.store(true, Ordering::Relaxed);
                samples
            })?;
            let at = |percent: usize| samples[MEMBARRIERS * percent / 100];
            Ok(Membarrier { running, p50: at(50), p90: at(90), p99: at(99) })
        })
        .collect()
}

/// TSC ticks per microsecond, measured with the system's clock. Blocks for a twentieth of a second.
pub(crate) fn ticks_per_us() -> f64 {
    let (ticks, clock) = (tsc::now(), std::time::Instant::now());
    while clock.elapsed().as_millis() < 50 {
        spin_loop();
    }
    let (ticks, elapsed) = (tsc::now().wrapping_sub(ticks), clock.elapsed());
    ticks as f64 / elapsed.as_secs_f64() / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cost_is_measured_and_a_system_call_is_dearer_than_a_store() {
        let costs = measure(ticks_per_us()).unwrap();
        assert!(costs.ticks_per_us > 100.0, "{costs:?}");
        assert!(costs.mprotect_pair > costs.alias_store && costs.int3_round_trip > costs.store, "{costs:?}");
        assert_eq!(costs.membarrier.len(), usable_processors().unwrap().len());
        assert!(costs.membarrier.iter().all(|at| at.p50 <= at.p90 && at.p90 <= at.p99), "{costs:?}");
    }

    /// Two runs minutes apart: other threads ran in only one of them.
    #[test]
    fn a_wait_costs_what_it_does_in_its_worse_situation() {
        let at = |running, p90| Membarrier { running, p50: p90 / 2, p90, p99: p90 * 2 };
        let costs = |membarrier| Costs {
            ticks_per_us: 2_600.0,
            store: 20,
            alias_store: 20,
            mprotect_pair: 5_000,
            int3_round_trip: 6_000,
            membarrier,
        };
        assert_eq!(costs(vec![at(0, 1_400), at(1, 29_640)]).membarrier_at_worst(), 29_640);
        assert_eq!(costs(vec![at(0, 30_000), at(1, 1_500)]).membarrier_at_worst(), 30_000);
    }
}
