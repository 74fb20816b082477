//! The accesses to memory of all threads, in the order of each, for monitors that look at each one.
//!
//! A closure at each instruction that accesses a memory puts the access into a ring of its thread.
//! A full ring is emptied by its thread, the others when a report is made: whoever empties rings
//! holds the lock of the consumer. So a closure takes a lock once in [`CAPACITY`] accesses.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wasm_jit::probes::{Bound, Callback, Kind, ProbeSpec};
use wasm_jit_hooks::{AccessInfo, AccessKind, accesses, memory_probes};

use super::graph::Graph;
use crate::{Error, LazyProbes, Report, Setup};

/// How many accesses a ring has.
const CAPACITY: usize = 4096;

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
    /// Gets an access of a thread. Those of one thread come in their order, some thousand at a
    /// time.
    fn consume(&mut self, site: &Site, access: Access);

    /// Is called after some thousand of accesses.
    fn pause(&mut self) {}
}

/// The accesses of a thread that were not consumed yet.
struct Ring {
    /// Four words for each: site and [`HAS_VALUE`], address, size, value.
    words: Box<[AtomicU64]>,
    /// How many were put into it, by its thread only.
    head: AtomicUsize,
    /// How many were consumed; changes under the lock of the consumer.
    tail: AtomicUsize,
}

/// Marks the site of an access with a value.
const HAS_VALUE: u64 = 1 << 63;

impl Ring {
    fn new() -> Self {
        let words = (0..4 * CAPACITY).map(|_| AtomicU64::new(0)).collect();
        Self { words, head: AtomicUsize::new(0), tail: AtomicUsize::new(0) }
    }

    fn drain(&self, sites: &[Site], consumer: &mut impl Consumer) {
        // Pairs with the release of `put`: the words of accesses before it are there.
        let head = self.head.load(Ordering::Acquire);
        for at in self.tail.load(Ordering::Relaxed)..head {
            let word = |number: usize| self.words[4 * (at % CAPACITY) + number].load(Ordering::Relaxed);
            let site = word(0);
            let value = (site & HAS_VALUE != 0).then(|| word(3));
            let site = (site & !HAS_VALUE) as usize;
            let access = Access { site, address: word(1), size: word(2), value };
            consumer.consume(&sites[access.site], access);
        }
        // Pairs with the acquire of `put`: the words have been read.
        self.tail.store(head, Ordering::Release);
        consumer.pause();
    }
}

/// What closures use.
struct Shared<C> {
    number: u64,
    sites: Vec<Site>,
    /// Until the monitor is dropped: closures live as long as the module's code.
    state: Mutex<Option<State<C>>>,
}

struct State<C> {
    consumer: C,
    rings: Vec<Arc<Ring>>,
}

thread_local! {
    /// The rings of this thread, by the numbers of their streams.
    static RINGS: RefCell<Vec<(u64, Arc<Ring>)>> = const { RefCell::new(Vec::new()) };
}

impl<C> Shared<C> {
    /// The number of an access's site among those of its function, the first of which is `first`.
    fn number_in_function(&self, first: usize, access: &wasm_jit_hooks::Access) -> usize {
        let key = |site: &Site| (site.function, site.offset);
        let sites = &self.sites[first..];
        let at = sites.partition_point(|site| key(site) < (access.function, access.offset));
        // memory.copy has two, of different kinds.
        at + sites[at..].iter().position(|site| site.kind == access.kind).unwrap_or(0)
    }
}

