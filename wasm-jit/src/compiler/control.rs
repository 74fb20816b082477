//! Blocks, labels, branches.
//!
//! A branch is an *edge*: it stores what the label's region does not keep in registers, moves the label's values to where the label
//! has them, and brings home what was not. Inside one region, without values, nothing is left to do, and a conditional
//! branch is one jump; otherwise its moves are cold code.
//!
//! A label has its values, except the last, in their slots, and the last in `rax` or `xmm0`; a loop has all in slots.

use wasmparser::{BlockType, BrTable, FuncType, Operator, ValType};

use super::Limit;
use super::abi::{ResultPlace, SCRATCH, Ty, result_places};
use super::function::FunctionCompiler;
use super::homes::bits;
use super::output::Position;
use super::state::{Flag, Holder, Operand, Place, Val};
use crate::asm::{Alu, Cond, Label, Mem, Reg, Size};
use crate::vmctx::{RESULTS, STORE, TrapCode};

/// The types of a label's values or of a block's parameters.
#[derive(Clone, Copy, Debug)]
pub(super) enum Types<'a> {
    One(Ty),
    Many(&'a [ValType]),
}

impl Types<'_> {
    pub(super) const NONE: Self = Self::Many(&[]);

    pub(super) fn len(&self) -> u32 {
        match self {
            Self::One(_) => 1,
            Self::Many(types) => types.len() as u32,
        }
    }

    pub(super) fn get(&self, index: u32) -> Ty {
        match self {
            Self::One(ty) => *ty,
            Self::Many(types) => types[index as usize].into(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Function,
    Block,
    Loop,
    /// With the label of its other side, and the homes as they were at the condition.
    If {
        otherwise: Label,
        in_slot: u32,
    },
    /// `try_table`, or the body of a `try`: the region.
    Try {
        region: u32,
    },
    /// The body of a `catch`: the exception is the operand at the block's height.
    Catch {
        region: u32,
    },
}

#[derive(Clone, Debug)]
pub(super) struct Control<'a> {
    pub(super) kind: Kind,
    pub(super) label: Label,
    /// Operands below its parameters.
    pub(super) height: u32,
    pub(super) params: Types<'a>,
    pub(super) results: Types<'a>,
    /// The region of the label.
    pub(super) region: usize,
    /// Homes of that region that are up to date in their slots on every edge to the label so far.
    pub(super) in_slot: u32,
    /// Whether a branch to it was compiled.
    pub(super) branched: bool,
    /// The region around a `try` before it was opened.
    pub(super) outer_try: Option<u32>,
}

impl<'a> Control<'a> {
    /// What a branch to it carries.
    pub(super) fn label_types(&self) -> Types<'a> {
        if self.kind == Kind::Loop { self.params } else { self.results }
    }
}

/// Code that is put behind the epilogue.
#[derive(Debug)]
pub(super) enum Cold<'a> {
    /// The moves of a conditional branch.
    Edge {
        label: Label,
        moves: Vec<Move>,
        target: Label,
        position: u32,
    },
    Trap {
        label: Label,
        code: TrapCode,
        position: u32,
    },
    /// A libcall has failed.
    Raise {
        label: Label,
        position: u32,
    },
    /// A jump table.
    Table {
        table: Label,
        targets: Vec<Label>,
    },
    /// The end of a tail call: see `calls.rs`.
    Tail {
        label: Label,
        tail: super::calls::Tail,
    },
    /// A call into another instance, behind which the code goes on at `back`.
    CallThroughRef { label: Label, ty: &'a FuncType, back: Label, position: u32 },
    /// A tail call into another instance, which returns here.
    ReturnThroughRef {
        label: Label,
        ty: &'a FuncType,
        position: u32,
    },
    /// Where an exception arrives that a catch, by region and index, sends to a label: see `exceptions.rs`.
    Handler {
        catch: (u32, u32),
        moves: Vec<Move>,
        target: Label,
        position: u32,
    },
}

