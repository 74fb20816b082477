//! What it costs to set and to remove breakpoints in the code of Wasmtime's guest debugging, in the
//! program of the benchmark `wasm_toggle`, for comparison with its probes. Prints the medians, in
//! ticks of the time-stamp counter for each breakpoint.
//!
//! Breakpoints are changed in an *edit*, which makes the code of the module writable, and
//! executable again when it ends. Nothing else can run in the store meanwhile. Each instruction has
//! a place for a breakpoint, which is laid out when the module is compiled.
//!
//! Before anything is timed, a breakpoint must be reported once for each execution, and never after
//! it was removed.

#[path = "../../wasm_toggle/program.rs"]
mod program;

use std::arch::x86_64::{_mm_lfence, _rdtsc};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use program::module_text;
use wasmparser::{Parser, Payload};
use wasmtime::{
    Config, DebugEvent, DebugHandler, Engine, Instance, Module, ModulePC, Store, StoreContextMut, TypedFunc,
};

/// Counts breakpoints.
#[derive(Clone, Default)]
struct Reached(Arc<AtomicU64>);

impl DebugHandler for Reached {
    type Data = ();

    async fn handle(&self, _: StoreContextMut<'_, ()>, event: DebugEvent<'_>) {
        if matches!(event, DebugEvent::Breakpoint) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The program, and the places of its instructions.
struct Loaded {
    store: Store<()>,
    module: Module,
    first: TypedFunc<i32, i32>,
    reached: Reached,
    places: Vec<ModulePC>,
}

fn main() {
    println!("ticks for each breakpoint, medians");
    let mut one = Loaded::new(1);
    let middle = one.places.len() / 2..one.places.len() / 2 + 1;
    one.check(middle.start);
    let [on, off] = one.medians(middle, 2_000);
    println!("one, of {} in the module: on {on:.0}, off {off:.0}", one.places.len());
    for (functions, rounds) in [(6, 200), (547, 20)] {
        let mut many = Loaded::new(functions);
        many.check(0);
        let all = 0..many.places.len();
        let [on, off] = many.medians(all.clone(), rounds);
        println!("{} in one edit: on {on:.0}, off {off:.0}", all.end);
        let [on, off] = many.medians(0..1, rounds);
        println!("one, of {} in the module: on {on:.0}, off {off:.0}", all.end);
    }
    for debugs in [false, true] {
        let engine = engine(debugs);
        let bytes = wat::parse_str(module_text(1)).expect("a valid module");
        let times = (0..200).map(|_| ticks(|| Module::from_binary(&engine, &bytes).expect("a valid module")));
        let what = if debugs { "with" } else { "without" };
        println!(
            "a module of one function is loaded, {what} guest debugging: {:.0}",
            median(times.collect())
        );
    }
}

fn engine(debugs: bool) -> Engine {
    let mut config = Config::new();
    config.guest_debug(debugs);
    Engine::new(&config).expect("an engine")
}

impl Loaded {
    fn new(functions: usize) -> Self {
        let engine = engine(true);
        let bytes = wat::parse_str(module_text(functions)).expect("a valid module");
        let module = Module::from_binary(&engine, &bytes).expect("a valid module");
        let mut store = Store::new(&engine, ());
        let reached = Reached::default();
        store.set_debug_handler(reached.clone());
        let instance = wait(Instance::new_async(&mut store, &module, &[])).expect("an instance");
        let first = instance.get_typed_func(&mut store, "0").expect("the first function");
        Self { store, module, first, reached, places: places(&bytes) }
    }

    /// The number of times that breakpoints are reached in a call.
    fn reached(&mut self) -> u64 {
        let before = self.reached.0.load(Ordering::Relaxed);
        wait(self.first.call_async(&mut self.store, 1)).expect("it does not trap");
        self.reached.0.load(Ordering::Relaxed) - before
    }

    fn check(&mut self, place: usize) {
        self.set(place..place + 1, true);
        assert_eq!(self.reached(), 1, "a breakpoint that is set is reached");
        self.set(place..place + 1, false);
        assert_eq!(self.reached(), 0, "a breakpoint that was removed is not");
    }

    /// Sets or removes breakpoints in one edit.
    fn set(&mut self, places: std::ops::Range<usize>, on: bool) {
        let mut edit = self.store.edit_breakpoints().expect("guest debugging is on");
        for place in &self.places[places] {
            let set = match on {
                true => edit.add_breakpoint(&self.module, *place),
                false => edit.remove_breakpoint(&self.module, *place),
            };
            set.expect("the module is the engine's");
        }
    }

    /// The medians of the times to set and to remove these breakpoints, divided by their number.
    fn medians(&mut self, places: std::ops::Range<usize>, rounds: usize) -> [f64; 2] {
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            for (times, on) in times.iter_mut().zip([true, false]) {
                times.push(ticks(|| self.set(places.clone(), on)) / places.len() as f64);
            }
        }
        times.map(median)
    }
}

/// The offsets of all instructions in the module.
fn places(bytes: &[u8]) -> Vec<ModulePC> {
    let mut places = Vec::new();
    for payload in Parser::new(0).parse_all(bytes) {
        if let Payload::CodeSectionEntry(body) = payload.expect("a valid module") {
            for operator in body.get_operators_reader().expect("it has code").into_iter_with_offsets() {
                let (_, offset) = operator.expect("a valid module");
                places.push(ModulePC::new(offset as u32));
            }
        }
    }
    places
}

/// Polls a future, which never waits for another thread, to its end.
fn wait<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return result;
        }
    }
}

/// The ticks that `act` takes.
fn ticks<T>(act: impl FnOnce() -> T) -> f64 {
    let now = || {
        // SAFETY: the instructions are part of x86-64, and touch no memory.
        unsafe {
            _mm_lfence();
            let ticks = _rdtsc();
            _mm_lfence();
            ticks
        }
    };
    let begin = now();
    let result = act();
    let end = now();
    drop(result);
    end.wrapping_sub(begin) as f64
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
