//! Walks frames of compiled code, from the innermost outwards.
//!
//! Every frame has its caller's `rbp` at `[rbp]` and its return address at `[rbp + 8]`, so no table
//! is needed. An activation's frames end at its entry trampoline. The frames of the enclosing
//! activation begin at the host trampoline through which it was left. Return frames, which tail
//! calls between instances leave (`runtime/tail_call.rs`), do not belong to a function.

use super::{Activation, ExecutionState, Raised, Trap, accessors, capture, is_interrupted, trapped};
use crate::code::probed::counting::context_of;
use crate::code::probed::unwound::{self, Cause, FrameToUnwind, Thrown};
use crate::code::registry::image_at;
use crate::code::{CodeImage, Handler};
use crate::vmctx::VmException;

/// A code address and a frame pointer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub pc: usize,
    pub fp: usize,
    /// Whether `pc` is a return address.
    pub is_call: bool,
}

impl Frame {
    /// # Safety
    /// `fp` must be the frame pointer of compiled code that has not been left.
    pub(super) unsafe fn caller(fp: usize) -> Self {
        let frame = std::ptr::with_exposed_provenance::<usize>(fp);
        // SAFETY: the caller's obligation.
        unsafe { Self { pc: frame.add(1).read(), fp: frame.read(), is_call: true } }
    }
}

/// The frames of the activations of a store.
pub(super) struct Frames {
    next: Option<Frame>,
    activation_fp: usize,
    outer: *const Activation,
}

impl Frames {
    /// The frames from `frame` outwards.
    ///
    /// # Safety
    /// The frame must belong to the store's innermost activation, and no frame may be left during
    /// the walk.
    pub(super) unsafe fn new(store: *const ExecutionState, frame: Frame) -> Self {
        // SAFETY: the caller's obligation.
        let (activation_fp, outer) = unsafe { ((*store).vm.activation_fp, (*store).outer) };
        Self { next: Some(frame), activation_fp, outer }
    }

    /// The next frame after one that has no caller in its activation, if there is an enclosing
    /// activation.
    fn outer(&mut self) -> Option<Frame> {
        // SAFETY: an activation is on the stack of the `enter` that waits for the nested one.
        let outer = unsafe { self.outer.as_ref()? };
        (self.activation_fp, self.outer) = (outer.activation_fp, outer.outer);
        // SAFETY: the host trampoline of a waiting activation has not been left.
        (outer.activation_fp != 0).then(|| unsafe { Frame::caller(outer.exit_fp) })
    }
}

impl Iterator for Frames {
    type Item = Frame;

    fn next(&mut self) -> Option<Frame> {
        let frame = self.next?;
        self.next = if frame.fp == self.activation_fp {
            self.outer()
        } else {
            // SAFETY: inside the activation, whose frames are intact by the obligation of `new`.
            Some(unsafe { Frame::caller(frame.fp) })
        };
        Some(frame)
    }
}

/// Finds the handler of an exception, or records that there is none. Stores the handler's address,
/// frame and stack pointer into `raised_pc`, `raised_fp` and `raised_sp`. Returns whether there is
/// one. Called by [`throw`](super::routines).
///
/// # Safety
/// `pc` and `fp` must be the program counter and the frame that throw, in the store's innermost
/// activation; `exception` null or an exception.
pub(super) unsafe extern "sysv64" fn find_handler(
    store: *mut ExecutionState,
    exception: usize,
    pc: usize,
    fp: usize,
) -> u32 {
    let thrower = Frame { pc, fp, is_call: true };
    // SAFETY: the caller's obligation: compiled code does not run, and keeps no reference.
    let thrown_from = unsafe { std::mem::take(&mut (*store).thrown_from) };
    if exception == 0 {
        // SAFETY: the caller's obligation.
        unsafe {
            trapped::report(store, thrower, None, Cause::Trap(Trap::NullReference));
            capture::capture(store, None, thrower, Some(Trap::NullReference));
        };
        return 0;
    }
    // A program may spend nearly all of its time here, where no signal can stop it.
    // SAFETY: the caller's obligation.
    if unsafe { is_interrupted(store) } {
        // SAFETY: as above.
        unsafe { capture::capture(store, None, thrower, Some(Trap::Interrupt)) };
        return 0;
    }
    // SAFETY: the caller's obligation; an exception begins with its tag.
    let tag = unsafe { (*std::ptr::with_exposed_provenance::<VmException>(exception)).tag };
    // SAFETY: the caller's obligation.
    let activation_fp = unsafe { (*store).vm.activation_fp };
    let mut frame = thrower;
    while frame.fp != activation_fp {
        // SAFETY: the thread is in the code at this address.
        let image = unsafe { image_at(frame.pc) };
        if image.is_some_and(|image| image.stub_at(frame.pc - 1).is_some()) {
            // Thrown by a probe function: not for handlers of the program.
            break;
        }
        if let Some(image) = image
            // SAFETY: the frame is inside the activation.
            && let Some(handler) = unsafe { handler_in(image, frame, tag) }
        {
            // SAFETY: the caller's obligation.
            unsafe {
                report_left(thrower, frame.fp, Cause::Exception(exception));
                if handler.ends_accessor {
                    accessors::end_through(store, frame.fp);
                } else {
                    accessors::end(store, activation_fp, frame.fp);
                }
                (*store).vm.raised_pc = handler.address;
                (*store).vm.raised_fp = frame.fp;
                (*store).vm.raised_sp = frame.fp - handler.frame_size as usize;
            }
            return 1;
        }
        // SAFETY: inside the activation.
        frame = unsafe { Frame::caller(frame.fp) };
    }
    // SAFETY: the caller's obligation: compiled code does not run, and keeps no reference.
    unsafe {
        let is_new = thrown_from.is_empty();
        if is_new {
            trapped::report(store, thrower, None, Cause::Exception(exception));
        }
        activation_left(thrower, activation_fp, Cause::Exception(exception));
        let backtrace = if is_new { capture::trace(store, None, thrower) } else { thrown_from };
        (*store).raised = Some(Box::new(Raised::Exception { exception, backtrace }));
    }
    0
}