/// A step of an edge.
#[derive(Clone, Copy, Debug)]
pub(super) struct Move {
    pub(super) ty: Ty,
    pub(super) dst: Place,
    pub(super) src: Place,
}

impl<'a> FunctionCompiler<'a> {
    pub(super) fn push_function_control(&mut self) {
        self.control.push(Control {
            kind: Kind::Function,
            label: self.epilogue,
            height: 0,
            params: Types::NONE,
            results: Types::Many(self.ty.results()),
            region: 0,
            in_slot: u32::MAX,
            branched: false,
            outer_try: None,
        });
    }

    fn block_types(&self, ty: BlockType) -> (Types<'a>, Types<'a>) {
        match ty {
            BlockType::Empty => (Types::NONE, Types::NONE),
            BlockType::Type(ty) => (Types::NONE, Types::One(ty.into())),
            BlockType::FuncType(index) => {
                let ty = &self.module.types[index as usize];
                (Types::Many(ty.params()), Types::Many(ty.results()))
            }
        }
    }

    /// Opens a block: nothing of value below its label stays in a register that code inside may need, or depends on a local
    /// that code inside may write.
    pub(super) fn open(&mut self, kind: Kind, ty: BlockType) {
        let (params, results) = self.block_types(ty);
        self.spill_operands();
        let label = self.asm.new_label();
        let height = self.stack.len() as u32 - params.len();
        let region = self.current_region;
        let outer_try = self.try_region;
        let in_slot = u32::MAX;
        self.control.push(Control {
            kind,
            label,
            height,
            params,
            results,
            region,
            in_slot,
            branched: false,
            outer_try,
        });
    }

    /// Parameters of the block just opened to their slots, constants too: whoever comes by another way finds them there.
    fn store_params(&mut self) {
        let control = self.control.last().expect("just opened");
        let (height, params) = (control.height, control.params.len());
        for height in height..height + params {
            let Operand { ty, val } = self.stack[height as usize];
            if let Val::Const(bits) = val {
                let slot = self.operand_slot(height);
                self.move_value(ty, Place::Mem(slot), Place::Const(bits));
                self.stack[height as usize].val = Val::Slot;
            }
        }
    }

    /// All operands to their slots; constants stay.
    pub(super) fn spill_operands(&mut self) {
        let top = self.stack.len() as u32;
        for height in self.spilled..top {
            self.spill_operand(height);
        }
        self.spilled = top;
    }

    pub(super) fn loop_start(&mut self, ty: BlockType) {
        self.open(Kind::Loop, ty);
        self.store_params();
        let facts = self.loops_met;
        self.loops_met += 1;
        if self.open_loops == 0 {
            self.outermost_loop = self.position;
        }
        self.open_loops += 1;
        let region = self.choose_region(Some(facts));
        // Into the loop's region.
        let in_slot = self.change_region(region);
        let inner = self.current_region;
        self.control.last_mut().expect("just opened").region = inner;
        if self.scan.loops[facts].innermost && !self.region().calls {
            self.align_loop();
        }
        let label = self.control.last().expect("just opened").label;
        self.enter_state(inner, in_slot);
        self.asm.bind(label);
    }

    /// Innermost loops start where few of their bytes share a fetch with what is before.
    fn align_loop(&mut self) {
        let over = self.asm.offset() % super::function::ALIGNMENT;
        if over > 0 {
            self.asm.nops(super::function::ALIGNMENT - over);
        }
    }

