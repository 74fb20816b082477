//! Calls to functions and to the runtime, and returns.

use wasmparser::FuncType;

use crate::asm::{Alu, Cond, Label, Mem, Reg, Size, Width};
use crate::compiler::abi::{
    ArgPlace, ArgPlaces, C_ARGS, CONTEXT, MEMORY, ResultPlace, SCRATCH, Ty, result_places, stack_bytes,
};
use crate::compiler::cold::Cold;
use crate::compiler::function::FunctionCompiler;
use crate::compiler::output::DirectCall;
use crate::compiler::sites::plain::MAX_PLAIN_OPERANDS;
use crate::compiler::state::{Place, Val};
use crate::vmctx::{
    FUNC_REF_CODE, FUNC_REF_CONTEXT, FUNC_REF_SIZE, FUNC_REF_TYPE, FUNC_REFS, LIBCALLS, Libcall, MEMORY0,
    RESULTS, STORE, TrapCode,
};

/// Holds the callee of an indirect call: it is not an argument register.
const CALLEE: Reg = Reg::R10;

/// The end of a tail call: its arguments are in place, those on the stack at `[rsp]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tail {
    /// The function of this module, or `None` for the one in [`CALLEE`].
    function: Option<u32>,
    /// Bytes of arguments on the stack.
    stack: u32,
}

impl<'a> FunctionCompiler<'a> {
    pub(crate) fn call(&mut self, function: u32) {
        let ty = self.module.function_type(function);
        if function < self.module.imported_functions {
            self.load_imported(function);
            self.registers.pin(CALLEE);
            self.arguments(ty);
            self.call_through_ref(ty);
        } else {
            self.arguments(ty);
            self.call_direct(function);
            self.stack_removed(ty);
        }
        self.push_results(ty);
    }

    pub(crate) fn call_indirect(&mut self, table: u32, type_index: u32) {
        let ty = self.module.func_type(type_index);
        self.load_callee(table, type_index);
        self.arguments(ty);
        self.call_callee(ty);
        self.push_results(ty);
    }

    /// A null reference faults when the callee's context is read.
    pub(crate) fn call_ref(&mut self, type_index: u32) {
        let ty = self.module.func_type(type_index);
        self.load_reference();
        self.arguments(ty);
        self.call_callee(ty);
        self.push_results(ty);
    }

    /// Calls the function in [`CALLEE`], which most likely belongs to this instance: then context
    /// and memory are preserved, and no reload delays the code after the call.
    fn call_callee(&mut self, ty: &'a FuncType) {
        if self.try_regions.innermost().is_some() {
            // All calls in a `try` must be inside its code.
            return self.call_through_ref(ty);
        }
        let (other, back) = (self.asm.new_label(), self.asm.new_label());
        self.asm.alu(Alu::Cmp, Width::W64, CONTEXT, Mem::base(CALLEE, FUNC_REF_CONTEXT));
        self.asm.jcc(Cond::NotEqual, other);
        self.asm.call_mem(Mem::base(CALLEE, FUNC_REF_CODE));
        self.show_transfer();
        self.stack_removed(ty);
        self.asm.bind(back);
        self.cold.push(Cold::CallThroughRef { label: other, ty, back, position: self.instruction.position });
    }

    pub(crate) fn return_call(&mut self, function: u32) {
        let ty = self.module.function_type(function);
        if function < self.module.imported_functions {
            self.load_imported(function);
            self.registers.pin(CALLEE);
            self.arguments(ty);
            let label = self.asm.new_label();
            self.asm.jmp(label);
            self.tail_to_other(label, ty);
        } else {
            self.arguments(ty);
            self.tail(Some(function), ty);
        }
        self.stop();
    }

    pub(crate) fn return_call_indirect(&mut self, table: u32, type_index: u32) {
        let ty = self.module.func_type(type_index);
        self.load_callee(table, type_index);
        self.return_call_callee(ty);
    }

    pub(crate) fn return_call_ref(&mut self, type_index: u32) {
        let ty = self.module.func_type(type_index);
        self.load_reference();
        self.return_call_callee(ty);
    }

    /// A tail call to the function in [`CALLEE`]. A null reference faults when its context is read,
    /// while this frame still exists.
    fn return_call_callee(&mut self, ty: &'a FuncType) {
        self.arguments(ty);
        // As for an import, if the callee belongs to another instance.
        let other = self.asm.new_label();
        self.asm.alu(Alu::Cmp, Width::W64, CONTEXT, Mem::base(CALLEE, FUNC_REF_CONTEXT));
        self.asm.jcc(Cond::NotEqual, other);
        self.tail_to_other(other, ty);
        self.tail(None, ty);
        self.stop();
    }

