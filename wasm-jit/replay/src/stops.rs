//! [`Events`]: the events of a trace, up to where the run was stopped.
//!
//! A run that ended because its fuel was consumed, or since it was interrupted, would have gone on:
//! a replay does not know where to stop. It ends at the last event before which the host ran: what
//! gave control to the program, and everything later, is left out. Then it is the trace of a run
//! that was killed there.

use std::io::Read;

use super::error::Error;
use super::event::{Event, Reason};
use super::trace::Reader;

#[derive(Debug)]
pub(crate) struct Events<R> {
    from: Reader<R>,
    /// What was read ahead.
    next: Option<Result<Event, Error>>,
    /// Where the run was stopped, and why.
    stopped: Option<Reason>,
    /// A replay that has as much fuel stops by itself.
    fuel: Option<u64>,
}

impl<R: Read> Events<R> {
    pub(crate) fn new(trace: R) -> Self {
        Self { from: Reader::new(trace), next: None, stopped: None, fuel: None }
    }

    /// The program has this much fuel.
    pub(crate) fn set_fuel(&mut self, fuel: u64) {
        self.fuel = Some(fuel);
    }

    /// Why the run was stopped, if the events have ended there.
    pub(crate) fn stopped(&self) -> Option<&Reason> {
        self.stopped.as_ref()
    }
}

impl<R: Read> Iterator for Events<R> {
    type Item = Result<Event, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.stopped.is_some() {
            return None;
        }
        let event = self.next.take().or_else(|| self.from.next())?;
        if let Ok(Event::Enter { .. } | Event::Return { .. } | Event::Throw(_)) = event {
            self.next = self.from.next();
            if let Some(Ok(Event::Fail { reason: Some(reason) })) = &self.next
                && reason.is_stop()
                && self.fuel.map(Reason::Fuel).as_ref() != Some(reason)
            {
                self.stopped = Some(reason.clone());
                return None;
            }
        }
        Some(event)
    }
}
