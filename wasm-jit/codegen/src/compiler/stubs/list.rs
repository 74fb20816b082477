//! Stubs that execute a list of probes, some of which call functions.
//!
//! ```text
//! mov [rbp - 8], r14               leaf functions do not store their context
//! lea rsp, [rsp - SAVED - 128]     leaf functions have their frame below rsp
//! mov [rsp + n], register          each live register that the C convention does not preserve
//! flags to [rsp + n]               where they are needed
//! condition to [rsp + n]           if the top operand is one, as 0 or 1
//!
//! for each probe, in order:
//!     mov r11, [r14 + COUNTERS]    a counter
//!     add qword [r11 + cell], 1
//!
//!     mov r11, instance            a probe of one instance
//!     cmp r11, [r14 + NUMBER]
//!     jne the next probe
//!     mov rdi, value ...           a function: its arguments, from where the values were saved
//!     mov rax, function
//!     call rax
//!
//!     mov r11, [r14 + STORE]       a function of a store: only where this store runs
//!     mov rax, store
//!     cmp rax, [r11 + STORE_NUMBER]
//!     jne the next probe
//!     cmp rsp, [r11 + STACK_LIMIT]
//!     jb overflow
//!     [r14 + SETTLED] to [rsp + n]
//!     lea rsp, [rsp - n]           arguments on the stack, which the callee removes
//!     mov rdi, value ...           its arguments, by the convention of compiled code
//!     mov rax, r14                 and a call through a VmFuncRef, as any of another instance
//!     mov r10, callee
//!     mov r14, [r10 + CONTEXT]
//!     mov r15, [r14 + MEMORY0]
//!     call [r10 + CODE]
//!     mov r14, [rbp - 8]
//!     mov r15, [r14 + MEMORY0]
//!     [rsp + n] to [r14 + SETTLED]
//!
//!     mov [rsp + n], value ...     a callback: its values, as an array
//!     mov rdi, callback
//!     lea rsi, [rsp + n]
//!     mov rdx, r14
//!     mov rax, function
//!     call rax
//!     test eax, eax                has it failed?
//!     jne raise
//!
//!     mov rax, [threshold]         a generic probe, perhaps only below an amount of fuel
//!     mov r11, [r14 + STORE]
//!     cmp rax, [r11 + FUEL]
//!     jl the next probe
//!     mov r11, [r14 + STORE]       the stack pointer, and the end of the
//!     mov [r11 + EXIT_SP], rsp     `SiteFrame` there, make the stub a trampoline
//!     ...                          to the runtime
//!     mov rdi, description
//!     mov rsi, rsp
//!     mov rax, function
//!     call rax
//!     test eax, eax
//!     jne raise or move
//!     mov rbx, [rsp + n] ...       it may have changed them and r12, r13
//!
//!     ...                          a record: see `stub_record`
//!
//!     mov r11, [r14 + STORE]       after host functions: is an interrupt requested?
//!     mov r11, [r11 + REQUESTS]
//!     cmp dword [r11], 0
//!     jne interrupt
//! flags from [rsp + n]
//! mov register, [rsp + n]
//! lea rsp, [rsp + SAVED + 128]
//! jmp back
//! interrupt:
//! ud2                              the handler raises, or continues
//! jmp to the flags
//! overflow:
//! ud2
//! raise or move:
//! cmp eax, 1
//! je raise
//! mov rbx, [rsp + n] ...
//! jmp [rsp + n]                    on in the stub of the plain version, where the frame is now
//! resume:                          in the plain version: for each generic probe
//! mov register, [rsp + n]          at an exit: the results, which are saved again
//! lea rsp, [rbp - n]
//! mov [rsp + n], register
//! jmp after the probe
//! raise:
//! mov r11, [r14 + LIBCALLS]
//! call [r11 + RAISE]               leaves the activation
//! ```
//!
//! Arguments are read from where the registers were saved, so every function of the list finds the
//! values that the site had, and no argument overwrites the source of another. `rbp` and the other
//! callee-saved registers keep their values throughout, `r14` and `r15` except during calls to
//! compiled functions. The stack is aligned to 16 bytes, as `rsp` is in every function's body.
//!
//! Such a stub requires a settled site: no load is pending. None of its instructions can trap,
//! except the UD2s. Functions without calls do not check the stack, so recursion through their
//! probes is checked here. A compiled function that traps or throws ends the activation: to the
//! unwinder, the return address in the stub is in the function that is probed, at its instruction,
//! and no handler there applies. The check makes interrupts take effect when a function has
//! returned, even if nearly all of the time is spent in functions, where signals have no effect.

use std::ops::Range;
use std::sync::Arc;

