//! [`Signals`]: signals that this process handles itself.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, raise, sigaction};

use super::Failure;

/// Signals for which a thread waits. Until something [obeys](Self::obey) them, SIGUSR1 and SIGUSR2
/// are kept, and the others end the process as they do by default: it may load a module for a long
/// time.
pub(super) struct Signals(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    act: Option<Box<dyn FnMut(Signal) + Send>>,
    /// Signals that have arrived before `act` was there.
    kept: Vec<Signal>,
}

impl Signals {
    /// Blocks signals in this thread, and in threads that it starts, and starts a thread that waits
    /// for them.
    pub(super) fn block(signals: impl IntoIterator<Item = Signal>) -> Result<Self, Failure> {
        let state: Arc<Mutex<State>> = Arc::default();
        let set: SigSet = signals.into_iter().collect();
        if set != SigSet::empty() {
            set.thread_block().expect("these signals can be blocked");
            let of_thread = state.clone();
            let wait = move || {
                loop {
                    if let Ok(signal) = set.wait() {
                        arrived(&of_thread, signal);
                    }
                }
            };
            let started = thread::Builder::new().name("signals".to_owned()).spawn(wait);
            started.map_err(|error| Failure::new(error).about("no thread for signals"))?;
        }
        Ok(Self(state))
    }

    /// Calls a function at each signal, beginning with those that were kept.
    pub(super) fn obey(&self, mut act: impl FnMut(Signal) + Send + 'static) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.kept.drain(..).for_each(&mut act);
        state.act = Some(Box::new(act));
    }
}

fn arrived(state: &Mutex<State>, signal: Signal) {
    let state = &mut *state.lock().unwrap_or_else(PoisonError::into_inner);
    match &mut state.act {
        Some(act) => act(signal),
        None if matches!(signal, Signal::SIGUSR1 | Signal::SIGUSR2) => state.kept.push(signal),
        None => end_by(signal),
    }
}

/// Whether this process was started to ignore a signal, as by nohup.
pub(super) fn is_ignored(signal: Signal) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: without a new action, the call only writes the current one to the given address.
    let asked = unsafe { libc::sigaction(signal as i32, ptr::null(), action.as_mut_ptr()) };
    // SAFETY: the call succeeded, so it has written the action.
    asked == 0 && unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}

/// Ends the process by a signal, as it would have ended without this.
pub(super) fn end_by(signal: Signal) {
    let action = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: the default action runs no code of this process.
    let _ = unsafe { sigaction(signal, &action) };
    let _ = raise(signal);
    let _ = SigSet::from(signal).thread_unblock();
}
