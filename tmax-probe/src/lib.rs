//! Measures, by stress, what a machine's instruction fetch does to code that is rewritten under it.

pub mod costs;
pub mod error;
pub mod estimate;
pub mod kernel;
pub mod plan;
pub mod results;
pub mod simulated;
mod surroundings;
pub mod trial;
