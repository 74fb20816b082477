//! [`put`]: the ring of a thread, into which it puts its accesses.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use wasm_jit::probes::NativeFn;

use super::{Access, Consumer, Site};

/// How many accesses a ring has: 16 KiB, so that it stays in the first cache.
const CAPACITY: usize = 512;

/// Marks the site of an access with a value.
const HAS_VALUE: u64 = 1 << 63;

/// The accesses of a thread that were not consumed yet.
pub(super) struct Ring {
    /// Site and [`HAS_VALUE`], address, size, value.
    accesses: Box<[[AtomicU64; 4]; CAPACITY]>,
    /// How many were put into it, by its thread only.
    head: AtomicUsize,
    /// How many were consumed; changes under the lock of the consumer.
    tail: AtomicUsize,
}

impl Ring {
    fn new() -> Self {
        let accesses: Box<[_]> = (0..CAPACITY).map(|_| [const { AtomicU64::new(0) }; 4]).collect();
        let accesses = accesses.try_into().unwrap_or_else(|_| unreachable!("it has this length"));
        Self { accesses, head: AtomicUsize::new(0), tail: AtomicUsize::new(0) }
    }

    /// Under the lock of the consumer.
    pub(super) fn drain(&self, sites: &[Site], consumer: &mut impl Consumer) {
        // Pairs with the release of `put`: the words of accesses before it are there.
        let head = self.head.load(Ordering::Acquire);
        for at in self.tail.load(Ordering::Relaxed)..head {
            let [site, address, size, value] =
                self.accesses[at % CAPACITY].each_ref().map(|word| word.load(Ordering::Relaxed));
            let value = (site & HAS_VALUE != 0).then_some(value);
            let site = (site & !HAS_VALUE) as usize;
            consumer.consume(&sites[site], Access { site, address, size, value });
        }
        // Pairs with the acquire of `put`: the words have been read.
        self.tail.store(head, Ordering::Release);
        consumer.pause();
    }
}

/// What empties rings: the accesses of a monitor.
pub(super) trait Stream: Send + Sync {
    /// Adds the ring of a thread.
    fn add(&self, ring: Arc<Ring>);

    /// Empties a ring, which is full.
    fn empty(&self, ring: &Ring);
}

/// The streams that exist, by their numbers, for threads that have no ring yet.
static STREAMS: Mutex<BTreeMap<u64, Weak<dyn Stream>>> = Mutex::new(BTreeMap::new());

fn streams() -> MutexGuard<'static, BTreeMap<u64, Weak<dyn Stream>>> {
    STREAMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on, threads find the stream by its number, until it is dropped.
pub(super) fn register(number: u64, stream: Weak<dyn Stream>) {
    streams().insert(number, stream);
}

/// The stream of this number is being dropped.
pub(super) fn unregister(number: u64) {
    streams().remove(&number);
}

/// A ring of this thread, and its stream.
struct Local {
    number: u64,
    ring: Arc<Ring>,
    stream: Weak<dyn Stream>,
}

thread_local! {
    static LOCALS: RefCell<Vec<Local>> = const { RefCell::new(Vec::new()) };
}

/// Puts an access into the thread's ring for the stream of this number, if it still exists: site,
/// address and size. Programs that run while their thread ends are not observed.
#[inline(always)]
fn put<const N: usize>(number: u64, access: [u64; N]) {
    let _ = LOCALS.try_with(|locals| {
        let Ok(mut locals) = locals.try_borrow_mut() else { return };
        let is_first = locals.first().is_some_and(|local| local.number == number);
        let at = if is_first { 0 } else { find(number, &mut locals) };
        let Some(Local { ring, stream, .. }) = locals.get(at) else { return };
        let head = ring.head.load(Ordering::Relaxed);
        if head - ring.tail.load(Ordering::Acquire) == CAPACITY {
            make_room(ring, stream);
        }
        for (word, value) in ring.accesses[head % CAPACITY].iter().zip(access) {
            word.store(value, Ordering::Relaxed);
        }
        ring.head.store(head + 1, Ordering::Release);
    });
}

#[cold]
fn make_room(ring: &Ring, stream: &Weak<dyn Stream>) {
    match stream.upgrade() {
        Some(stream) => stream.empty(ring),
        None => ring.tail.store(ring.head.load(Ordering::Relaxed), Ordering::Relaxed),
    }
}

/// The place of the ring for a stream, which is made if there is none. There is nothing at this
/// place if the stream no longer exists.
#[cold]
fn find(number: u64, locals: &mut Vec<Local>) -> usize {
    if let Some(at) = locals.iter().position(|local| local.number == number) {
        return at;
    }
    locals.retain(|local| local.stream.strong_count() > 0);
    let stream = streams().get(&number).cloned();
    if let Some((existing, stream)) = stream.and_then(|stream| Some((stream.upgrade()?, stream))) {
        let ring = Arc::new(Ring::new());
        existing.add(ring.clone());
        locals.push(Local { number, ring, stream });
        return locals.len() - 1;
    }
    locals.len()
}

/// Puts an access with its value.
pub(super) fn put_with_value(number: u64, [site, address, size, value]: [u64; 4]) {
    put(number, [site | HAS_VALUE, address, size, value]);
}

/// Puts an access: number of the stream, site, address and size.
pub(super) extern "C" fn put_access(number: u64, site: u64, address: u64, size: u64) {
    put(number, [site, address, size]);
}

/// [`put_access`], for probes: compiled code calls it directly, with its arguments in registers.
pub(super) fn put_access_fn() -> NativeFn {
    // SAFETY:
    // - it takes any values, at any time, on any thread: a number that is no stream's does nothing,
    //   and accesses of sites that do not exist cannot be named, since probes have the numbers of
    //   theirs; it is part of the program;
    // - it returns; Rust aborts when a panic would leave an `extern "C"` function;
    // - it keeps far less than 128 KiB on the stack, as consumers do;
    // - it uses no store.
    unsafe { NativeFn::new(put_access as extern "C" fn(u64, u64, u64, u64)) }
}