use super::frame::SiteFrame;
use super::inline::inline_stub;
use super::inlined::Inlined;
use super::interrupt_check::InterruptCheck;
use super::record::{Record, record_stub};
use super::shortcut::Shortcut;
use super::values::{Lane, Source, Value};
use crate::asm::{Alu, Assembler, Cond, Label, Mem, Reg, Shift, Size, VectorImmOp, Width};
use crate::compiler::abi::{ArgPlace, ArgPlaces, CONTEXT, INT_TEMPS, MEMORY, SCRATCH, Ty, argument_bytes};
use crate::compiler::cached_locals::bits;
use crate::compiler::sites::plain::MAX_PLAIN_OPERANDS;
use crate::compiler::sites::settle::SETTLED;
use crate::compiler::state::Flag;
use crate::vmctx::{
    COUNTERS, EXIT_FP, EXIT_SP, FUEL, FUNC_REF_CODE, FUNC_REF_CONTEXT, INSTANCE_NUMBER, LIBCALLS, Libcall,
    MEMORY0, RESULTS, STACK_LIMIT, STORE, STORE_NUMBER, TrapCode,
};

/// The registers of arguments in the C convention.
const ARGUMENTS: [Reg; MAX_ARGUMENTS] = [Reg::RDI, Reg::RSI, Reg::RDX, Reg::RCX, Reg::R8, Reg::R9];
/// Maximum number of arguments of a probe function.
pub const MAX_ARGUMENTS: usize = 6;

/// The registers that a called function may change: these, and all SSE registers.
const CALLER_SAVED: u32 = INT_TEMPS | 0xffff_0000;
const RED_ZONE: i32 = 128;

/// The state at a settled site, as far as its stub depends on it.
#[derive(Clone, Copy, Debug)]
pub struct SiteState {
    /// The registers that the code needs.
    pub(crate) live: u32,
    pub(crate) needs_flags: bool,
    /// The condition that is the top operand.
    pub(in crate::compiler) flag: Option<Flag>,
    /// The number of values on the operand stack.
    pub(crate) operands: u32,
    /// The bytes of an operand's slot.
    pub(crate) slot_bytes: u32,
}

impl SiteState {
    /// The state before each instruction of a plain version.
    pub const PLAIN: Self = Self { live: 0, needs_flags: false, flag: None, operands: 0, slot_bytes: 8 };
}

/// The action of a probe at a site.
#[derive(Clone, Copy, Debug)]
pub enum Action<'a> {
    /// Adds 1 to a quadword, by its offset in the instance's counters.
    Count {
        /// The offset of the counter in the instance's counters, in bytes.
        cell: i32,
    },
    /// Calls `extern "sysv64" fn(callback, values: *mut u64, context) -> u64`. If it does not
    /// return 0, it has recorded why the activation must be left ([`Libcall::Raise`]).
    Callback {
        /// The address of the function.
        function: usize,
        /// The function's first argument.
        callback: usize,
        /// The values that are passed as an array; any number.
        values: &'a [Value],
        /// As for [`Action::Call`].
        only: Option<Only>,
    },
    /// Calls a function.
    Call {
        /// The function to call.
        callee: &'a Callee,
        /// The arguments, one for each parameter.
        arguments: &'a [Value],
        /// The instances in which the function is called, if not all.
        only: Option<Only>,
    },
    /// Calls a function of the runtime, which may use the store, and read and change the
    /// [`SiteFrame`]: `extern "sysv64" fn(description, *mut SiteFrame) -> u64`. If it returns 1,
    /// the stub calls [`Libcall::Raise`]. If it returns 2, the frame has become plain, and
    /// continues at [`SiteFrame::return_address`].
    Generic {
        /// The address of the function.
        function: usize,
        /// The function's first argument.
        description: usize,
        /// The instances in which the function is called, if not all.
        only: Option<Only>,
        /// The address of an `i64`, if the function is called only while the store has at most this
        /// much fuel.
        fuel: Option<usize>,
    },
    /// Appends a record to a buffer.
    Record(Record<'a>),
}

/// The instances in which a probe acts; others pass it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Only {
    /// The instance with this number.
    Instance(u64),
    /// The instances of the store with this number.
    Store(u64),
}

/// A function that a probe calls.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Callee {
    /// A function of the C convention at this address, with at most [`MAX_ARGUMENTS`] integer
    /// arguments.
    Native(usize),
    /// Such a function, which a stub calls only if the shortcut does not handle the case.
    Shortcut {
        /// The address of the function.
        function: usize,
        /// The steps that are executed instead.
        shortcut: Arc<Shortcut>,
    },
    /// A function of compiled code, without results. It is called only in the instances of its
    /// store.
    Wasm {
        /// The number of the function's store.
        store: u64,
        /// The address of the function's [`VmFuncRef`](crate::vmctx::VmFuncRef).
        func_ref: usize,
        /// Whether this is a host function, which needs to know its caller.
        is_host: bool,
        /// The types of the function's parameters.
        parameters: Arc<[Ty]>,
        /// The function's code, if a stub may execute it inline.
        inlined: Option<Arc<Inlined>>,
    },
}

