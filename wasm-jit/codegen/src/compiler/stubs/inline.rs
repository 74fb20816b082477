//! Stubs that execute WebAssembly functions inline ([`inlined`](super::inlined)).
//!
//! ```text
//!     mov [rbp - 8], r14
//!     lea rsp, [rsp - SAVED - 128]     if registers or flags are saved: those that the code
//!     mov [rsp + n], register          changes although they are live
//!     flags, condition to [rsp + n]
//! for each probe, in order:
//!     mov r11, [r14 + COUNTERS]        a counter
//!     add qword [r11 + cell], 1
//!
//!     mov r11, [r14 + STORE]           a function: only where its store runs
//!     cmp qword [r11 + STORE_NUMBER], store
//!     jne next
//!     mov r11, must_call               may it be inlined?
//!     cmp dword [r11], 0
//!     jne call
//!     ...                              its code, which continues at `call` if it would trap
//! next:
//!     flags from [rsp + n]
//!     mov register, [rsp + n]
//!     lea rsp, [rsp + SAVED + 128]
//! jmp back
//!     ...                              for each function: comparisons of addresses that are beyond
//!     ...                              the length that the memory had when the probe was made
//! call:
//!     ...                              restores what was saved
//!     ...                              calls it, as in `stub_list`
//!     ...                              saves again
//! jmp next
//! ```
//!
//! The code uses the registers that are free at the site, and as many of the others as it needs; it
//! is generated again with one more register until they suffice. `r14` and `r15` remain those of
//! the program. A list is executed in this way if all of its probes count or have functions that
//! can be inlined.

use super::increment;
use super::inliner::{Extents, Inliner, Refused, Values, is_integer};
use super::list::{
    Action, Callee, ListStub, Only, Saved, SiteState, WasmCall, skip_other_instances, store_context,
};
use super::values::Source;
use crate::asm::{Alu, Assembler, Cond, Mem, Reg, Width};
use crate::compiler::abi::{CONTEXT, INT_TEMPS, SCRATCH};
use crate::compiler::cached_locals::bits;
use crate::compiler::state::Flag;
use crate::vmctx::{STORE, STORE_NUMBER, TrapCode};

/// A stub for the site at address `site` that calls no function, if the list allows it.
pub(crate) fn inline_stub(state: &SiteState, actions: &[Action<'_>], site: usize) -> Option<ListStub> {
    let mut calls = 0;
    let (mut uses_flag, mut sources) = (false, 0);
    for action in actions {
        match action {
            Action::Count { .. } => {}
            Action::Call {
                callee: Callee::Wasm { inlined: Some(_), parameters, store, .. },
                arguments,
                only,
            } => {
                calls += 1;
                i32::try_from(*store).ok()?;
                if matches!(only, Some(Only::Store(other)) if other != store) {
                    return None;
                }
                for (ty, value) in parameters.iter().zip(*arguments) {
                    match value.source {
                        _ if !is_integer(*ty) => {}
                        Source::Register(reg, _) if reg.is_float() => return None,
                        Source::HighLane(_) | Source::Vector(_) => return None,
                        Source::Register(reg, _) | Source::Shifted(reg, ..) => sources |= reg.bit(),
                        Source::Flag => uses_flag = true,
                        _ => {}
                    }
                }
            }
            _ => return None,
        }
    }
    if calls == 0 {
        return None;
    }
    let keeps_flags = state.needs_flags || state.flag.is_some();
    let flag = state.flag.filter(|_| uses_flag);
    let mut spilled = if keeps_flags { (state.live | sources) & Reg::RAX.bit() } else { 0 };
    let mut extents = vec![Extents::default(); actions.len()];
    loop {
        let pool = INT_TEMPS & (!(state.live | sources) | spilled);
        let before = extents.clone();
        let fast = Fast { state, site, keeps_flags, flag, spilled, pool };
        match fast.generate(actions, &mut extents) {
            Ok(stub) if extents == before => return Some(stub),
            Ok(_) => {}
            Err(Refused::Function) => return None,
            Err(Refused::Registers) => {
                let more = bits(INT_TEMPS & state.live & !spilled).next()?;
                spilled |= more.bit();
            }
        }
    }
}

/// A stub that is being generated.
struct Fast<'a> {
    state: &'a SiteState,
    site: usize,
    keeps_flags: bool,
    /// The condition that is an argument.
    flag: Option<Flag>,
    /// Live registers that the code changes.
    spilled: u32,
    /// All registers that the code changes.
    pool: u32,
}

