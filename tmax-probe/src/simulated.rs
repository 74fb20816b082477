//! A simulated machine whose window and T_max are known: what the estimator must recover.
//!
//! Time is a line of periods, one a toggle. An executor runs the site at random times. It reads each fetch window that the site
//! touches as it was some *lag* ago, at most T_max (the paper's bounded staleness, section 3): one lag where both parts lie
//! in one window; two where they do not, which are mostly equal, and now and then unrelated. Staleness is no uniform thing on
//! real machines: long lags are rarer than short ones here as well.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::error::Error;
use crate::trial::{CACHE_LINE, Machine, Method, Spec, Trial, class};

/// Executions that a trial simulates.
const EXECUTIONS: u64 = 100_000;

/// Ticks of a store, and of the gap between two toggles.
const STORE: u64 = 20;
const GAP: u64 = 60;

/// A machine that does not exist.
pub struct Simulated {
    /// Its fetch window in bytes.
    pub window: u32,
    /// The longest lag, in ticks.
    pub t_max: u32,
    /// How many of a million executions of a straddler inside a cache line read its parts with unrelated lags. Across lines,
    /// which come and go one by one, half of them do.
    pub rarity: u32,
    random: SmallRng,
}

/// What an executor finds of one side of the site.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Locked,
    /// Even versions are the old form, odd ones the new.
    Version(u64),
}

impl Simulated {
    /// With these properties; the same seed gives the same trials.
    pub fn new(window: u32, t_max: u32, rarity: u32, seed: u64) -> Self {
        Self { window, t_max, rarity, random: SmallRng::seed_from_u64(seed) }
    }

    /// At most T_max; long ones are rare.
    fn lag(&mut self) -> u64 {
        let share: f64 = self.random.random();
        (f64::from(self.t_max) * share.powi(3)) as u64
    }

    fn lags(&mut self, boundary: u32) -> (u64, u64) {
        let first = self.lag();
        let class = class(boundary);
        let rarity = if class < CACHE_LINE { self.rarity } else { 500_000 };
        let apart = class >= self.window && self.random.random_range(0..1_000_000) < rarity;
        (first, if apart { self.lag() } else { first })
    }

    fn tears(&mut self, spec: &Spec) -> (u64, u64) {
        // Where the back part is stored, and the front unlocked, after the beginning of a period.
        let (back_at, front_at, locks) = match spec.method {
            Method::Store | Method::LockedStore => (0, 0, false),
            Method::Protocol { wait } => {
                let step = STORE + u64::from(wait);
                (step, 2 * step, true)
            }
            // With the waits that the library would make here.
            Method::Wordpatch => {
                let step = STORE + u64::from(self.t_max);
                (step, 2 * step, true)
            }
        };
        let period = front_at + STORE + GAP;
        let (mut tears, mut locked) = (0, 0);
        for _ in 0..EXECUTIONS {
            // Far enough from the beginning for every lag.
            let now = self.random.random_range(1_000 * period..2_000 * period) + u64::from(self.t_max);
            let (front_lag, back_lag) = self.lags(spec.boundary);
            let seen = |lag: u64, written_at: u64, locks: bool| {
                let (number, phase) = ((now - lag) / period, (now - lag) % period);
                match phase < written_at {
                    true if locks => Side::Locked,
                    true => Side::Version(number),
                    false => Side::Version(number + 1),
                }
            };
            match (seen(front_lag, front_at, locks), seen(back_lag, back_at, false)) {
                (Side::Version(front), Side::Version(back)) if front % 2 != back % 2 => tears += 1,
                (Side::Version(_), _) => {}
                (Side::Locked, _) => locked += 1,
            }
        }
        (tears, locked)
    }
}

impl Machine for Simulated {
    fn run(&mut self, spec: &Spec) -> Result<Trial, Error> {
        let (tears, locked) = self.tears(spec);
        let (toggles, executions, milliseconds) = (EXECUTIONS, EXECUTIONS, spec.milliseconds);
        Ok(Trial { toggles, executions, locked, tears, milliseconds, ..Trial::nothing(spec) })
    }
}
