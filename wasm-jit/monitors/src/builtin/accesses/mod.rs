//! The accesses to memory of all threads, in the order of each, for monitors that look at each one.
//!
//! A probe at each instruction that accesses a memory puts the access into a [ring](ring::Ring) of
//! its thread. A full ring is emptied by its thread, the others when a report is made: whoever
//! empties rings holds the lock of the consumer. So a thread takes a lock once in some hundred
//! accesses.

mod ring;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wasm_jit::probes::{Bound, Kind, ProbeSpec};
use wasm_jit_hooks::{AccessInfo, AccessKind, accesses, memory_probes};

use self::ring::{Ring, Stream, put_access, put_access_fn, put_with_value};
use super::graph::Graph;
use crate::{Error, LazyProbes, Report, Setup};

/// An instruction's access, or one of its two.
#[derive(Clone, Copy, Debug)]
pub(super) struct Site {
    pub(super) function: u32,
    pub(super) offset: u32,
    pub(super) kind: AccessKind,
    pub(super) memory: u32,
}

/// An access that is about to be made, or, if values are observed, perhaps has been.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    /// The number of its site.
    pub(super) site: usize,
    pub(super) address: u64,
    pub(super) size: u64,
    /// If values are observed: that of [`wasm_jit_hooks::Access`].
    pub(super) value: Option<u64>,
}

/// What uses the accesses.
pub(super) trait Consumer: Send + 'static {
    /// Gets an access of a thread. Those of one thread come in their order, some hundred at a
    /// time.
    fn consume(&mut self, site: &Site, access: Access);

    /// Is called after some hundred accesses.
    fn pause(&mut self) {}
}

/// What the threads of the program use.
struct Shared<C> {
    number: u64,
    sites: Arc<[Site]>,
    state: Mutex<State<C>>,
}

struct State<C> {
    consumer: C,
    rings: Vec<Arc<Ring>>,
}

impl<C: Consumer> Shared<C> {
    fn new(sites: Arc<[Site]>, consumer: C) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let state = Mutex::new(State { consumer, rings: Vec::new() });
        let shared = Arc::new(Self { number, sites, state });
        let stream: Arc<dyn Stream> = shared.clone();
        ring::register(number, Arc::downgrade(&stream));
        shared
    }
}

impl<C> Shared<C> {
    fn state(&self) -> MutexGuard<'_, State<C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C> Drop for Shared<C> {
    fn drop(&mut self) {
        ring::unregister(self.number);
    }
}

impl<C: Consumer> Stream for Shared<C> {
    fn add(&self, ring: Arc<Ring>) {
        self.state().rings.push(ring);
    }

    fn empty(&self, ring: &Ring) {
        ring.drain(&self.sites, &mut self.state().consumer);
    }
}

/// The number of an access's site among those of its function, the first of which is `first`.
fn number_of(sites: &[Site], first: usize, access: &wasm_jit_hooks::Access) -> u64 {
    let key = |site: &Site| (site.function, site.offset);
    let sites = &sites[first..];
    let at = sites.partition_point(|site| key(site) < (access.function, access.offset));
    // memory.copy has two, of different kinds.
    let number = at + sites[at..].iter().position(|site| site.kind == access.kind).unwrap_or(0);
    (first + number) as u64
}

/// The accesses of a module's instructions.
pub(super) struct Accesses<C: Consumer> {
    shared: Arc<Shared<C>>,
    probes: LazyProbes,
}

