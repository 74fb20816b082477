//! Probes that append records to a buffer: their stubs call a function only when it is full.
//!
//! Each store has a *cursor* for each recorder, the address of the next record in the recorder's
//! buffer for this store ([`CURSORS`]). A buffer is a block of [`BUFFER_BYTES`] that is aligned to
//! its size. Its records end at the end of the block, and none begins at its start. Therefore a
//! cursor that is a multiple of the size means that there is no room. This includes 0, the cursor
//! of a store without a buffer.
//!
//! A list of such probes and counters needs no saved registers ([`record_stub`]):
//!
//! ```text
//! mov [rbp - 8], r14                   as in every stub of a list: the unwinder reads it
//! for each record, in order:
//!     mov r11, instance                a probe of one instance
//!     cmp r11, [r14 + NUMBER]
//!     jne next
//! retry:
//!     mov r11, [r14 + CURSORS]
//!     mov r11, [r11 + 8 * cursor]
//!     test r11d, BUFFER_BYTES - 1
//!     je full
//!     vmovq xmm15, temporary           if it is live
//!     mov temporary, value             for each value: a full register, or a constant of 32
//!     mov [r11 + 8 * n], temporary     bits, is stored without the first of these
//!     lea temporary, [r11 + length]
//!     mov r11, [r14 + CURSORS]
//!     mov [r11 + 8 * cursor], temporary
//!     vmovq temporary, xmm15
//! next:
//! jmp back
//! full:                                for each record
//!     ...                              saves what is live, as in `stub_list`
//!     mov rdi, recorder
//!     mov rsi, r14
//!     mov rax, function
//!     call rax
//!     test eax, eax                    has it failed?
//!     jne raise
//!     ...                              is an interrupt requested? Restores what is live
//!     jmp retry
//! ```
//!
//! Native functions with a [shortcut](super::shortcut) may be in the list as well.
//!
//! In other cases (the flags are needed, or there are functions in the list), records are appended
//! by a stub that has saved everything ([`Record::append`]).
//!
//! The store of the cursor publishes the record: other threads read records up to there. If an
//! interrupt leaves the stub before that store, the record was not made.

use super::increment;
use super::interrupt_check::InterruptCheck;
use super::list::{
    Action, Callee, ListStub, Only, Saved, SiteState, argument, call_native, call_raise,
    skip_other_instances, store_context,
};
use super::values::{Source, Value};
use crate::asm::{Alu, Assembler, Cond, Label, Mem, Reg, Shift, Size, Width};
use crate::compiler::abi::{CONTEXT, FLOAT_SCRATCH, INT_TEMPS, SCRATCH};
use crate::compiler::cached_locals::bits;
use crate::compiler::sites::settle::SETTLED;
use crate::vmctx::{BUFFER_BYTES, CURSORS, INSTANCE_NUMBER};

/// A record that a probe appends.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// The index of the recorder's cursor.
    pub cursor: u32,
    /// The address of `extern "sysv64" fn(recorder, context) -> u64`, which makes room in the
    /// buffer, and sets the address of the store's cursors before the context. If it does not
    /// return 0, it has recorded why the activation must be left
    /// ([`Libcall::Raise`](crate::vmctx::Libcall::Raise)).
    pub make_room: usize,
    /// The first argument of `make_room`.
    pub recorder: usize,
    /// The words of the record, the same number for all records of a recorder.
    pub values: &'a [Value],
    /// As for [`Action::Call`].
    pub only: Option<Only>,
}