impl Action<'_> {
    /// The number of values that are passed as an array.
    fn values(&self) -> usize {
        if let Self::Callback { values, .. } = self { values.len() } else { 0 }
    }

    /// Whether the action's function can run code of the instance in which it fires.
    fn reenters(&self) -> bool {
        matches!(self, Self::Call { callee: Callee::Wasm { .. }, .. })
    }
}

/// A stub: its code, and the offset of the rel32 of the jump back, which is relative to its end.
#[derive(Debug)]
pub struct ListStub {
    /// The machine code.
    pub code: Vec<u8>,
    /// The offset of the rel32 of the jump back.
    pub back: u32,
    /// The offsets at which an interrupt has no effect.
    pub uninterrupted: Range<u32>,
    /// The actions that see the frame, in order.
    pub generic: Vec<GenericPart>,
}

/// The part of a stub that is an [`Action::Generic`]: offsets in the stub.
#[derive(Clone, Copy, Debug)]
pub struct GenericPart {
    /// The value of [`SiteFrame::return_address`] while the action runs.
    pub inside: u32,
    /// In a plain version, where a frame of another version that has become plain during this
    /// action continues. The registers that the C convention preserves are those of the site,
    /// except `rsp`, which is that of the other version's stub. The results at an exit are still in
    /// that stub's [`SiteFrame`].
    pub resume: u32,
}

/// Where a stub saves things: offsets from its `rsp`.
pub(crate) struct Saved {
    registers: u32,
    /// The registers that keep the values of the site.
    intact: u32,
    flags: i32,
    condition: i32,
    /// The operand in [`SETTLED`], during a call to a function that can run the instance.
    settled: i32,
    /// The values of a callback.
    values: i32,
    /// The number of bytes by which the stub moves `rsp`.
    moved: i32,
    /// Whether the saved data begin with a [`SiteFrame`].
    is_frame: bool,
    /// Bytes on the stack below the saved data.
    pushed: i32,
}

