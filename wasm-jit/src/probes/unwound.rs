//! Frames that are unwound: left other than by their exit.

use std::fmt;
use std::sync::Arc;

use wasmparser as wp;

use super::ProbeError;
use crate::code::CodeImage;
use crate::code::probed::unwound::{Cause, FrameToUnwind, Thrown};
use crate::module::Module;
use crate::runtime::Val;
use crate::trap::Trap;
use crate::types::ValType;

/// A frame that is about to be left by a trap, an exception, an interrupt, or a failure of a host
/// function.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct UnwoundFrame<'a> {
    /// The function's index, imports included.
    pub function: u32,
    /// The number that [`Bound::Frame`](super::Bound::Frame) gives for the frame.
    pub frame: u64,
    left: FrameToUnwind<'a>,
}

/// An exception that leaves a frame.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct UnwoundException {
    /// The index of the exception's tag in the module of the frame; the first one, if the module
    /// imports the tag more than once; `None` if the module does not have the tag.
    pub tag: Option<u32>,
    /// The values that the exception carries: `None` for a non-null reference. Empty if the module
    /// does not have the tag.
    pub fields: Vec<Option<Val>>,
}

impl UnwoundFrame<'_> {
    /// The trap that leaves the frame, or the interrupt; `None` if an exception or a failure of the
    /// host does.
    pub fn trap(&self) -> Option<Trap> {
        match self.left.cause {
            Cause::Trap(trap) => Some(trap),
            _ => None,
        }
    }

    /// The exception that leaves the frame; `None` if a trap, an interrupt or a failure of the host
    /// does.
    pub fn exception(&self) -> Option<UnwoundException> {
        match self.left.cause {
            Cause::Exception(thrown) => Some(exception_of(self.left.image, thrown)),
            _ => None,
        }
    }

    /// Whether the frame waits for a call: to another function, or to a routine of the engine that
    /// implements its instruction. Otherwise its instruction has trapped, or was interrupted.
    pub fn is_call(&self) -> bool {
        self.left.is_call
    }

    /// The offset, from the start of the function's body, of the instruction that is left; `None`
    /// if no instruction has begun.
    ///
    /// This may compile the function again, which takes microseconds to milliseconds.
    ///
    /// # Errors
    /// [`ProbeError::Compile`] in case of a defect of the compiler.
    pub fn offset(&self) -> Result<Option<u32>, ProbeError> {
        let position = self.left.image.position_at(self.left.pc, self.function);
        let position = position.map_err(|error| ProbeError::compile(&error))?;
        let start = self.left.image.body_range(self.function).start;
        Ok(position.and_then(|position| position.checked_sub(start)).filter(|offset| *offset > 0))
    }
}

impl fmt::Debug for UnwoundFrame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { function, frame, .. } = self;
        f.debug_struct("UnwoundFrame")
            .field("function", function)
            .field("frame", frame)
            .finish_non_exhaustive()
    }
}

/// An exception that a module's frame sees.
pub(super) fn exception_of(image: &CodeImage, Thrown { tag, mut values }: Thrown<'_>) -> UnwoundException {
    let info = &image.module;
    let types = tag.map(|tag| info.tag_type(tag).params()).unwrap_or_default();
    let field = |ty: &wp::ValType| {
        let ty = ValType::of(*ty, info);
        let (words, rest) = values.split_at(ty.words());
        values = rest;
        let bits = words.iter().rev().fold(0, |bits, word| bits << 64 | u128::from(*word));
        Val::without_store(ty, bits).ok()
    };
    UnwoundException { tag, fields: types.iter().map(field).collect() }
}

/// The reporting of unwound frames, which ends when this is dropped: see [`Module::watch_unwound`].
/// It keeps the module's code alive.
#[must_use = "the watch ends when it is dropped"]
pub struct UnwoundWatch {
    image: Arc<CodeImage>,
    number: u64,
}

impl Module {
    /// Calls a closure for each frame of the module's functions that is left other than by its
    /// [exit](super::Place::Exit) or a tail call, until the result is dropped.
    ///
    /// The thread that executes the frames calls the closure, for the innermost frame first, before
    /// any of them is left. A frame in its prologue, whose entry probes may not have fired, may or
    /// may not be reported; a frame that is left after its exit is reported. To pair exits with
    /// entries, compare [`Bound::Frame`](super::Bound::Frame). The closure may do what a
    /// [`Callback`](super::Callback) may, except that the process aborts if it panics. It may be
    /// called once more by another thread after the watch has been dropped.
    ///
    /// Without watchers, traps and exceptions have no additional cost.
    pub fn watch_unwound(&self, function: impl Fn(UnwoundFrame<'_>) + Send + Sync + 'static) -> UnwoundWatch {
        let image = self.code().clone();
        let watcher = move |left: FrameToUnwind<'_>| {
            function(UnwoundFrame { function: left.function, frame: left.fp as u64, left })
        };
        let number = image.watchers.add(Arc::new(watcher));
        UnwoundWatch { image, number }
    }
}

impl Drop for UnwoundWatch {
    fn drop(&mut self) {
        self.image.watchers.remove(self.number);
    }
}

impl fmt::Debug for UnwoundWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnwoundWatch").finish_non_exhaustive()
    }
}
