//! The frames of a store's program, with the locations where the registers of each are saved.
//!
//! A function saves the callee-saved registers that it uses in its frame. The value that a waiting
//! frame has in such a register is therefore in the frame of the first callee that saves it,
//! counted from the waiting frame inwards, or where the activation was left: host trampolines and
//! stubs save all of them.

use std::cell::Cell;

use iced_x86::{Mnemonic, Register};
use wasm_jit_codegen::{Reg, SiteFrame, callee_saved_slot};

use super::capture::instruction_at;
use super::unwind::Frame;
use super::{Activation, ExecutionState};
use crate::code::CodeImage;
use crate::code::registry::image_at;
use crate::vmctx::VmContext;

/// The callee-saved registers, by their numbers in machine code.
const KEPT: [(u8, Register); 3] = [(3, Register::RBX), (12, Register::R12), (13, Register::R13)];

thread_local! {
    /// Number of frames that this thread's walks have visited.
    static WALKED: Cell<u64> = const { Cell::new(0) };
}

/// Number of frames that this thread's walks have visited.
pub(crate) fn walked() -> u64 {
    WALKED.get()
}

/// A frame of a function that waits for a callee, or for a probe.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    /// A return address: in the function, or in a stub.
    pub return_address: usize,
    /// The address where the return address is stored.
    pub return_slot: usize,
    pub fp: usize,
    /// The frame pointer of the entry trampoline of the frame's activation.
    pub activation_fp: usize,
    /// The state that the stub has saved, if the frame waits for a probe in it.
    pub site: Option<*mut SiteFrame>,
    /// Where the callee-saved registers are, if the walk follows them.
    kept: [usize; 3],
}

impl Waiting {
    /// The location of the frame's value of a register, if the register is callee-saved.
    pub(crate) fn register(&self, reg: Reg) -> Option<*mut u64> {
        callee_saved_slot(reg)?;
        let number = KEPT.iter().position(|(number, _)| *number == reg.number())?;
        Some(std::ptr::with_exposed_provenance_mut(self.kept[number]))
    }
}

/// The frames of functions of a store's activations, from the one in which a probe fires outwards.
#[derive(Debug)]
pub(crate) struct Walk {
    /// The first frame until it is taken, then the last frame that was taken.
    at: Option<Waiting>,
    is_first: bool,
    outer: *const Activation,
    follows_registers: bool,
}

impl Walk {
    /// # Safety
    /// The store's innermost activation must have been left through the stub of this site, and no
    /// frame may be left during the walk.
    pub(crate) unsafe fn new(store: *const ExecutionState, site: *mut SiteFrame) -> Self {
        // SAFETY: the caller's obligation.
        let (exit_fp, activation_fp, outer) =
            unsafe { ((&raw const (*site).fp).addr(), (*store).vm.activation_fp, (*store).outer) };
        // SAFETY: as above.
        let first = unsafe { left_at(exit_fp, activation_fp) };
        Self { at: Some(first), is_first: true, outer, follows_registers: false }
    }

    /// The frame in which the probe fires.
    pub(crate) fn first(&self) -> Waiting {
        self.at.expect("nothing was taken yet")
    }

    /// Finds the registers of frames, too, which takes longer.
    pub(crate) fn with_registers(self) -> Self {
        Self { follows_registers: true, ..self }
    }

    /// The frame that follows this one outwards.
    ///
    /// # Safety
    /// As [`Walk::new`].
    unsafe fn after(&mut self, frame: Waiting) -> Option<Waiting> {
        if frame.fp == frame.activation_fp {
            // SAFETY: an activation is on the stack of the `enter` that waits for the nested one.
            let outer = unsafe { self.outer.as_ref()? };
            self.outer = outer.outer;
            // SAFETY: the trampoline or stub through which the activation was left has not been
            // left.
            return (outer.activation_fp != 0)
                .then(|| unsafe { left_at(outer.exit_fp, outer.activation_fp) });
        }
        let mut kept = frame.kept;
        if self.follows_registers
            // SAFETY: the frame waits there.
            && let Some(image) = unsafe { image_at(frame.return_address - 1) }
            && let Some(function) = image.function_at(frame.return_address - 1)
        {
            // SAFETY: as above.
            for (number, slot) in unsafe { saved_by(image, function) } {
                kept[number] = frame.fp.wrapping_add_signed(slot);
            }
        }
        let return_slot = frame.fp + 8;
        // SAFETY: inside the activation.
        let Frame { pc: return_address, fp, .. } = unsafe { Frame::caller(frame.fp) };
        Some(Waiting {
            return_address,
            return_slot,
            fp,
            activation_fp: frame.activation_fp,
            site: None,
            kept,
        })
    }
}

/// The frame that left an activation through the host trampoline or stub with this frame pointer.
///
/// # Safety
/// The trampoline or stub must not have been left.
unsafe fn left_at(exit_fp: usize, activation_fp: usize) -> Waiting {
    // SAFETY: the caller's obligation.
    let Frame { pc: return_address, fp, .. } = unsafe { Frame::caller(exit_fp) };
    let context = std::ptr::with_exposed_provenance::<*const VmContext>(exit_fp - 8);
    // SAFETY: as above. A host trampoline has the host function's context there, a stub its
    // instance's.
    let is_stub = unsafe { (*context.read()).is_host } == 0;
    let kept = KEPT.map(|(number, _)| match number {
        3 => exit_fp - 16,
        12 => exit_fp - 24,
        _ => exit_fp - 32,
    });
    let site = is_stub.then(|| SiteFrame::at(exit_fp));
    Waiting { return_address, return_slot: exit_fp + 8, fp, activation_fp, site, kept }
}

/// The callee-saved registers that a function saves, by their numbers in [`KEPT`], with their
/// offsets from its `rbp`.
///
/// # Safety
/// The image must be alive.
unsafe fn saved_by(image: &CodeImage, function: u32) -> impl Iterator<Item = (usize, isize)> {
    let function = image.function(function);
    let [mut at, body] = [function.entry, function.body].map(|offset| image.at(offset).addr());
    std::iter::from_fn(move || {
        while at < body {
            // SAFETY: the caller's obligation. All versions of the function save the same.
            let instruction = unsafe { instruction_at(at) };
            at += instruction.len().max(1);
            let register = |(_, register): &(u8, Register)| *register == instruction.op1_register();
            if instruction.mnemonic() == Mnemonic::Mov
                && instruction.memory_base() == Register::RBP
                && let Some(number) = KEPT.iter().position(register)
            {
                return Some((number, instruction.memory_displacement64() as isize));
            }
        }
        None
    })
}

impl Iterator for Walk {
    type Item = Waiting;

    fn next(&mut self) -> Option<Waiting> {
        loop {
            let mut frame = self.at?;
            if !std::mem::take(&mut self.is_first) {
                // SAFETY: the obligation of `new`.
                self.at = unsafe { self.after(frame) };
                frame = self.at?;
            }
            WALKED.set(WALKED.get() + 1);
            let pc = frame.return_address - 1;
            // SAFETY: the frame waits there.
            if unsafe { image_at(pc) }.is_some_and(|image| image.has_function_at(pc)) {
                return Some(frame);
            }
        }
    }
}
