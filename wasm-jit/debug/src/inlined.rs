//! Frames of the source: those of calls that the compiler has inlined, besides those of the code.

use std::sync::Arc;

use wasm_jit::probes::Location;

use crate::code::Code;
use crate::dwarf::entries::Key;
use crate::dwarf::inlined::InlinedCalls;

/// A frame of the source in a stopped thread. A number stands for the innermost one of a frame of
/// the code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// The frame of the code, counted from the innermost one, which is 0.
    pub frame: usize,
    /// The number of calls that are inlined further in: 0 for the innermost one of them, and for
    /// a frame in which none is.
    pub inner: usize,
}

impl From<usize> for Level {
    fn from(frame: usize) -> Self {
        Self { frame, inner: 0 }
    }
}

/// What the source has for a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SourceFrame {
    /// The name of the function.
    pub name: String,
    /// The file and line where the frame is; `None` without DWARF.
    pub line: Option<(String, u32)>,
    /// Whether the call was inlined.
    pub is_inlined: bool,
}

impl Code {
    /// The frames of the source for a frame at this location, the innermost first: those of the
    /// calls that are inlined there, and last the function's own. They are numbered by
    /// [`Level::inner`].
    pub fn source_frames(&self, location: Location) -> Vec<SourceFrame> {
        let inlined = self.inlined(location.function);
        let mut line = self.line(location);
        let mut frames = Vec::new();
        for call in inlined.at(self.module_offset(location)).into_iter().rev() {
            let call = inlined.get(call);
            let here = std::mem::replace(&mut line, call.line.clone());
            frames.push(SourceFrame { name: call.name.clone(), line: here, is_inlined: true });
        }
        frames.push(SourceFrame { name: self.name(location.function), line, is_inlined: false });
        frames
    }

    /// The calls that are inlined in a function: read when first requested.
    pub(crate) fn inlined(&self, function: u32) -> Arc<InlinedCalls> {
        let mut all = self.inlined.lock().unwrap_or_else(|e| e.into_inner());
        let read = || {
            Arc::new(self.dwarf().map(|dwarf| dwarf.inlined_calls(self.start(function))).unwrap_or_default())
        };
        all.entry(function).or_insert_with(read).clone()
    }

    /// The calls that are inlined at a location, by their indices, the outermost first.
    pub(crate) fn calls_inlined_at(&self, location: Location) -> Vec<usize> {
        let inlined = self.inlined(location.function);
        if inlined.is_empty() { Vec::new() } else { inlined.at(self.module_offset(location)) }
    }

    /// The function of a frame of the source, if it is one of an inlined call.
    pub(crate) fn inlined_function(&self, location: Location, inner: usize) -> Option<Key> {
        let inlined = self.inlined(location.function);
        let around = self.calls_inlined_at(location);
        Some(inlined.get(around[around.len().checked_sub(inner + 1)?]).function)
    }

    /// The number of calls that are inlined at a location further in than the innermost one of a
    /// function, or than the frame of the code; `None` if the function has no call there.
    pub(crate) fn inner_of(&self, location: Location, function: Option<Key>) -> Option<usize> {
        let inlined = self.inlined(location.function);
        let around = self.calls_inlined_at(location);
        match function {
            None => Some(around.len()),
            Some(function) => around.iter().rev().position(|call| inlined.get(*call).function == function),
        }
    }
}
