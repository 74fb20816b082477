//! Random choices that a seed reproduces.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// A sequence of numbers.
#[derive(Debug)]
pub(crate) struct Random(SmallRng);

impl Random {
    /// The sequence of a thread, identified by its name.
    pub(crate) fn new(seed: u64, name: &str) -> Self {
        let salted = |state: u64, byte: u8| (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        Self(SmallRng::seed_from_u64(name.bytes().fold(seed ^ 0xcbf2_9ce4_8422_2325, salted)))
    }

    /// A number below `limit`, which must be small.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0.random_range(..limit)
    }

    pub(crate) fn coin(&mut self) -> bool {
        self.below(2) == 0
    }

    /// About half of these.
    pub(crate) fn some_of<T: Copy>(&mut self, all: &[T]) -> Vec<T> {
        all.iter().copied().filter(|_| self.coin()).collect()
    }
}
