//! Where a test can stop a patch: a hook that is called between the steps of every patch.
//!
//! Not part of the interface, and compiled with the feature `fault-injection` only. The tests of
//! this crate have it; a build of anything else has nothing of it.

#[cfg(feature = "fault-injection")]
use std::sync::atomic::{AtomicPtr, Ordering};

/// Where a patch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// Checked; nothing was stored, and the site is not its own.
    Checked,
    /// The site is its own, if it needs it.
    Taken,
    /// So many of its steps are made.
    Made(usize),
    /// All steps are made, and the site was given back.
    Released,
}

/// What is called, on the patching thread, with the address of the instruction.
pub type Hook = fn(usize, Point);

#[cfg(feature = "fault-injection")]
static HOOK: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// Has every patch call `hook`, or none.
#[cfg(feature = "fault-injection")]
pub fn set_hook(hook: Option<Hook>) {
    HOOK.store(hook.map_or(std::ptr::null_mut(), |hook| hook as *mut ()), Ordering::SeqCst);
}

/// Calls the hook, if there is one.
#[cfg(feature = "fault-injection")]
pub(crate) fn reached(address: usize, point: Point) {
    let hook = HOOK.load(Ordering::Relaxed);
    if !hook.is_null() {
        // SAFETY: `set_hook` stores functions of this type only.
        let hook = unsafe { std::mem::transmute::<*mut (), Hook>(hook) };
        hook(address, point);
    }
}

/// Nothing: without the feature, there is no hook.
#[cfg(not(feature = "fault-injection"))]
#[inline(always)]
pub(crate) fn reached(_: usize, _: Point) {}