impl Saved {
    /// If probes see the frame, there is room for the operands' slots above the saved data.
    pub(crate) fn of(state: &SiteState, actions: &[Action<'_>]) -> Self {
        // RAX receives the flags.
        let uses_rax = state.needs_flags || state.flag.is_some();
        let registers = state.live & CALLER_SAVED | if uses_rax { Reg::RAX.bit() } else { 0 };
        let is_frame = actions.iter().any(|action| matches!(action, Action::Generic { .. }));
        let (flags, condition, end) = if is_frame {
            (SiteFrame::FLAGS, SiteFrame::CONDITION, SiteFrame::SIZE)
        } else {
            let flags = 8 * words_of(registers);
            (flags, flags + 8, flags + 16)
        };
        let reenters = actions.iter().any(Action::reenters);
        let (settled, values) = (end, end + if reenters { 8 } else { 0 });
        let count = actions.iter().map(Action::values).max().unwrap_or(0);
        let size = (values + 8 * count as i32 + 15) & !15;
        let operands = state.operands.min(MAX_PLAIN_OPERANDS);
        let slots = if is_frame { (state.slot_bytes * operands) as i32 } else { 0 };
        let moved = size + RED_ZONE + ((slots + 15) & !15);
        let intact = !CALLER_SAVED;
        Self { registers, intact, flags, condition, settled, values, moved, is_frame, pushed: 0 }
    }

    /// For a stub that calls nothing: it saves these registers, and changes all except the `intact`
    /// ones.
    pub(crate) fn of_some(registers: u32, intact: u32) -> Self {
        let flags = 8 * words_of(registers);
        let (condition, end) = (flags + 8, flags + 16);
        let moved = ((end + 15) & !15) + RED_ZONE;
        Self {
            registers,
            intact,
            flags,
            condition,
            settled: end,
            values: end,
            moved,
            is_frame: false,
            pushed: 0,
        }
    }

    /// Saves what functions may change.
    pub(crate) fn save(&self, state: &SiteState, asm: &mut Assembler<'_>) {
        store_context(asm);
        self.save_values(state, asm);
    }

    /// As [`Self::save`], for a stub that calls nothing.
    pub(crate) fn save_values(&self, state: &SiteState, asm: &mut Assembler<'_>) {
        asm.lea(Width::W64, Reg::RSP, Mem::base(Reg::RSP, -self.moved));
        for reg in bits(self.registers) {
            store(self.place(reg).expect("it is in the set"), reg, asm);
        }
        if state.needs_flags {
            asm.flags_to_rax();
            asm.mov_store(Size::B8, self.at(self.flags), Reg::RAX);
        }
        if let Some(flag) = state.flag {
            condition_to_scratch(flag, asm);
            asm.mov_store(Size::B8, self.at(self.condition), SCRATCH);
        }
    }

    /// Restores what was saved.
    pub(crate) fn restore(&self, state: &SiteState, asm: &mut Assembler<'_>) {
        if state.needs_flags {
            asm.mov(Width::W64, Reg::RAX, self.at(self.flags));
            asm.flags_from_rax();
        }
        // None of these changes the flags.
        for reg in bits(self.registers) {
            load(reg, self.place(reg).expect("it is in the set"), asm);
        }
        asm.lea(Width::W64, Reg::RSP, Mem::base(Reg::RSP, self.moved));
    }

    /// The same data while this many more bytes are on the stack below.
    fn below(&self, pushed: i32) -> Self {
        Self { pushed, ..*self }
    }

    /// The memory operand at an offset.
    fn at(&self, offset: i32) -> Mem {
        Mem::base(Reg::RSP, self.pushed + offset)
    }

    /// Where a register was saved, if it was saved.
    fn place(&self, reg: Reg) -> Option<Mem> {
        let before = self.registers & (reg.bit() - 1);
        let is_saved = self.registers & reg.bit() != 0;
        if self.is_frame {
            return is_saved.then(|| self.at(SiteFrame::offset(reg)));
        }
        is_saved.then(|| self.at(8 * words_of(before)))
    }
}

/// Stores the context where the unwinder reads it after this instruction, the first one of a stub:
/// leaf functions do not store theirs.
pub(crate) fn store_context(asm: &mut Assembler<'_>) {
    asm.mov_store(Size::B8, Mem::base(Reg::RBP, -8), CONTEXT);
}

/// The number of quadwords in the registers of a set: an SSE register may hold a vector.
fn words_of(registers: u32) -> i32 {
    (registers.count_ones() + (registers >> 16).count_ones()) as i32
}

/// A stub for the site at address `site`, which executes probes in order. In a plain version, the
/// size of the frame is given.
pub fn list_stub(state: &SiteState, actions: &[Action<'_>], site: usize, plain: Option<u32>) -> ListStub {
    if let Some(stub) = record_stub(state, actions, site).or_else(|| inline_stub(state, actions, site)) {
        return stub;
    }
    let mut code = Vec::new();
    let asm = &mut Assembler::new(&mut code);
    let saved = Saved::of(state, actions);
    let may_raise = |action: &Action<'_>| {
        matches!(action, Action::Callback { .. } | Action::Generic { .. } | Action::Record(_))
    };
    let (raise, raise_or_move, overflow) = (asm.new_label(), asm.new_label(), asm.new_label());
    let (mut generic, mut resumes) = (Vec::new(), Vec::new());
    saved.save(state, asm);
    for action in actions {
        match *action {
            Action::Count { cell } => {
                asm.mov(Width::W64, SCRATCH, Mem::base(CONTEXT, COUNTERS));
                asm.alu_imm(Alu::Add, Width::W64, Mem::base(SCRATCH, cell), 1);
            }
            Action::Call { callee, arguments, only } => {
                let next = skip_other_instances(only, asm);
                match callee {
                    Callee::Native(function) | Callee::Shortcut { function, .. } => {
                        call_native(*function, arguments, &saved, site, asm);
                    }
                    Callee::Wasm { store, func_ref, is_host, parameters, .. } => {
                        skip_other_stores(*store, next, asm);
                        let call = WasmCall { func_ref: *func_ref, is_host: *is_host, parameters, arguments };
                        call.emit(&saved, site, overflow, asm);
                    }
                }
                asm.bind(next);
            }
            Action::Callback { function, callback, values, only } => {
                let next = skip_other_instances(only, asm);
                let element = |index: usize| saved.at(saved.values + 8 * index as i32);
                for (index, value) in values.iter().enumerate() {
                    argument(Reg::RDI, *value, &saved, site, asm);
                    asm.mov_store(Size::B8, element(index), Reg::RDI);
                }
                asm.mov_imm(Reg::RDI, callback as u64);
                asm.lea(Width::W64, Reg::RSI, element(0));
                asm.mov(Width::W64, Reg::RDX, CONTEXT);
                asm.mov_imm(Reg::RAX, function as u64);
                asm.call_reg(Reg::RAX);
                asm.test(Width::W32, Reg::RAX, Reg::RAX);
                asm.jcc(Cond::NotEqual, raise);
                asm.bind(next);
            }
            Action::Record(record) => {
                let next = skip_other_instances(record.only, asm);
                record.append(&saved, site, raise, asm);
                asm.bind(next);
            }
            Action::Generic { function, description, only, fuel } => {
                let next = skip_other_instances(only, asm);
                if let Some(threshold) = fuel {
                    skip_above_fuel(threshold, next, asm);
                }
                let here = asm.new_label();
                SiteFrame::save(asm);
                asm.lea_label(SCRATCH, here);
                asm.bind(here);
                generic.push(GenericPart { inside: asm.offset(), resume: 0 });
                resumes.push(next);
                asm.mov_store(Size::B8, Mem::base(Reg::RSP, SiteFrame::FRAME + 8), SCRATCH);
                asm.mov(Width::W64, SCRATCH, Mem::base(CONTEXT, STORE));
                asm.lea(Width::W64, Reg::RAX, Mem::base(Reg::RSP, SiteFrame::FRAME));
                asm.mov_store(Size::B8, Mem::base(SCRATCH, EXIT_FP), Reg::RAX);
                asm.mov_store(Size::B8, Mem::base(SCRATCH, EXIT_SP), Reg::RSP);
                asm.mov_imm(Reg::RDI, description as u64);
                asm.mov(Width::W64, Reg::RSI, Reg::RSP);
                asm.mov_imm(Reg::RAX, function as u64);
                asm.call_reg(Reg::RAX);
                asm.test(Width::W32, Reg::RAX, Reg::RAX);
                asm.jcc(Cond::NotEqual, raise_or_move);
                SiteFrame::restore(asm);
                asm.bind(next);
            }
        }
    }
    // Signals interrupt functions of compiled code, and host functions when they return.
    let is_interrupted = |action: &Action<'_>| {
        matches!(action, Action::Count { .. } | Action::Call { callee: Callee::Wasm { .. }, .. })
    };
    let check = (!actions.iter().all(is_interrupted)).then(|| InterruptCheck::begin(asm));
    saved.restore(state, asm);
    let back = asm.jmp_to_link();
    if let Some(check) = check {
        check.end(asm);
    }
    if actions.iter().any(Action::reenters) {
        asm.bind(overflow);
        asm.ud2(TrapCode::StackOverflow as u8);
    }
    if saved.is_frame {
        asm.bind(raise_or_move);
        asm.alu_imm(Alu::Cmp, Width::W32, Reg::RAX, 1);
        asm.jcc(Cond::Equal, raise);
        SiteFrame::restore(asm);
        asm.jmp_mem(Mem::base(Reg::RSP, SiteFrame::FRAME + 8));
    }
    if let Some(frame_size) = plain {
        for (part, next) in generic.iter_mut().zip(resumes) {
            part.resume = asm.offset();
            // At an exit, the results are in registers, which the other version's stub has saved
            // in its `SiteFrame`. Elsewhere, there are none.
            for reg in bits(saved.registers) {
                load(reg, Mem::base(Reg::RSP, SiteFrame::offset(reg)), asm);
            }
            asm.lea(Width::W64, Reg::RSP, Mem::base(Reg::RBP, -(frame_size as i32) - saved.moved));
            for reg in bits(saved.registers) {
                store(saved.place(reg).expect("it is in the set"), reg, asm);
            }
            asm.jmp(next);
        }
    }
    if actions.iter().any(may_raise) {
        asm.bind(raise);
        call_raise(asm);
    }
    ListStub { code, back, uninterrupted: 0..0, generic }
}

