//! [`State`]: what a thread knows of itself, as far as the [steps](super::steps) of its probes read
//! and change it.

use std::sync::atomic::AtomicU64;

use super::ROOT;

/// Not a period: steps do not apply.
pub(super) const NO_PERIOD: u64 = u64::MAX;

/// The state of a thread.
#[repr(C)]
pub(super) struct State {
    /// The period in which the steps apply, or [`NO_PERIOD`].
    pub(super) applies: AtomicU64,
    /// The address of the innermost frame.
    pub(super) innermost: AtomicU64,
    /// The address of the last frame for which there is memory.
    pub(super) last_frame: AtomicU64,
    /// With exact times: the time of the last event; 0 while an event is being recorded.
    pub(super) last: AtomicU64,
    /// The number of the node whose function runs.
    pub(super) top: AtomicU64,
    /// The address of that node; steps change it only with exact times.
    pub(super) top_node: AtomicU64,
}

impl State {
    pub(super) fn new() -> Self {
        let [applies, innermost, last_frame, last, top, top_node] =
            [NO_PERIOD, 0, 0, 0, ROOT.into(), 0].map(AtomicU64::new);
        Self { applies, innermost, last_frame, last, top, top_node }
    }
}