impl Record<'_> {
    /// Loads the cursor, and sets the zero flag if there is no room.
    fn load_cursor(&self, cursor: Reg, asm: &mut Assembler<'_>) {
        asm.mov(Width::W64, cursor, Mem::base(CONTEXT, CURSORS));
        asm.mov(Width::W64, cursor, Mem::base(cursor, 8 * self.cursor as i32));
        asm.test_imm(Width::W32, cursor, BUFFER_BYTES as i32 - 1);
    }

    /// Advances the cursor. Changes both registers, but preserves the flags.
    fn advance(&self, cursor: Reg, temporary: Reg, asm: &mut Assembler<'_>) {
        asm.lea(Width::W64, temporary, Mem::base(cursor, 8 * self.values.len() as i32));
        asm.mov(Width::W64, cursor, Mem::base(CONTEXT, CURSORS));
        asm.mov_store(Size::B8, Mem::base(cursor, 8 * self.cursor as i32), temporary);
    }

    fn make_room(&self, raise: Label, asm: &mut Assembler<'_>) {
        asm.mov_imm(Reg::RDI, self.recorder as u64);
        asm.mov(Width::W64, Reg::RSI, CONTEXT);
        asm.mov_imm(Reg::RAX, self.make_room as u64);
        asm.call_reg(Reg::RAX);
        asm.test(Width::W32, Reg::RAX, Reg::RAX);
        asm.jcc(Cond::NotEqual, raise);
    }

    /// Appends the record in a stub that has saved the registers of its site.
    pub(crate) fn append(&self, saved: &Saved, site: usize, raise: Label, asm: &mut Assembler<'_>) {
        let (retry, has_room) = (asm.new_label(), asm.new_label());
        asm.bind(retry);
        self.load_cursor(Reg::RDI, asm);
        asm.jcc(Cond::NotEqual, has_room);
        self.make_room(raise, asm);
        asm.jmp(retry);
        asm.bind(has_room);
        for (place, value) in words(Reg::RDI).zip(self.values) {
            argument(Reg::RAX, *value, saved, site, asm);
            asm.mov_store(Size::B8, place, Reg::RAX);
        }
        self.advance(Reg::RDI, Reg::RAX, asm);
    }
}

/// The words of a record.
fn words(record: Reg) -> impl Iterator<Item = Mem> {
    (0..).map(move |word| Mem::base(record, 8 * word))
}

