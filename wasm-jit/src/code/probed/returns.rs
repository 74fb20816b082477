//! When a function whose probes are all off returns to its original.
//!
//! A change of version takes a store for each transfer point of the function, and sends each of its
//! frames through a signal handler. A probe that is toggled all the time must not pay that each
//! time, so a function returns only a few times in an interval when its last active probe is
//! switched off by itself. Beyond that, it stays in its version until its probes are toggled less
//! often, removed, or switched off together.

use std::time::{Duration, Instant};

/// The returns that a function may make in an interval.
const LIMIT: u32 = 16;

const INTERVAL: Duration = Duration::from_millis(100);

/// The returns of a function.
#[derive(Debug, Default)]
pub(super) struct Returns {
    /// The number since the interval began.
    made: u32,
    /// When the interval began; none before the first return.
    since: Option<Instant>,
}

impl Returns {
    /// Whether the function may return now, which is then counted.
    pub(super) fn admit(&mut self, now: Instant) -> bool {
        if self.since.is_none_or(|since| now - since >= INTERVAL) {
            (self.made, self.since) = (0, Some(now));
        }
        let is_admitted = self.made < LIMIT;
        self.made += u32::from(is_admitted);
        is_admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_has_a_limited_number_of_returns() {
        let (mut returns, start) = (Returns::default(), Instant::now());
        let mut admitted = |after: Duration| (0..100).filter(|_| returns.admit(start + after)).count();
        assert_eq!(admitted(Duration::ZERO), LIMIT as usize);
        assert_eq!(admitted(INTERVAL - Duration::from_nanos(1)), 0);
        assert_eq!(admitted(INTERVAL), LIMIT as usize);
        assert_eq!(admitted(INTERVAL), 0);
        assert_eq!(admitted(3 * INTERVAL), LIMIT as usize);
    }
}