    /// Goes over into a new region; gives the homes that are up to date in their slots and stay so.
    fn change_region(&mut self, region: super::homes::Region) -> u32 {
        self.regions.push(region);
        let inner = self.regions.len() - 1;
        let moves = self.edge_locals(inner);
        self.apply(&moves);
        let mut in_slot = self.region_in_slots(inner);
        let region = self.regions[inner].clone();
        for (reg, local) in region.iter() {
            let unwritten = region.unwritten & reg.bit() != 0;
            if !unwritten {
                in_slot &= !reg.bit();
            } else if region.calls && in_slot & reg.bit() == 0 && !super::homes::is_callee_saved(reg) {
                // Stored once here, not at every call.
                if self.is_live(local) {
                    let slot = self.local_slot(local);
                    self.move_value(self.locals[local as usize].ty, Place::Mem(slot), Place::Reg(reg));
                }
                in_slot |= reg.bit();
            }
        }
        self.enter_state(inner, in_slot);
        in_slot
    }

    /// What brings the locals to where a region's labels have them.
    fn edge_locals(&mut self, target: usize) -> Vec<Move> {
        let mut moves = Vec::new();
        if target == self.current_region {
            for (reg, local) in self.region().iter() {
                if self.locals[local as usize].reg.is_none() && self.is_live(local) {
                    let src = Place::Mem(self.local_slot(local));
                    moves.push(Move { ty: self.locals[local as usize].ty, dst: Place::Reg(reg), src });
                }
            }
            return moves;
        }
        let current = self.region().clone();
        let region = self.regions[target].clone();
        let home_there =
            |local: u32| region.iter().find(|(_, at_home)| *at_home == local).map(|(reg, _)| reg);
        let mut between = Vec::new();
        for (_, local) in current.iter() {
            let state = self.locals[local as usize];
            match (home_there(local), state.reg) {
                (None, Some(reg)) if !state.in_slot && self.is_live(local) => {
                    let dst = Place::Mem(self.local_slot(local));
                    moves.push(Move { ty: state.ty, dst, src: Place::Reg(reg) });
                }
                (Some(home), Some(reg)) if home != reg => between.push((state.ty, home, reg)),
                _ => {}
            }
        }
        for (reg, local) in region.iter() {
            let state = self.locals[local as usize];
            if let (None, Some(copy)) = (state.home, state.reg) {
                between.push((state.ty, reg, copy));
            }
        }
        order_parallel(&mut between, &mut moves);
        for (reg, local) in region.iter() {
            let state = self.locals[local as usize];
            if state.reg.is_none() && self.is_live(local) {
                let src = Place::Mem(self.local_slot(local));
                moves.push(Move { ty: state.ty, dst: Place::Reg(reg), src });
            }
        }
        moves
    }

    /// Homes of a region whose locals are up to date in their slots, after the edge to it.
    fn region_in_slots(&self, region: usize) -> u32 {
        let mut set = 0;
        for (reg, local) in self.regions[region].iter() {
            if self.locals[local as usize].in_slot {
                set |= reg.bit();
            }
        }
        set
    }

    /// The moves of an edge to a label, which leave the state alone: the label's values are the top operands, and stay.
    pub(super) fn edge(&mut self, depth: u32) -> Vec<Move> {
        let index = self.control.len() - 1 - depth as usize;
        let Control { kind, height, region, .. } = self.control[index];
        let types = self.control[index].label_types();
        let in_slot = self.region_in_slots(region);
        self.control[index].in_slot &= in_slot;
        self.control[index].branched = true;
        let count = types.len();
        let base = self.stack.len() as u32 - count;
        let sources: Vec<Operand> = (base..base + count).map(|height| self.peek(height)).collect();
        if kind == Kind::Function {
            return self.edge_to_epilogue(&sources);
        }
        // A value about to be moved may be in a register that the locals' moves write.
        let mut moves = Vec::new();
        for (at, operand) in (height..).zip(&sources) {
            let in_register = kind != Kind::Loop && at + 1 == height + count;
            let dst = if in_register {
                Place::Reg(label_register(operand.ty))
            } else {
                Place::Mem(self.operand_slot(at))
            };
            let src = self.place(operand);
            if src != dst {
                moves.push(Move { ty: operand.ty, dst, src });
            }
        }
        // Stores of locals do not read what the values' moves write: `rax` and `xmm0` are nobody's home.
        let locals = self.edge_locals(region);
        moves.extend(locals);
        moves
    }

