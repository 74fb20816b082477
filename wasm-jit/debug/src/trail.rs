//! [`Trail`]: the instruction history of a part of a run.

use std::collections::{HashMap, VecDeque};

use crate::position::{Point, Position};

/// Maximum number of positions; older ones are dropped.
const MAX: usize = 1 << 18;

/// All instructions that were executed between two points.
#[derive(Debug)]
pub(crate) struct Trail {
    positions: Vec<Position>,
    indices: HashMap<Position, usize>,
    end: Point,
    /// Whether the trail begins with the run.
    is_from_start: bool,
}

/// The position before a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Before {
    At(Position),
    /// None: the run begins at the point.
    Start,
    /// Not in the trail.
    Unknown,
}

/// A trail that is being recorded.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    positions: VecDeque<Position>,
    is_cut: bool,
}

impl Steps {
    pub(crate) fn push(&mut self, position: Position) {
        if self.positions.len() == MAX {
            self.positions.pop_front();
            self.is_cut = true;
        }
        self.positions.push_back(position);
    }

    /// Ends the trail at this point; `is_from_start` says whether it began with the run.
    pub(crate) fn end(self, end: Point, is_from_start: bool) -> Trail {
        let mut positions: Vec<Position> = self.positions.into();
        // If several probes are at the end, the one that ends the pass may be the last.
        if positions.last().copied() == end.position() {
            positions.pop();
        }
        let indices = positions.iter().enumerate().map(|(index, position)| (*position, index)).collect();
        Trail { positions, indices, end, is_from_start: is_from_start && !self.is_cut }
    }
}

impl Trail {
    fn index(&self, point: Point) -> Option<usize> {
        match point {
            _ if point == self.end => Some(self.positions.len()),
            Point::At(position) => self.indices.get(&position).copied(),
            Point::End { .. } => None,
        }
    }

    /// The position before a point.
    pub(crate) fn before(&self, point: Point) -> Before {
        match self.index(point) {
            None => Before::Unknown,
            Some(0) if self.is_from_start => Before::Start,
            Some(0) => Before::Unknown,
            Some(index) => Before::At(self.positions[index - 1]),
        }
    }

    /// The positions between two points, both excluded; `None` if some of them are unknown.
    pub(crate) fn between(&self, from: Point, to: Point) -> Option<&[Position]> {
        self.positions.get(self.index(from)? + 1..self.index(to)?)
    }
}

#[cfg(test)]
mod tests {
    use wasm_jit::probes::{Location, Place};

    use super::*;

    fn position(fuel: u64) -> Position {
        let location = Location { function: 0, place: Place::Entry };
        Position { fuel, depth: 0, location }
    }

    #[test]
    fn a_trail_knows_what_is_before_each_of_its_points() {
        let mut steps = Steps::default();
        (1..=4).rev().for_each(|fuel| steps.push(position(fuel)));
        let at = |fuel| Point::At(position(fuel));
        let trail = steps.end(at(1), true);
        assert_eq!(trail.before(at(1)), Before::At(position(2)), "the end is not part of it");
        assert_eq!(trail.before(at(3)), Before::At(position(4)));
        assert_eq!(trail.before(at(4)), Before::Start);
        assert_eq!(trail.before(at(5)), Before::Unknown);
        assert_eq!(trail.between(at(4), at(1)), Some(&[position(3), position(2)][..]));
        assert_eq!(trail.between(at(3), at(2)), Some(&[][..]));
        assert_eq!(trail.between(at(5), at(2)), None);
    }

    #[test]
    fn a_long_trail_keeps_its_end() {
        let mut steps = Steps::default();
        let length = MAX as u64 + 2;
        (0..length).rev().for_each(|fuel| steps.push(position(fuel)));
        let end = Point::End { fuel: None };
        let trail = steps.end(end, true);
        assert_eq!(trail.before(end), Before::At(position(0)));
        let first = Point::At(position(MAX as u64 - 1));
        assert_eq!(trail.before(first), Before::Unknown, "not the start");
    }
}
