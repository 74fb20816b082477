//! The behaviour of a thread at a probe during a [`Pass`].

use std::sync::Arc;

use wasm_jit::probes::{Frame, Location, Place};

use super::{Killed, Shared};
use crate::pass::{From, Pass, Purpose, Stopping};
use crate::position::Position;
use crate::stop::Reason;

impl Shared {
    /// A thread has reached a location with a probe.
    pub(super) fn come_in_pass(
        self: &Arc<Self>,
        pass: &Pass,
        releases: u64,
        frame: &mut Frame<'_>,
        location: Location,
    ) -> Result<(), wasm_jit::Error> {
        let is_end = match &pass.until {
            Some(until) => until.is_at(frame, location)?,
            None => false,
        };
        let watches = matches!(pass.purpose, Purpose::Search { watches: true }) && pass.progress().has_begun;
        if watches && !is_end {
            // The other probe of this place may not have fired yet.
            self.check_watches(pass, frame);
        }
        if location.place == Place::Entry {
            self.enter_watched(pass, frame, location)?;
        }
        if is_end {
            return self.complete(pass, releases, frame, location);
        }
        if !pass.progress().has_begun {
            let is_there = match &pass.from {
                From::Start => true,
                From::Fuel { location: from, less_than } => *from == location && frame.fuel()? < *less_than,
                From::Position(position) => position.is_at(frame, location)?,
            };
            return if is_there { self.begin_pass(pass, frame, location) } else { Ok(()) };
        }
        if watches {
            pass.progress().last = Some(Position::of(frame, location)?);
        }
        match &pass.purpose {
            Purpose::Search { .. } => return self.find_breakpoints(pass, frame, location),
            Purpose::Passage { places, depth, .. }
                if places.contains(&location) && frame.depth() == *depth =>
            {
                let position = Position::of(frame, location)?;
                pass.progress().found = Some(Stopping { position, reasons: Vec::new() });
            }
            _ => {}
        }
        Ok(())
    }

    /// A thread is about to execute an instruction while all instructions are seen.
    pub(super) fn see_in_pass(
        self: &Arc<Self>,
        pass: &Pass,
        releases: u64,
        frame: &mut Frame<'_>,
    ) -> Result<(), wasm_jit::Error> {
        let location = frame.location();
        if !pass.progress().has_begun {
            return Ok(());
        }
        let position = Position::of(frame, location)?;
        if pass.until == Some(position) {
            return self.complete(pass, releases, frame, location);
        }
        match &pass.purpose {
            Purpose::Trail => pass.progress().steps.push(position),
            Purpose::StopAtStart(_) => return self.complete(pass, releases, frame, location),
            Purpose::Search { .. } => {
                self.check_watches(pass, frame);
                pass.progress().last = Some(position);
            }
            _ => {}
        }
        Ok(())
    }

