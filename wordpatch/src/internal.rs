//! For the other crates of this workspace and the tests of this one. Not part of the stable
//! interface: any release may change it.

pub use crate::protocol::INT3;
pub use crate::serialize::wait_for_assumed_bound;
pub use crate::stepwise::{Stepwise, finish_all};
pub use crate::text::atfork::{NoForks, follow as follow_forks, forks, no_forks, without_forks};
pub use crate::text::children::leave_to_children;
pub use crate::text::gone::revive;
pub use crate::text::mapping::preparing;
pub use crate::trap::with_signals_blocked;

/// Hooks between the steps of every patch; compiled with `--cfg fault_injection` only.
pub mod fault {
    pub use crate::fault::*;
}
