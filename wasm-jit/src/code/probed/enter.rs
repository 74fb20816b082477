//! Functions that are changed when they are first entered.
//!
//! The entry of a *waiting* function leads to a stub that asks the function's watchers to make
//! their probes, and then enters the function again: by the jump to its current version, or, if
//! that is the original, by its first instruction. Since probes fire in the order of activation,
//! the probes of some watchers must exist before others. For such a watcher, functions that have
//! versions do not wait, and a function that gets other probes no longer waits
//! ([`Enters::comes_first`]).
//!
//! While a function is being changed, other threads that enter it wait. A thread holds no lock when
//! it comes here, and the stub restores the state of the call.
//!
//! If the entry cannot be patched any more, in a forked child, or if a watcher of the function
//! calls it, neither the original's entry nor that of the current version can be executed: both
//! lead back to the stub. The stub then executes PUSH itself, and continues after it, in the
//! current version.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread::{self, Thread};

use wasm_jit_codegen::{Continue, ENTER_STUB_SIZE, ENTRY_PREFIX, enter_stubs};
use wordpatch::internal;

use super::blocks::ALIGNMENT;
use super::version::jump;
use super::{Changes, Entry, Function, MakeError, delays};
use crate::code::symbols::VersionCode;
use crate::code::{CodeImage, forks};

/// A watcher that makes probes in functions when they are first entered.
pub(crate) trait Enters: Send + Sync {
    /// Whether the watcher's probes in a function must be made before others, some of which may
    /// exist already.
    fn comes_first(&self) -> bool;

    /// Called when a function is about to be entered, which does not begin before this returns.
    fn entered(&self, image: &Arc<CodeImage>, function: u32);
}

/// A watcher and its functions.
struct Waiting {
    number: u64,
    who: Weak<dyn Enters>,
    /// As [`Enters::comes_first`].
    comes_first: bool,
    /// By number among the image's functions.
    functions: Box<[bool]>,
}

/// A number for a new watcher.
pub(crate) fn new_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The watchers that wait for functions of an image.
#[derive(Default)]
pub(super) struct EntryWatches {
    waiting: Mutex<Vec<Waiting>>,
    /// Taken while functions are changed that are being entered.
    turn: Turn,
    stubs: OnceLock<EntryStubs>,
}

/// The stubs of all functions, in the order of their indices.
#[derive(Debug)]
struct EntryStubs {
    addresses: Range<usize>,
    /// The address from which they have a frame.
    frame: usize,
}

impl EntryWatches {
    /// The stubs, once they have been made.
    pub(super) fn place_of_stubs(&self) -> Option<VersionCode> {
        let EntryStubs { addresses, frame } = self.stubs.get()?;
        Some(VersionCode::of_stubs(None, addresses.clone(), *frame))
    }
}

impl std::fmt::Debug for EntryWatches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EntryWatches").field("stubs", &self.stubs).finish_non_exhaustive()
    }
}

/// The right to change functions that are being entered. It is reentrant: watchers may make probes
/// in other functions, too.
///
/// In a forked child, another thread of the parent does not have it.
#[derive(Default)]
struct Turn(Mutex<Taken>);

#[derive(Default)]
struct Taken {
    /// Identifies the thread that has the right, and its process; 0 if none has.
    owner: (usize, u32),
    /// The functions that it is changing.
    functions: Vec<u32>,
    /// Threads to be unparked when it is given back.
    waiting: Vec<Thread>,
}

/// The right to change a function; returned when it is dropped.
struct TurnGuard<'a>(&'a Turn);

impl Turn {
    /// Waits for the right to change a function. `None` if the thread is changing it already.
    fn take(&self, function: u32) -> Option<TurnGuard<'_>> {
        thread_local!(static MARK: u8 = const { 0 });
        let process = std::process::id();
        let this = MARK.with(|mark| (std::ptr::from_ref(mark) as usize, process));
        let mut taken = forks::lock(&self.0);
        while !taken.functions.is_empty() && taken.owner != this && taken.owner.1 == process {
            taken.waiting.push(thread::current());
            // Without the lock: the thread that has the right needs it, and another may fork.
            drop(taken);
            thread::park();
            taken = forks::lock(&self.0);
        }
        if taken.owner != this {
            *taken = Taken { owner: this, ..Taken::default() };
        }
        if taken.functions.contains(&function) {
            return None;
        }
        taken.functions.push(function);
        Some(TurnGuard(self))
    }
}

impl Drop for TurnGuard<'_> {
    fn drop(&mut self) {
        let mut taken = forks::lock(&self.0.0);
        taken.functions.pop();
        if taken.functions.is_empty() {
            taken.waiting.drain(..).for_each(|thread| thread.unpark());
        }
    }
}

