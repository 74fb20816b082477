//! From observations to figures.
//!
//! `strata`: calls and times; `quantiles`: percentiles; `interval`: quantiles for intervals.
//! `callers`, `cycles` and `summary`: of all functions together.

pub(crate) mod callers;
pub(crate) mod cycles;
pub(crate) mod interval;
pub(crate) mod quantiles;
#[cfg(test)]
pub(crate) mod simulation_in_tests;
pub(crate) mod strata;
pub(crate) mod summary;
