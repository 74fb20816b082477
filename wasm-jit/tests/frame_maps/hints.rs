//! Random branch hints.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// A program in text form with a hint for most of its conditional branches, which may be wrong.
pub(crate) fn with_hints(text: &str, seed: u64) -> String {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut hinted = String::new();
    let mut left = text;
    while let Some(at) = ["(if ", "(br_if "].iter().filter_map(|branch| left.find(branch)).min() {
        let (before, branch) = left.split_at(at);
        hinted += before;
        if random.random_range(0..4) > 0 {
            hinted += &format!("(@metadata.code.branch_hint \"\\0{}\") ", random.random_range(0..2));
        }
        hinted.push('(');
        left = &branch[1..];
    }
    hinted + left
}
