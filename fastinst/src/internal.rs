//! For the profiler and the other crates of this workspace. Not part of the stable interface: any
//! release may change it.

pub use crate::merged::{MergedSite, merged_sites};
pub use crate::provider::registered::{function_at, has_code, has_generated, memory_bytes, take_early_calls};
pub use crate::registry::load_count;
pub use crate::service::descriptors::{has_own_descriptors, leave_table, with_descriptors_of_process};
pub use crate::service::threads::{
    clock_of, number_of_threads, only_these_remain, own_thread_count, own_threads,
};

/// The objects that the dynamic loader has mapped: the executable, its libraries, and the vDSO.
///
/// The functions block while the loader maps or unmaps an object, and must not be called by a
/// signal handler. They return `None` in a child that was forked while another thread was using the
/// loader.
pub mod loaded {
    pub use crate::loaded::{Counters, LoadedObject, ObjectKind, Segment, counters, objects};
}

/// The files that this process has mapped: a file that has been replaced since then is not mistaken
/// for the one that is mapped.
pub mod mapped {
    pub use crate::mapped::{file_in, is_mapped};
}
