//! [`Events`]: the events of a trace, up to the point where the run was stopped.
//!
//! A run that was interrupted or ran out of fuel stopped at a point that the trace does not
//! contain. Its replay ends at the last point where the host ran: the event that then returned
//! control to the program, and all later ones, are dropped, as if the process had been killed
//! there.

use std::io::Read;

use super::error::Error;
use super::event::{Event, Reason};
use super::trace::Reader;

#[derive(Debug)]
pub(crate) struct Events<R> {
    from: Reader<R>,
    /// The event that was read ahead.
    next: Option<Result<Event, Error>>,
    /// The reason why the run was stopped, if it was.
    stopped: Option<Reason>,
    /// The amount of fuel; a replay with the same amount stops by itself.
    fuel: Option<u64>,
}

impl<R: Read> Events<R> {
    pub(crate) fn new(trace: R) -> Self {
        Self { from: Reader::new(trace), next: None, stopped: None, fuel: None }
    }

    /// Records the amount of fuel that the program has.
    pub(crate) fn set_fuel(&mut self, fuel: u64) {
        self.fuel = Some(fuel);
    }

    /// The reason why the run was stopped, if the events have ended there.
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
