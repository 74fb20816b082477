//! The monitors of this crate: a file for each.

mod accesses;
mod alloc;
mod blocks;
mod branches;
mod cache;
mod calls;
mod calltree;
mod clock;
mod contexts;
mod counts;
mod coverage;
mod excerpt;
mod fixed_tables;
mod globals;
mod graph;
mod hostcalls;
mod hotness;
mod icount;
mod imix;
#[cfg(feature = "latency")]
mod latency;
mod listing;
mod loops;
mod memory;
mod opcodes;
mod operands;
mod other_functions;
mod profile;
mod signatures;
mod stacks;
mod trace;
mod trace_stream;

pub use self::profile::CallArcs;
use crate::Description;

/// The monitors of this crate, in alphabetical order.
pub const ALL: &[Description] = &[
    alloc::DESCRIPTION,
    blocks::DESCRIPTION,
    branches::DESCRIPTION,
    cache::DESCRIPTION,
    calls::DESCRIPTION,
    calltree::DESCRIPTION,
    coverage::DESCRIPTION,
    globals::DESCRIPTION,
    hostcalls::DESCRIPTION,
    hotness::DESCRIPTION,
    icount::DESCRIPTION,
    imix::DESCRIPTION,
    #[cfg(feature = "latency")]
    latency::DESCRIPTION,
    loops::DESCRIPTION,
    memory::DESCRIPTION,
    opcodes::DESCRIPTION,
    profile::DESCRIPTION,
    trace::DESCRIPTION,
];
