//! Blocks: opening, ending, and skipping unreachable code.
//!
//! Opening a block spills all operands, so that its label finds them in their slots whichever
//! branch reaches it. A loop is also a region (see `cached_locals.rs`): entering and leaving it is
//! an edge like that of a branch.

use wasmparser::{BlockType, Operator};

use crate::compiler::cached_locals::{Float, Region, bits};
use crate::compiler::control_stack::{Control, Kind, Types};
use crate::compiler::edges::label_register;
use crate::compiler::function::{ALIGNMENT, FunctionCompiler};
use crate::compiler::register_file::Holder;
use crate::compiler::sites::SiteKind;
use crate::compiler::state::{Operand, Place, Val};

/// Where innermost loops start after a multiple of [`ALIGNMENT`]. Not at the multiple itself: on
/// AMD Zen 5, some loops of little more than 64 bytes take 1.6 times as long if they start at a
/// multiple of 64.
const LOOP_START: u32 = 16;

impl<'a> FunctionCompiler<'a> {
    pub(crate) fn push_function_control(&mut self) {
        self.control.push(Control {
            kind: Kind::Function,
            label: self.exit.epilogue,
            height: 0,
            params: Types::NONE,
            results: Types::Many(self.ty.results()),
            region: 0,
            in_slot: u32::MAX,
            branched: false,
            outer_try: None,
            joined: None,
        });
    }

    fn block_types(&self, ty: BlockType) -> (Types<'a>, Types<'a>) {
        match ty {
            BlockType::Empty => (Types::NONE, Types::NONE),
            BlockType::Type(ty) => (Types::NONE, Types::One(ty.into())),
            BlockType::FuncType(index) => {
                let ty = self.module.func_type(index);
                (Types::Many(ty.params()), Types::Many(ty.results()))
            }
        }
    }