impl<C: Consumer> Accesses<C> {
    /// Those of the chosen functions; `consumer` gets the sites. With values, accesses with a
    /// result are observed when they have been made.
    pub(super) fn of(
        setup: &Setup<'_>,
        has_values: bool,
        consumer: impl FnOnce(&[Site]) -> Result<C, Error>,
    ) -> Result<Self, Error> {
        let mut sites = Vec::new();
        // Numbers of sites, by function.
        let mut first: HashMap<u32, usize> = HashMap::new();
        for graph in setup.functions().filter_map(|function| Graph::of(&function)) {
            first.insert(graph.function, sites.len());
            for index in 0..graph.len() {
                let (offset, operator) = &graph.flow.instructions[index];
                for access in accesses(operator) {
                    let (function, offset, kind, memory) =
                        (graph.function, *offset, access.kind, access.memory);
                    sites.push(Site { function, offset, kind, memory });
                }
            }
        }
        let consumer = consumer(&sites)?;
        let shared = Shared::new(sites.into(), consumer);
        let stream = shared.number;
        if has_values {
            let sites = shared.sites.clone();
            let probes = LazyProbes::new(setup, move |function| {
                let Some(first) = first.get(&function.index()).copied() else { return Vec::new() };
                let sites = sites.clone();
                memory_probes(function, move |access| {
                    let (site, size) = (number_of(&sites, first, access), access.size);
                    match access.value {
                        Some(value) => put_with_value(stream, [site, access.address, size, value]),
                        None => put_access(stream, site, access.address, size),
                    }
                })
            });
            return Ok(Self { shared, probes });
        }
        let function = put_access_fn();
        let probes = LazyProbes::new(setup, move |info| {
            let known = Graph::of(info).zip(first.get(&info.index()));
            let Some((graph, first)) = known else { return Vec::new() };
            let of_instruction = |index: usize| {
                let of_operator = accesses(&graph.flow.instructions[index].1).into_iter();
                of_operator.map(move |access| (index, access))
            };
            let spec = |(number, (index, access)): (usize, (usize, AccessInfo))| ProbeSpec {
                location: graph.location(index),
                kind: Kind::Native {
                    function,
                    values: [Bound::Const(stream), Bound::Const(number as u64), access.address, access.size]
                        .into(),
                },
            };
            (*first..).zip((0..graph.len()).flat_map(of_instruction)).map(spec).collect()
        });
        Ok(Self { shared, probes })
    }

    pub(super) fn switch(&self, on: bool) -> Result<(), Error> {
        self.probes.switch(on)
    }

    /// Says in a report which functions could not be observed.
    pub(super) fn report_refused(&self, report: &mut Report) {
        self.probes.report_refused(report);
    }

    /// The consumer, when it has got all accesses so far.
    pub(super) fn with<R>(&self, f: impl FnOnce(&[Site], &mut C) -> R) -> R {
        let State { consumer, rings } = &mut *self.shared.state();
        rings.retain_mut(|ring| {
            // Before it is emptied: a thread may put accesses into it and then end.
            let has_ended = Arc::get_mut(ring).is_some();
            ring.drain(&self.shared.sites, consumer);
            !has_ended
        });
        f(&self.shared.sites, consumer)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::thread::{self, JoinHandle};

    use super::*;
    use wasm_jit::{Engine, Module};

    /// Counts; with the first access that it gets, a thread makes the rest of its own and ends.
    struct Waits {
        count: usize,
        thread: Option<(Sender<()>, JoinHandle<()>)>,
    }

    impl Consumer for Waits {
        fn consume(&mut self, _: &Site, _: Access) {
            self.count += 1;
            if let Some((go_on, thread)) = self.thread.take() {
                go_on.send(()).unwrap();
                thread.join().unwrap();
            }
        }
    }

    #[test]
    fn accesses_of_a_thread_that_ends_while_its_ring_is_emptied_are_kept() {
        let module = Module::new(&Engine::default(), "(module)").unwrap();
        let site = Site { function: 0, offset: 0, kind: AccessKind::Load, memory: 0 };
        let accesses = Accesses {
            shared: Shared::new([site].into(), Waits { count: 0, thread: None }),
            probes: LazyProbes::of(&module, [], |_| Vec::new(), None),
        };
        let ((go_on, goes_on), (has_begun, begun)) = (channel(), channel());
        let stream = accesses.shared.number;
        let thread = thread::spawn(move || {
            put_access(stream, 0, 0, 1);
            has_begun.send(()).unwrap();
            goes_on.recv().unwrap();
            (0..9).for_each(|_| put_access(stream, 0, 0, 1));
        });
        begun.recv().unwrap();
        accesses.shared.state().consumer.thread = Some((go_on, thread));
        assert_eq!(accesses.with(|_, waits| waits.count), 1);
        assert_eq!(accesses.with(|_, waits| waits.count), 10);
        assert!(accesses.shared.state().rings.is_empty(), "the thread has ended");
    }
}
