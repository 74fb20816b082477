//! Lists of probes that a thread changes while others execute their places: each event fires one
//! list as a whole, which was in force, in order. The probes themselves check that.
//!
//! At each place, a first probe, which is always on, begins the record of an event, and the others
//! append their numbers. The changing thread announces each list before it comes into force. When
//! the next event of the thread begins, the list that has fired must be one of those: the same as
//! at the last event of this place, or a later one.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use wasm_jit::probes::{Bound, Callback, GenericFn, Kind, Location, Place, Probe, ProbeSpec};
use wasm_jit::wasmparser::Operator;
use wasm_jit::{Instance, Module, Store};

use super::frames::offset_of;
use super::threads::{Ends, wait_for_a_run};
use super::{engine, is_long};

const PROGRAM: &str = r#"(module
    (func $leaf (param i32) (result i32) (i32.add (local.get 0) (i32.const 3)))
    (func (export "run") (param i32) (result i32) (local i32)
        (loop $again
            (local.set 1 (call $leaf (local.get 1)))
            (br_if $again (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))
        (local.get 1)))"#;

const EXECUTORS: usize = 3;
const PLACES: usize = 3;
/// The probes of a place that are switched, numbered from 1.
const SWITCHED: u32 = 3;
const ITERATIONS: i32 = 200;

/// The lists of a place, in the order in which they come into force.
struct History {
    /// Each as the digits of a number, to the base of `SWITCHED + 1`.
    lists: Box<[AtomicU32]>,
    /// How many have been announced.
    announced: AtomicUsize,
}

impl History {
    fn new(changes: usize) -> Self {
        let lists = (0..=changes).map(|_| AtomicU32::new(0)).collect();
        Self { lists, announced: AtomicUsize::new(1) }
    }

    /// Announces a list. Called by one thread only.
    fn announce(&self, list: &[u32]) {
        let number = self.announced.load(Ordering::Relaxed);
        let digits = list.iter().fold(0, |digits, probe| digits * (SWITCHED + 1) + probe);
        self.lists[number].store(digits, Ordering::Relaxed);
        self.announced.store(number + 1, Ordering::Release);
    }
}

/// What a thread has seen.
#[derive(Default)]
struct Seen {
    /// The event in progress, or the last one: its place, the frame, and the probes that fired.
    event: Option<(usize, u64, u32)>,
    /// By place: the number of the list of its last event.
    lists: [usize; PLACES],
    events: usize,
}

thread_local! {
    static SEEN: RefCell<Seen> = RefCell::default();
}

impl Seen {
    /// Checks the last event.
    fn end_event(&mut self, histories: &[History; PLACES]) {
        let Some((place, _, fired)) = self.event.take() else { return };
        let History { lists, announced } = &histories[place];
        let last = &mut self.lists[place];
        let announced = announced.load(Ordering::Acquire);
        let found = (*last..announced).find(|number| lists[*number].load(Ordering::Relaxed) == fired);
        *last = found.unwrap_or_else(|| {
            panic!("place {place}: list {fired} is none of those from {last} on, of {announced}")
        });
        self.events += 1;
    }

    /// A probe fires; 0 is the first one of each place.
    fn fire(&mut self, histories: &[History; PLACES], place: usize, probe: u32, frame: u64) {
        if probe == 0 {
            self.end_event(histories);
            self.event = Some((place, frame, 0));
            return;
        }
        let (of_place, of_frame, fired) = self.event.as_mut().expect("the first probe has fired");
        assert_eq!((place, frame), (*of_place, *of_frame), "probe {probe}");
        *fired = *fired * (SWITCHED + 1) + probe;
    }
}

/// Makes a probe of a place, with a closure of its own.
fn make(
    module: &Module,
    location: Location,
    histories: &Arc<[History; PLACES]>,
    place: usize,
    probe: u32,
) -> Probe {
    let histories = histories.clone();
    let kind = if probe == 2 {
        Kind::Generic(GenericFn::new(move |frame| {
            let number = frame.number();
            SEEN.with_borrow_mut(|seen| seen.fire(&histories, place, probe, number));
            Ok(())
        }))
    } else {
        let function = Callback::new(move |values| {
            SEEN.with_borrow_mut(|seen| seen.fire(&histories, place, probe, values[0]));
        });
        Kind::Callback { function, values: [Bound::Frame].into() }
    };
    module.probe(ProbeSpec { location, kind }).unwrap()
}

