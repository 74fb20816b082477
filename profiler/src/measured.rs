//! What was measured of one function, and what the report says of it.

use std::ffi::CStr;

use sketches_ddsketch::{Config, DDSketch};

use crate::estimate::Estimator;
use crate::report::{Estimate, FunctionReport, Latency};
use crate::symbol::demangle;
use crate::thread::Sample;

/// Relative error of the quantiles, and how many buckets they may take at most: for any latency between a tick and a day.
const SKETCH_ERROR: f64 = 0.005;
const SKETCH_BUCKETS: u32 = 4096;

/// One function.
pub(crate) struct Measured {
    pub(crate) name: &'static CStr,
    pub(crate) object: &'static CStr,
    pub(crate) address: usize,
    sketch: DDSketch,
    pub(crate) samples: u64,
    min: u64,
    max: u64,
    sum: f64,
    pub(crate) estimator: Estimator,
}

impl Measured {
    pub(crate) fn new(name: &'static CStr, object: &'static CStr, address: usize) -> Self {
        let sketch = DDSketch::new(Config::new(SKETCH_ERROR, SKETCH_BUCKETS, 1.0));
        let estimator = Estimator::default();
        Self { name, object, address, sketch, samples: 0, min: u64::MAX, max: 0, sum: 0.0, estimator }
    }

    pub(crate) fn sample(&mut self, sample: &Sample) {
        let ticks = sample.ticks;
        self.sketch.add(ticks as f64);
        self.samples += 1;
        self.min = self.min.min(ticks);
        self.max = self.max.max(ticks);
        self.sum += ticks as f64;
        self.estimator.sample(sample);
    }

    fn latency(&self, ticks_per_ns: f64) -> Option<Latency> {
        let ns = |ticks: f64| ticks / ticks_per_ns;
        let (min, max) = (self.min as f64, self.max as f64);
        // Nothing bounds the calls that were not timed.
        let estimate = |ticks: f64| Estimate::within(ns(ticks), ns(min), f64::INFINITY);
        let quantile = |q| Some(estimate(self.sketch.quantile(q).ok()??.clamp(min, max)));
        Some(Latency {
            min: ns(min),
            mean: estimate(self.sum / self.samples as f64),
            p50: quantile(0.5)?,
            p90: quantile(0.9)?,
            p99: quantile(0.99)?,
            max: ns(max),
            below_resolution: false,
            resolution: ns(1.0),
        })
    }

    /// What the report says of the function; nothing if it was not called.
    pub(crate) fn report(&self, ticks_per_ns: f64) -> Option<FunctionReport> {
        let estimate = self.estimator.estimate();
        let error = estimate.relative_error().unwrap_or(f64::INFINITY);
        let within = |value: f64, least: f64| {
            Estimate::within(value, (value * (1.0 - error)).max(least), value * (1.0 + error))
        };
        let total = estimate.total_ticks / ticks_per_ns;
        (estimate.calls() > 0.0 || self.samples > 0).then(|| FunctionReport {
            name: demangle(&self.name.to_string_lossy()),
            object: self.object.to_string_lossy().into_owned(),
            address: self.address as u64,
            location: None,
            samples: self.samples,
            // What was measured was called, also where a burst is cut by the fork of the process.
            calls: within(estimate.calls().round().max(self.samples as f64), self.samples as f64),
            total_ns: (self.samples > 0).then(|| within(total, 0.0)),
            self_ns: None,
            recursive: false,
            open_calls: 0,
            latency_ns: self.latency(ticks_per_ns),
            off_cpu: None,
        })
    }
}