impl Fast<'_> {
    fn generate(&self, actions: &[Action<'_>], extents: &mut [Extents]) -> Result<ListStub, Refused> {
        let mut code = Vec::new();
        let asm = &mut Assembler::new(&mut code);
        let kept = SiteState { needs_flags: self.keeps_flags, flag: self.flag, ..*self.state };
        let saved = Saved::of_some(self.spilled, !self.pool);
        let saves = self.keeps_flags || self.spilled != 0;
        let overflow = asm.new_label();
        let mut rest = Vec::new();
        // As in every stub of a list, because the unwinder reads it.
        store_context(asm);
        if saves {
            saved.save_values(&kept, asm);
        }
        for (action, extents) in actions.iter().zip(extents) {
            match action {
                Action::Count { cell } => {
                    increment(asm, *cell, false);
                }
                Action::Call {
                    callee: Callee::Wasm { store, inlined: Some(inlined), parameters, .. },
                    arguments,
                    only,
                } => {
                    let next = skip_other_instances(only.filter(|only| *only != Only::Store(*store)), asm);
                    asm.mov(Width::W64, SCRATCH, Mem::base(CONTEXT, STORE));
                    asm.alu_imm(Alu::Cmp, Width::W64, Mem::base(SCRATCH, STORE_NUMBER), *store as i32);
                    asm.jcc(Cond::NotEqual, next);
                    let call = asm.new_label();
                    asm.mov_imm(SCRATCH, inlined.must_call as u64);
                    asm.alu_imm(Alu::Cmp, Width::W32, Mem::base(SCRATCH, 0), 0);
                    asm.jcc(Cond::NotEqual, call);
                    let mut inliner = Inliner {
                        asm,
                        inlined,
                        parameters,
                        arguments,
                        saved: &saved,
                        site: self.site,
                        call,
                        known: *extents,
                        found: *extents,
                        values: Values::new(self.pool),
                        pinned: 0,
                        longer: Vec::new(),
                    };
                    inliner.function()?;
                    *extents = inliner.found;
                    let longer = inliner.longer;
                    asm.bind(next);
                    rest.push((*action, call, next, longer));
                }
                _ => unreachable!("`inline_stub` has refused it"),
            }
        }
        if saves {
            saved.restore(&kept, asm);
        }
        let back = asm.jmp_to_link();
        for (action, call, next, longer) in rest {
            let Action::Call {
                callee: Callee::Wasm { func_ref, is_host, parameters, inlined: Some(inlined), .. },
                arguments,
                ..
            } = action
            else {
                unreachable!("only inlined functions are pushed")
            };
            longer.iter().for_each(|longer| longer.emit(inlined.memory, call, asm));
            asm.bind(call);
            if saves {
                saved.restore(&kept, asm);
            }
            let all = Saved::of(self.state, &[action]);
            all.save(self.state, asm);
            let call = WasmCall { func_ref: *func_ref, is_host: *is_host, parameters, arguments };
            asm.mov(Width::W64, SCRATCH, Mem::base(CONTEXT, STORE));
            call.emit(&all, self.site, overflow, asm);
            all.restore(self.state, asm);
            if saves {
                saved.save_values(&kept, asm);
            }
            asm.jmp(next);
        }
        asm.bind(overflow);
        asm.ud2(TrapCode::StackOverflow as u8);
        Ok(ListStub { code, back, uninterrupted: 0..0, generic: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use iced_x86::{Decoder, DecoderOptions, FlowControl, Formatter, NasmFormatter};

    use super::super::inlined::{Binary, Inlined, InlinedInstance, InlinedMemory, Op};
    use super::super::values::Value;
    use super::*;
    use crate::asm::Size;
    use crate::compiler::abi::Ty;

    const MEMORY: InlinedMemory = InlinedMemory { base: 0x10_0000, length: 0x2000, least: 0x10000 };

    /// The instructions of a stub up to the jump back, without the comparisons at the start of each
    /// call; `None` if it calls the function.
    fn inlined(live: u32, parameters: &[Ty], arguments: &[Value], body: &[Op]) -> Option<Vec<String>> {
        let instance = InlinedInstance { func_ref: 0x1000, must_call: 0x3000, memory: MEMORY };
        let function = Inlined::of_ops(instance, body, 32);
        let callee = Callee::Wasm {
            store: 7,
            func_ref: 0x1000,
            is_host: false,
            parameters: parameters.into(),
            inlined: Some(Arc::new(function)),
        };
        let call = Action::Call { callee: &callee, arguments, only: None };
        let state = SiteState { live, needs_flags: false, flag: None, operands: 0, slot_bytes: 8 };
        let ListStub { code, back, .. } = inline_stub(&state, &[call], 0x5000)?;
        let mut formatter = NasmFormatter::new();
        let mut all = Vec::new();
        for instruction in &mut Decoder::new(64, &code[..back as usize - 1], DecoderOptions::NONE) {
            assert!(!matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall));
            let mut text = String::new();
            formatter.format(&instruction, &mut text);
            all.push(text);
        }
        let start = all.iter().position(|text| text == "mov r11d,3000h").expect("it is always compared");
        Some(all.split_off(start + 3))
    }

    fn add_one(size: Size, offset: u32) -> [Op; 4] {
        let width = size.width();
        [
            Op::Load { size, sign: None, offset },
            Op::Const(1),
            Op::Binary(Binary::Alu(Alu::Add), width),
            Op::Store { size, offset },
        ]
    }

    #[test]
    fn a_counter_at_a_constant_address_is_one_addition() {
        let body = [&[Op::Get(0), Op::Get(0)][..], &add_one(Size::B8, 8)].concat();
        let code = inlined(u32::MAX, &[Ty::I32], &[Value::constant(0x40)], &body).unwrap();
        assert_eq!(code, ["mov r11d,100048h", "add qword [r11],1"]);
        // Beyond the length that the memory had when the probe was made.
        let code = inlined(u32::MAX, &[Ty::I32], &[Value::constant(0xfff8)], &body).unwrap();
        assert_eq!(code[..2], ["mov r11d,2000h", "cmp qword [r11],10008h"]);
        assert_eq!(code[3..], ["mov r11d,110000h", "add qword [r11],1"]);
    }

    #[test]
    fn an_address_is_compared_once() {
        let body = [&[Op::Get(0), Op::Get(0)][..], &add_one(Size::B4, 4)].concat();
        let twice = [&body[..], &body].concat();
        let value = Value::from(Source::Register(Reg::RDI, Width::W32));
        let code = inlined(Reg::RDI.bit(), &[Ty::I32], &[value], &twice).unwrap();
        let compared = code.iter().filter(|text| text.starts_with("cmp ")).count();
        let changed = code.iter().filter(|text| text.starts_with("add dword")).count();
        assert_eq!((compared, changed), (1, 2), "{code:?}");
        // With the length that it had when the probe was made.
        assert!(code.contains(&"cmp rax,0FFF8h".to_owned()), "{code:?}");
    }

    /// An access that may trap must not follow a change.
    #[test]
    fn functions_that_cannot_begin_again_are_called() {
        let value = Value::from(Source::Register(Reg::RDI, Width::W32));
        let set = [Op::Const(1), Op::GlobalSet(0x4000, Width::W64)];
        let add = [&[Op::Get(0), Op::Get(0)][..], &add_one(Size::B4, 4)].concat();
        let of = |body: &[Op]| inlined(Reg::RDI.bit(), &[Ty::I32], &[value], body);
        assert!(of(&[&set[..], &add].concat()).is_none());
        assert!(of(&[&add[..], &set].concat()).is_some());
        let call = |then: &[Op]| Op::If {
            has_result: false,
            then: then.into(),
            otherwise: Box::default(),
            live: 0,
            set: 0,
        };
        assert!(of(&[&[Op::Get(0), call(&[Op::Call])], &add[..]].concat()).is_some());
        assert!(of(&[&add[..], &[Op::Get(0), call(&[Op::Call])]].concat()).is_none());
        assert!(of(&[&[Op::Get(0), call(&set)], &add[..]].concat()).is_none());
    }

    /// The number of live registers that are saved for a function of a constant and an `i32`, which
    /// needs all registers of the site; `None` if it is called.
    fn saved(body: &[Op]) -> Option<usize> {
        let value = Value::from(Source::Register(Reg::RDI, Width::W32));
        let code = inlined(u32::MAX, &[Ty::I32, Ty::I32], &[value, Value::constant(3)], body)?;
        Some(code.iter().filter(|text| text.starts_with("mov r") && text.contains(",[rsp")).count())
    }

    const ADD: Op = Op::Binary(Binary::Alu(Alu::Add), Width::W32);

    /// Twenty values, each computed from the one before, need one register, whether they are in
    /// locals or on the stack.
    #[test]
    fn registers_are_free_when_their_values_have_been_read() {
        let mut body = vec![Op::Get(0), Op::Set(2)];
        for local in 2..20 {
            body.extend([Op::Get(local), Op::Const(1), ADD, Op::Set(local + 1)]);
        }
        body.extend([Op::Get(20), Op::GlobalSet(0x4000, Width::W32)]);
        assert_eq!(saved(&body), Some(1));
        // All are read again at the end.
        for local in 2..20 {
            body.extend([Op::Get(local), Op::GlobalSet(0x4000, Width::W32)]);
        }
        assert_eq!(saved(&body), None);
    }

    /// A local that an arm sets has a register of its own until its last use, and needs none if it
    /// is not read after the arm.
    #[test]
    fn locals_of_arms_have_registers_while_they_are_read() {
        let arms = |local: u32| {
            let then = [Op::Const(5), Op::Set(local)];
            let otherwise = [Op::Get(0), Op::Set(local)];
            [
                Op::Get(0),
                Op::If { has_result: false, then: then.into(), otherwise: otherwise.into(), live: 0, set: 0 },
            ]
        };
        let read = |local: u32| [Op::Get(local), Op::GlobalSet(0x4000, Width::W32)];
        let one_by_one: Vec<Op> = (2..20).flat_map(|local| [arms(local), read(local)]).flatten().collect();
        assert_eq!(saved(&one_by_one), Some(2));
        let unread: Vec<Op> = (2..20).flat_map(arms).collect();
        assert_eq!(saved(&unread), Some(1));
        let all: Vec<Op> = (2..20).flat_map(arms).chain((2..20).flat_map(read)).collect();
        assert_eq!(saved(&all), None);
    }

    /// Registers that the site needs are saved, but only those that are changed.
    #[test]
    fn live_registers_are_saved_if_no_others_are_free() {
        let value = Value::from(Source::Register(Reg::RDI, Width::W32));
        let body =
            [Op::Get(0), Op::Get(0), Op::Binary(Binary::Mul, Width::W32), Op::GlobalSet(0x4000, Width::W32)];
        let code = inlined(u32::MAX, &[Ty::I32], &[value], &body).unwrap();
        let restored = code.iter().filter(|text| text.starts_with("mov r") && text.contains(",[rsp")).count();
        assert_eq!(restored, 2, "{code:?}");
        let code = inlined(Reg::RDI.bit(), &[Ty::I32], &[value], &body).unwrap();
        assert!(!code.iter().any(|text| text.contains("rsp")), "{code:?}");
    }
}
