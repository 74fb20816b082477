//! Comparison of estimates with the truth: the profiler's report, the figures of `truth/oracle.c`,
//! and statistics of both.

pub mod report;
pub mod score;
