//! Edges: moves of values and locals from one point of the code to a label.
//!
//! An edge stores copies that are newer than the locals' slots, and the locals that the label's
//! region does not cache in registers, moves the label's values to where the label expects them,
//! and loads the register-cached locals that are only in their slots. It is a list of moves, built
//! where the branch is compiled and emitted there or in cold code. Inside one region and without
//! values, it is empty.
//!
//! A label expects its values in their slots, except for the last one, which is in `rax` or `xmm0`;
//! a loop expects all of them in slots.

use super::abi::{CONTEXT, ResultPlace, SCRATCH, Ty, result_places};
use super::cached_locals::{Region, bits, is_callee_saved};
use super::control_stack::{Control, Kind};
use super::function::FunctionCompiler;
use super::register_file::Holder;
use super::state::{Local, Operand, Place, Val, scratch};
use crate::asm::{Mem, Reg, RegClass, Width};
use crate::vmctx::{RESULTS, STORE};

/// A step of an edge.
#[derive(Clone, Copy, Debug)]
pub(super) struct Move {
    pub(super) ty: Ty,
    pub(super) dst: Place,
    pub(super) src: Place,
}

impl FunctionCompiler<'_> {
    /// The moves of an edge to a label. The state does not change: the label's values are the top
    /// operands, and stay on the stack.
    pub(super) fn edge(&mut self, depth: u32) -> Vec<Move> {
        let Control { kind, height, region, .. } = *self.control.at(depth);
        let types = self.control.at(depth).label_types();
        let stays = region == self.regions.current_index();
        let (not_loaded, in_slot) = match stays {
            true => self.cached_state(),
            false => (0, self.region_in_slots(region)),
        };
        let block = self.control.at_mut(depth);
        block.in_slot &= in_slot;
        block.branched = true;
        let count = types.len();
        let base = self.stack.height() - count;
        let sources: Vec<Operand> = (base..base + count).map(|height| self.peek(height)).collect();
        let mut moves = std::mem::take(&mut self.spare_moves);
        self.edge_copies(kind, &mut moves);
        if kind == Kind::Function {
            self.locals_for_exit(&mut moves);
            self.edge_to_epilogue(&sources, &mut moves);
            return moves;
        }
        // A value to be moved may be in a register that the locals' moves write.
        for (at, operand) in (height..).zip(&sources) {
            let in_register = kind != Kind::Loop && at + 1 == height + count;
            let dst = if in_register {
                Place::Reg(label_register(operand.ty))
            } else {
                Place::Mem(self.frame.operand_slot(at))
            };
            let src = self.place(operand);
            if src != dst {
                moves.push(Move { ty: operand.ty, dst, src });
            }
        }
        // Stores of locals do not read the registers that the moves of values write: `rax` and
        // `xmm0` are never cache registers.
        match stays {
            true => self.load_locals(not_loaded, &mut moves),
            false => self.edge_locals(region, &mut moves),
        }
        moves
    }

    /// Stores the copies that the edge to a label expects in slots. At the end of the function,
    /// only probes read locals.
    pub(super) fn store_copies_for(&mut self, depth: u32) {
        if self.registers.newer() != 0
            && (self.exit.stores_locals || self.control.at(depth).kind != Kind::Function)
        {
            self.store_copies();
        }
    }

    /// Appends the stores of copies that are newer than the slots.
    fn edge_copies(&self, kind: Kind, moves: &mut Vec<Move>) {
        if kind == Kind::Function && !self.exit.stores_locals {
            return;
        }
        for reg in bits(self.registers.newer()) {
            if let Holder::Copy(local) = self.registers.holder(reg) {
                let dst = Place::Mem(self.frame.local_slot(local));
                moves.push(Move { ty: self.locals[local as usize].ty, dst, src: Place::Reg(reg) });
            }
        }
    }

    /// Appends the moves of locals to their slots, if the exit has a settled site.
    fn locals_for_exit(&self, moves: &mut Vec<Move>) {
        if !self.exit.stores_locals {
            return;
        }
        let cached = self.region().iter().filter_map(|(_, local)| {
            let Local { ty, reg, in_slot, .. } = self.locals[local as usize];
            let dst = Place::Mem(self.frame.local_slot(local));
            reg.filter(|_| !in_slot).map(|reg| Move { ty, dst, src: Place::Reg(reg) })
        });
        moves.extend(cached);
    }

    /// Appends the moves of values to where the caller expects the results.
    fn edge_to_epilogue(&mut self, sources: &[Operand], moves: &mut Vec<Move>) {
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
        order_parallel(&mut between, moves);
        moves.extend(last);
    }

    /// Appends the moves of locals to where a region's labels expect them.
    pub(super) fn edge_locals(&mut self, target: usize, moves: &mut Vec<Move>) {
        if target == self.regions.current_index() {
            let (not_loaded, _) = self.cached_state();
            return self.load_locals(not_loaded, moves);
        }
        let current = self.regions.current();
        let region = self.regions.at(target);
        let cached_at_label =
            |local: u32| region.iter().find(|(_, cached)| *cached == local).map(|(reg, _)| reg);
        let mut between = Vec::new();
        for (_, local) in current.iter() {
            let state = self.locals[local as usize];
            match (cached_at_label(local), state.reg) {
                (None, Some(reg)) if !state.in_slot => {
                    let dst = Place::Mem(self.frame.local_slot(local));
                    moves.push(Move { ty: state.ty, dst, src: Place::Reg(reg) });
                }
                (Some(cache_reg), Some(reg)) if cache_reg != reg => between.push((state.ty, cache_reg, reg)),
                _ => {}
            }
        }
        // A copy can be used, unless it is in the register to which the label's last value has just
        // been moved.
        let copy_of = |state: &Local| match state.cache_reg {
            None => state.reg.filter(|copy| *copy != label_register(state.ty)),
            Some(_) => None,
        };
        for (reg, local) in region.iter() {
            let state = self.locals[local as usize];
            if let Some(copy) = copy_of(&state) {
                between.push((state.ty, reg, copy));
            }
        }
        order_parallel(&mut between, moves);
        for (reg, local) in region.iter() {
            let state = self.locals[local as usize];
            let in_register =
                if state.cache_reg.is_some() { state.reg.is_some() } else { copy_of(&state).is_some() };
            if !in_register {
                let src = Place::Mem(self.frame.local_slot(local));
                moves.push(Move { ty: state.ty, dst: Place::Reg(reg), src });
            }
        }
    }

    /// Appends loads of the locals that these registers cache in the current region.
    fn load_locals(&mut self, registers: u32, moves: &mut Vec<Move>) {
        for reg in bits(registers) {
            let local = self.region().cached_by(reg);
            let src = Place::Mem(self.frame.local_slot(local));
            moves.push(Move { ty: self.locals[local as usize].ty, dst: Place::Reg(reg), src });
        }
    }

    /// Enters a new region, in the state that its labels expect.
    pub(super) fn change_region(&mut self, mut region: Region) {
        region.constants = self.unwritten_constants(&region);
        let inner = self.regions.add(region);
        self.move_locals(inner);
        let mut in_slot = self.region_in_slots(inner);
        let region = self.regions.at(inner).clone();
        for (reg, local) in region.iter() {
            let unwritten = region.unwritten & reg.bit() != 0;
            if !unwritten {
                in_slot &= !reg.bit();
            } else if region.calls && in_slot & reg.bit() == 0 && !is_callee_saved(reg) {
                // Stored once here rather than at every call.
                let slot = self.frame.local_slot(local);
                self.move_value(self.locals[local as usize].ty, Place::Mem(slot), Place::Reg(reg));
                in_slot |= reg.bit();
            }
        }
        self.enter_state(inner, in_slot);
        for (_, local) in region.iter().filter(|(reg, _)| region.constants & reg.bit() != 0) {
            if let Some(held) = &mut self.locals[local as usize].constant {
                held.label = None;
            }
        }
    }

    /// The registers of a loop's region that cache locals which hold constants and are never
    /// written there, so that they hold them throughout the loop. Registers that do so throughout
    /// an enclosing loop are excluded.
    fn unwritten_constants(&self, region: &Region) -> u32 {
        let is_held = |local: u32| {
            self.locals[local as usize].constant.is_some_and(|held| held.label == Some(self.labels))
        };
        let held = region.iter().filter(|(_, local)| is_held(*local));
        held.fold(0, |set, (reg, _)| set | reg.bit()) & region.unwritten
    }

    /// At the end of a loop, forgets the constants that its locals hold.
    pub(super) fn forget_constants(&mut self, region: usize) {
        let region = self.regions.at(region);
        for (_, local) in region.iter().filter(|(reg, _)| region.constants & reg.bit() != 0) {
            self.locals[local as usize].constant = None;
        }
    }

    /// The cache registers of a region whose locals are up to date in their slots after the edge to
    /// it.
    pub(super) fn region_in_slots(&self, region: usize) -> u32 {
        let mut set = 0;
        for (reg, local) in self.regions.at(region).iter() {
            if self.locals[local as usize].in_slot {
                set |= reg.bit();
            }
        }
        set
    }

    /// An operand as `pop` would return it, but it stays on the stack.
    pub(super) fn peek(&mut self, height: u32) -> Operand {
        let mut operand = self.stack.at(height);
        if operand.val == Val::Slot {
            operand.val = Val::Frame(self.frame.operand_slot(height).disp());
        }
        operand
    }

    /// A result's location in the store's buffer, which is addressed through the scratch register:
    /// see `apply`.
    pub(super) fn buffer_place(index: u32) -> Place {
        Place::Mem(Mem::base(SCRATCH, RESULTS + 8 * index as i32))
    }

    /// Emits the moves of locals to where a region's labels expect them.
    pub(super) fn move_locals(&mut self, target: usize) {
        self.store_copies();
        let mut moves = std::mem::take(&mut self.spare_moves);
        self.edge_locals(target, &mut moves);
        self.apply(moves);
    }

    /// Emits the moves.
    pub(super) fn apply(&mut self, moves: Vec<Move>) {
        for Move { ty, dst, src } in &moves {
            if let Place::Mem(mem) = dst
                && mem.registers().any(|reg| reg == SCRATCH)
            {
                self.move_to_buffer(*ty, *mem, *src);
                continue;
            }
            self.move_value(*ty, *dst, *src);
        }
        self.reuse(moves);
    }

    /// Keeps the allocation of moves that are not needed any more, for the next edge.
    pub(super) fn reuse(&mut self, mut moves: Vec<Move>) {
        moves.clear();
        self.spare_moves = moves;
    }

    /// Moves a value into the store's buffer of results. A value that is not in a register goes
    /// through the SSE scratch register, as bits.
    pub(super) fn move_to_buffer(&mut self, ty: Ty, buffer: Mem, src: Place) {
        let bits = match (ty, ty.width()) {
            (Ty::V128, _) => Ty::V128,
            (_, Width::W64) => Ty::F64,
            (_, Width::W32) => Ty::F32,
        };
        let (ty, src) = match src {
            Place::Reg(_) => (ty, src),
            Place::Mem(_) | Place::Const(_) => {
                let aside = Place::Reg(scratch(RegClass::Sse));
                self.move_value(bits, aside, src);
                (bits, aside)
            }
        };
        self.asm.mov(Width::W64, SCRATCH, Mem::base(CONTEXT, STORE));
        self.move_value(ty, Place::Mem(buffer), src);
    }

    /// Parallel moves into registers.
    pub(super) fn parallel_moves(&mut self, mut moves: Vec<(Ty, Reg, Place)>) {
        moves.retain(|(_, dst, src)| *src != Place::Reg(*dst));
        while !moves.is_empty() {
            let is_source = |reg: Reg| moves.iter().any(|(_, _, src)| *src == Place::Reg(reg));
            // Loads and constants are emitted only when the registers that they overwrite are no
            // longer needed.
            let ready =
                moves.iter().position(|(_, dst, src)| matches!(src, Place::Reg(_)) && !is_source(*dst));
            let ready = ready.or_else(|| moves.iter().position(|(_, dst, _)| !is_source(*dst)));
            match ready {
                Some(index) => {
                    let (ty, dst, src) = moves.swap_remove(index);
                    self.move_value(ty, Place::Reg(dst), src);
                }
                None => {
                    // A cycle: saves one of its sources to the scratch register.
                    let (ty, _, src) = moves[0];
                    let Place::Reg(reg) = src else { unreachable!("only registers form cycles") };
                    let aside = scratch(reg.class());
                    let full = if ty.is_sse() { Ty::F64 } else { Ty::I64 };
                    self.move_value(full, Place::Reg(aside), src);
                    for (_, _, source) in &mut moves {
                        if *source == src {
                            *source = Place::Reg(aside);
                        }
                    }
                }
            }
        }
    }
}

/// The register in which a label expects its last value.
pub(super) fn label_register(ty: Ty) -> Reg {
    if ty.is_sse() { Reg::xmm(0) } else { Reg::RAX }
}

/// Appends moves between registers in an order in which none overwrites the source of a later one.
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
                let aside = scratch(src.class());
                let ty = if src.is_float() { Ty::F64 } else { Ty::I64 };
                moves.push(Move { ty, dst: Place::Reg(aside), src: Place::Reg(src) });
                for (_, _, source) in between.iter_mut().filter(|(_, _, source)| *source == src) {
                    *source = aside;
                }
            }
        }
    }
}