    /// Values to where the caller finds them.
    fn edge_to_epilogue(&mut self, sources: &[Operand]) -> Vec<Move> {
        let mut moves = Vec::new();
        let mut between = Vec::new();
        let mut last = Vec::new();
        for (operand, (ty, place)) in sources.iter().zip(result_places(self.ty.results())) {
            match (self.place(operand), place) {
                (src, ResultPlace::Buffer(index)) => {
                    moves.push(Move { ty, dst: Self::buffer_place(index), src });
                }
                (Place::Reg(src), ResultPlace::Reg(dst)) => between.push((ty, dst, src)),
                (src, ResultPlace::Reg(dst)) => last.push(Move { ty, dst: Place::Reg(dst), src }),
            }
        }
        order_parallel(&mut between, &mut moves);
        moves.extend(last);
        moves
    }

    /// An operand that stays on the stack, as if it had been taken.
    fn peek(&mut self, height: u32) -> Operand {
        let mut operand = self.stack[height as usize];
        if operand.val == Val::Slot {
            operand.val = Val::Frame(self.operand_slot(height).disp());
        }
        operand
    }

    /// A result's place in the store's buffer, which is reached through the scratch register: see `apply`.
    pub(super) fn buffer_place(index: u32) -> Place {
        Place::Mem(Mem::base(SCRATCH, RESULTS + 8 * index as i32))
    }

    pub(super) fn apply(&mut self, moves: &[Move]) {
        for Move { ty, dst, src } in moves {
            if let Place::Mem(mem) = dst
                && mem.registers().any(|reg| reg == SCRATCH)
            {
                self.move_to_buffer(*ty, *mem, *src);
                continue;
            }
            self.move_value(*ty, *dst, *src);
        }
    }

    /// Into the store's buffer of results. What is in no register goes through the SSE scratch register, as bits.
    fn move_to_buffer(&mut self, ty: Ty, buffer: Mem, src: Place) {
        let bits = if ty.wide() { Ty::F64 } else { Ty::F32 };
        let (ty, src) = match src {
            Place::Reg(_) => (ty, src),
            Place::Mem(_) | Place::Const(_) => {
                let aside = Place::Reg(super::state::scratch(true));
                self.move_value(bits, aside, src);
                (bits, aside)
            }
        };
        self.asm.mov(true, SCRATCH, Mem::base(super::abi::CONTEXT, STORE));
        self.move_value(ty, Place::Mem(buffer), src);
    }

    // Branches.

    /// An unconditional branch.
    pub(super) fn br(&mut self, depth: u32) {
        let moves = self.edge(depth);
        self.apply(&moves);
        let index = self.control.len() - 1 - depth as usize;
        let label = self.control[index].label;
        self.asm.jmp(label);
        self.stop();
    }

    pub(super) fn stop(&mut self) {
        let height = self.control.last().expect("inside the function").height;
        while self.stack.len() as u32 > height {
            self.pop();
        }
        self.reachable = false;
    }