/// Calls the program until something holds after a run, and checks the events of each call.
fn run_until(module: &Module, histories: &[History; PLACES], is_over: impl Fn() -> bool) -> usize {
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, module, &[]).unwrap();
    let run = instance.get_typed_func::<i32, i32>(&mut store, "run").unwrap();
    loop {
        assert_eq!(run.call(&mut store, ITERATIONS).unwrap(), 3 * ITERATIONS);
        SEEN.with_borrow_mut(|seen| seen.end_event(histories));
        if is_over() {
            return SEEN.with_borrow(|seen| seen.events);
        }
    }
}

/// Probes at all of these places are switched, dropped and made at random, and so are others,
/// because of which the functions get other versions.
#[test]
fn each_event_fires_a_list_that_was_in_force() {
    let changes = if is_long() { 100_000 } else { 6_000 };
    let module = Module::new(&engine(), PROGRAM).unwrap();
    let histories: Arc<[History; PLACES]> = Arc::new(std::array::from_fn(|_| History::new(changes)));
    let sub = offset_of(&module, 1, |operator| matches!(operator, Operator::I32Sub));
    let places = [
        Location { function: 0, place: Place::Entry },
        Location { function: 0, place: Place::Exit },
        Location { function: 1, place: Place::Instruction { offset: sub } },
    ];
    let make = |place: usize, probe: u32| make(&module, places[place], &histories, place, probe);
    let firsts = [0, 1, 2].map(|place| make(place, 0));
    firsts.iter().for_each(|first| first.activate().unwrap());
    let mut probes = [0, 1, 2].map(|place| [1, 2, 3].map(|probe| make(place, probe)));
    let mut lists: [Vec<u32>; PLACES] = Default::default();
    let others: Vec<Location> = module
        .functions()
        .flat_map(|function| {
            let body = function.body().unwrap();
            let start = body.range().start;
            let location = move |offset: usize| Location {
                function: function.index(),
                place: Place::Instruction { offset: (offset - start) as u32 },
            };
            body.instructions().map(move |at| location(at.offset())).collect::<Vec<_>>()
        })
        .collect();
    let mut other: Option<Probe> = None;
    let (is_over, failed, runs) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU32::new(0));
    let mut random = SmallRng::seed_from_u64(1);
    std::thread::scope(|scope| {
        for _ in 0..EXECUTORS {
            scope.spawn(|| {
                let _ends = Ends(&failed);
                let events = run_until(&module, &histories, || {
                    runs.fetch_add(1, Ordering::Relaxed);
                    is_over.load(Ordering::Acquire)
                });
                assert!(events > 0);
            });
        }
        for _ in 0..changes {
            if failed.load(Ordering::Acquire) {
                break;
            }
            let (place, probe) = (random.random_range(0..PLACES), random.random_range(1..=SWITCHED));
            let (list, handle) = (&mut lists[place], &mut probes[place][probe as usize - 1]);
            let is_on = list.contains(&probe);
            list.retain(|other| *other != probe);
            match random.random_range(0..100) {
                0..10 => {
                    histories[place].announce(list);
                    *handle = make(place, probe);
                }
                _ if is_on => {
                    histories[place].announce(list);
                    handle.deactivate().unwrap();
                }
                _ => {
                    list.push(probe);
                    histories[place].announce(list);
                    handle.activate().unwrap();
                }
            }
            if random.random_range(0..50) == 0 {
                let location = others[random.random_range(0..others.len())];
                let made = module.probe(ProbeSpec { location, kind: Kind::Count }).unwrap();
                made.activate().unwrap();
                other = Some(made);
            }
            if random.random_range(0..64) == 0 {
                wait_for_a_run(&runs, &failed);
            }
        }
        is_over.store(true, Ordering::Release);
    });
    drop(other);
    // Now the last lists are in force.
    let last = [0, 1, 2].map(|place| histories[place].announced.load(Ordering::Relaxed) - 1);
    SEEN.set(Seen { lists: last, ..Seen::default() });
    assert_eq!(run_until(&module, &histories, || true), PLACES * ITERATIONS as usize);
}

pub(crate) fn test_all() {
    each_event_fires_a_list_that_was_in_force();
}