    /// The end of a tail call to the function in [`CALLEE`], which belongs to another instance or
    /// to the host.
    fn tail_to_other(&mut self, label: Label, ty: &FuncType) {
        let stack = stack_bytes(ty);
        self.cold.push(Cold::TailToOther { label, stack, position: self.instruction.position });
    }

    fn tail(&mut self, function: Option<u32>, ty: &FuncType) {
        self.frame.note_call(0);
        let label = self.asm.new_label();
        self.asm.jmp(label);
        self.cold.push(Cold::Tail { label, tail: Tail { function, stack: stack_bytes(ty) } });
    }

    /// Leaves the frame and jumps. The callee removes its arguments up to the address up to which
    /// this function would have removed its own: both argument areas end there.
    pub(crate) fn tail_jump(&mut self, tail: &Tail, saved: u32, frame_size: u32) {
        let own = stack_bytes(self.ty);
        self.end_accessor(Reg::RAX);
        self.restore(saved);
        if tail.stack == 0 && own == 0 {
            self.asm.leave();
        } else {
            // The arguments may overwrite the return address and the saved `rbp`: read them first.
            self.asm.mov(Width::W64, SCRATCH, Mem::base(Reg::RBP, 8));
            self.asm.mov(Width::W64, Reg::RBP, Mem::base(Reg::RBP, 0));
            let arguments = (frame_size + 16 + own - tail.stack) as i32;
            for at in (0..tail.stack as i32 / 8).rev() {
                self.asm.mov(Width::W64, Reg::RAX, Mem::base(Reg::RSP, 8 * at));
                self.asm.mov_store(Size::B8, Mem::base(Reg::RSP, arguments + 8 * at), Reg::RAX);
            }
            self.asm.mov_store(Size::B8, Mem::base(Reg::RSP, arguments - 8), SCRATCH);
            self.asm.lea(Width::W64, Reg::RSP, Mem::base(Reg::RSP, arguments - 8));
        }
        match tail.function {
            Some(function) => {
                self.prepare_patched_operand();
                let at = self.asm.jmp_to_link();
                self.calls.push(DirectCall { at, function });
            }
            None => self.asm.jmp_mem(Mem::base(CALLEE, FUNC_REF_CODE)),
        }
    }

    /// Leaves the frame through the routine for tail calls to other instances. `r15` is free here:
    /// the routine sets the callee's.
    pub(crate) fn jump_to_other(&mut self, stack: u32, saved: u32) {
        self.end_accessor(Reg::RAX);
        self.restore(saved);
        self.asm.mov_imm(Reg::RAX, stack.into());
        self.asm.mov_imm(SCRATCH, stack_bytes(self.ty).into());
        self.asm.mov(Width::W64, MEMORY, Mem::base(CONTEXT, LIBCALLS));
        self.asm.jmp_mem(Mem::base(MEMORY, 8 * Libcall::TailCall as i32));
    }

    fn load_imported(&mut self, function: u32) {
        self.take(CALLEE);
        self.asm.mov(Width::W64, CALLEE, Mem::base(CONTEXT, FUNC_REFS));
        if function > 0 {
            self.asm.alu_imm(Alu::Add, Width::W64, CALLEE, function as i32 * FUNC_REF_SIZE);
        }
    }

    /// Pops the index, and checks it and the callee's type. A null element faults when its type is
    /// read. The address of the expected type is read from the context, because it differs between
    /// processes, while code must not.
    fn load_callee(&mut self, table: u32, type_index: u32) {
        let index = self.pop();
        let place = self.element(table, &index, TrapCode::UndefinedElement);
        self.asm.mov(Width::W64, SCRATCH, place);
        // Index and table are no longer needed.
        self.registers.unpin_all();
        self.take(CALLEE);
        self.asm.mov(Width::W64, CALLEE, SCRATCH);
        self.asm.mov(Width::W64, SCRATCH, Mem::base(CALLEE, FUNC_REF_TYPE));
        self.compare_type(type_index, |compiler, is_above| {
            compiler.trap_if(is_above, TrapCode::IndirectCallType);
        });
        self.trap_if(Cond::NotEqual, TrapCode::IndirectCallType);
    }

    /// Pops the reference to the callee.
    fn load_reference(&mut self) {
        let reference = self.pop();
        let source = self.place(&reference);
        self.take(CALLEE);
        self.move_value(Ty::Ref, Place::Reg(CALLEE), source);
    }