/// The result of letting the watchers of a function make their probes.
enum Released {
    /// None of them is making its probes.
    Done,
    /// This thread is making probes of the function.
    InProgress,
    /// As [`Released::Done`], but the entry leads to its stub and cannot be changed.
    Stuck,
}

impl CodeImage {
    /// Makes `who` wait for the functions of an image, except for those that `is_done` names.
    /// Returns the functions that are to be changed at once: if `who` comes first, those that were
    /// probed.
    ///
    /// # Errors
    /// Entries cannot be patched. The watcher waits for none.
    pub(crate) fn wait_for_entries(
        self: &Arc<Self>,
        number: u64,
        who: Weak<dyn Enters>,
        is_done: impl Fn(u32) -> bool,
    ) -> Result<Vec<u32>, MakeError> {
        let changes = &mut *self.changes();
        let first = self.indices().start;
        self.counters.prepare(self.counter_bytes());
        self.resolve_text(changes)?;
        let stubs = self.stubs_of_entries(changes)?;
        let mut waiting = forks::lock(&self.probed().entered.waiting);
        let (mut functions, mut others) = (Vec::new(), Vec::new());
        let comes_first = who.upgrade().is_some_and(|who| who.comes_first());
        for index in self.indices().filter(|index| !is_done(*index)) {
            // One with an original that is known was probed.
            let is_new = self.probed().function(self, index).is_none_or(|function| function.made() == 0);
            if is_new || !comes_first { functions.push(index) } else { others.push(index) }
        }
        let mut all = vec![false; self.indices().len()].into_boxed_slice();
        functions.iter().for_each(|index| all[(index - first) as usize] = true);
        waiting.push(Waiting { number, who, comes_first, functions: all });
        for index in &functions {
            if let Err(error) = changes.divert(self, *index, stubs) {
                waiting.pop();
                for index in &functions {
                    let _ = changes.restore_entry(self, *index, &waiting);
                }
                return Err(error);
            }
        }
        Ok(others)
    }

    /// Ends the waiting of the watcher of this number.
    pub(crate) fn stop_waiting(self: &Arc<Self>, number: u64) {
        let changes = &mut *self.changes();
        let mut waiting = forks::lock(&self.probed().entered.waiting);
        waiting.retain(|waiting| waiting.number != number);
        for index in self.indices() {
            // An entry that cannot be patched leads to no watcher, and on to the function.
            let _ = changes.restore_entry(self, index, &waiting);
        }
    }

    /// Called before a function gets other probes: lets the watchers that come first make theirs.
    pub(crate) fn before_probing(self: &Arc<Self>, index: u32) {
        if let Released::InProgress = self.release(index, true) {
            // Called by another watcher on this thread. The watchers that came first when it was
            // called have made their probes.
            self.waiting_for(index, true).iter().for_each(|who| who.entered(self, index));
        }
    }

    /// Of the functions that a watcher waits for, those that threads are executing or will return
    /// to, and perhaps some more. Waits for the threads, at most about 100 ms; if one of them does
    /// not answer in this time, nothing is known, and there are none.
    pub(crate) fn waiting_in_use(&self, number: u64) -> Vec<u32> {
        let first = self.indices().start;
        let _no_forks = internal::no_forks();
        let mut functions = Vec::new();
        for waiting in
            forks::lock(&self.probed().entered.waiting).iter().filter(|waiting| waiting.number == number)
        {
            let is_compiled = |at: &usize| self.lazy().is_none_or(|lazy| lazy.is_compiled(*at));
            let chosen = (0..waiting.functions.len()).filter(|at| waiting.functions[*at]);
            functions.extend(chosen.filter(is_compiled).map(|at| first + at as u32));
        }
        let code = |index: &u32| {
            let function = self.function(*index);
            // A thread at the entry has no frame yet. What a last call returns to is the end.
            self.at(function.entry).addr() + 1..self.at(function.end).addr() + 1
        };
        functions.sort_unstable_by_key(|index| code(index).start);
        let pieces: Vec<Range<usize>> = functions.iter().map(code).collect();
        // SAFETY: only threads that run instances have frames of the functions, whose entries lead
        // elsewhere. The pieces include the return address of a call at the end.
        let used = unsafe { self.counters.code_in_use(&pieces) }.unwrap_or_default();
        functions.into_iter().zip(used).filter(|(_, is_used)| *is_used).map(|(index, _)| index).collect()
    }

    /// Ends the waiting of a watcher for one function.
    pub(crate) fn stop_waiting_for(self: &Arc<Self>, number: u64, index: u32) {
        let changes = &mut *self.changes();
        let mut waiting = forks::lock(&self.probed().entered.waiting);
        let at = (index - self.indices().start) as usize;
        let own = waiting.iter_mut().filter(|waiting| waiting.number == number);
        own.for_each(|waiting| waiting.functions[at] = false);
        // If it cannot be patched, the stub does what the entry would have done.
        let _ = changes.restore_entry(self, index, &waiting);
    }

