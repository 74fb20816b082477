//! [`Snapshots`]: states of a replay, from which later replays of the same trace begin.
//!
//! They are taken where the host is about to call the program and no call of it is active: then the
//! state is what memories, tables, globals and segments have, as at the beginning of a recording in
//! the middle of a run (`state.rs`), and the place in the trace. A replay that begins there reads
//! the events before without doing anything.
//!
//! Their number and size are limited. When a limit is reached, the distance between them is doubled
//! until enough of them are dropped: so they cover the whole run evenly, however long it is.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wasm_jit::Instance;

use super::any_store::AnyStore;
use super::error::Error;
use super::event::Event;
use super::functions::Functions;
use super::state::State;

/// Maximum number of snapshots.
const MAX: usize = 64;
/// The default distance, in units of fuel: some milliseconds.
const DISTANCE: u64 = 1 << 24;
/// The default distance for each byte of the memories, which are read and perhaps copied: a run
/// with snapshots takes a few percent longer.
const FUEL_PER_BYTE: u64 = 16;
/// The default limit of their size.
const MAX_BYTES: usize = 256 << 20;

/// Snapshots of a replay, for others of the same trace and module: see
/// [`Replay::use_snapshots`](super::Replay::use_snapshots).
#[derive(Debug)]
pub struct Snapshots {
    taken: Mutex<Taken>,
    fuel_per_byte: u64,
    max_bytes: usize,
}

#[derive(Debug)]
struct Taken {
    /// In the order of the run.
    snapshots: Vec<Arc<Snapshot>>,
    distance: u64,
    bytes: usize,
}

/// A state.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// How many events of the trace are before it.
    pub(crate) number: u64,
    /// How much fuel was consumed.
    pub(crate) consumed: u64,
    /// What makes the state of a new instance.
    pub(crate) events: Vec<Event>,
    bytes: usize,
}

impl Default for Snapshots {
    fn default() -> Self {
        Self::new()
    }
}

impl Snapshots {
    /// None yet. They will take at most 256 MiB, and be taken at distances that cost a run a few
    /// percent of its time.
    pub fn new() -> Self {
        Self { fuel_per_byte: FUEL_PER_BYTE, ..Self::with(DISTANCE, MAX_BYTES) }
    }

    /// None yet: with this much fuel between two of them at first, and this much memory at most.
    pub fn with(distance: u64, max_bytes: usize) -> Self {
        let taken = Taken { snapshots: Vec::new(), distance, bytes: 0 };
        Self { taken: Mutex::new(taken), fuel_per_byte: 0, max_bytes }
    }

    /// How many there are: at most 64.
    pub fn count(&self) -> usize {
        self.taken().snapshots.len()
    }

    /// How many bytes they take.
    pub fn bytes(&self) -> usize {
        self.taken().bytes
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last one before this much fuel was consumed.
    pub(crate) fn before(&self, consumed: u64) -> Option<Arc<Snapshot>> {
        let taken = self.taken();
        taken.snapshots.iter().rev().find(|snapshot| snapshot.consumed < consumed).cloned()
    }
}

/// A replay that takes snapshots.
pub(crate) struct Taking {
    snapshots: Arc<Snapshots>,
    /// The fuel of a run from its beginning.
    given: u64,
    /// The state of a new instance.
    initial: State,
    functions: Functions,
}

impl Taking {
    pub(crate) fn new(snapshots: Arc<Snapshots>, given: u64, initial: State, functions: Functions) -> Self {
        Self { snapshots, given, initial, functions }
    }

    /// Takes a snapshot if the last one is long ago; so many events are before it.
    ///
    /// # Errors
    /// [`Error::Unsupported`]: the state has no recorded form.
    pub(crate) fn take(
        &self,
        store: &mut dyn AnyStore,
        instance: Instance,
        number: u64,
    ) -> Result<(), Error> {
        let consumed = self.given.saturating_sub(store.fuel()?);
        let size = |index| {
            let memory = store.memory(instance, index)?;
            Some(store.bytes(memory).len() as u64)
        };
        let memories: u64 = (0..).map_while(size).sum();
        {
            let taken = self.snapshots.taken();
            let last = taken.snapshots.last().map_or(0, |snapshot| snapshot.consumed);
            let distance = taken.distance.max(memories.saturating_mul(self.snapshots.fuel_per_byte));
            if consumed.checked_sub(last).is_none_or(|since| since < distance) {
                return Ok(());
            }
        }
        let (mut events, mut bytes) = (vec![Event::Snapshot], 0);
        self.initial.write_changes(store, instance, &self.functions, &mut |event| {
            bytes += size_of::<Event>();
            if let Event::Write { bytes: written, .. } = &event {
                bytes += written.len();
            }
            events.push(event);
            Ok(())
        })?;
        self.snapshots.add(Snapshot { number, consumed, events, bytes });
        Ok(())
    }
}

impl Taken {
    /// Doubles the distance, and drops those that are nearer to the one before.
    fn thin_out(&mut self) {
        self.distance = self.distance.saturating_mul(2).max(1);
        let mut last = 0;
        self.snapshots.retain(|snapshot| {
            let is_kept = snapshot.consumed - last >= self.distance;
            last = if is_kept { snapshot.consumed } else { last };
            is_kept
        });
        self.bytes = self.snapshots.iter().map(|snapshot| snapshot.bytes).sum();
    }
}

impl Snapshots {
    fn add(&self, snapshot: Snapshot) {
        let taken = &mut *self.taken();
        if snapshot.bytes > self.max_bytes {
            taken.distance = taken.distance.saturating_mul(2);
            return;
        }
        // Another replay may have taken it meanwhile.
        if taken.snapshots.last().is_some_and(|last| last.consumed >= snapshot.consumed) {
            return;
        }
        while taken.snapshots.len() >= MAX || taken.bytes + snapshot.bytes > self.max_bytes {
            taken.thin_out();
        }
        taken.bytes += snapshot.bytes;
        taken.snapshots.push(Arc::new(snapshot));
    }
}