/// Calls a native function, in a stub that has saved the registers of its site.
pub(crate) fn call_native(
    function: usize,
    arguments: &[Value],
    saved: &Saved,
    site: usize,
    asm: &mut Assembler<'_>,
) {
    for (register, value) in ARGUMENTS.into_iter().zip(arguments) {
        argument(register, *value, saved, site, asm);
    }
    asm.mov_imm(Reg::RAX, function as u64);
    asm.call_reg(Reg::RAX);
}

/// Leaves the activation, for the reason that a function has recorded.
pub(crate) fn call_raise(asm: &mut Assembler<'_>) {
    asm.mov(Width::W64, SCRATCH, Mem::base(CONTEXT, LIBCALLS));
    asm.call_mem(Mem::base(SCRATCH, 8 * Libcall::Raise as i32));
    asm.ud2(TrapCode::Unreachable as u8);
}

/// Loads a register that was saved. Preserves the flags.
fn load(reg: Reg, place: Mem, asm: &mut Assembler<'_>) {
    if reg.is_float() {
        asm.vector_load(reg, place);
    } else {
        asm.mov(Width::W64, reg, place);
    }
}

/// Saves a register. Preserves the flags.
fn store(place: Mem, reg: Reg, asm: &mut Assembler<'_>) {
    if reg.is_float() {
        asm.vector_store(place, reg);
    } else {
        asm.mov_store(Size::B8, place, reg);
    }
}

/// Compares the running instance, or its store, with the one that an action is for, if it is for
/// one only. Other instances skip what follows, up to the label.
pub(crate) fn skip_other_instances(only: Option<Only>, asm: &mut Assembler<'_>) -> Label {
    let next = asm.new_label();
    match only {
        None => {}
        Some(Only::Instance(instance)) => {
            asm.mov_imm(SCRATCH, instance);
            asm.alu(Alu::Cmp, Width::W64, SCRATCH, Mem::base(CONTEXT, INSTANCE_NUMBER));
            asm.jcc(Cond::NotEqual, next);
        }
        Some(Only::Store(store)) => skip_other_stores(store, next, asm),
    }
    next
}

