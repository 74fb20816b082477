//! The time by which rules are sampled: `@sample(10ms)`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// A function that a clock calls at a given time.
pub type Alarm = Box<dyn FnOnce() + Send>;

/// A clock by which a monitor samples events.
pub trait Clock: fmt::Debug + Send + Sync {
    /// The time, in nanoseconds since any fixed start. It is called in the program, by each thread
    /// that reaches a rule.
    fn now(&self) -> u64;

    /// Calls a function, once, at a time in nanoseconds or soon after it, on any thread. It is
    /// called in the program, and must not wait for long.
    fn call_at(&self, time: u64, function: Alarm);
}

/// The system's clock, with a thread for later calls.
#[derive(Debug)]
pub(super) struct SystemClock {
    start: Instant,
    /// The requests to the thread, once there is one. The thread ends with the clock.
    alarms: Mutex<Option<Sender<(u64, Alarm)>>>,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self { start: Instant::now(), alarms: Mutex::default() }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn call_at(&self, time: u64, function: Alarm) {
        let mut alarms = self.alarms.lock().unwrap_or_else(PoisonError::into_inner);
        if alarms.is_none() {
            let (sender, receiver) = channel();
            let start = self.start;
            let thread = thread::Builder::new().name("monitor clock".to_owned());
            *alarms = thread.spawn(move || ring(start, &receiver)).ok().map(|_| sender);
        }
        let alarm = (time, function);
        let refused = match &*alarms {
            Some(alarms) => alarms.send(alarm).err().map(|refused| refused.0),
            None => Some(alarm),
        };
        drop(alarms);
        // Without a thread, at once.
        if let Some((_, function)) = refused {
            function();
        }
    }
}

/// Calls functions when they are due, until all senders of requests are gone.
fn ring(start: Instant, requests: &Receiver<(u64, Alarm)>) {
    let mut waiting: BTreeMap<(u64, u64), Alarm> = BTreeMap::new();
    for number in 0.. {
        let next = waiting.first_key_value().map(|((time, _), _)| start + Duration::from_nanos(*time));
        let request = match next {
            Some(next) => requests.recv_timeout(next.saturating_duration_since(Instant::now())),
            None => requests.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match request {
            Ok((time, function)) => drop(waiting.insert((time, number), function)),
            Err(RecvTimeoutError::Timeout) => {
                if let Some((_, function)) = waiting.pop_first() {
                    function();
                }
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_called_in_the_order_of_their_times() {
        let clock = SystemClock::default();
        let (sender, called) = channel();
        let now = clock.now();
        for milliseconds in [40, 0, 20] {
            let sender = sender.clone();
            let time = now + milliseconds * 1_000_000;
            clock.call_at(time, Box::new(move || sender.send((milliseconds, time)).unwrap()));
        }
        for expected in [0, 20, 40] {
            let (milliseconds, time) = called.recv().unwrap();
            assert!(milliseconds == expected && clock.now() >= time);
        }
    }
}
