//! [`Snapshots`]: states of a replay, from which later replays of the same trace begin.
//!
//! Snapshots are taken where the host is about to call the program and no call to it is active. The
//! state then consists of memories, tables, globals and segments, as at the beginning of a
//! recording in the middle of a run (`state.rs`), and the position in the trace. A replay that
//! begins there skips the events before it.
//!
//! Their number and size are limited. When a limit is reached, the distance between snapshots is
//! doubled until enough of them are dropped. Thus they always cover the entire run evenly.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wasm_jit::Instance;

use super::any_store::AnyStore;
use super::error::Error;
use super::event::Event;
use super::functions::Functions;
use super::state::State;

/// Maximum number of snapshots.
const MAX: usize = 64;
/// The default distance, in units of fuel: a few milliseconds.
const DISTANCE: u64 = 1 << 24;
/// The default distance for each byte of the memories, which are read and perhaps copied: a run
/// with snapshots takes a few percent longer.
const FUEL_PER_BYTE: u64 = 16;
/// The default limit of the total size, in bytes.
const MAX_BYTES: usize = 256 << 20;

/// Snapshots of a replay, for further replays of the same trace and module: see
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

/// The state of a run at one event.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// The number of events of the trace before the snapshot.
    pub(crate) number: u64,
    /// The amount of fuel consumed before the snapshot.
    pub(crate) consumed: u64,
    /// The events that turn a new instance into this state.
    pub(crate) events: Vec<Event>,
    bytes: usize,
}

impl Default for Snapshots {
    fn default() -> Self {
        Self::new()
    }
}

impl Snapshots {
    /// An empty list, which will take at most 256 MiB; snapshots are taken at distances that cost a
    /// run a few percent of its time.
    pub fn new() -> Self {
        Self { fuel_per_byte: FUEL_PER_BYTE, ..Self::with(DISTANCE, MAX_BYTES) }
    }

    /// An empty list with this initial distance in units of fuel, and this limit of memory in
    /// bytes.
    pub fn with(distance: u64, max_bytes: usize) -> Self {
        let taken = Taken { snapshots: Vec::new(), distance, bytes: 0 };
        Self { taken: Mutex::new(taken), fuel_per_byte: 0, max_bytes }
    }

    /// The number of snapshots: at most 64.
    pub fn count(&self) -> usize {
        self.taken().snapshots.len()
    }

    /// The memory that the snapshots take, in bytes.
    pub fn bytes(&self) -> usize {
        self.taken().bytes
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last snapshot before this amount of fuel was consumed.
    pub(crate) fn before(&self, consumed: u64) -> Option<Arc<Snapshot>> {
        let taken = self.taken();
        taken.snapshots.iter().rev().find(|snapshot| snapshot.consumed < consumed).cloned()
    }
}

/// The state of taking snapshots in a replay.
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

    /// Takes a snapshot if the last one is long enough ago. `number` events are before it.
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
    /// Doubles the distance, and drops snapshots that are nearer to their predecessor.
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
        // Another replay may have taken it in the meantime.
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