/// Jumps to the label in instances of stores other than the one with this number. [`SCRATCH`] gets
/// the address of the store's state.
fn skip_other_stores(store: u64, next: Label, asm: &mut Assembler<'_>) {
    asm.mov(Width::W64, SCRATCH, Mem::base(CONTEXT, STORE));
    asm.mov_imm(Reg::RAX, store);
    asm.alu(Alu::Cmp, Width::W64, Reg::RAX, Mem::base(SCRATCH, STORE_NUMBER));
    asm.jcc(Cond::NotEqual, next);
}

/// Jumps to the label while the store has more fuel than the `i64` at an address.
fn skip_above_fuel(threshold: usize, next: Label, asm: &mut Assembler<'_>) {
    asm.mov_imm(Reg::RAX, threshold as u64);
    asm.mov(Width::W64, Reg::RAX, Mem::base(Reg::RAX, 0));
    asm.mov(Width::W64, SCRATCH, Mem::base(CONTEXT, STORE));
    asm.alu(Alu::Cmp, Width::W64, Reg::RAX, Mem::base(SCRATCH, FUEL));
    asm.jcc(Cond::Less, next);
}

/// Moves values to where a compiled function expects its arguments.
fn wasm_arguments(
    parameters: &[Ty],
    arguments: &[Value],
    saved: &Saved,
    site: usize,
    asm: &mut Assembler<'_>,
) {
    let mut places = ArgPlaces::default();
    for (ty, value) in parameters.iter().zip(arguments) {
        let [low, high] = [value.lane(Lane::Low), value.lane(Lane::High)];
        match places.next(*ty) {
            ArgPlace::Reg(register) if register.is_float() => {
                argument(SCRATCH, low, saved, site, asm);
                asm.float_from_bits(Width::W64, register, SCRATCH);
                if *ty == Ty::V128 {
                    argument(SCRATCH, high, saved, site, asm);
                    asm.vector_imm(VectorImmOp::PINSRQ, register, register, SCRATCH, Lane::High as u8);
                }
            }
            ArgPlace::Reg(register) => integer(register, *ty, low, saved, site, asm),
            ArgPlace::Stack(index) => {
                let mut store = |value: Value, index: u32| {
                    integer(Reg::RAX, *ty, value, saved, site, asm);
                    asm.mov_store(Size::B8, Mem::base(Reg::RSP, 8 * index as i32), Reg::RAX);
                };
                store(low, index);
                if *ty == Ty::V128 {
                    store(high, index + 1);
                }
            }
        }
    }
}

/// Moves a value into a register as a compiled function expects a value of this type: an `i32` is
/// zero-extended, even if the value is a 64-bit address, whose upper half is ignored.
pub(crate) fn integer(
    register: Reg,
    ty: Ty,
    value: Value,
    saved: &Saved,
    site: usize,
    asm: &mut Assembler<'_>,
) {
    argument(register, value, saved, site, asm);
    let is_narrow = match value.source {
        Source::Const(bits) => value.plus == 0 && u32::try_from(bits).is_ok(),
        Source::Register(_, width)
        | Source::Slot(_, width)
        | Source::Settled(width)
        | Source::Shifted(_, _, width)
        | Source::Result(_, width) => value.plus == 0 && width == Width::W32,
        Source::Flag => value.plus == 0,
        _ => false,
    };
    if ty == Ty::I32 && !is_narrow {
        asm.mov(Width::W32, register, register);
    }
}

/// A call to a compiled function without results.
pub(crate) struct WasmCall<'a> {
    pub(crate) func_ref: usize,
    pub(crate) is_host: bool,
    pub(crate) parameters: &'a [Ty],
    pub(crate) arguments: &'a [Value],
}

impl WasmCall<'_> {
    /// The call, in a stub that has saved the registers of its site. [`SCRATCH`] has the address of
    /// the store's state.
    pub(crate) fn emit(&self, saved: &Saved, site: usize, overflow: Label, asm: &mut Assembler<'_>) {
        asm.alu(Alu::Cmp, Width::W64, Reg::RSP, Mem::base(SCRATCH, STACK_LIMIT));
        asm.jcc(Cond::Below, overflow);
        // The function may run this instance.
        asm.mov(Width::W64, SCRATCH, SETTLED);
        asm.mov_store(Size::B8, saved.at(saved.settled), SCRATCH);
        // The callee removes arguments on the stack.
        let pushed = argument_bytes(self.parameters.iter().copied()) as i32;
        if pushed > 0 {
            asm.lea(Width::W64, Reg::RSP, Mem::base(Reg::RSP, -pushed));
        }
        wasm_arguments(self.parameters, self.arguments, &saved.below(pushed), site, asm);
        // See `vmctx`. A function of an instance does not need its caller: with its own context,
        // the call is not observed.
        if self.is_host {
            asm.mov(Width::W64, Reg::RAX, CONTEXT);
        }
        asm.mov_imm(Reg::R10, self.func_ref as u64);
        asm.mov(Width::W64, CONTEXT, Mem::base(Reg::R10, FUNC_REF_CONTEXT));
        if !self.is_host {
            asm.mov(Width::W64, Reg::RAX, CONTEXT);
        }
        asm.mov(Width::W64, MEMORY, Mem::base(CONTEXT, MEMORY0));
        asm.call_mem(Mem::base(Reg::R10, FUNC_REF_CODE));
        asm.mov(Width::W64, CONTEXT, Mem::base(Reg::RBP, -8));
        asm.mov(Width::W64, MEMORY, Mem::base(CONTEXT, MEMORY0));
        asm.mov(Width::W64, SCRATCH, saved.at(saved.settled));
        asm.mov_store(Size::B8, SETTLED, SCRATCH);
    }
}

