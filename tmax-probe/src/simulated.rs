//! Simulated machines with a known window and T_max, which no run may contradict.
//!
//! A simulated machine tears as real ones do: inside a cache line 0.1 to 20 times in a million
//! toggles, in clusters (all tears of a hundred trials may come from four of them, possibly
//! consecutive), and never with one executor. Across lines and pages a plain store tears almost
//! always. Under the protocol, tears become rarer with longer waits, and end at T_max.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::boundary::{CACHE_LINE, CLASSES, INSIDE_LINE, PAGE, class};
use crate::error::Error;
use crate::trial::{Kernel, Machine, Method, Spacing, Spec, Trial};

/// The tearing behaviour of a machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tearing {
    /// Tears in a million toggles by one store inside a cache line, on average over all trials.
    pub per_million: f64,
    /// The factors of the classes 8, 16 and 32; 0 if the machine does not tear there.
    pub by_class: [f64; INSIDE_LINE.len()],
    /// Tears in a million toggles by the protocol without waits.
    pub per_million_unwaited: f64,
    /// The rate at a wait is that without waits times (1 - wait / T_max) to this power.
    pub decline: f64,
    /// The share of trials that tear, from 0 to 1.
    pub hot: f64,
    /// The average number of trials in a period with or without tears.
    pub period: f64,
    /// The share of a processor that a thread of a trial gets in the presence of other processes,
    /// from 0 to 1.
    pub processor: f64,
}

/// A simulated machine with known properties.
#[derive(Debug)]
pub struct Simulated {
    /// The fetch window of the machine, in bytes.
    pub window: u32,
    /// The longest staleness, in ticks.
    pub t_max: u32,
    /// The tearing behaviour of the machine.
    pub tearing: Tearing,
    /// The window that `wordpatch::patch` assumes, in bytes.
    pub assumed_window: u32,
    is_hot: bool,
    random: SmallRng,
}

/// Uniform in the logarithm.
fn log_uniform(random: &mut SmallRng, from: f64, to: f64) -> f64 {
    random.random_range(from.ln()..=to.ln()).exp()
}

impl Simulated {
    /// A machine that tears like the AMD Zen 5 that was measured. The same seed produces the same
    /// trials.
    pub fn new(window: u32, t_max: u32, seed: u64) -> Self {
        let tearing = Tearing {
            per_million: 20.0,
            by_class: [1.0; INSIDE_LINE.len()],
            per_million_unwaited: 50.0,
            decline: 2.0,
            hot: 0.5,
            period: 1.0,
            processor: 1.0,
        };
        let random = SmallRng::seed_from_u64(seed);
        Self { window, t_max, tearing, assumed_window: window, is_hot: false, random }
    }

    /// The machine with this number, all of whose parameters are drawn at random from the range of
    /// real machines.
    pub fn drawn(number: u64) -> Self {
        let mut random = SmallRng::seed_from_u64(number);
        let window = CLASSES[random.random_range(1..CLASSES.len())];
        let t_max = log_uniform(&mut random, 200.0, 3_000.0) as u32;
        let tearing = Tearing {
            per_million: log_uniform(&mut random, 0.1, 20.0),
            by_class: std::array::from_fn(|_| log_uniform(&mut random, 0.25, 4.0)),
            per_million_unwaited: log_uniform(&mut random, 1.0, 100.0),
            decline: random.random_range(1.0..=4.0),
            hot: log_uniform(&mut random, 0.04, 1.0),
            period: log_uniform(&mut random, 1.0, 20.0),
            processor: log_uniform(&mut random, 0.05, 1.0),
        };
        Self { tearing, ..Self::new(window, t_max, number) }
    }

    /// Whether the machine tears during the next trial: a Markov chain with two states that is hot
    /// for the share `hot` of the time.
    fn step(&mut self) {
        let Tearing { hot, period, .. } = self.tearing;
        if self.random.random_bool(1.0 / period) {
            self.is_hot = self.random.random_bool(hot);
        }
    }

