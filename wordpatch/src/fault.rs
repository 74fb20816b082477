//! Fault injection: a hook that is called between the steps of every patch, in which a test can
//! stop it.
//!
//! Not part of the public interface. Compiled with `--cfg fault_injection` only, for some tests of
//! this crate, and under loom.

#[cfg(any(fault_injection, loom))]
use std::sync::atomic::{AtomicPtr, Ordering};

/// The progress of a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// It is checked; nothing is stored, and the site is not acquired.
    Checked,
    /// The site is acquired, if the patch needs that.
    Acquired,
    /// This number of steps is made.
    Made(usize),
    /// All steps are made, and the site is released.
    Released,
}

/// A hook, called on the patching thread with the address of the instruction.
pub type Hook = fn(usize, Point);

#[cfg(any(fault_injection, loom))]
static HOOK: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// Sets the hook that every patch calls, or removes it.
#[cfg(any(fault_injection, loom))]
pub fn set_hook(hook: Option<Hook>) {
    HOOK.store(hook.map_or(std::ptr::null_mut(), |hook| hook as *mut ()), Ordering::SeqCst);
}

/// Calls the hook, if there is one.
#[cfg(any(fault_injection, loom))]
pub(crate) fn reached(address: usize, point: Point) {
    let hook = HOOK.load(Ordering::Relaxed);
    if !hook.is_null() {
        // SAFETY: `set_hook` stores functions of this type only.
        let hook = unsafe { std::mem::transmute::<*mut (), Hook>(hook) };
        hook(address, point);
    }
}

/// Does nothing: there is no hook.
#[cfg(not(any(fault_injection, loom)))]
#[inline(always)]
pub(crate) fn reached(_: usize, _: Point) {}
