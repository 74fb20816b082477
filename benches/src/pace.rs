//! A thread that toggles at a pace, which it keeps by the time-stamp counter, in a busy wait.

use wordpatch::tsc;

/// The requested number of toggles per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// No toggles.
    Never,
    /// This many.
    PerSecond(u64),
    /// The next toggle starts as soon as the last one is complete.
    Unlimited,
}

impl Pace {
    /// The paces to compare.
    pub const ALL: [Self; 5] = [
        Self::PerSecond(1_000),
        Self::PerSecond(10_000),
        Self::PerSecond(100_000),
        Self::PerSecond(1_000_000),
        Self::Unlimited,
    ];

    /// Interval between two toggles, in ticks.
    pub fn interval(self, ticks_per_ns: f64) -> Option<u64> {
        match self {
            Self::Never => None,
            Self::PerSecond(rate) => Some((1e9 / rate as f64 * ticks_per_ns) as u64),
            Self::Unlimited => Some(0),
        }
    }

    /// As in a table.
    pub fn name(self) -> String {
        match self {
            Self::Never => "never".into(),
            Self::PerSecond(rate) if rate >= 1_000_000 => format!("{} MHz", rate / 1_000_000),
            Self::PerSecond(rate) => format!("{} kHz", rate / 1_000),
            Self::Unlimited => "unlimited".into(),
        }
    }
}

/// Calls `act` for `duration` ticks: with the number of a toggle that is due, from 1, or else
/// without one. It returns whether the toggle was made. Late toggles are not made up for. Returns
/// the number of toggles, and the ticks that they took.
pub fn toggle_for(
    duration: u64,
    interval: Option<u64>,
    mut act: impl FnMut(Option<u64>) -> bool,
) -> (u64, u64) {
    let begin = tsc::now();
    let (mut toggles, mut next) = (0, interval.map(|interval| begin + interval));
    loop {
        let now = tsc::now();
        if now.wrapping_sub(begin) >= duration {
            return (toggles, now.wrapping_sub(begin));
        }
        let is_due = next.is_some_and(|next| now >= next);
        let is_made = act(is_due.then_some(toggles + 1));
        if let (true, true, Some(due), Some(interval)) = (is_due, is_made, next, interval) {
            toggles += 1;
            next = Some(if now - due > interval { now } else { due } + interval);
        } else {
            std::hint::spin_loop();
        }
    }
}