    /// Expected tears in a million toggles, averaged over hot and other trials.
    fn rate(&self, spec: &Spec) -> f64 {
        /// A plain store across lines or pages.
        const ALMOST_ALWAYS: f64 = 200_000.0;
        let Tearing { per_million, by_class, per_million_unwaited, decline, .. } = self.tearing;
        let is_inside_line = spec.boundary != PAGE && class(spec.boundary) < CACHE_LINE;
        if class(spec.boundary) < self.window || (is_inside_line && spec.executors < 2) {
            return 0.0;
        }
        match spec.method {
            Method::Protocol { wait } if wait >= self.t_max => 0.0,
            Method::Protocol { wait } => {
                per_million_unwaited * (1.0 - f64::from(wait) / f64::from(self.t_max)).powf(decline)
            }
            Method::Wordpatch if class(spec.boundary) >= self.assumed_window => 0.0,
            Method::Store | Method::LockedStore | Method::Wordpatch if is_inside_line => {
                let number = INSIDE_LINE.iter().position(|class_of| *class_of == class(spec.boundary));
                number.map_or(0.0, |number| per_million * by_class[number])
            }
            Method::Store | Method::LockedStore | Method::Wordpatch => ALMOST_ALWAYS,
        }
    }

    /// Number of toggles of the site, as counted on an AMD Zen 5.
    fn toggles(&self, spec: &Spec) -> u64 {
        const TICKS_PER_MILLISECOND: f64 = 2.6e6;
        let pause = match spec.spacing {
            Spacing::BackToBack => 0.0,
            Spacing::Pairs => 325.0,
            Spacing::Spread => 650.0,
        };
        let toggle = match spec.method {
            Method::Store | Method::LockedStore => 50.0,
            Method::Protocol { wait } => 150.0 + 2.0 * f64::from(wait),
            Method::Wordpatch => 2_000.0,
        };
        let time = f64::from(spec.milliseconds) * TICKS_PER_MILLISECOND * self.tearing.processor;
        spec.toggles.min((time / (toggle + pause)) as u64)
    }
}

impl Machine for Simulated {
    fn run(&mut self, spec: &Spec) -> Result<Trial, Error> {
        self.step();
        let toggles = self.toggles(spec);
        let expected =
            if self.is_hot { self.rate(spec) * toggles as f64 / 1e6 / self.tearing.hot } else { 0.0 };
        // Of a Poisson variable, only whether it is 0 matters.
        let tears = if self.random.random_bool((-expected).exp()) { 0 } else { expected.ceil() as u64 };
        let tears = if spec.kernel == Kernel::Call { tears.min(1) } else { tears };
        let (executions, milliseconds) = (toggles * u64::from(spec.executors), spec.milliseconds);
        Ok(Trial { toggles, executions, tears, milliseconds, ..Trial::nothing(spec) })
    }
}

/// The outcomes for a number of simulated machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Outcomes {
    /// The number of machines.
    pub machines: u64,
    /// The number of machines with a window inside a cache line (8, 16 or 32 bytes), and thus a
    /// control.
    pub with_control: u64,
    /// The number of these whose window was found.
    pub windows_known: u64,
    /// The number of machines whose T_max was found.
    pub t_max_known: u64,
    /// The number of calibrations that claim a larger window or a shorter T_max than the machine
    /// has.
    pub unsafe_calibrations: u64,
}

impl Outcomes {
    /// Adds the findings for `machine`.
    pub(crate) fn add(&mut self, machine: &Simulated, window: Option<u32>, t_max: Option<u32>) {
        self.machines += 1;
        self.with_control += u64::from(machine.window < CACHE_LINE);
        self.windows_known += u64::from(window.is_some());
        self.t_max_known += u64::from(t_max.is_some());
        let is_unsafe = window.is_some_and(|found| found > machine.window)
            || t_max.is_some_and(|found| found < machine.t_max);
        self.unsafe_calibrations += u64::from(is_unsafe);
    }
}
