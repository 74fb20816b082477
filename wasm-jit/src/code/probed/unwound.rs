//! Closures that are called for frames which are left other than by their exit.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::code::CodeImage;
use crate::trap_kind::Trap;

/// Number of watchers of all images: without any, frames are not examined.
static WATCHERS: AtomicUsize = AtomicUsize::new(0);

/// Whether any frame is reported to a watcher.
pub(crate) fn is_watched() -> bool {
    WATCHERS.load(Ordering::Relaxed) != 0
}

/// Why frames are left.
#[derive(Clone, Copy)]
pub(crate) enum Cause<E = usize> {
    /// A trap, or an interrupt.
    Trap(Trap),
    /// An exception: its address, or what a frame sees of it.
    Exception(E),
    /// A libcall or a host function has failed.
    Failure,
}

/// An exception, as the module of a frame sees it.
#[derive(Clone, Copy)]
pub(crate) struct Thrown<'a> {
    /// The index of its tag in the module, if the module has it.
    pub tag: Option<u32>,
    /// The words of its values.
    pub values: &'a [u64],
}

/// A frame that is about to be left.
#[derive(Clone, Copy)]
pub(crate) struct FrameToUnwind<'a> {
    pub image: &'a CodeImage,
    pub function: u32,
    pub fp: usize,
    /// An address in the instruction at which the frame is.
    pub pc: usize,
    /// Whether the instruction is waiting for a call to a function or a routine.
    pub is_call: bool,
    pub cause: Cause<Thrown<'a>>,
}

type Watcher = Arc<dyn Fn(FrameToUnwind<'_>) + Send + Sync>;

/// The watchers of an image.
#[derive(Default)]
pub(crate) struct Watchers(Mutex<Vec<(u64, Watcher)>>);

impl Watchers {
    fn lock(&self) -> MutexGuard<'_, Vec<(u64, Watcher)>> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Adds a watcher; returns its number.
    pub(crate) fn add(&self, watcher: impl Fn(FrameToUnwind<'_>) + Send + Sync + 'static) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        self.lock().push((number, Arc::new(watcher)));
        WATCHERS.fetch_add(1, Ordering::Relaxed);
        number
    }

    pub(crate) fn remove(&self, number: u64) {
        let mut watchers = self.lock();
        if let Some(place) = watchers.iter().position(|(of, _)| *of == number) {
            let watcher = watchers.remove(place);
            WATCHERS.fetch_sub(1, Ordering::Relaxed);
            // Its destructor may use the watchers.
            drop(watchers);
            drop(watcher);
        }
    }

    /// Calls all watchers, without holding the lock.
    pub(crate) fn report(&self, left: FrameToUnwind<'_>) {
        let watchers: Vec<Watcher> = self.lock().iter().map(|(_, watcher)| watcher.clone()).collect();
        watchers.iter().for_each(|watcher| watcher(left));
    }
}

impl fmt::Debug for Watchers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watchers").field("count", &self.lock().len()).finish()
    }
}