    /// Opens a block: no value below its label stays in a register that code inside may need, or is
    /// an alias of a local that code inside may write.
    pub(crate) fn open(&mut self, kind: Kind, ty: BlockType) {
        let (params, results) = self.block_types(ty);
        self.spill_operands();
        let label = self.asm.new_label();
        let height = self.stack.height() - params.len();
        let region = self.regions.current_index();
        let outer_try = self.try_regions.innermost();
        let in_slot = u32::MAX;
        let joined = self.joined_run();
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
            joined,
        });
    }

    /// Stores the parameters of the block just opened into their slots, including constants: other
    /// paths to the block have them there.
    fn store_params(&mut self) {
        let control = self.control.innermost();
        let (height, params) = (control.height, control.params.len());
        for height in height..height + params {
            let Operand { ty, val } = self.stack.at(height);
            if let Val::Const(bits) = val {
                let slot = self.frame.operand_slot(height);
                self.move_value(ty, Place::Mem(slot), Place::Const(bits));
                self.stack.set(height, Val::Slot);
            }
        }
    }

    pub(crate) fn loop_start(&mut self, ty: BlockType) {
        self.open(Kind::Loop, ty);
        self.store_params();
        let facts = self.control.loops;
        self.control.loops += 1;
        let mut region = self.choose_region(Some(facts));
        self.hold_floats(&mut region, facts);
        // Enters the loop's region.
        self.change_region(region);
        self.load_floats();
        let inner = self.regions.current_index();
        self.control.innermost_mut().region = inner;
        self.leave_transfer_point();
        let is_innermost = self.scan.loops[facts].innermost && !self.region().calls;
        if is_innermost {
            self.load_counters_before_loop();
            self.place_loop();
        }
        let label = self.control.innermost().label;
        self.asm.bind(label);
        match self.sites.wanted.contains(self.instruction.position, SiteKind::Control) {
            true => self.show_transfer_at_site(),
            false => self.show_transfer(),
        }
        self.open_loop(is_innermost);
        self.begin_run(self.instruction.position);
        self.lay_out_site(self.instruction.position, SiteKind::Control);
    }

    /// In an innermost loop without calls, keeps float constants in registers. After an exception,
    /// registers are lost.
    fn hold_floats(&self, region: &mut Region, facts: usize) {
        let facts = &self.scan.loops[facts];
        if facts.innermost && !region.calls && !self.scan.has_try && !self.is_plain() {
            region.hold(&self.scan.floats[facts.first_float as usize..facts.end_float as usize]);
        }
    }

    /// Loads the constants that registers hold in the current region. Preserves the flags.
    pub(crate) fn load_floats(&mut self) {
        for (reg, Float { ty, bits }) in self.region().floats.clone() {
            self.move_value(ty, Place::Reg(reg), Place::Const(bits));
        }
    }

    /// Places an innermost loop, so that its speed does not depend on the code before it.
    fn place_loop(&mut self) {
        let over = (self.asm.offset() + ALIGNMENT - LOOP_START) % ALIGNMENT;
        if over > 0 {
            self.asm.nops(ALIGNMENT - over);
        }
    }

    pub(crate) fn stop(&mut self) {
        self.truncate(self.control.innermost().height);
        self.control.reachable = false;
        if self.registers.newer() != 0 {
            self.forget_copies();
        }
    }

    pub(crate) fn if_start(&mut self, ty: BlockType) {
        // Spilling and loading preserve the flags.
        let top = *self.stack.top();
        self.stack.drop_top();
        self.open(Kind::Block, ty);
        self.store_params();
        self.stack.push(top);
        self.locals_for_branch();
        let otherwise = self.asm.new_label();
        match self.condition() {
            Ok(flag) => self.jump_if(flag.opposite(), otherwise),
            Err(true) => {}
            Err(false) => self.asm.jmp(otherwise),
        }
        let (_, in_slot) = self.cached_state();
        self.control.innermost_mut().kind = Kind::If { otherwise, in_slot };
    }

    pub(crate) fn else_start(&mut self) {
        let control = self.control.innermost().clone();
        let Kind::If { otherwise, in_slot } = control.kind else { unreachable!("validated") };
        if self.control.reachable {
            self.jump_to_end();
        }
        self.bind_target(otherwise);
        self.restart(&control, in_slot);
        self.control.innermost_mut().kind = Kind::Block;
    }

    /// Jumps from the end of one part of a block to the block's end.
    pub(crate) fn jump_to_end(&mut self) {
        self.br(0);
    }

    /// The state at the start of another part of a block: parameters in their slots.
    fn restart(&mut self, control: &Control<'a>, in_slot: u32) {
        self.truncate(control.height);
        self.enter_state(control.region, in_slot);
        for param in 0..control.params.len() {
            self.push(control.params.get(param), Val::Slot);
        }
        self.control.reachable = true;
        self.end_run();
    }

    pub(crate) fn truncate(&mut self, height: u32) {
        while self.stack.height() > height {
            self.pop();
        }
    }

    pub(crate) fn end(&mut self) {
        let control = self.control.innermost().clone();
        match control.kind {
            Kind::Function => return self.end_function(),
            Kind::Loop => return self.end_loop(&control),
            Kind::If { otherwise, in_slot } => {
                // Without an `else`, the parameters are the results.
                if control.params.len() == 0 {
                    if self.control.reachable {
                        self.fall_to_end();
                    }
                    self.control.innermost_mut().in_slot &= in_slot;
                    self.bind_target(otherwise);
                    return self.bind_end();
                }
                if self.control.reachable {
                    self.jump_to_end();
                }
                self.bind_target(otherwise);
                self.restart(&control, in_slot);
            }
            Kind::Try { region } => self.close_try(region, &control),
            Kind::Catch { .. } => self.try_regions.leave_handler(control.outer_try),
            Kind::Block => {}
        }
        // No branch targets this label: the code falls through. A `catch` has an additional operand
        // to be removed.
        let plain = !matches!(control.kind, Kind::Catch { .. });
        if self.control.reachable && plain && !self.control.innermost().branched {
            self.control.pop();
            return;
        }
        if self.control.reachable {
            self.fall_to_end();
        }
        self.bind_end();
    }

    /// The last part of a block falls through to its label.
    fn fall_to_end(&mut self) {
        self.store_copies_for(0);
        let moves = self.edge(0);
        self.apply(moves);
    }

    /// Binds the label of the innermost block.
    pub(crate) fn bind_end(&mut self) {
        let control = self.control.pop();
        self.truncate(control.height);
        let reached = self.control.reachable || control.branched || matches!(control.kind, Kind::If { .. });
        self.bind_target(control.label);
        self.enter_state(control.region, control.in_slot);
        let count = control.results.len();
        for result in 0..count {
            let ty = control.results.get(result);
            let val = if result + 1 == count { Val::Reg(label_register(ty)) } else { Val::Slot };
            self.push(ty, val);
        }
        self.control.reachable = reached;
        self.end_run();
        self.join_run(control.joined);
        if !reached {
            self.stop();
        }
    }

    fn end_loop(&mut self, control: &Control<'a>) {
        self.close_loop();
        self.control.pop();
        let outer = self.control.innermost().region;
        if self.control.reachable {
            for reg in bits(self.regions.at(outer).cached & !self.region().cached) {
                if let Holder::Operand(height) = self.registers.holder(reg) {
                    self.spill_operand(height);
                }
            }
            self.move_locals(outer);
        } else {
            self.truncate(control.height);
        }
        self.forget_constants(control.region);
        let in_slot = self.region_in_slots(outer);
        self.enter_state(outer, in_slot);
    }

    fn end_function(&mut self) {
        self.exit.is_target |= self.control.innermost().branched;
        if self.control.reachable {
            self.fall_to_end();
        }
        self.control.pop();
    }

    /// An operator in unreachable code: only the block structure is tracked.
    pub(crate) fn skip(&mut self, operator: &Operator<'_>) {
        match operator {
            Operator::Block { .. }
            | Operator::Loop { .. }
            | Operator::If { .. }
            | Operator::TryTable { .. }
            | Operator::Try { .. } => {
                if matches!(operator, Operator::Loop { .. }) {
                    self.control.loops += 1;
                }
                self.control.skipped += 1;
            }
            Operator::End | Operator::Delegate { .. } if self.control.skipped > 0 => {
                self.control.skipped -= 1
            }
            _ if self.control.skipped > 0 => {}
            Operator::End => self.end(),
            Operator::Else => self.else_start(),
            Operator::Catch { tag_index } => self.catch(Some(*tag_index)),
            Operator::CatchAll => self.catch(None),
            Operator::Delegate { relative_depth } => self.delegate(*relative_depth),
            _ => {}
        }
    }
}
