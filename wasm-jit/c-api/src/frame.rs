//! `wasm_frame_t`: a function that was active when a trap was created.

use std::rc::Rc;

use wasm_jit::FrameInfo;

use crate::last_error::required;
use crate::object::{Kind, Object};
use crate::store::SharedStore;
use crate::vector::export_vectors;

/// `wasm_frame_t`.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    /// `None` for an instance whose creation failed because its segments did not fit.
    instance: Option<Box<Object>>,
    func_index: u32,
    func_offset: usize,
    module_offset: usize,
}

impl Frame {
    pub(crate) fn of(store: &Rc<SharedStore>, frame: &FrameInfo) -> Self {
        let instance = store.instance(frame.instance());
        Self {
            instance: instance.map(|instance| Object::new(store, Kind::Instance(instance))),
            func_index: frame.func_index(),
            func_offset: frame.func_offset().unwrap_or(0),
            module_offset: frame.module_offset().unwrap_or(0),
        }
    }
}

export_vectors! {
    "frame" Option<Box<crate::frame::Frame>>;
}

#[unsafe(no_mangle)]
extern "C" fn wasm_frame_delete(_: Option<Box<Frame>>) {}

#[unsafe(no_mangle)]
extern "C" fn wasm_frame_copy(frame: Option<&Frame>) -> Option<Box<Frame>> {
    frame.cloned().map(Box::new)
}

/// The instance of a frame, which belongs to the frame.
#[unsafe(no_mangle)]
extern "C" fn wasm_frame_instance(frame: Option<&Frame>) -> Option<&Object> {
    required(frame, "a frame")?.instance.as_deref()
}

/// The function's index in its module, imports first.
#[unsafe(no_mangle)]
extern "C" fn wasm_frame_func_index(frame: Option<&Frame>) -> u32 {
    required(frame, "a frame").map_or(0, |frame| frame.func_index)
}

/// The offset of the instruction in the function's body.
#[unsafe(no_mangle)]
extern "C" fn wasm_frame_func_offset(frame: Option<&Frame>) -> usize {
    required(frame, "a frame").map_or(0, |frame| frame.func_offset)
}

/// The offset of the instruction in the binary module.
#[unsafe(no_mangle)]
extern "C" fn wasm_frame_module_offset(frame: Option<&Frame>) -> usize {
    required(frame, "a frame").map_or(0, |frame| frame.module_offset)
}