/// The frames from this one to the last one before the frame at `end`.
///
/// # Safety
/// They belong to one activation, and none is left during the walk.
unsafe fn frames_before(frame: Frame, end: usize) -> impl Iterator<Item = Frame> {
    let is_before = move |frame: &Frame| frame.fp != end;
    // SAFETY: the caller's obligation.
    let caller = move |frame: &Frame| Some(unsafe { Frame::caller(frame.fp) }).filter(is_before);
    std::iter::successors(Some(frame).filter(is_before), caller)
}

/// For an activation that is about to be left, starting at this frame: takes back the counts of
/// instructions that frames will not execute because a probe function does not return, and reports
/// all frames ([`report_left`]).
///
/// # Safety
/// As [`report_left`].
pub(super) unsafe fn activation_left(frame: Frame, activation_fp: usize, cause: Cause) {
    // SAFETY: the caller's obligation.
    for frame in unsafe { frames_before(frame, activation_fp) }.filter(|frame| frame.is_call) {
        // SAFETY: the frame waits in the code at this address, and belongs to this thread.
        if let Some(image) = unsafe { image_at(frame.pc - 1) } {
            // SAFETY: as above.
            unsafe { image.uncount_in_stub(frame.pc, frame.fp) };
        }
    }
    // SAFETY: the caller's obligation.
    unsafe { report_left(frame, activation_fp, cause) };
}

/// Reports the frames that are about to be left to their watchers, from this one to the last one
/// before the frame at `end`. If a watcher panics, the process aborts, since the functions that
/// call this cannot unwind.
///
/// # Safety
/// The frames belong to the innermost activation of the store that the thread runs, and are intact;
/// the exception, if there is one, is alive, and the frames wait for the code that throws it.
unsafe fn report_left(frame: Frame, end: usize, cause: Cause) {
    if !unwound::is_watched() {
        return;
    }
    // SAFETY: the caller's obligation.
    for frame in unsafe { frames_before(frame, end) } {
        let pc = frame.pc - usize::from(frame.is_call);
        // SAFETY: the thread is in the code at this address, or will return to it.
        if let Some(image) = unsafe { image_at(pc) }
            && let Some(function) = image.function_at(pc)
        {
            let left = FrameToUnwind {
                image,
                function,
                fp: frame.fp,
                pc,
                is_call: frame.is_call,
                // SAFETY: the caller's obligation.
                cause: unsafe { seen_by(image, frame, cause) },
            };
            image.watchers.each(|watcher| watcher(left));
        }
    }
}

/// A cause, with what the module of a frame sees of the exception, if it is one.
///
/// # Safety
/// The exception is alive as long as the result is used; the frame is that of a function of the
/// image, and waits for the call that throws it.
pub(super) unsafe fn seen_by<'a>(image: &CodeImage, frame: Frame, cause: Cause) -> Cause<Thrown<'a>> {
    let exception = match cause {
        Cause::Trap(trap) => return Cause::Trap(trap),
        Cause::Failure => return Cause::Failure,
        Cause::Exception(exception) => exception,
    };
    let exception = std::ptr::with_exposed_provenance::<VmException>(exception);
    // SAFETY: the caller's obligation; the values follow the head.
    let (identity, values) = unsafe {
        let values = (&raw const (*exception).values).cast::<u64>();
        ((*exception).tag, std::slice::from_raw_parts(values, (*exception).count as usize))
    };
    // SAFETY: a function's frame that waits has its context below the frame pointer.
    let context = unsafe { context_of(frame.fp) };
    // SAFETY: the context is that of an instance of the image's module, whose layout has all of its
    // tags.
    let is_it = |tag: &u32| unsafe {
        context.byte_offset(image.layout.tag(*tag) as isize).cast::<usize>().read() == identity
    };
    Cause::Exception(Thrown { tag: (0..image.module.tags.len() as u32).find(is_it), values })
}

/// The handler for exceptions of this tag in this frame.
///
/// # Safety
/// The frame must be one of the image's code, or of its trampolines.
unsafe fn handler_in(image: &CodeImage, frame: Frame, tag: usize) -> Option<Handler> {
    // A return address may be the end of a function: the call precedes it.
    let function = image.function_at(frame.pc - 1)?;
    let mut catches = image.catches(function, frame.pc).peekable();
    catches.peek()?;
    // SAFETY: a function's frame has its context below the frame pointer.
    let context = unsafe { context_of(frame.fp) };
    let (number, _) = catches.find(|(_, of)| {
        // SAFETY: the context is that of an instance of the image's module, whose layout has all of
        // its tags.
        let identity =
            |tag| unsafe { context.byte_offset(image.layout.tag(tag) as isize).cast::<usize>().read() };
        of.is_none_or(|index| identity(index) == tag)
    })?;
    Some(image.handler(function, frame.pc, number))
}
