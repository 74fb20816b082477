//! The cost of the threads that the program begins while it is sampled.
//!
//! A thread inherits the events of all processors from the one that creates it: the kernel makes
//! them when the thread begins, ends them with it, and sets their timer whenever it runs. This is
//! charged to the program's threads, so no clock shows it. For threads that end after some tens of
//! microseconds it is a large part of their time, however few samples there are. Therefore the
//! kernel reports each thread that begins (`PERF_RECORD_FORK`), and sampling ends when they have
//! cost too much.

/// The assumed cost of an inherited event, in nanoseconds: 5,000 threads that ran for 50 us each,
/// one after the other, took 7 us more each if they were sampled seldom, on two processors.
const COST_OF_EVENT: f64 = 3_500.0;

/// How often a short thread, and the one that waits for it, have a timer set. That takes most of
/// the time of a sample.
const TIMERS: f64 = 2.0;

/// Threads may cost as much as if the program had already run for this time, in nanoseconds: many
/// programs begin all of their threads at the start.
const AHEAD: f64 = 1e9;

/// This many threads for each processor are sampled in any case.
const POOL: u64 = 2;

/// The threads that have begun.
#[derive(Debug, Default)]
pub(super) struct Begun {
    number: u64,
    /// The number of threads that are sampled whatever they cost.
    free: u64,
    cost_of_one: f64,
    /// The part of the program's processor time that they may cost.
    share: f64,
}

impl Begun {
    /// None has begun yet. Each inherits this number of events.
    pub(super) fn new(share: f64, events: usize, cost_of_sample: f64) -> Self {
        let cost_of_one = events as f64 * COST_OF_EVENT + TIMERS * cost_of_sample;
        Self { number: 0, free: POOL * events as u64, cost_of_one, share }
    }

    pub(super) fn add(&mut self, number: u64) {
        self.number += number;
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The cost for the program's threads, in nanoseconds.
    pub(super) fn cost(&self) -> f64 {
        self.cost_of(self.number)
    }

    fn cost_of(&self, number: u64) -> f64 {
        number as f64 * self.cost_of_one
    }

    /// Whether they have cost more than permitted, in a program that has run for this time.
    pub(super) fn exceed(&self, running: f64) -> bool {
        self.cost_of(self.number.saturating_sub(self.free)) > self.share * (running + AHEAD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_short_threads_exceed_their_share_and_those_of_a_start_do_not() {
        let mut begun = Begun::new(0.004, 2, 5_000.0);
        assert!(begun.cost() == 0.0 && !begun.exceed(0.0));
        begun.add(200);
        assert_eq!(begun.cost(), 200.0 * 17_000.0);
        assert!(!begun.exceed(0.0), "a pool of threads");
        begun.add(200);
        assert!(begun.exceed(0.0) && begun.exceed(0.5e9), "400 in half a second");
        assert!(!begun.exceed(1e9), "400 in a second");
    }

    #[test]
    fn a_pool_for_all_processors_is_sampled() {
        let mut begun = Begun::new(0.004, 64, 5_000.0);
        begun.add(2 * 64);
        assert!(!begun.exceed(0.0));
        begun.add(20);
        assert!(begun.exceed(0.0));
    }

    /// A thread on a machine with many processors inherits many events.
    #[test]
    fn each_processor_adds_to_the_cost() {
        let cost = |events| {
            let mut begun = Begun::new(0.004, events, 5_000.0);
            begun.add(1);
            begun.cost()
        };
        assert_eq!(cost(64) - cost(2), 62.0 * COST_OF_EVENT);
    }
}
