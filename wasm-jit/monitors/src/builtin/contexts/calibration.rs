//! Measures the cost of observing calls, which is subtracted from times.
//!
//! A small program is run with and without observation of its calls; the best of several attempts
//! counts. The interval between two time stamps contains the cost of one event: the second part of
//! the cost of the event at its start, and the first part of the cost of the event at its end.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use wasm_jit::{Engine, Error, Instance, Module, Store, TypedFunc};

use super::{Contexts, Measure, Shared};
use crate::builtin::clock::Clock;

/// The number of calls that are measured together.
const CALLS: i32 = 2000;
const ATTEMPTS: usize = 7;

/// `calls` calls another function, `recursion` itself.
const PROGRAM: &str = "(module
    (func $leaf)
    (func $deep (param i32) (if (local.get 0) (then (call $deep (i32.sub (local.get 0) (i32.const 1))))))
    (func (export \"calls\") (param i32)
        (loop (call $leaf) (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1))))))
    (func (export \"recursion\") (param i32) (call $deep (local.get 0))))";

/// The costs of events, in ticks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Costs {
    /// The cost of an event that takes a time stamp.
    pub(super) timed: f64,
    /// The cost of an event that takes none.
    pub(super) untimed: f64,
}

impl Costs {
    /// The costs on this machine, measured once, within some milliseconds.
    pub(super) fn get() -> Self {
        static COSTS: OnceLock<Costs> = OnceLock::new();
        // Without a measurement, nothing is subtracted.
        *COSTS.get_or_init(|| measure().unwrap_or_default())
    }
}

fn measure() -> Result<Costs, crate::Error> {
    let outside = |error: Error| crate::Error::Nothing(error.to_string());
    let engine = Engine::default();
    let module = Module::new(&engine, PROGRAM).map_err(outside)?;
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &module, &[]).map_err(outside)?;
    let function = |store: &mut Store<()>, name| instance.get_typed_func::<i32, ()>(store, name);
    let calls = function(&mut store, "calls").map_err(outside)?;
    let recursion = function(&mut store, "recursion").map_err(outside)?;
    let mut time = |function: &TypedFunc<i32, ()>| {
        let clock = Clock::get();
        let attempts = (0..ATTEMPTS).map(|_| {
            let before = clock.now();
            function.call(&mut store, CALLS)?;
            Ok(clock.now().saturating_sub(before))
        });
        attempts.collect::<Result<Vec<u64>, Error>>().map(|all| all.into_iter().min().unwrap_or(0) as f64)
    };
    let without = [time(&calls).map_err(outside)?, time(&recursion).map_err(outside)?];
    let shared = Shared::new(Measure::ExactTimes, usize::MAX);
    let contexts = Contexts::new(&module, (0..4).collect(), shared, BTreeMap::new());
    contexts.activate()?;
    let with = [time(&calls).map_err(outside)?, time(&recursion).map_err(outside)?];
    let [timed, untimed] = [0, 1].map(|at| ((with[at] - without[at]) / f64::from(2 * CALLS)).max(0.0));
    Ok(Costs { timed, untimed })
}