    /// Jumps to `label` if the flag is as it says.
    pub(super) fn jump_if(&mut self, flag: Flag, label: Label) {
        match flag {
            Flag::Int(cond) => self.asm.jcc(cond, label),
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

    /// The condition on top of the stack as a flag. A constant gives its truth.
    pub(super) fn condition(&mut self) -> Result<Flag, bool> {
        let operand = self.pop();
        match operand.val {
            Val::Flag(flag) => Ok(flag),
            Val::Const(bits) => Err(bits as u32 != 0),
            Val::Frame(disp) => {
                self.asm.alu_imm(Alu::Cmp, false, Mem::base(Reg::RBP, disp), 0);
                Ok(Flag::Int(Cond::NotEqual))
            }
            _ => {
                let reg = self.to_reg(&operand);
                self.asm.test(false, reg, reg);
                Ok(Flag::Int(Cond::NotEqual))
            }
        }
    }

    pub(super) fn br_if(&mut self, depth: u32) {
        // Loads leave the flags alone; whoever branches back or on will need them.
        self.load_homes();
        let flag = match self.condition() {
            Ok(flag) => flag,
            Err(true) => return self.br(depth),
            Err(false) => return,
        };
        let moves = self.edge(depth);
        let index = self.control.len() - 1 - depth as usize;
        let target = self.control[index].label;
        if moves.is_empty() {
            return self.jump_if(flag, target);
        }
        let label = self.asm.new_label();
        self.jump_if(flag, label);
        self.cold.push(Cold::Edge { label, moves, target, position: self.position });
    }

    pub(super) fn br_table(&mut self, table: &BrTable<'_>) -> Result<(), Limit> {
        let malformed = |_| Limit { function: self.index, reason: "its body cannot be read" };
        let mut depths = Vec::with_capacity(table.len() as usize);
        for depth in table.targets() {
            depths.push(depth.map_err(malformed)?);
        }
        let index = self.pop();
        if let Val::Const(bits) = index.val {
            let depth = depths.get(bits as u32 as usize).copied().unwrap_or(table.default());
            self.br(depth);
            return Ok(());
        }
        self.load_homes();
        let index = self.to_reg(&index);
        // The table's address and the displacement need two registers; giving one out may move an operand.
        let offset = self.alloc(false);
        let mut labels: Vec<(u32, Label)> = Vec::new();
        let default = self.table_label(table.default(), &mut labels);
        let targets: Vec<Label> = depths.iter().map(|depth| self.table_label(*depth, &mut labels)).collect();
        self.asm.alu_imm(Alu::Cmp, false, index, targets.len() as i32);
        self.asm.jcc(Cond::AboveEqual, default);
        if !targets.is_empty() {
            let table = self.asm.new_label();
            self.asm.lea_label(SCRATCH, table);
            self.asm.movsx(Size::B4, true, offset, Mem::indexed(SCRATCH, index, 2, 0));
            self.asm.alu(Alu::Add, true, SCRATCH, offset);
            self.asm.jmp_reg(SCRATCH);
            self.cold.push(Cold::Table { table, targets });
        }
        self.stop();
        Ok(())
    }

    /// Where a jump table's entry goes: the same depth has one edge only.
    fn table_label(&mut self, depth: u32, known: &mut Vec<(u32, Label)>) -> Label {
        // Sorted by depth.
        let at = match known.binary_search_by_key(&depth, |(depth, _)| *depth) {
            Ok(at) => return known[at].1,
            Err(at) => at,
        };
        let moves = self.edge(depth);
        let index = self.control.len() - 1 - depth as usize;
        let target = self.control[index].label;
        let label = self.asm.new_label();
        // Also without moves: the table needs bound labels, and forward ones are bound later than some cold code.
        self.cold.push(Cold::Edge { label, moves, target, position: self.position });
        known.insert(at, (depth, label));
        label
    }

    pub(super) fn if_start(&mut self, ty: BlockType) {
        // Spilling and loading leave the flags alone.
        let top = self.stack.pop().expect("validated");
        self.open(Kind::Block, ty);
        self.store_params();
        self.stack.push(top);
        self.load_homes();
        let otherwise = self.asm.new_label();
        match self.condition() {
            Ok(flag) => self.jump_if(flag.opposite(), otherwise),
            Err(true) => {}
            Err(false) => self.asm.jmp(otherwise),
        }
        let in_slot = self.homes_in_slots();
        self.control.last_mut().expect("just opened").kind = Kind::If { otherwise, in_slot };
    }

    pub(super) fn else_start(&mut self) {
        let control = self.control.last().expect("an if is open").clone();
        let Kind::If { otherwise, in_slot } = control.kind else { unreachable!("validated") };
        if self.reachable {
            self.jump_to_end();
        }
        self.asm.bind(otherwise);
        self.restart(&control, in_slot);
        self.control.last_mut().expect("an if is open").kind = Kind::Block;
    }

    /// From the end of one part of a block to the block's end.
    pub(super) fn jump_to_end(&mut self) {
        self.br(0);
    }

    /// The state at the start of another part of a block: parameters in their slots.
    fn restart(&mut self, control: &Control<'a>, in_slot: u32) {
        self.truncate(control.height);
        self.enter_state(control.region, in_slot);
        for param in 0..control.params.len() {
            self.push(control.params.get(param), Val::Slot);
        }
        self.reachable = true;
    }

    pub(super) fn truncate(&mut self, height: u32) {
        while self.stack.len() as u32 > height {
            self.pop();
        }
    }

    pub(super) fn end(&mut self) {
        let control = self.control.last().expect("validated").clone();
        match control.kind {
            Kind::Function => return self.end_function(),
            Kind::Loop => return self.end_loop(&control),
            Kind::If { otherwise, in_slot } => {
                // The missing side gives the parameters as results.
                if control.params.len() == 0 {
                    if self.reachable {
                        self.fall_to_end();
                    }
                    self.control.last_mut().expect("open").in_slot &= in_slot;
                    self.asm.bind(otherwise);
                    return self.bind_end();
                }
                if self.reachable {
                    self.jump_to_end();
                }
                self.asm.bind(otherwise);
                self.restart(&control, in_slot);
            }
            Kind::Try { region } => self.close_try(region, &control),
            Kind::Catch { .. } => self.try_region = control.outer_try,
            Kind::Block => {}
        }
        // Nobody branches here: the code just goes on. A `catch` has an operand of its own to be removed.
        let plain = !matches!(control.kind, Kind::Catch { .. });
        if self.reachable && plain && !self.control.last().expect("open").branched {
            self.control.pop();
            return;
        }
        if self.reachable {
            self.fall_to_end();
        }
        self.bind_end();
    }

    /// The last part of a block reaches its label.
    fn fall_to_end(&mut self) {
        let moves = self.edge(0);
        self.apply(&moves);
    }

    /// The innermost block's label is here.
    pub(super) fn bind_end(&mut self) {
        let control = self.control.pop().expect("open");
        self.truncate(control.height);
        let reached = self.reachable || control.branched || matches!(control.kind, Kind::If { .. });
        self.asm.bind(control.label);
        self.enter_state(control.region, control.in_slot);
        let count = control.results.len();
        for result in 0..count {
            let ty = control.results.get(result);
            let val = if result + 1 == count { Val::Reg(label_register(ty)) } else { Val::Slot };
            self.push(ty, val);
        }
        self.reachable = reached;
        if !reached {
            self.stop();
        }
    }

    fn end_loop(&mut self, control: &Control<'a>) {
        self.control.pop();
        let outer = self.control.last().expect("the function is around").region;
        if self.reachable {
            for reg in bits(self.regions[outer].homes & !self.region().homes) {
                if let Holder::Operand(height) = self.holders[reg.0 as usize] {
                    self.spill_operand(height);
                }
            }
            let moves = self.edge_locals(outer);
            self.apply(&moves);
        } else {
            self.truncate(control.height);
        }
        let in_slot = self.region_in_slots(outer);
        self.enter_state(outer, in_slot);
        self.open_loops -= 1;
        if self.open_loops == 0 {
            self.outermost_loop = u32::MAX;
        }
    }

    fn end_function(&mut self) {
        if self.reachable {
            let moves = self.edge(0);
            self.apply(&moves);
        }
        self.control.pop();
    }

    /// Operators in code that cannot be reached: only the structure counts.
    pub(super) fn skip(&mut self, operator: &Operator<'_>) {
        match operator {
            Operator::Block { .. }
            | Operator::Loop { .. }
            | Operator::If { .. }
            | Operator::TryTable { .. }
            | Operator::Try { .. } => {
                if matches!(operator, Operator::Loop { .. }) {
                    self.loops_met += 1;
                }
                self.skipped_blocks += 1;
            }
            Operator::End | Operator::Delegate { .. } if self.skipped_blocks > 0 => self.skipped_blocks -= 1,
            _ if self.skipped_blocks > 0 => {}
            Operator::End => self.end(),
            Operator::Else => self.else_start(),
            Operator::Catch { tag_index } => self.catch(Some(*tag_index)),
            Operator::CatchAll => self.catch(None),
            Operator::Delegate { relative_depth } => self.delegate(*relative_depth),
            _ => {}
        }
    }

    /// Cold code, in the order in which it was asked for.
    pub(super) fn emit_cold(&mut self, saved: u32, frame_size: u32) {
        let mut tables = Vec::new();
        for cold in std::mem::take(&mut self.cold) {
            let here = self.asm.offset();
            match cold {
                Cold::Edge { label, moves, target, position } => {
                    self.note(here, position);
                    self.asm.bind(label);
                    self.apply(&moves);
                    self.asm.jmp(target);
                }
                Cold::Trap { label, code, position } => {
                    self.note(here, position);
                    self.asm.bind(label);
                    self.asm.ud2(code as u8);
                }
                Cold::Raise { label, position } => {
                    self.note(here, position);
                    self.asm.bind(label);
                    let entry = self.libcall_entry(crate::vmctx::Libcall::Raise);
                    self.asm.call_mem(entry);
                    self.asm.ud2(TrapCode::Unreachable as u8);
                }
                Cold::Table { table, targets } => tables.push((table, targets)),
                Cold::Tail { label, tail } => {
                    self.asm.bind(label);
                    self.tail_jump(&tail, saved, frame_size);
                }
                Cold::CallThroughRef { label, ty, back, position } => {
                    self.note(here, position);
                    self.asm.bind(label);
                    self.call_through_ref(ty);
                    self.asm.jmp(back);
                }
                Cold::ReturnThroughRef { label, ty, position } => {
                    self.note(here, position);
                    self.asm.bind(label);
                    self.call_through_ref(ty);
                    self.asm.jmp(self.epilogue);
                }
                Cold::Handler { catch: (region, index), moves, target, position } => {
                    self.note(here, position);
                    self.try_regions[region as usize].catches[index as usize].handler = here;
                    self.apply(&moves);
                    self.asm.jmp(target);
                }
            }
        }
        if !tables.is_empty() {
            self.note(self.asm.offset(), Position::DATA);
        }
        for (table, targets) in tables {
            self.asm.jump_table(table, &targets);
        }
    }
}

/// Where a label has its last value.
pub(super) fn label_register(ty: Ty) -> Reg {
    if ty.is_float() { Reg::xmm(0) } else { Reg::RAX }
}

/// Appends moves between registers in an order in which none overwrites what another one needs.
pub(super) fn order_parallel(between: &mut Vec<(Ty, Reg, Reg)>, moves: &mut Vec<Move>) {
    between.retain(|(_, dst, src)| dst != src);
    while !between.is_empty() {
        let is_source = |reg: Reg| between.iter().any(|(_, _, src)| *src == reg);
        match between.iter().position(|(_, dst, _)| !is_source(*dst)) {
            Some(index) => {
                let (ty, dst, src) = between.swap_remove(index);
                moves.push(Move { ty, dst: Place::Reg(dst), src: Place::Reg(src) });
            }
            None => {
                let src = between[0].2;
                let aside = super::state::scratch(src.is_float());
                let ty = if src.is_float() { Ty::F64 } else { Ty::I64 };
                moves.push(Move { ty, dst: Place::Reg(aside), src: Place::Reg(src) });
                for (_, _, source) in between.iter_mut().filter(|(_, _, source)| *source == src) {
                    *source = aside;
                }
            }
        }
    }
}
