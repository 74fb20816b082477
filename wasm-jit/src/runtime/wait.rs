//! `memory.atomic.wait` and `notify`.
//!
//! Waiters are queued by address. A waiter compares the value and joins the queue under the lock
//! that a notifier takes, so that it misses no notification after the comparison. It stays in the
//! queue until it is notified or gives up, including while it periodically checks whether its store
//! is to be interrupted.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::code::forks::{Locked, lock};

/// Interval at which a waiter checks for interrupts.
const PERIOD: Duration = Duration::from_millis(10);

/// Queues by address. They are divided into shards, each with a lock, so that threads at different
/// addresses seldom wait for each other. All of them prevent forks meanwhile, which is one shared
/// counter.
const SHARDS: usize = 64;

type Queues = BTreeMap<usize, VecDeque<Arc<Waiter>>>;

#[derive(Debug, Default)]
struct Waiter {
    notified: Mutex<bool>,
    wake: Condvar,
}

/// The outcome of a wait; the numbers are the instruction's results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Notified = 0,
    NotEqual = 1,
    TimedOut = 2,
    Interrupted,
}

fn queues(address: usize) -> Locked<'static, Queues> {
    static QUEUES: [Mutex<Queues>; SHARDS] = [const { Mutex::new(Queues::new()) }; SHARDS];
    lock(&QUEUES[(address >> 2) % SHARDS])
}

/// Waits at an address unless `is_expected` returns false for the value there. `is_interrupted`, if
/// given, is called periodically.
pub(crate) fn wait(
    address: usize,
    is_expected: impl FnOnce() -> bool,
    timeout: Option<Duration>,
    is_interrupted: Option<&dyn Fn() -> bool>,
) -> Outcome {
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let waiter = Arc::new(Waiter::default());
    {
        let mut queues = queues(address);
        if !is_expected() {
            return Outcome::NotEqual;
        }
        queues.entry(address).or_default().push_back(waiter.clone());
    }
    loop {
        let rest = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let period = is_interrupted.map(|_| PERIOD);
        if waiter.sleep(rest.into_iter().chain(period).min()) {
            return Outcome::Notified;
        }
        if is_interrupted.is_some_and(|is_interrupted| is_interrupted()) {
            return give_up(address, &waiter, Outcome::Interrupted);
        }
        if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return give_up(address, &waiter, Outcome::TimedOut);
        }
    }
}

impl Waiter {
    /// Sleeps until notified, but no longer than `time`. Returns whether it was notified.
    fn sleep(&self, time: Option<Duration>) -> bool {
        let notified = self.notified.lock().unwrap_or_else(PoisonError::into_inner);
        let asleep = |notified: &mut bool| !*notified;
        *match time {
            Some(time) => {
                let woken = self.wake.wait_timeout_while(notified, time, asleep);
                woken.unwrap_or_else(PoisonError::into_inner).0
            }
            None => self.wake.wait_while(notified, asleep).unwrap_or_else(PoisonError::into_inner),
        }
    }
}

/// Leaves the queue, unless a notifier has removed the waiter in the meantime.
fn give_up(address: usize, waiter: &Arc<Waiter>, outcome: Outcome) -> Outcome {
    let mut queues = queues(address);
    let place =
        queues.get(&address).and_then(|queue| queue.iter().position(|found| Arc::ptr_eq(found, waiter)));
    match place {
        Some(place) => {
            let queue = queues.get_mut(&address).expect("just found");
            queue.remove(place);
            if queue.is_empty() {
                queues.remove(&address);
            }
            outcome
        }
        None if outcome == Outcome::Interrupted => outcome,
        None => Outcome::Notified,
    }
}

/// Wakes at most `count` waiters at the address, in order of arrival; returns their number.
pub(crate) fn notify(address: usize, count: u32) -> u32 {
    let mut queues = queues(address);
    let Some(queue) = queues.get_mut(&address) else { return 0 };
    let woken = queue.len().min(count as usize);
    for waiter in queue.drain(..woken) {
        *waiter.notified.lock().unwrap_or_else(PoisonError::into_inner) = true;
        waiter.wake.notify_one();
    }
    if queue.is_empty() {
        queues.remove(&address);
    }
    woken as u32
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn a_value_that_differs_is_not_waited_for() {
        assert_eq!(wait(0x10, || false, None, None), Outcome::NotEqual);
        assert_eq!(notify(0x10, 1), 0);
    }

    #[test]
    fn a_timeout_ends_the_wait_and_leaves_no_waiter() {
        assert_eq!(wait(0x20, || true, Some(Duration::from_millis(1)), None), Outcome::TimedOut);
        assert_eq!(notify(0x20, u32::MAX), 0);
    }

    #[test]
    fn an_interrupt_ends_the_wait() {
        let asked = AtomicBool::new(false);
        let outcome = wait(0x30, || true, None, Some(&|| asked.swap(true, Ordering::Relaxed)));
        assert_eq!(outcome, Outcome::Interrupted);
    }

    #[test]
    fn notify_wakes_the_requested_number() {
        let woken = AtomicU32::new(0);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    assert_eq!(wait(0x40, || true, None, None), Outcome::Notified);
                    woken.fetch_add(1, Ordering::SeqCst);
                });
            }
            let mut notified = 0;
            while notified < 3 {
                notified += notify(0x40, 1);
                thread::yield_now();
            }
        });
        assert_eq!(woken.into_inner(), 3);
        assert_eq!(notify(0x40, 1), 0);
    }
}
