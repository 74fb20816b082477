//! Blocks: opening, ending, and skipping unreachable code.
//!
//! Opening a block spills all operands, so that its label finds them in their slots whichever
//! branch reaches it. A loop is also a region (see `cached_locals.rs`): entering and leaving it is
//! an edge like that of a branch.

use wasmparser::{BlockType, Operator, ValType};

use super::abi::Ty;
use super::cached_locals::bits;
use super::edges::label_register;
use super::function::FunctionCompiler;
use super::register_file::Holder;
use super::sites::SiteKind;
use super::state::{Operand, Place, Val};
use crate::asm::Label;

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
    /// The label of the `else` branch, and the set of cache registers whose locals were up to date
    /// in their slots at the condition.
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
    /// The cache registers of that region whose locals are up to date in their slots on every edge
    /// to the label compiled so far.
    pub(super) in_slot: u32,
    /// Whether a branch to it was compiled.
    pub(super) branched: bool,
    /// The region around a `try` before it was opened.
    pub(super) outer_try: Option<u32>,
}

impl<'a> Control<'a> {
    /// The types of the values that a branch to it carries.
    pub(super) fn label_types(&self) -> Types<'a> {
        if self.kind == Kind::Loop { self.params } else { self.results }
    }
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

    /// Index of the block that a label's depth refers to.
    pub(super) fn block(&self, depth: u32) -> usize {
        self.control.len() - 1 - depth as usize
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

    /// Opens a block: no value below its label stays in a register that code inside may need, or is
    /// an alias of a local that code inside may write.
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

    /// Stores the parameters of the block just opened into their slots, including constants: other
    /// paths to the block have them there.
    fn store_params(&mut self) {
        let control = self.control.last().expect("just opened");
        let (height, params) = (control.height, control.params.len());
        for height in height..height + params {
            let Operand { ty, val } = self.stack[height as usize];
            if let Val::Const(bits) = val {
                let slot = self.frame.operand_slot(height);
                self.move_value(ty, Place::Mem(slot), Place::Const(bits));
                self.stack[height as usize].val = Val::Slot;
            }
        }
    }

    pub(super) fn loop_start(&mut self, ty: BlockType) {
        self.open(Kind::Loop, ty);
        self.store_params();
        let facts = self.loops;
        self.loops += 1;
        let region = self.choose_region(Some(facts));
        // Into the loop's region.
        self.change_region(region);
        let inner = self.current_region;
        self.control.last_mut().expect("just opened").region = inner;
        if self.scan.loops[facts].innermost && !self.region().calls {
            self.align_loop();
        }
        let label = self.control.last().expect("just opened").label;
        self.asm.bind(label);
        match self.sites.contains(self.position, SiteKind::Control) {
            true => self.show_transfer_at_site(),
            false => self.show_transfer(),
        }
        self.begin_run(self.position);
        self.lay_out_site(self.position, SiteKind::Control);
    }

    /// Aligns an innermost loop if many of its bytes would otherwise share a fetch with the code
    /// before it.
    fn align_loop(&mut self) {
        let over = self.asm.offset() % super::function::ALIGNMENT;
        if over > 0 {
            self.asm.nops(super::function::ALIGNMENT - over);
        }
    }

    pub(super) fn stop(&mut self) {
        self.truncate(self.control.last().expect("inside the function").height);
        self.reachable = false;
    }

    pub(super) fn if_start(&mut self, ty: BlockType) {
        // Spilling and loading preserve the flags.
        let top = self.stack.pop().expect("validated");
        self.open(Kind::Block, ty);
        self.store_params();
        self.stack.push(top);
        self.load_cached_locals();
        let otherwise = self.asm.new_label();
        match self.condition() {
            Ok(flag) => self.jump_if(flag.opposite(), otherwise),
            Err(true) => {}
            Err(false) => self.asm.jmp(otherwise),
        }
        let in_slot = self.cached_in_slots();
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

    /// Jumps from the end of one part of a block to the block's end.
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
        self.end_run();
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
                // Without an `else`, the parameters are the results.
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
        // No branch targets this label: the code falls through. A `catch` has an additional operand
        // to be removed.
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

    /// The last part of a block falls through to its label.
    fn fall_to_end(&mut self) {
        let moves = self.edge(0);
        self.apply(&moves);
    }

    /// Binds the label of the innermost block.
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
        self.end_run();
        if !reached {
            self.stop();
        }
    }

    fn end_loop(&mut self, control: &Control<'a>) {
        self.control.pop();
        let outer = self.control.last().expect("the function is around").region;
        if self.reachable {
            for reg in bits(self.regions[outer].cached & !self.region().cached) {
                if let Holder::Operand(height) = self.registers.holder(reg) {
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
    }

    fn end_function(&mut self) {
        if self.reachable {
            self.fall_to_end();
        }
        self.control.pop();
    }

    /// An operator in unreachable code: only the block structure is tracked.
    pub(super) fn skip(&mut self, operator: &Operator<'_>) {
        match operator {
            Operator::Block { .. }
            | Operator::Loop { .. }
            | Operator::If { .. }
            | Operator::TryTable { .. }
            | Operator::Try { .. } => {
                if matches!(operator, Operator::Loop { .. }) {
                    self.loops += 1;
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
}
