//! Branches and conditions.
//!
//! A conditional branch is one jump if its edge is empty. Otherwise the moves are in cold code, to
//! which it jumps; or, if the branch is most likely taken, they follow a jump past them. A branch
//! hint decides this; without one, branches back to loops are expected to be taken.
//!
//! The edge of a `br_if` that leaves the innermost loop or the function also stores the copies of
//! locals that are newer than their slots; before other branches, they are stored on both paths.

use wasmparser::BrTable;

use crate::asm::{Alu, Cond, Label, Mem, Reg, RegClass, Size, Width};
use crate::compiler::Limit;
use crate::compiler::abi::SCRATCH;
use crate::compiler::cold::Cold;
use crate::compiler::control_stack::{Control, Kind};
use crate::compiler::edges::Move;
use crate::compiler::function::FunctionCompiler;
use crate::compiler::state::{Flag, Val};
use crate::vmctx::TrapCode;

impl FunctionCompiler<'_> {
    /// An unconditional branch.
    pub(crate) fn br(&mut self, depth: u32) {
        self.store_copies_for(depth);
        let moves = self.edge(depth);
        self.apply(moves);
        let label = self.control.at(depth).label;
        self.jump(None, label);
        self.stop();
    }

    pub(crate) fn br_if(&mut self, depth: u32) {
        // Loads preserve the flags; the locals are needed on both paths.
        match self.leaves_region(depth) {
            true => self.load_cached_locals(),
            false => self.locals_for_branch(),
        }
        let flag = match self.condition() {
            Ok(flag) => flag,
            Err(true) => return self.br(depth),
            Err(false) => return,
        };
        self.branch_if(flag, depth);
    }

    /// Whether a branch leaves the innermost loop or the function, which it does once at most.
    pub(crate) fn leaves_region(&self, depth: u32) -> bool {
        let Control { kind, region, .. } = *self.control.at(depth);
        kind == Kind::Function || region != self.regions.current_index()
    }

    /// Branches if the flag holds. The register-cached locals must be loaded.
    pub(crate) fn branch_if(&mut self, flag: Flag, depth: u32) {
        let hint = self.hints.is_likely(self.instruction.position);
        let moves = self.edge(depth);
        let Control { kind, label: target, .. } = *self.control.at(depth);
        if moves.is_empty() {
            self.reuse(moves);
            return self.jump_if(flag, target);
        }
        if hint.unwrap_or(kind == Kind::Loop) {
            let on = self.asm.new_label();
            self.jump_if(flag.opposite(), on);
            self.apply(moves);
            self.asm.jmp(target);
            self.asm.bind(on);
            return;
        }
        let label = self.asm.new_label();
        self.jump_if(flag, label);
        self.push_cold_edge(label, moves, target);
    }

    pub(crate) fn br_table(&mut self, table: &BrTable<'_>) -> Result<(), Limit> {
        let malformed = |_| Limit { function: self.index, reason: "its body cannot be read" };
        let mut depths = Vec::with_capacity(table.len() as usize);
        for depth in table.targets() {
            depths.push(depth.map_err(malformed)?);
        }
        // Done while the index is on the stack, so that a local that it aliases counts as live.
        self.locals_for_branch();
        let index = self.pop();
        if let Val::Const(bits) = index.val {
            let depth = depths.get(bits as u32 as usize).copied().unwrap_or(table.default());
            self.count_known((bits as u32).min(table.len()));
            self.br(depth);
            return Ok(());
        }
        let index = self.to_reg(&index);
        // The table's address and the displacement need two registers; allocating one may move an
        // operand.
        let offset = self.alloc(RegClass::General);
        // Equal depths share one edge. The time must not depend on the number of blocks, which is
        // not limited.
        let mut distinct: Vec<u32> = depths.iter().copied().chain([table.default()]).collect();
        distinct.sort_unstable();
        distinct.dedup();
        let mut labels = Vec::with_capacity(distinct.len());
        for depth in &distinct {
            labels.push(self.table_label(*depth));
            self.check_code_size()?;
        }
        let label = |depth| labels[distinct.binary_search(&depth).expect("one of them")];
        let default = label(table.default());
        let targets: Vec<Label> = depths.into_iter().map(label).collect();
        self.count_target(index, targets.len(), offset);
        self.asm.alu_imm(Alu::Cmp, Width::W32, index, targets.len() as i32);
        self.asm.jcc(Cond::AboveEqual, default);
        if !targets.is_empty() {
            let table = self.asm.new_label();
            let index = if self.module.settings.masks_indices {
                self.mask_if_not_below(offset, index);
                offset
            } else {
                index
            };
            self.asm.lea_label(SCRATCH, table);
            self.asm.movsx(Size::B4, Width::W64, offset, Mem::indexed(SCRATCH, index, 2, 0));
            self.asm.alu(Alu::Add, Width::W64, SCRATCH, offset);
            self.asm.jmp_reg(SCRATCH);
            self.cold.push(Cold::Table { table, targets });
        }
        self.stop();
        Ok(())
    }

    fn push_cold_edge(&mut self, label: Label, moves: Vec<Move>, target: Label) {
        self.cold.count_moves(&moves);
        self.cold.push(Cold::Edge { label, moves, target, position: self.instruction.position });
    }

    /// The target of a jump table's entries for a depth: the label itself if the edge is empty.
    fn table_label(&mut self, depth: u32) -> Label {
        let moves = self.edge(depth);
        let target = self.control.at(depth).label;
        if moves.is_empty() {
            self.reuse(moves);
            return target;
        }
        let label = self.asm.new_label();
        self.push_cold_edge(label, moves, target);
        label
    }

    /// The condition on top of the stack as a flag, or as its truth value if it is constant.
    pub(crate) fn condition(&mut self) -> Result<Flag, bool> {
        let operand = self.pop();
        match operand.val {
            Val::Flag(flag) => Ok(flag),
            Val::Const(bits) => Err(bits as u32 != 0),
            Val::Frame(disp) => {
                self.asm.alu_imm(Alu::Cmp, Width::W32, Mem::base(Reg::RBP, disp), 0);
                Ok(Flag::Int(Cond::NotEqual))
            }
            _ => {
                let reg = self.to_reg(&operand);
                self.test_zero(Width::W32, reg);
                Ok(Flag::Int(Cond::NotEqual))
            }
        }
    }

    /// Jumps to `label` if the flag holds.
    pub(crate) fn jump_if(&mut self, flag: Flag, label: Label) {
        match flag {
            Flag::Int(cond) => self.jump(Some(cond), label),
            Flag::NonZero => self.jump(Some(Cond::NotEqual), label),
            Flag::FloatNotEqual => {
                self.asm.jcc(Cond::Parity, label);
                self.asm.jcc(Cond::NotEqual, label);
            }
            Flag::FloatEqual => {
                let over = self.asm.new_label();
                self.asm.jcc(Cond::Parity, over);
                self.asm.jcc(Cond::Equal, label);
                self.asm.bind(over);
            }
        }
    }

    pub(crate) fn trap(&mut self, code: TrapCode) {
        let label = self.asm.new_label();
        self.asm.jmp(label);
        self.cold.push(Cold::Trap { label, code, position: self.instruction.position });
    }

    /// Jumps to a trap if the condition holds.
    pub(crate) fn trap_if(&mut self, cond: Cond, code: TrapCode) {
        let label = self.asm.new_label();
        self.asm.jcc(cond, label);
        self.cold.push(Cold::Trap { label, code, position: self.instruction.position });
    }
}
