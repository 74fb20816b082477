//! [`Position`]: a time point of a repeatable run.
//!
//! A position consists of the fuel that the thread has left, the number of frames, and the
//! location. No two moments of a run have the same position:
//!
//! - A frame that reaches an instruction again has paid in between: every cycle costs fuel.
//! - A thread that has entered a function has paid, too. Thus, if two frames of one function are at
//!   the same location with the same fuel, one has called the other, and is less deep.
//!
//! Positions are compared for equality only: code pays for some instructions in advance, so their
//! order differs from that of the fuel.

use wasm_jit::probes::{Frame, Location};

/// A moment of a run at which a thread is about to execute the instruction at the location, or to
/// enter a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Position {
    /// The remaining fuel.
    pub fuel: u64,
    /// The number of frames outside of this one.
    pub depth: usize,
    pub location: Location,
}

impl Position {
    /// The position of the innermost frame.
    pub(crate) fn of(frame: &Frame<'_>, location: Location) -> Result<Self, wasm_jit::Error> {
        Ok(Self { fuel: frame.fuel()?, depth: frame.depth(), location })
    }

    /// Whether the thread is at this position.
    pub(crate) fn is_at(&self, frame: &Frame<'_>, location: Location) -> Result<bool, wasm_jit::Error> {
        // Computing the depth takes longest.
        Ok(self.location == location && frame.fuel()? == self.fuel && frame.depth() == self.depth)
    }
}

/// A position, or the end of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Point {
    At(Position),
    End {
        /// The remaining fuel, if it is known.
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
