//! A thread that finishes outstanding patches, for callers who do not want to look after them.
//!
//! Each round takes everything that was handed over and makes one wait, from the last store of any
//! of them: a hundred patches that were begun one by one pay for two or three waits.
//!
//! The thread blocks every signal but the trap: it may itself run through a locked site.

use crate::outstanding::{Flight, Outstanding, Shared, State};
use crate::primitive::thread::{self, JoinHandle};
use crate::primitive::{Arc, Condvar, Mutex, MutexGuard};
use crate::text::fork::Generation;
use crate::{Error, serialize, trap};

/// A running finisher. Dropping it finishes what it has, and ends its thread. In a forked child
/// there is no such thread: there, dropping it does nothing, and it takes nothing over.
#[derive(Debug)]
pub struct Finisher {
    queue: Arc<Queue>,
    thread: Option<JoinHandle<()>>,
    process: Generation,
}

#[derive(Debug, Default)]
struct Queue {
    contents: Mutex<Contents>,
    news: Condvar,
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

    /// Has the patch finished soon. Its handle stays good for waiting and for the results, and can
    /// be dropped at once.
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
            self.queue.news.notify_one();
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
        self.queue.news.notify_one();
        // Its panic, if any, was told of by the panic hook.
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
                contents = queue.news.wait(contents).unwrap_or_else(|e| e.into_inner());
            }
            mine.append(&mut contents.patches);
        }
        further_all(&mine);
        mine.retain(|patch| patch.state() != State::Finished);
    }
}

/// One wait for all that are not finished, and a step of each.
pub(crate) fn further_all(patches: &[Arc<Shared>]) {
    let mut locked: Vec<(&Shared, MutexGuard<'_, Flight>)> =
        patches.iter().map(|patch| (&**patch, patch.lock())).collect();
    let stored_at = locked.iter().filter_map(|(_, flight)| flight.stored_at()).max();
    let Some(stored_at) = stored_at else { return };
    let waited = serialize::wait_since(stored_at);
    for (patch, flight) in &mut locked {
        patch.step(flight, &waited);
    }
}
