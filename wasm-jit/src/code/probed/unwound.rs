//! Closures that are called for frames which are left other than by their exit.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::watchers::Watchers;
use crate::code::CodeImage;
use crate::trap_kind::Trap;

/// Number of watchers of all images: without any, frames are not examined.
static WATCHERS: AtomicUsize = AtomicUsize::new(0);

/// Whether any frame is reported to a watcher.
pub(crate) fn is_watched() -> bool {
    WATCHERS.load(Ordering::Relaxed) != 0
}

/// Why frames are left.
#[derive(Clone, Copy)]
pub(crate) enum Cause<E = usize> {
    /// A trap, or an interrupt.
    Trap(Trap),
    /// An exception: its address, or what a frame sees of it.
    Exception(E),
    /// A libcall or a host function has failed.
    Failure,
}

/// An exception, as the module of a frame sees it.
#[derive(Clone, Copy)]
pub(crate) struct Thrown<'a> {
    /// The index of its tag in the module, if the module has it.
    pub tag: Option<u32>,
    /// The words of its values.
    pub values: &'a [u64],
}

/// A frame that is about to be left.
#[derive(Clone, Copy)]
pub(crate) struct FrameToUnwind<'a> {
    pub image: &'a CodeImage,
    pub function: u32,
    pub fp: usize,
    /// An address in the instruction at which the frame is.
    pub pc: usize,
    /// Whether the instruction is waiting for a call to a function or a routine.
    pub is_call: bool,
    pub cause: Cause<Thrown<'a>>,
}

/// The watchers of an image.
pub(crate) type UnwoundWatchers = Watchers<dyn Fn(FrameToUnwind<'_>) + Send + Sync>;

/// No watchers yet.
pub(crate) fn watchers() -> UnwoundWatchers {
    Watchers::new(&WATCHERS)
}