    /// The moments of interest may come from here on.
    fn begin_pass(
        self: &Arc<Self>,
        pass: &Pass,
        frame: &mut Frame<'_>,
        location: Location,
    ) -> Result<(), wasm_jit::Error> {
        if pass.sees_all() {
            self.prepare(&frame.locations()).map_err(wasm_jit::Error::host)?;
            self.see_all(&mut self.state()).map_err(wasm_jit::Error::host)?;
        }
        let position = Position::of(frame, location)?;
        // The thread may reach it often from now on.
        self.state().end_pass_place(location);
        pass.progress().begun_at = Some(position);
        pass.progress().has_begun = true;
        match &pass.purpose {
            // Its probe of all instructions fires the next time.
            Purpose::Trail if location.place != Place::Entry => pass.progress().steps.push(position),
            Purpose::Search { watches } => {
                let on = self.state().set_breakpoints(true, &self.code, self.hit());
                on.map_err(wasm_jit::Error::host)?;
                if *watches {
                    self.check_watches(pass, frame);
                    pass.progress().last = Some(position);
                }
                // The part of the run before this one ends here.
                if matches!(pass.from, From::Fuel { .. }) {
                    self.find_breakpoints(pass, frame, location)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Records the breakpoints at a location.
    fn find_breakpoints(
        &self,
        pass: &Pass,
        frame: &mut Frame<'_>,
        location: Location,
    ) -> Result<(), wasm_jit::Error> {
        let found = self.breakpoints_at(frame, location).into_iter();
        let reasons: Vec<Reason> =
            found.map(|(number, once, problem)| Reason::Breakpoint { number, once, problem }).collect();
        if !reasons.is_empty() {
            let position = Position::of(frame, location)?;
            pass.progress().find(position, reasons);
        }
        Ok(())
    }

    /// A thread has entered a function, which may be the frame of a watched expression.
    fn enter_watched(
        &self,
        pass: &Pass,
        frame: &mut Frame<'_>,
        location: Location,
    ) -> Result<(), wasm_jit::Error> {
        for watch in self.watches() {
            let Some(of) = &watch.frame else { continue };
            let Some(entry) = of.entry() else { continue };
            if entry.is_at(frame, location)? {
                of.enter(frame.accessor()?);
                if matches!(pass.purpose, Purpose::Search { .. }) && pass.progress().has_begun {
                    pass.progress().find(entry, vec![watch.out_of_scope()]);
                }
            }
        }
        Ok(())
    }

    /// Records where watched values have changed: before the last instruction.
    fn check_watches(&self, pass: &Pass, frame: &mut Frame<'_>) {
        let mut reasons = Vec::new();
        for reason in self.changes(frame) {
            // As seen when going backwards.
            if let Reason::Watch { number, expression, old, new, problem } = reason {
                reasons.push(Reason::Watch { number, expression, old: new, new: old, problem });
            }
        }
        let progress = &mut *pass.progress();
        if let Some(last) = progress.last
            && !reasons.is_empty()
        {
            progress.find(last, reasons);
        }
    }

    /// The thread has reached the end of the pass.
    fn complete(
        self: &Arc<Self>,
        pass: &Pass,
        releases: u64,
        frame: &mut Frame<'_>,
        location: Location,
    ) -> Result<(), wasm_jit::Error> {
        if matches!(pass.purpose, Purpose::Search { .. }) && pass.progress().has_begun {
            self.check_watches(pass, frame);
        }
        pass.progress().is_complete = true;
        match &pass.purpose {
            Purpose::Stop(reasons) | Purpose::StopAtStart(reasons) => {
                let _turn = self.turn.lock().unwrap_or_else(|e| e.into_inner());
                let reasons = self.arrive(frame, location, reasons.clone()).map_err(wasm_jit::Error::host)?;
                self.stop(frame, location, reasons, releases)
            }
            _ => Err(wasm_jit::Error::host(Killed)),
        }
    }

    /// The program has reached the moment at which it stops. From here on, it runs as usual.
    pub(super) fn arrive(
        self: &Arc<Self>,
        frame: &mut Frame<'_>,
        location: Location,
        mut reasons: Vec<Reason>,
    ) -> Result<Vec<Reason>, crate::Error> {
        let gone: Vec<Reason> = {
            let watches = self.watches().into_iter();
            let gone = watches.filter(|watch| watch.frame.as_ref().is_some_and(|of| !of.exists(frame)));
            gone.map(|watch| watch.out_of_scope()).collect()
        };
        for reason in gone {
            if !reasons.iter().any(|known| known.number() == reason.number()) {
                reasons.push(reason);
            }
        }
        if reasons.iter().any(|reason| matches!(reason, Reason::Step)) {
            for (number, once, problem) in self.breakpoints_at(frame, location) {
                if !reasons.iter().any(|known| known.number() == Some(number)) {
                    reasons.push(Reason::Breakpoint { number, once, problem });
                }
            }
        }
        {
            let state = &mut *self.state();
            state.end_pass(&self.code, self.hit())?;
            for reason in &reasons {
                match reason {
                    Reason::Watch { number, .. } | Reason::Breakpoint { number, .. } => {
                        if let Some(breakpoint) = state.breakpoints.get_mut(number) {
                            breakpoint.hits += 1;
                        }
                    }
                    Reason::OutOfScope { number, .. } => state.delete(*number),
                    _ => {}
                }
            }
            state.end_watching();
        }
        let watches = self.watches();
        for watch in &watches {
            watch.forget();
            let _ = watch.check(frame, &self.code, None);
        }
        if !watches.is_empty() {
            self.prepare(&frame.locations())?;
            self.see_all(&mut self.state())?;
        }
        Ok(reasons)
    }
}
