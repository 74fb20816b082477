//! Lists of closures that are called for the frames of an image.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::code::forks::{self, Locked};

/// The watchers of an image, of the type `F`.
pub(crate) struct Watchers<F: ?Sized> {
    list: Mutex<Vec<(u64, Arc<F>)>>,
    /// The number of watchers of this type in all images.
    of_all: &'static AtomicUsize,
}

impl<F: ?Sized> Watchers<F> {
    pub(super) fn new(of_all: &'static AtomicUsize) -> Self {
        Self { list: Mutex::default(), of_all }
    }

    fn lock(&self) -> Locked<'_, Vec<(u64, Arc<F>)>> {
        forks::lock(&self.list)
    }

    /// Adds a watcher; returns its number.
    pub(crate) fn add(&self, watcher: Arc<F>) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        self.lock().push((number, watcher));
        self.of_all.fetch_add(1, Ordering::Relaxed);
        number
    }

    pub(crate) fn remove(&self, number: u64) {
        let mut watchers = self.lock();
        if let Some(place) = watchers.iter().position(|(of, _)| *of == number) {
            let watcher = watchers.remove(place);
            self.of_all.fetch_sub(1, Ordering::Relaxed);
            // Its destructor may use the watchers.
            drop(watchers);
            drop(watcher);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Calls `report` with each watcher, without holding the lock.
    pub(crate) fn each(&self, report: impl Fn(&F)) {
        let watchers: Vec<Arc<F>> = self.lock().iter().map(|(_, watcher)| watcher.clone()).collect();
        watchers.iter().for_each(|watcher| report(watcher));
    }
}

impl<F: ?Sized> fmt::Debug for Watchers<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watchers").field("count", &self.lock().len()).finish_non_exhaustive()
    }
}