/// A stub for the site at address `site` that appends records, counts and takes shortcuts, if it
/// can do this with the scratch registers, one more for records, and those that are free for
/// shortcuts.
pub(crate) fn record_stub(state: &SiteState, actions: &[Action<'_>], site: usize) -> Option<ListStub> {
    let temporary = temporary(state, actions)?;
    let is_live = state.live & temporary.bit() != 0;
    let mut code = Vec::new();
    let asm = &mut Assembler::new(&mut code);
    let (leave, mut rest, mut uninterrupted) = (asm.new_label(), Vec::new(), 0..0);
    store_context(asm);
    for action in actions {
        match action {
            Action::Count { cell } => {
                increment(asm, *cell, false);
            }
            Action::Record(record) => {
                let next = skip_other_instances(record.only, asm);
                let (retry, full) = (asm.new_label(), asm.new_label());
                asm.bind(retry);
                record.load_cursor(SCRATCH, asm);
                asm.jcc(Cond::Equal, full);
                if is_live {
                    asm.float_from_bits(Width::W64, FLOAT_SCRATCH, temporary);
                }
                for (place, value) in words(SCRATCH).zip(record.values) {
                    store(place, *value, temporary, site, asm);
                }
                record.advance(SCRATCH, temporary, asm);
                if is_live {
                    asm.float_to_bits(Width::W64, temporary, FLOAT_SCRATCH);
                }
                asm.bind(next);
                rest.push(Rest::Full { record, retry, full });
            }
            Action::Call { callee: Callee::Shortcut { function, shortcut }, arguments, only } => {
                let next = skip_other_instances(*only, asm);
                let call = asm.new_label();
                shortcut.at_site(state.live, arguments)?.emit(call, &mut uninterrupted, asm);
                asm.bind(next);
                rest.push(Rest::Call { function: *function, arguments, call, next });
            }
            _ => unreachable!("there is no temporary for others"),
        }
    }
    let back = asm.jmp_to_link();
    let saved = Saved::of(state, &[]);
    for part in rest {
        let (begin, go_on) = match part {
            Rest::Full { full, retry, .. } => (full, retry),
            Rest::Call { call, next, .. } => (call, next),
        };
        asm.bind(begin);
        saved.save(state, asm);
        match part {
            Rest::Full { record, .. } => record.make_room(leave, asm),
            Rest::Call { function, arguments, .. } => call_native(function, arguments, &saved, site, asm),
        }
        let check = InterruptCheck::begin(asm);
        saved.restore(state, asm);
        asm.jmp(go_on);
        check.end(asm);
    }
    asm.bind(leave);
    call_raise(asm);
    Some(ListStub { code, back, uninterrupted, generic: Vec::new() })
}

/// Rarely executed code of a stub, placed after its jump back to the program.
enum Rest<'a> {
    /// There is no room for a record: makes some, and tries again.
    Full { record: &'a Record<'a>, retry: Label, full: Label },
    /// The shortcut does not handle the case: calls the function.
    Call { function: usize, arguments: &'a [Value], call: Label, next: Label },
}

/// The general register that a stub without saved registers uses for values: one that none of the
/// values is in, and a free one if possible. `None` if the list needs more than that.
fn temporary(state: &SiteState, actions: &[Action<'_>]) -> Option<Reg> {
    if state.needs_flags || state.flag.is_some() {
        return None;
    }
    let mut used = 0;
    for action in actions {
        match action {
            Action::Count { .. } => {}
            Action::Record(Record { values, only: None | Some(Only::Instance(_)), .. }) => {
                for value in *values {
                    used |= source(value)?;
                }
            }
            // The function gets values from where they were saved.
            Action::Call {
                callee: Callee::Shortcut { .. }, only: None | Some(Only::Instance(_)), ..
            } => {}
            _ => return None,
        }
    }
    let free = INT_TEMPS & !used;
    bits(free & !state.live).chain(bits(free)).next()
}

/// The registers that a value is in, if [`store`] can store it.
fn source(value: &Value) -> Option<u32> {
    if value.plus > i32::MAX as u64 {
        return None;
    }
    match value.source {
        Source::Register(reg, _) | Source::Shifted(reg, ..) => Some(reg.bit()),
        Source::Const(_)
        | Source::Slot(..)
        | Source::Settled(_)
        | Source::Context
        | Source::Site
        | Source::Frame
        | Source::ReturnAddress
        | Source::Instance => Some(0),
        Source::HighLane(_) | Source::Flag | Source::Result(..) | Source::Vector(_) => None,
    }
}

/// Stores a value, from where the site has it.
fn store(place: Mem, value: Value, temporary: Reg, site: usize, asm: &mut Assembler<'_>) {
    let whole = match value.source {
        Source::Register(reg, Width::W64) if !reg.is_float() => Some(reg),
        Source::Context => Some(CONTEXT),
        Source::Frame => Some(Reg::RBP),
        _ => None,
    };
    if let Some(reg) = whole.filter(|_| value.plus == 0) {
        return asm.mov_store(Size::B8, place, reg);
    }
    match value.source {
        Source::Const(constant) => {
            let constant = constant.wrapping_add(value.plus);
            match i32::try_from(constant as i64) {
                Ok(constant) => asm.mov_store_imm(Size::B8, place, constant),
                Err(_) => {
                    asm.mov_imm(temporary, constant);
                    asm.mov_store(Size::B8, place, temporary);
                }
            }
            return;
        }
        Source::Register(reg, width) if reg.is_float() => asm.float_to_bits(width, temporary, reg),
        Source::Register(reg, width) => asm.mov(width, temporary, reg),
        Source::Slot(offset, width) => asm.mov(width, temporary, Mem::base(Reg::RBP, offset)),
        Source::Settled(width) => asm.mov(width, temporary, SETTLED),
        Source::Shifted(reg, by, width) => {
            asm.mov(width, temporary, reg);
            asm.shift_imm(Shift::Shl, width, temporary, by);
        }
        Source::Context => asm.mov(Width::W64, temporary, CONTEXT),
        Source::Site => asm.mov_imm(temporary, site as u64),
        Source::Frame => asm.mov(Width::W64, temporary, Reg::RBP),
        Source::ReturnAddress => asm.mov(Width::W64, temporary, Mem::base(Reg::RBP, 8)),
        Source::Instance => asm.mov(Width::W64, temporary, Mem::base(CONTEXT, INSTANCE_NUMBER)),
        Source::HighLane(_) | Source::Flag | Source::Result(..) | Source::Vector(_) => {
            unreachable!("`source` has refused it")
        }
    }
    if value.plus != 0 {
        asm.alu_imm(Alu::Add, Width::W64, temporary, value.plus as i32);
    }
    asm.mov_store(Size::B8, place, temporary);
}

#[cfg(test)]
mod tests {
    use iced_x86::{
        Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, Register,
    };

    use super::*;

    /// The instructions up to the jump back.
    fn stub(live: u32, values: &[Value]) -> Option<Vec<Instruction>> {
        let state = SiteState { live, needs_flags: false, flag: None, operands: 0, slot_bytes: 8 };
        let record = Record { cursor: 3, make_room: 0x1234, recorder: 0x5678, values, only: None };
        let ListStub { code, back, .. } = record_stub(&state, &[Action::Record(record)], 0x5000)?;
        let decoder = Decoder::new(64, &code[..back as usize - 1], DecoderOptions::NONE);
        Some(decoder.into_iter().collect())
    }

    /// The registers that change, except the scratch registers.
    fn changed(all: &[Instruction]) -> Vec<Register> {
        let mut factory = InstructionInfoFactory::new();
        let mut changed: Vec<Register> = Vec::new();
        for instruction in all {
            for used in factory.info(instruction).used_registers() {
                let is_read = matches!(used.access(), OpAccess::Read | OpAccess::CondRead);
                let register = used.register().full_register();
                let is_scratch = matches!(register, Register::R11 | Register::XMM15 | Register::ZMM15);
                if !is_read && !is_scratch && !changed.contains(&register) {
                    changed.push(register);
                }
            }
        }
        changed
    }

    fn register(reg: Reg) -> Value {
        Source::Register(reg, Width::W32).into()
    }

    #[test]
    fn a_free_register_is_used_if_there_is_one() {
        let values = [Value::constant(7), register(Reg::RAX).plus(8)];
        let all = stub(INT_TEMPS & !Reg::RSI.bit(), &values).unwrap();
        assert_eq!(changed(&all), [Register::RSI]);
        assert!(!all.iter().any(|instruction| instruction.mnemonic() == Mnemonic::Vmovq), "nothing is saved");
    }

    #[test]
    fn a_live_register_without_a_value_is_saved_first_and_restored_last() {
        let values = [register(Reg::RAX).plus(8), register(Reg::RCX), register(Reg::RDX)];
        let all = stub(INT_TEMPS, &values).unwrap();
        let [changed] = changed(&all)[..] else { panic!("more than one register changes") };
        assert!(![Register::RAX, Register::RCX, Register::RDX].contains(&changed));
        let of_it: Vec<&Instruction> = all
            .iter()
            .filter(|it| (0..it.op_count()).any(|at| it.op_register(at).full_register() == changed))
            .collect();
        let (first, last) = (of_it[0], of_it[of_it.len() - 1]);
        assert_eq!((first.mnemonic(), last.mnemonic()), (Mnemonic::Vmovq, Mnemonic::Vmovq));
        assert_eq!((first.op1_register(), last.op0_register()), (changed, changed));
    }

    #[test]
    fn values_in_all_registers_need_another_stub() {
        let values: Vec<Value> = bits(INT_TEMPS).map(register).collect();
        assert!(stub(INT_TEMPS, &values).is_none());
        assert!(stub(INT_TEMPS, &[register(Reg::RAX).plus(1 << 31)]).is_none());
    }
}
