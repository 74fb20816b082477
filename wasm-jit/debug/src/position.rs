//! [`Position`]: a moment of a run that repeats.
//!
//! The fuel that the thread has left, the number of frames, and the location. No two moments of a
//! run have the same:
//!
//! - A frame that comes to an instruction again has paid meanwhile: every cycle costs fuel.
//! - So has a thread that has entered a function. So of two frames of one function that are there
//!   with the same fuel, one has called the other, and is less deep.
//!
//! Positions are compared for equality only: code pays for some instructions in advance, so their
//! order is not that of the fuel.

use wasm_jit::probes::{Frame, Location};

/// A moment of a run: a thread is about to execute the instruction at the location, or to begin a
/// function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Position {
    /// The fuel that is left.
    pub fuel: u64,
    /// Number of frames outside of this one.
    pub depth: usize,
    pub location: Location,
}

impl Position {
    /// That of the innermost frame.
    pub(crate) fn of(frame: &Frame<'_>, location: Location) -> Result<Self, wasm_jit::Error> {
        Ok(Self { fuel: frame.fuel()?, depth: frame.depth(), location })
    }

    /// Whether the thread is there.
    pub(crate) fn is_at(&self, frame: &Frame<'_>, location: Location) -> Result<bool, wasm_jit::Error> {
        // The depth takes longest.
        Ok(self.location == location && frame.fuel()? == self.fuel && frame.depth() == self.depth)
    }
}

/// A position, or the end of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Point {
    At(Position),
    End {
        /// The fuel that is left, if it is known.
        fuel: Option<u64>,
    },
}

impl Point {
    pub(crate) fn fuel(self) -> Option<u64> {
        match self {
            Self::At(position) => Some(position.fuel),
            Self::End { fuel } => fuel,
        }
    }

    pub(crate) fn position(self) -> Option<Position> {
        match self {
            Self::At(position) => Some(position),
            Self::End { .. } => None,
        }
    }
}