/// A condition as 0 or 1. Changes `rax` and the flags.
fn condition_to_scratch(flag: Flag, asm: &mut Assembler<'_>) {
    let (first, second) = match flag {
        Flag::Int(cond) => (cond, None),
        Flag::FloatEqual => (Cond::NotParity, Some((Cond::Equal, Alu::And))),
        Flag::FloatNotEqual => (Cond::Parity, Some((Cond::NotEqual, Alu::Or))),
        // The value itself has been settled.
        Flag::NonZero => return,
    };
    asm.setcc(first, SCRATCH);
    if let Some((second, join)) = second {
        asm.setcc(second, Reg::RAX);
        asm.alu(join, Width::W32, SCRATCH, Reg::RAX);
    }
    asm.movzx(Size::B1, SCRATCH, SCRATCH);
}

/// Moves a value into the register of an argument.
pub(crate) fn argument(register: Reg, value: Value, saved: &Saved, site: usize, asm: &mut Assembler<'_>) {
    let from = |asm: &mut Assembler<'_>, reg: Reg, width: Width| match saved.place(reg) {
        Some(place) => asm.mov(width, register, place),
        None => {
            debug_assert!(reg.bit() & saved.intact != 0, "{reg:?} has a value but is not live");
            asm.mov(width, register, reg);
        }
    };
    match value.source {
        Source::Const(value) => asm.mov_imm(register, value),
        Source::Register(reg, width) => from(asm, reg, width),
        Source::HighLane(reg) => {
            let place = saved.place(reg).expect("SSE registers with values are saved");
            asm.mov(Width::W64, register, Mem::base(Reg::RSP, place.disp() + 8));
        }
        Source::Vector(_) => unreachable!("vectors are passed by lanes"),
        Source::Slot(offset, width) => asm.mov(width, register, Mem::base(Reg::RBP, offset)),
        Source::Settled(width) => asm.mov(width, register, SETTLED),
        Source::Shifted(reg, by, width) => {
            from(asm, reg, width);
            asm.shift_imm(Shift::Shl, width, register, by);
        }
        Source::Flag => asm.mov(Width::W64, register, saved.at(saved.condition)),
        Source::Context => asm.mov(Width::W64, register, CONTEXT),
        Source::Site => asm.mov_imm(register, site as u64),
        Source::Frame => asm.mov(Width::W64, register, Reg::RBP),
        Source::ReturnAddress => asm.mov(Width::W64, register, Mem::base(Reg::RBP, 8)),
        Source::Instance => asm.mov(Width::W64, register, Mem::base(CONTEXT, INSTANCE_NUMBER)),
        Source::Result(index, width) => {
            asm.mov(Width::W64, SCRATCH, Mem::base(CONTEXT, STORE));
            asm.mov(width, register, Mem::base(SCRATCH, RESULTS + 8 * index as i32));
        }
    }
    if value.plus != 0 {
        match i32::try_from(value.plus) {
            Ok(plus) => asm.alu_imm(Alu::Add, Width::W64, register, plus),
            Err(_) => {
                asm.mov_imm(SCRATCH, value.plus);
                asm.alu(Alu::Add, Width::W64, register, SCRATCH);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory};
    use iced_x86::{Mnemonic, OpAccess, Register};

    use super::*;

    const SITE: usize = 0x5000;

    fn stub(state: SiteState, actions: &[Action<'_>]) -> Vec<Instruction> {
        let ListStub { code, back, .. } = list_stub(&state, actions, SITE, None);
        let all: Vec<Instruction> = Decoder::new(64, &code, DecoderOptions::NONE).iter().collect();
        let jump = all.iter().find(|instruction| instruction.mnemonic() == Mnemonic::Jmp).unwrap();
        assert_eq!(jump.next_ip(), u64::from(back) + 4);
        all
    }

    const LIVE: u32 = Reg::RAX.bit() | Reg::RDI.bit() | Reg::RBX.bit() | Reg::xmm(3).bit();

    /// Every live register that a call may change is saved once, and restored once from the same
    /// location; the stack pointer is restored, and aligned at the calls.
    #[test]
    fn registers_and_the_stack_pointer_are_restored() {
        for (needs_flags, flag) in [(false, None), (true, None), (true, Some(Flag::FloatEqual))] {
            let state = SiteState { live: LIVE, needs_flags, flag, operands: 3, slot_bytes: 8 };
            let value = Value::from(Source::Register(Reg::RDI, Width::W64));
            let callee = &Callee::Native(0x1234);
            let call =
                Action::Call { callee, arguments: &[value, Value::SITE], only: Some(Only::Instance(7)) };
            let all = stub(state, &[call, Action::Count { cell: 8 }, call]);
            let mut factory = InstructionInfoFactory::new();
            let end = all.iter().position(|instruction| instruction.mnemonic() == Mnemonic::Jmp).unwrap();
            let moves: i64 = all[..end]
                .iter()
                .filter(|instruction| instruction.mnemonic() == Mnemonic::Lea)
                .map(|instruction| instruction.memory_displacement64() as i64)
                .sum();
            assert_eq!(moves, 0);
            let down = -(all[1].memory_displacement64() as i64);
            assert!(down > 128 && down % 16 == 0, "the red zone, and alignment");
            for register in [Register::RAX, Register::RDI, Register::XMM3] {
                let of = |kind: OpAccess| {
                    let is_it = |instruction: &&Instruction| {
                        let operand = usize::from(kind == OpAccess::Read);
                        let memory = instruction.memory_base() == Register::RSP;
                        let own = instruction.op_register(operand as u32).full_register();
                        let same = own == register || own == register.full_register();
                        memory && instruction.mnemonic() != Mnemonic::Lea && same
                    };
                    all[..end].iter().filter(is_it).map(|it| it.memory_displacement64()).collect::<Vec<_>>()
                };
                let (saved, restored) = (of(OpAccess::Read), of(OpAccess::Write));
                assert_eq!(saved[0], *restored.last().unwrap(), "{register:?}");
            }
            let kept =
                [Register::RBX, Register::RBP, Register::R12, Register::R13, Register::R14, Register::R15];
            for instruction in &all {
                let used = factory.info(instruction).used_registers();
                let written = |register: &iced_x86::UsedRegister| {
                    register.access() != OpAccess::Read && kept.contains(&register.register().full_register())
                };
                assert!(!used.iter().any(written), "{instruction}");
            }
            let calls = all.iter().filter(|it| it.flow_control() == FlowControl::IndirectCall).count();
            assert_eq!(calls, 2);
        }
    }

    /// With a generic probe, whatever it changes in the `SiteFrame` takes effect: live and
    /// callee-saved registers are saved and restored once, at the locations where it finds them.
    #[test]
    fn generic_probes_find_registers_where_they_are_restored_from() {
        let state = SiteState { live: LIVE, needs_flags: true, flag: None, operands: 3, slot_bytes: 8 };
        let generic = Action::Generic {
            function: 0x1234,
            description: 0x5678,
            only: Some(Only::Instance(7)),
            fuel: None,
        };
        let all = stub(state, &[generic, generic]);
        let end = all.iter().position(|instruction| instruction.mnemonic() == Mnemonic::Jmp).unwrap();
        let at = |own: Register, operand: u32| -> Vec<u64> {
            let of_own = |it: &&Instruction| {
                it.memory_base() == Register::RSP
                    && it.mnemonic() != Mnemonic::Lea
                    && [own, own.full_register()].contains(&it.op_register(operand).full_register())
            };
            all[..end].iter().filter(of_own).map(|it| it.memory_displacement64()).collect()
        };
        for (reg, register) in [
            (Reg::RAX, Register::RAX),
            (Reg::RDI, Register::RDI),
            (Reg::xmm(3), Register::XMM3),
            (Reg::RBX, Register::RBX),
            (Reg::R12, Register::R12),
            (Reg::R13, Register::R13),
        ] {
            let place = SiteFrame::offset(reg) as u64;
            assert_eq!(at(register, 1)[0], place, "{register:?} is saved");
            assert_eq!(at(register, 0).last(), Some(&place), "{register:?} is restored");
        }
        let is_move =
            |it: &&Instruction| it.mnemonic() == Mnemonic::Lea && it.op0_register() == Register::RSP;
        let moves: i64 = all[..end].iter().filter(is_move).map(|it| it.memory_displacement64() as i64).sum();
        assert_eq!(moves, 0);
    }

    /// The last instruction that changes the flags is the one that restores them.
    #[test]
    fn flags_are_restored_last() {
        let all = stub(SiteState { needs_flags: true, ..SiteState::PLAIN }, &[Action::Count { cell: 0 }]);
        let end = all.iter().position(|instruction| instruction.mnemonic() == Mnemonic::Jmp).unwrap();
        let mut changes = all[..end].iter().filter(|instruction| instruction.rflags_modified() != 0);
        assert_eq!(changes.next_back().unwrap().mnemonic(), Mnemonic::Sahf);
        let first = all.iter().position(|instruction| instruction.rflags_modified() != 0).unwrap();
        assert!(all[..first].iter().any(|instruction| instruction.mnemonic() == Mnemonic::Lahf));
    }
}
