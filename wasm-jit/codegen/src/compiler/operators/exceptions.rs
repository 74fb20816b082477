//! Exceptions: `try_table`, and the legacy `try`, `catch`, `rethrow` and `delegate`.
//!
//! Entering a `try` costs nothing. Its code is a region that the unwinder finds by a return
//! address; inside, no value is only in a register across a call (see `save_registers`). At a
//! handler all locals are in their slots, and the exception is in `rax`.

use wasmparser::{BlockType, Catch as Clause, TryTable};

use crate::asm::{Mem, Reg, RegClass, Size, Width};
use crate::compiler::Limit;
use crate::compiler::abi::{ResultPlace, Ty, result_places, with_index, words};
use crate::compiler::cold::Cold;
use crate::compiler::control_stack::{Control, Kind};
use crate::compiler::edges::{Move, label_register};
use crate::compiler::function::FunctionCompiler;
use crate::compiler::output::{Catch, TryRegion};
use crate::compiler::state::{Place, Val};
use crate::vmctx::{EXCEPTION_VALUES, Libcall};

/// The location of an exception's value, by its first quadword.
fn value_of(exception: Reg, index: u32) -> Mem {
    Mem::base(exception, EXCEPTION_VALUES + 8 * index as i32)
}

/// The regions of a function, and the innermost one that is open.
#[derive(Debug, Default)]
pub(crate) struct TryRegions {
    all: Vec<TryRegion>,
    innermost: Option<u32>,
}

impl TryRegions {
    /// The number that the next region gets.
    fn next(&self) -> u32 {
        self.all.len() as u32
    }

    /// Opens a region inside the innermost one.
    fn open(&mut self, start: u32, catches: Box<[Catch]>) {
        let region = self.next();
        self.all.push(TryRegion { start, end: start, parent: self.innermost, catches });
        self.innermost = Some(region);
    }

    /// Ends the code of a region; `outer` was the innermost one around it.
    fn close(&mut self, region: u32, end: u32, outer: Option<u32>) {
        self.all[region as usize].end = end;
        self.innermost = outer;
    }

    /// Adds a catch whose handler is here.
    fn add_catch(&mut self, region: u32, catch: Catch) {
        let catches = &mut self.all[region as usize].catches;
        let mut all = std::mem::take(catches).into_vec();
        all.push(catch);
        *catches = all.into_boxed_slice();
    }

    /// Sets where the handler of a catch is.
    pub(crate) fn set_handler(&mut self, region: u32, catch: u32, code: u32) {
        self.all[region as usize].catches[catch as usize].handler = code;
    }

    pub(crate) fn innermost(&self) -> Option<u32> {
        self.innermost
    }

    /// The handler of a `catch` has ended.
    pub(crate) fn leave_handler(&mut self, outer: Option<u32>) {
        self.innermost = outer;
    }

    /// Exceptions that a region does not catch continue at another one.
    fn delegate(&mut self, region: u32, parent: Option<u32>) {
        self.all[region as usize].parent = parent;
    }

    /// All regions, for the result.
    pub(crate) fn into_boxed_slice(self) -> Box<[TryRegion]> {
        self.all.into_boxed_slice()
    }
}

impl<'a> FunctionCompiler<'a> {
    /// Opens a region; the catches of a `try` are added later.
    fn open_region(&mut self, ty: BlockType, catches: Box<[Catch]>) -> u32 {
        let region = self.try_regions.next();
        self.open(Kind::Try { region }, ty);
        let start = self.asm.offset();
        self.try_regions.open(start, catches);
        region
    }

    pub(crate) fn try_table(&mut self, table: &TryTable) -> Result<(), Limit> {
        let mut catches = Vec::new();
        let mut handlers = Vec::new();
        for clause in &table.catches {
            let (tag, label, with_reference) = match *clause {
                Clause::One { tag, label } => (Some(tag), label, false),
                Clause::OneRef { tag, label } => (Some(tag), label, true),
                Clause::All { label } => (None, label, false),
                Clause::AllRef { label } => (None, label, true),
            };
            let (moves, target) = self.handler(tag, label, with_reference);
            self.cold.count_moves(&moves);
            self.check_code_size()?;
            handlers.push((moves, target));
            catches.push(Catch { tag, handler: 0 });
        }
        let region = self.open_region(table.ty, catches.into_boxed_slice());
        for (index, (moves, target)) in (0..).zip(handlers) {
            self.cold.push(Cold::Handler {
                catch: (region, index),
                moves,
                target,
                position: self.instruction.position,
            });
        }
        Ok(())
    }