    /// Removes and returns the watchers that wait for a function, or only those that come first, in
    /// the order in which they make their probes.
    fn waiting_for(&self, index: u32, only_first: bool) -> Vec<Arc<dyn Enters>> {
        let number = (index - self.indices().start) as usize;
        let of_function = |waiting: &mut Waiting| {
            let is_chosen = waiting.functions[number] && (waiting.comes_first || !only_first);
            waiting.functions[number] &= !is_chosen;
            // The caller drops it: its destructor may change probes.
            if is_chosen { waiting.who.upgrade() } else { None }
        };
        let mut all: Vec<_> =
            forks::lock(&self.probed().entered.waiting).iter_mut().filter_map(of_function).collect();
        all.sort_by_key(|who| !who.comes_first());
        all
    }

    /// For a call to a function: lets the function's watchers make their probes. Returns where the
    /// call continues, and whether other calls may enter the function, too, which they may not if
    /// the call is made by a watcher of the function.
    pub(in crate::code) fn admit(self: &Arc<Self>, index: u32) -> (Continue, bool) {
        match delays::delayed(|| self.release(index, false)) {
            Released::Done => (Continue { address: self.code_start(index), after_entry: 0 }, true),
            Released::InProgress => (self.continue_in_current(index), false),
            Released::Stuck => (self.continue_in_current(index), true),
        }
    }

    fn code_start(&self, index: u32) -> usize {
        self.at(self.function(index).entry) as usize
    }

    /// Where a call continues to which the entry does not lead: in the current version.
    fn continue_in_current(&self, index: u32) -> Continue {
        let address = self.code_start(index);
        let changes = self.state();
        let entry = changes.functions.get(index).and_then(|state| state.entry);
        let Some(entry) = entry.filter(|entry| entry.is_diverted) else {
            return Continue { address, after_entry: 0 };
        };
        let function = self.probed().function(self, index);
        let (address, first) = match function.and_then(Function::current_version) {
            Some(version) => (version.at(version.entry), version.first),
            None => (address, entry.first),
        };
        let first = first.as_slice();
        // SAFETY: in the function's code, which is longer.
        let byte = |offset: usize| unsafe {
            std::ptr::with_exposed_provenance::<u8>(address + offset).read_volatile()
        };
        let bytes = first.iter().copied().chain((first.len()..).map(byte));
        // PUSH follows its prefixes.
        let length = bytes.take_while(|byte| *byte == ENTRY_PREFIX).count() + 1;
        Continue { address: address + length, after_entry: 1 }
    }

    /// Lets the watchers of a function make their probes, or only those that come first.
    fn release(self: &Arc<Self>, index: u32, only_first: bool) -> Released {
        let Some(probed) = self.probed.get().filter(|probed| probed.entered.stubs.get().is_some()) else {
            return Released::Done;
        };
        // Dropped last: they may own closures, which may own anything.
        let all: Vec<Arc<dyn Enters>>;
        // Another thread may be changing it.
        let Some(_turn) = probed.entered.turn.take(index) else { return Released::InProgress };
        {
            // The entry is waited for or held whenever another thread might restore it.
            let changes = &mut *self.changes();
            all = self.waiting_for(index, only_first);
            changes.hold_entry(index, !all.is_empty());
        }
        all.iter().for_each(|who| who.entered(self, index));
        let changes = &mut *self.changes();
        changes.hold_entry(index, false);
        let waiting = forks::lock(&probed.entered.waiting);
        let is_stuck = changes.restore_entry(self, index, &waiting).is_err();
        if is_stuck { Released::Stuck } else { Released::Done }
    }

    /// The address of the first one of the stubs.
    fn stubs_of_entries(self: &Arc<Self>, changes: &mut Changes) -> Result<usize, MakeError> {
        let probed = self.probed();
        if let Some(stubs) = probed.entered.stubs.get() {
            return Ok(stubs.addresses.start);
        }
        let routine = enter as *const () as usize;
        let (code, frame) = enter_stubs(self.indices(), Arc::as_ptr(self) as usize, routine);
        let arena = changes.arenas.with_room(self, &probed.blocks, code.len())?;
        let start = arena.append(&code, ALIGNMENT)?;
        let stubs = EntryStubs { addresses: start..start + code.len(), frame: start + frame as usize };
        probed.entered.stubs.set(stubs).expect("made with the lock of changes");
        probed.entered.place_of_stubs().iter().for_each(|stubs| self.shown.version_made(stubs));
        Ok(start)
    }
}

