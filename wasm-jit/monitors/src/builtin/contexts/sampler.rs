//! Times from samples: a thread looks at random instants which functions the others run.
//!
//! 1. At each entry and exit, a thread publishes the number of its node ([`Tree::publish`]): one
//!    store.
//! 2. The sampler waits for a random time with a mean of 1 ms. It is drawn independently of the
//!    program, so that no rhythm of the program is in step with it.
//! 3. For each thread, it adds the time since its last look to the node that it finds. A sample
//!    that is taken late, because the sampler had no processor, has the actual time since the last
//!    one as its weight, so the weights add up to the elapsed time.
//!
//! The result has the meaning of exact times: wall-clock time. A thread that waits, in a host
//! function or for a processor, is in the function in which it waits. One that has ended, or runs
//! outside of the program, is at the root, which has no time.
//!
//! The sampler reads numbers only, never a node, so nothing that it reads can have been freed. It
//! counts under the lock of the threads, which reports take as well.
//!
//! [`Tree::publish`]: super::tree::Tree::publish

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use wordpatch::tsc;

use super::Shared;
use crate::Error;

/// The mean time between two samples. A sample takes less than a microsecond for each thread, and
/// wakes a processor.
pub(super) const PERIOD: Duration = Duration::from_millis(1);

/// The samples that have found a thread in a node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Samples {
    pub(super) count: u64,
    /// The time that the samples represent.
    pub(super) nanoseconds: u64,
}

/// Takes samples until it is dropped.
pub(super) struct Sampler {
    /// `None` while the sampler ends.
    running: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Sampler {
    /// # Errors
    /// [`Error::Thread`].
    pub(super) fn start(shared: Arc<Shared>) -> Result<Self, Error> {
        let (ends, ended) = channel();
        let sample = move || {
            let mut random = SmallRng::seed_from_u64(tsc::now());
            let mut last = Instant::now();
            while ended.recv_timeout(interval(&mut random)) == Err(RecvTimeoutError::Timeout) {
                let mut threads = shared.threads();
                // After the lock, which a report may have held: the time at which the samples are
                // taken.
                let now = Instant::now();
                threads.sample(&shared, (now - last).as_nanos() as u64);
                last = now;
            }
        };
        let thread = thread::Builder::new().name("sampler".to_owned()).spawn(sample);
        let thread = thread.map_err(|source| Error::Thread { source })?;
        Ok(Self { running: Some((ends, thread)) })
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        if let Some((ends, thread)) = self.running.take() {
            drop(ends);
            // The thread does not panic; if it did, its samples so far would remain.
            let _ = thread.join();
        }
    }
}

/// A random time, uniformly distributed between a half and three halves of [`PERIOD`].
fn interval(random: &mut SmallRng) -> Duration {
    PERIOD.mul_f64(random.random_range(0.5..1.5))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_spread_around_the_period() {
        let mut random = SmallRng::seed_from_u64(1);
        let all: Vec<f64> = (0..10_000).map(|_| interval(&mut random).as_secs_f64() * 1e3).collect();
        assert!(all.iter().all(|ms| (0.5..=1.5).contains(ms)));
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        // The standard deviation of the mean is 0.003.
        assert!((mean - 1.0).abs() < 0.015, "{mean}");
        let below = all.iter().filter(|ms| **ms < 0.75).count();
        assert!((2200..2800).contains(&below), "{below}");
    }
}
