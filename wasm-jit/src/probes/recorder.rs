//! Probes that append records to a buffer.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use super::ProbeError;
use crate::code::probed::buffers::{Cursors, RecordBuffers};
use crate::code::probed::{Argument, RequestedKind};
use crate::runtime::host::note_panic;
use crate::runtime::store::StoreArea;
use crate::store_id::StoreId;
use crate::vmctx::{CURSORS, MAX_RECORDERS, VmContext};

/// The largest number of words of a record.
const MAX_WORDS: usize = 64;

/// A buffer to which probes append records of a few values ([`Kind::Record`](super::Kind::Record)),
/// for a closure that gets many records at a time.
///
/// The probe's stub writes the values to a buffer of 16 KiB that the recorder has for the running
/// store. No function is called unless the buffer is full: then the thread that runs the store
/// calls the closure with all records in it. [`Recorder::flush`] calls the closure with the records
/// made so far.
///
/// The records of a store arrive in the order in which its probes have fired, each once; records of
/// different stores arrive in any order. Calls to the closure never overlap, even if several
/// threads run the program: a thread whose buffer is full waits until no other thread is in the
/// closure.
///
/// The closure is called in the middle of the program, with no lock of the engine held except the
/// recorder's own. It may make, activate, deactivate and drop probes, run other stores, and use 128
/// KiB of the stack. An [interrupt](crate::Store::interrupt_handle) of the store takes effect after
/// it has returned. If it panics, the program ends as by a panic of a host function, and the
/// closure does not get the same records again. It must not flush its own recorder, which panics,
/// nor run a program with probes that use it, which panics when the program's buffer is full.
///
/// A child that was forked while another thread was in the closure must not use the recorder, nor
/// run a program with its probes: it would wait for that thread, which it does not have.
///
/// Clones are the same recorder. Like a [`Callback`](super::Callback), the closure may be kept
/// after the last clone and all probes are dropped, and must therefore not own what keeps the
/// module's code alive. Records that were not flushed when the closure is dropped are lost.
///
/// A store for which any recorder has a record takes 64 KiB more. The buffer of a store that has
/// ended is kept until its records have been passed to the closure: by a flush, or when another
/// store gets a buffer.
///
/// # Example
/// ```
/// use std::sync::{Arc, Mutex};
/// use wasm_jit::probes::{Bound, Kind, Location, Place, ProbeSpec, Recorder};
/// use wasm_jit::{Engine, Instance, Module, Store};
///
/// let engine = Engine::default();
/// let module = Module::new(&engine, "(module (func $count (export \"count\") (param i32)
///     (if (local.get 0) (then (call $count (i32.sub (local.get 0) (i32.const 1)))))))")?;
/// let sum = Arc::new(Mutex::new(0));
/// let of_records = sum.clone();
/// let recorder = Recorder::new(move |_, records: &[[u64; 2]]| {
///     *of_records.lock().unwrap() += records.iter().map(|[_, value]| value).sum::<u64>();
/// })?;
/// let probe = module.probe(ProbeSpec {
///     location: Location { function: 0, place: Place::Entry },
///     kind: Kind::Record {
///         recorder: recorder.clone(),
///         values: [Bound::Function, Bound::Local(0)].into(),
///     },
/// })?;
/// probe.activate()?;
/// let mut store = Store::new(&engine, ());
/// let count = Instance::new(&mut store, &module, &[])?.get_typed_func::<i32, ()>(&mut store, "count")?;
/// count.call(&mut store, 1000)?;
/// recorder.flush();
/// assert_eq!(*sum.lock().unwrap(), 1000 * 1001 / 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Recorder(Arc<RecordBuffers>);

impl Recorder {
    /// Makes a recorder for records of `N` values, from 1 to 64. The closure gets the store in
    /// which the records were made, and their values in the order in which the probe lists them.
    ///
    /// # Errors
    /// [`ProbeError::TooManyRecorders`].
    pub fn new<const N: usize>(
        mut consume: impl FnMut(StoreId, &[[u64; N]]) + Send + 'static,
    ) -> Result<Self, ProbeError> {
        const { assert!(N >= 1 && N <= MAX_WORDS, "a record has 1 to 64 values") }
        let consume =
            Box::new(move |store, words: &[u64]| consume(StoreId::of_number(store), words.as_chunks().0));
        let buffers = RecordBuffers::new(N, consume);
        Ok(Self(Arc::new(buffers.ok_or(ProbeError::TooManyRecorders { limit: MAX_RECORDERS })?)))
    }

    /// Calls the closure, on this thread, with all records that it has not received yet, of all
    /// stores. For a store that is running on another thread, the most recent records may or may
    /// not be included.
    ///
    /// Waits while another thread is in the closure.
    ///
    /// # Panics
    /// If the closure panics, or calls this.
    pub fn flush(&self) {
        self.0.flush();
    }

    /// The number of values of a record.
    pub(super) fn words(&self) -> usize {
        self.0.words()
    }

    /// The request for a probe that appends such values.
    pub(super) fn request(&self, values: Vec<Argument>) -> RequestedKind {
        let make_room: unsafe extern "sysv64" fn(*const RecordBuffers, *mut VmContext) -> u64 = make_room;
        RequestedKind::Record { make_room: make_room as *const () as usize, buffers: self.0.clone(), values }
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}

/// The function that stubs call if there is no room for a record. Returns 1 if the closure has
/// panicked: then the activation is to be left.
///
/// # Safety
/// Called by stubs only, which pass buffers that their image keeps, and the running instance's
/// context.
unsafe extern "sysv64" fn make_room(buffers: *const RecordBuffers, context: *mut VmContext) -> u64 {
    // SAFETY: the caller's obligation.
    let buffers = unsafe { &*buffers };
    // SAFETY: the program runs, so its store is lent, and nothing else uses it.
    let store = unsafe { &mut *(*(*context).store.cast::<StoreArea>()).store };
    let cursors = store.cursors.get_or_insert_with(Cursors::new).clone();
    // SAFETY: this is before the context of each instance; only the thread that runs it
    // accesses it, and the store, which outlives the instance, keeps the cursors.
    unsafe { context.byte_offset(CURSORS as isize).cast::<*const AtomicUsize>().write(cursors.start()) };
    // Nothing observes state that the closure may have left inconsistent: as for host functions.
    match catch_unwind(AssertUnwindSafe(|| buffers.make_room(store.id.number(), &cursors))) {
        Ok(()) => 0,
        Err(panic) => {
            note_panic(store, panic);
            1
        }
    }
}