impl Changes {
    /// Makes the entry of a function lead to its stub. A function that is compiled when it is first
    /// called needs no stub: the thread that compiles it calls its watchers, which were recorded
    /// before.
    fn divert(&mut self, image: &CodeImage, index: u32, stubs: usize) -> Result<(), MakeError> {
        let number = (index - image.indices().start) as usize;
        if image.lazy().is_some_and(|lazy| !lazy.is_compiled(number)) {
            return Ok(());
        }
        let address = image.at(image.function(index).entry) as usize;
        let stub = stubs + number * ENTER_STUB_SIZE;
        let stands = self.read_entry(address);
        let state = self.functions.or_default(index);
        let entry = *state.entry.get_or_insert(Entry::new(address, stands));
        if !entry.is_diverted {
            let to_stub = jump(address, stub);
            let function = image.probed().function(image, index);
            let version = function.and_then(Function::current_version);
            // First: if it fails, the function begins as before.
            version.map_or(Ok(()), |version| self.lead_own_calls(version, &entry, true))?;
            if let Err(error) = self.exchange(address, &entry.stands, &to_stub) {
                let _ = version.map(|version| self.lead_own_calls(version, &entry, false));
                return Err(error.into());
            }
            self.state(index).entry = Some(Entry { stands: to_stub, is_diverted: true, ..entry });
        }
        Ok(())
    }

    /// Whether the watchers of a function are making their probes.
    fn hold_entry(&mut self, index: u32, is_held: bool) {
        let entry = self.functions.get_mut(index).and_then(|state| state.entry.as_mut());
        entry.into_iter().for_each(|entry| entry.is_held = is_held);
    }

    /// Makes a function begin in its current version, if its entry leads to its stub and no watcher
    /// waits for it any more.
    fn restore_entry(&mut self, image: &CodeImage, index: u32, waiting: &[Waiting]) -> Result<(), MakeError> {
        let number = (index - image.indices().start) as usize;
        let entry = self.functions.get_mut(index).and_then(|state| state.entry);
        if entry.is_some_and(|entry| entry.is_diverted && !entry.is_held)
            && !waiting.iter().any(|waiting| waiting.functions[number])
        {
            self.enter_current(index, image.probed().function(image, index))?;
        }
        Ok(())
    }
}

/// The routine of the stubs.
///
/// # Safety
/// Called by the stubs of this image only.
unsafe extern "sysv64" fn enter(image: *const CodeImage, function: u32) -> Continue {
    // SAFETY: the image is in an `Arc`, and alive, since the thread is about to execute its code.
    let image = unsafe {
        Arc::increment_strong_count(image);
        Arc::from_raw(image)
    };
    image.admit(function).0
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::{Engine, Instance, Module, Store};

    struct Watcher;

    impl Enters for Watcher {
        fn comes_first(&self) -> bool {
            true
        }

        fn entered(&self, _: &Arc<CodeImage>, _: u32) {}
    }

    /// Whether a thread, named by its directory in `/proc`, waits.
    fn sleeps(thread: &std::path::Path) -> bool {
        let state = std::fs::read_to_string(std::path::Path::new("/proc").join(thread).join("stat")).unwrap();
        state.rsplit(')').next().unwrap().starts_with(" S")
    }

    /// While one thread has the lock of changes, with which it may restore entries, another one
    /// that enters a function does not take its watchers.
    #[test]
    fn watchers_are_taken_when_the_entry_is_held() {
        let module = Module::new(&Engine::default(), "(module (func (export \"f\")))").unwrap();
        let image = module.code();
        let watcher: Arc<dyn Enters> = Arc::new(Watcher);
        image.wait_for_entries(new_number(), Arc::downgrade(&watcher), |_| false).unwrap();
        let (tells, told) = mpsc::channel();
        let (goes, may_go) = mpsc::channel();
        thread::scope(|scope| {
            let module = &module;
            let call = scope.spawn(move || {
                let mut store = Store::new(module.engine(), ());
                let instance = Instance::new(&mut store, module, &[]).unwrap();
                let f = instance.get_typed_func::<(), ()>(&mut store, "f").unwrap();
                tells.send(std::fs::read_link("/proc/thread-self").unwrap()).unwrap();
                may_go.recv().unwrap();
                f.call(&mut store, ()).unwrap();
            });
            let of_thread = told.recv().unwrap();
            let changes = image.changes();
            goes.send(()).unwrap();
            let entered = &image.probed().entered;
            while forks::lock(&entered.turn.0).functions.is_empty() {
                thread::yield_now();
            }
            while !sleeps(&of_thread) {
                thread::yield_now();
            }
            let is_waited_for = forks::lock(&entered.waiting)[0].functions[0];
            drop(changes);
            call.join().unwrap();
            assert!(is_waited_for);
            assert!(!forks::lock(&entered.waiting)[0].functions[0]);
        });
    }
}
