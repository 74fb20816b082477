//! Write access to text that is mapped read-execute.
//!
//! # The algorithm
//! The first patch inside a mapping creates a writable alias of the entire mapping (`alias`): its
//! bytes are copied into a memory file, and the file is mapped twice: writable at another address,
//! and read-execute over the text, privately, which replaces the old pages in one step. From then
//! on, a store through the alias changes the text without a system call. No page is ever writable
//! where it is executable, except a page that a debugger has copied (`shown`), during a store.
//! Memory that the caller has mapped writable and executable is written directly.
//!
//! If the system refuses memory files, the caller can choose [`TextAccess::Mprotect`], which makes
//! the pages writable *and* executable during each store. It is never chosen automatically.
//!
//! # Text that is unmapped
//! An alias outlives the text it belongs to. A store to the site of a library that was unloaded
//! goes to memory that is not executed, so it can harm neither the process nor a library mapped at
//! the same address later. [`forget`] and [`release`] end an alias (`gone`). This does not hold for
//! text without an alias: with [`TextAccess::Mprotect`], or mapped writable and executable.
//!
//! # Fork
//! The pages behind an alias are shared with forked children. A child must not write through it
//! before [`unshare`] has given it its own pages; until then stores fail with
//! [`Error::SharedWithParent`](crate::Error::SharedWithParent) (`fork` detects children). The child
//! inherits no INT3 of its parent: `unshare` restores the old bytes of the parent's in-flight
//! patches. In text whose pages the child does not share, `atfork` has done so before `fork`
//! returned.
//!
//! Text that the caller has mapped shared, as generators of code do that map their pages twice,
//! cannot be separated without disconnecting the caller's other mapping of it: `unshare` refuses,
//! and the child's stores keep failing.
//!
//! A parent can leave its pages to the children that it has forked: those of generated code
//! ([`leave_to_children`](crate::internal::leave_to_children)), or of other text while threads
//! store into it ([`leave_text_to_children`], `moves`). Its later patches do not reach those
//! children.
pub(crate) mod alias;
pub(crate) mod atfork;
pub(crate) mod children;
mod debugger;
pub(crate) mod fork;
pub(crate) mod gone;
pub(crate) mod mapping;
mod moves;
mod protect;
mod reading;
mod shown;
mod stale;
mod text_ref;
mod toggle_pair;

use std::sync::atomic::{AtomicU8, Ordering};

pub use children::{is_shared_with_parent, unshare};
pub use gone::{forget, release};
pub(crate) use mapping::register;
pub use mapping::{copied_bytes, copied_pages};
pub use moves::leave_text_to_children;
pub(crate) use stale::are_current;
pub use text_ref::TextRef;
pub use toggle_pair::{Form, TogglePair};

/// How text is made writable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TextAccess {
    /// Through a second, writable mapping of the same pages, which are mapped shared where they are
    /// executed: a debugger cannot set breakpoints there.
    Alias,
    /// By making the page writable and executable during the store, with the thread's signals
    /// blocked, at the cost of four system calls; five if the text may be unmapped
    /// ([`TextRef::staying_mapped`]). If it is unmapped
    /// between the first of them and the last, whatever is mapped there next may lose its
    /// protection.
    Mprotect,
    /// As [`TextAccess::Alias`], but the text is a private mapping, in which a debugger can set
    /// breakpoints: see `shown`. The default. Text in which a debugger has set one, and so copied a
    /// page, must stay mapped while patches of it are [outstanding](crate::start_patch).
    Private,
}

static ACCESS: AtomicU8 = AtomicU8::new(TextAccess::Private as u8);

/// Sets how text is made writable. Applies to text that was not patched before.
pub fn set_access(access: TextAccess) {
    ACCESS.store(access as u8, Ordering::Release);
}

/// How text is made writable now.
pub fn access() -> TextAccess {
    match ACCESS.load(Ordering::Acquire) {
        access if access == TextAccess::Mprotect as u8 => TextAccess::Mprotect,
        access if access == TextAccess::Private as u8 => TextAccess::Private,
        _ => TextAccess::Alias,
    }
}
