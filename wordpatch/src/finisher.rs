//! A thread that finishes outstanding patches, so that callers need not poll them.
//!
//! Each round takes all patches that were handed over, and waits once, since the last store of any
//! of them: a hundred patches that were begun one by one share two or three waits.
//!
//! The thread blocks all signals except SIGTRAP, because it may execute a locked site itself.

use crate::outstanding::{Outstanding, Progress, Shared, State};
use crate::primitive::thread::{self, JoinHandle};
use crate::primitive::{Arc, Condvar, Mutex, MutexGuard};
use crate::since::Since;
use crate::text::fork::Generation;
use crate::{Error, serialize, trap};

/// A running finisher. Dropping it finishes its patches and ends its thread. In a forked child, the
/// thread does not exist: dropping the finisher has no effect there, and it takes over no patches.
#[must_use = "its thread ends when it is dropped"]
#[derive(Debug)]
pub struct Finisher {
    queue: Arc<Queue>,
    thread: Option<JoinHandle<()>>,
    process: Generation,
}

#[derive(Debug, Default)]
struct Queue {
    contents: Mutex<Contents>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Contents {
    patches: Vec<Arc<Shared>>,
    is_closed: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Finisher {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`Error::ThreadRefused`].
    pub fn start() -> Result<Self, Error> {
        let queue = Arc::<Queue>::default();
        let for_thread = Arc::clone(&queue);
        let thread = trap::with_signals_blocked(|| {
            thread::Builder::new().name("wordpatch".into()).spawn(move || run(&for_thread))
        })
        .map_err(|source| Error::ThreadRefused { source })?;
        Ok(Self { queue, thread: Some(thread), process: Generation::now() })
    }

    /// Lets the thread finish the patch. The handle can still be used to wait for the patch and to
    /// get the results, or be dropped immediately.
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked child.
    pub fn take_over(&self, patch: &Outstanding) -> Result<(), Error> {
        if !self.process.is_current() {
            return Err(Error::Forked { address: patch.address() });
        }
        if patch.state() != State::Finished
            && let Some(patch) = patch.leave_to_finisher()
        {
            self.queue.lock().patches.push(patch);
            self.queue.changed.notify_one();
        }
        Ok(())
    }
}

impl Drop for Finisher {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if !self.process.is_current() {
            std::mem::forget(thread);
            return;
        }
        self.queue.lock().is_closed = true;
        self.queue.changed.notify_one();
        // If the thread has panicked, the panic hook has reported it.
        let _ = thread.join();
    }
}

fn run(queue: &Queue) {
    let mut mine: Vec<Arc<Shared>> = Vec::new();
    loop {
        {
            let mut contents = queue.lock();
            while mine.is_empty() && contents.patches.is_empty() {
                if contents.is_closed {
                    return;
                }
                contents = queue.changed.wait(contents).unwrap_or_else(|e| e.into_inner());
            }
            mine.append(&mut contents.patches);
        }
        advance_all(&mine);
        mine.retain(|patch| patch.state() != State::Finished);
    }
}

/// Waits once for all patches that are not finished, and makes the next step of each.
pub(crate) fn advance_all(patches: &[Arc<Shared>]) {
    let mut locked: Vec<(&Shared, MutexGuard<'_, Progress>)> =
        patches.iter().map(|patch| (&**patch, patch.lock())).collect();
    let since = locked.iter().filter_map(|(_, progress)| progress.since()).reduce(Since::max);
    let Some(since) = since else { return };
    let waited = serialize::wait_since(since);
    for (patch, progress) in &mut locked {
        patch.step(progress, &waited);
    }
}