    /// Pops the arguments and moves them to their locations; saves what the callee may clobber.
    fn arguments(&mut self, ty: &FuncType) {
        let params = ty.params();
        let mut places = ArgPlaces::default();
        let base = self.stack.len() - params.len();
        let mut to_registers = Vec::new();
        let mut to_stack = Vec::new();
        for (param, height) in params.iter().zip(base as u32..) {
            let ty = Ty::from(*param);
            let operand = self.peek(height);
            let src = self.place(&operand);
            match places.next(ty) {
                ArgPlace::Reg(reg) => to_registers.push((ty, reg, src)),
                ArgPlace::Stack(index) => to_stack.push((ty, index, src)),
            }
        }
        // Popped arguments are not spilled; they stay where `peek` found them.
        self.truncate(base as u32);
        // Constants and aliases of locals have no slot. They get one in a plain version, in which a
        // frame that calls here may continue.
        self.frame.reserve((base as u32).min(MAX_PLAIN_OPERANDS));
        self.save_registers();
        self.frame.note_call(stack_bytes(ty));
        for (ty, index, src) in to_stack {
            self.move_value(ty, Place::Mem(Mem::base(Reg::RSP, 8 * index as i32)), src);
        }
        self.show_call();
        self.parallel_moves(to_registers);
    }

    fn call_direct(&mut self, function: u32) {
        self.prepare_patched_operand();
        let at = self.asm.call_to_link();
        self.calls.push(DirectCall { at, function });
        self.show_transfer();
    }

    /// Emitted before a direct call or tail call.
    fn prepare_patched_operand(&mut self) {
        if self.module.settings.patches_calls {
            self.asm.prefix_patched_operand();
        }
    }

    /// Calls the function in [`CALLEE`] with its own context.
    pub(crate) fn call_through_ref(&mut self, ty: &FuncType) {
        self.asm.mov(Width::W64, Reg::RAX, CONTEXT);
        self.asm.mov(Width::W64, CONTEXT, Mem::base(CALLEE, FUNC_REF_CONTEXT));
        self.asm.mov(Width::W64, MEMORY, Mem::base(CONTEXT, MEMORY0));
        self.asm.call_mem(Mem::base(CALLEE, FUNC_REF_CODE));
        self.show_transfer();
        self.stack_removed(ty);
        self.asm.mov(Width::W64, CONTEXT, Mem::base(Reg::RBP, -8));
        if !self.module.memories.is_empty() {
            self.asm.mov(Width::W64, MEMORY, Mem::base(CONTEXT, MEMORY0));
        }
    }

    /// Restores `rsp` after the callee has removed its arguments.
    fn stack_removed(&mut self, ty: &FuncType) {
        if self.is_plain() {
            return self.set_stack_pointer();
        }
        let bytes = stack_bytes(ty);
        if bytes > 0 {
            self.asm.alu_imm(Alu::Sub, Width::W64, Reg::RSP, bytes as i32);
        }
    }

    fn push_results(&mut self, ty: &FuncType) {
        self.registers.unpin_all();
        for (_, place) in result_places(ty.results()) {
            if let ResultPlace::Reg(reg) = place {
                self.registers.pin(reg);
            }
        }
        for (ty, place) in result_places(ty.results()) {
            let reg = match place {
                ResultPlace::Reg(reg) => reg,
                ResultPlace::Buffer(index) => {
                    let reg = self.alloc(ty.class());
                    self.asm.mov(Width::W64, SCRATCH, Mem::base(CONTEXT, STORE));
                    let src = Place::Mem(Mem::base(SCRATCH, RESULTS + 8 * index as i32));
                    self.move_value(ty, Place::Reg(reg), src);
                    reg
                }
            };
            self.push(ty, Val::Reg(reg));
            self.registers.unpin(reg);
        }
    }

    // The runtime.

    /// Calls a routine with the context, these constants and the top operands, which it pops.
    pub(crate) fn libcall(&mut self, libcall: Libcall, constants: &[u64], operands: usize) {
        self.frame.note_call(0);
        let base = self.stack.len() - operands;
        let mut moves = vec![(Ty::I64, C_ARGS[0], Place::Reg(CONTEXT))];
        for (constant, reg) in constants.iter().zip(&C_ARGS[1..]) {
            moves.push((Ty::I64, *reg, Place::Const(*constant)));
        }
        for (height, reg) in (base as u32..base as u32 + operands as u32).zip(&C_ARGS[1 + constants.len()..])
        {
            let operand = self.peek(height);
            let src = self.place(&operand);
            moves.push((operand.ty, *reg, src));
        }
        self.truncate(base as u32);
        self.save_registers();
        self.show_routine();
        self.parallel_moves(moves);
        let entry = self.libcall_entry(libcall);
        self.asm.call_mem(entry);
        self.show_transfer();
        self.load_floats();
        self.registers.unpin_all();
    }

    /// Raises if the last libcall failed.
    pub(crate) fn check_answer(&mut self) {
        let label = self.asm.new_label();
        self.asm.test(Width::W32, Reg::RDX, Reg::RDX);
        self.asm.jcc(Cond::NotEqual, label);
        self.cold.push(Cold::Raise { label, position: self.instruction.position });
    }
}