impl<C: Consumer> Shared<C> {
    fn state(&self) -> MutexGuard<'_, Option<State<C>>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts an access into the thread's ring: three words, or four with a value. By reference: the
    /// stub has just stored the words one by one, and the processor would wait for these stores if
    /// several were loaded at once, as a copy of an array does.
    fn put<const N: usize>(&self, access: &[u64; N]) {
        // Programs that run while their thread ends are not observed.
        let _ = RINGS.try_with(|rings| {
            let mut rings = rings.borrow_mut();
            let at = rings.iter().position(|(number, _)| *number == self.number).unwrap_or_else(|| {
                let ring = Arc::new(Ring::new());
                // Those of streams that have ended.
                rings.retain(|(_, ring)| Arc::strong_count(ring) > 1);
                if let Some(state) = &mut *self.state() {
                    state.rings.push(ring.clone());
                }
                rings.push((self.number, ring));
                rings.len() - 1
            });
            let ring = &rings[at].1;
            let head = ring.head.load(Ordering::Relaxed);
            if head - ring.tail.load(Ordering::Acquire) == CAPACITY {
                match &mut *self.state() {
                    Some(state) => ring.drain(&self.sites, &mut state.consumer),
                    None => ring.tail.store(head, Ordering::Relaxed),
                }
            }
            let first = 4 * (head % CAPACITY);
            for (word, value) in ring.words[first..first + N].iter().zip(access) {
                word.store(*value, Ordering::Relaxed);
            }
            ring.head.store(head + 1, Ordering::Release);
        });
    }
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
        static NEXT: AtomicU64 = AtomicU64::new(0);
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
        let state = Mutex::new(Some(State { consumer, rings: Vec::new() }));
        let shared = Arc::new(Shared { number: NEXT.fetch_add(1, Ordering::Relaxed), sites, state });
        if has_values {
            let shared_by_functions = shared.clone();
            let probes = LazyProbes::new(setup, move |function| {
                let Some(first) = first.get(&function.index()).copied() else { return Vec::new() };
                let shared = shared_by_functions.clone();
                memory_probes(function, move |access| {
                    let site = first + shared.number_in_function(first, access);
                    match access.value {
                        Some(value) => {
                            shared.put(&[site as u64 | HAS_VALUE, access.address, access.size, value]);
                        }
                        None => shared.put(&[site as u64, access.address, access.size]),
                    }
                })
            });
            return Ok(Self { shared, probes });
        }
        let of_closure = shared.clone();
        let closure = Callback::new(move |values| {
            if let Some(access) = values.first_chunk::<3>() {
                of_closure.put(access);
            }
        });
        let probes = LazyProbes::new(setup, move |function| {
            let known = Graph::of(function).zip(first.get(&function.index()));
            let Some((graph, first)) = known else { return Vec::new() };
            let of_instruction = |index: usize| {
                let of_operator = accesses(&graph.flow.instructions[index].1).into_iter();
                of_operator.map(move |access| (index, access))
            };
            let spec = |(number, (index, access)): (usize, (usize, AccessInfo))| ProbeSpec {
                location: graph.location(index),
                kind: Kind::Callback {
                    function: closure.clone(),
                    values: [Bound::Const(number as u64), access.address, access.size].into(),
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
        let mut state = self.shared.state();
        let State { consumer, rings } = state.as_mut().expect("it is there until this is dropped");
        rings.retain_mut(|ring| {
            // Before it is emptied: a thread may put accesses into it and then end.
            let has_ended = Arc::get_mut(ring).is_some();
            ring.drain(&self.shared.sites, consumer);
            !has_ended
        });
        f(&self.shared.sites, consumer)
    }
}

impl<C: Consumer> Drop for Accesses<C> {
    fn drop(&mut self) {
        let state = self.shared.state().take();
        // Not under the lock: it may be long.
        drop(state);
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
        let state = Mutex::new(Some(State { consumer: Waits { count: 0, thread: None }, rings: Vec::new() }));
        let accesses = Accesses {
            shared: Arc::new(Shared { number: u64::MAX, sites: vec![site], state }),
            probes: LazyProbes::of(&module, [], |_| Vec::new(), None),
        };
        let ((go_on, goes_on), (has_begun, begun)) = (channel(), channel());
        let shared = accesses.shared.clone();
        let thread = thread::spawn(move || {
            shared.put(&[0, 0, 1]);
            has_begun.send(()).unwrap();
            goes_on.recv().unwrap();
            (0..9).for_each(|_| shared.put(&[0, 0, 1]));
        });
        begun.recv().unwrap();
        accesses.shared.state().as_mut().unwrap().consumer.thread = Some((go_on, thread));
        assert_eq!(accesses.with(|_, waits| waits.count), 1);
        assert_eq!(accesses.with(|_, waits| waits.count), 10);
        assert!(accesses.shared.state().as_ref().unwrap().rings.is_empty(), "the thread has ended");
    }
}