    /// The moves that bring an exception's values to a label, and the label's register-cached
    /// locals into their registers.
    fn handler(
        &mut self,
        tag: Option<u32>,
        depth: u32,
        with_reference: bool,
    ) -> (Vec<Move>, crate::asm::Label) {
        let block = self.control.at_mut(depth);
        block.branched = true;
        let Control { kind, label, height, region, .. } = *block;
        let mut values: Vec<(Ty, Place)> = Vec::new();
        if let Some(tag) = tag {
            let ty = self.module.tag_type(tag);
            for (at, ty) in with_index(ty.params()) {
                values.push((ty, Place::Mem(value_of(Reg::RAX, at))));
            }
        }
        if with_reference {
            values.push((Ty::Ref, Place::Reg(Reg::RAX)));
        }
        let count = values.len() as u32;
        let mut moves = Vec::new();
        if kind == Kind::Function {
            // `rax` last, because it is the base address of all values.
            let mut last = Vec::new();
            for ((ty, src), (_, place)) in values.into_iter().zip(result_places(self.ty.results())) {
                match place {
                    ResultPlace::Reg(Reg::RAX) => last.push(Move { ty, dst: Place::Reg(Reg::RAX), src }),
                    ResultPlace::Reg(reg) => moves.push(Move { ty, dst: Place::Reg(reg), src }),
                    ResultPlace::Buffer(index) => {
                        moves.push(Move { ty, dst: Self::buffer_place(index), src })
                    }
                }
            }
            moves.extend(last);
            return (moves, label);
        }
        for (at, (ty, src)) in (0..).zip(values) {
            let in_register = kind != Kind::Loop && at + 1 == count;
            let dst = if in_register {
                Place::Reg(label_register(ty))
            } else {
                Place::Mem(self.frame.operand_slot(height + at))
            };
            moves.push(Move { ty, dst, src });
        }
        for (reg, local) in self.regions.at(region).iter() {
            let src = Place::Mem(self.frame.local_slot(local));
            moves.push(Move { ty: self.locals[local as usize].ty, dst: Place::Reg(reg), src });
        }
        (moves, label)
    }

    /// Ends a `try_table`, or the body of a `try`.
    pub(crate) fn close_try(&mut self, region: u32, control: &Control<'a>) {
        self.try_regions.close(region, self.asm.offset(), control.outer_try);
    }

    pub(crate) fn try_start(&mut self, ty: BlockType) {
        self.open_region(ty, Box::default());
    }

    /// `catch` or `catch_all`: the code that follows is the handler.
    pub(crate) fn catch(&mut self, tag: Option<u32>) {
        if self.control.reachable {
            self.jump_to_end();
        }
        let control = self.control.innermost().clone();
        let region = match control.kind {
            Kind::Try { region } => {
                self.close_try(region, &control);
                region
            }
            Kind::Catch { region } => region,
            _ => unreachable!("validated"),
        };
        self.try_regions.add_catch(region, Catch { tag, handler: self.asm.offset() });
        self.control.innermost_mut().kind = Kind::Catch { region };
        self.truncate(control.height);
        self.enter_state(control.region, u32::MAX);
        for (_, local) in self.regions.current().iter() {
            self.locals[local as usize].reg = None;
        }
        self.may_be_unloaded = true;
        self.control.reachable = true;
        self.end_run();
        self.registers.unpin_all();
        // The exception itself, for `rethrow`; then its values.
        self.registers.pin(Reg::RAX);
        let height = self.stack.height();
        let slot = self.frame.operand_slot(height);
        self.asm.mov_store(Size::B8, slot, Reg::RAX);
        self.push(Ty::Ref, Val::Slot);
        let Some(tag) = tag else { return };
        let ty = self.module.tag_type(tag);
        for (at, ty) in with_index(ty.params()) {
            let reg = self.alloc(ty.class());
            self.move_value(ty, Place::Reg(reg), Place::Mem(value_of(Reg::RAX, at)));
            self.push(ty, Val::Reg(reg));
            self.registers.unpin(reg);
        }
    }

    /// Ends a `try` whose exceptions are delegated to another block.
    pub(crate) fn delegate(&mut self, depth: u32) {
        let control = self.control.innermost().clone();
        let Kind::Try { region } = control.kind else { unreachable!("validated") };
        // The depth is relative to the block outside the `try`.
        let target = self.control.at(depth + 1);
        let parent = match target.kind {
            Kind::Try { region } => Some(region),
            _ => target.outer_try,
        };
        self.try_regions.delegate(region, parent);
        self.end();
    }

    pub(crate) fn throw(&mut self, tag: u32) {
        let ty = self.module.tag_type(tag);
        let count = ty.params().len() as u32;
        let base = self.stack.height() - count;
        self.frame.note_call((8 * words(ty.params())).next_multiple_of(16));
        for (height, (at, _)) in (base..).zip(with_index(ty.params())) {
            let operand = self.peek(height);
            let src = self.place(&operand);
            self.move_value(operand.ty, Place::Mem(Mem::base(Reg::RSP, 8 * at as i32)), src);
        }
        self.truncate(base);
        self.take(Reg::RAX);
        self.asm.lea(Width::W64, Reg::RAX, Mem::base(Reg::RSP, 0));
        self.push(Ty::I64, Val::Reg(Reg::RAX));
        self.libcall(Libcall::NewException, &[u64::from(tag)], 1);
        self.push_answer(Ty::Ref);
        self.throw_ref();
    }

    /// Throws the exception on top of the stack.
    pub(crate) fn throw_ref(&mut self) {
        self.frame.note_call(0);
        let exception = self.pop();
        let src = self.place(&exception);
        self.save_registers();
        self.show_routine();
        self.move_value(Ty::Ref, Place::Reg(Reg::RDI), src);
        let entry = self.libcall_entry(Libcall::Throw);
        self.asm.call_mem(entry);
        self.stop();
    }

    pub(crate) fn rethrow(&mut self, depth: u32) {
        let height = self.control.at(depth).height;
        let slot = self.frame.operand_slot(height);
        let reg = self.alloc(RegClass::General);
        self.asm.mov(Width::W64, reg, slot);
        self.push(Ty::Ref, Val::Reg(reg));
        self.throw_ref();
    }
}
