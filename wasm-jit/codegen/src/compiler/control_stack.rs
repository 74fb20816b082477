//! The stack of open blocks, and whether the code at this point can be reached.
//!
//! In code that cannot be reached, only the structure of blocks is tracked: blocks opened there are
//! counted (`skipped`), not pushed. Every block on the stack therefore has a label that code was
//! compiled for.

use wasmparser::ValType;

use super::abi::Ty;
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
    /// The number of operands below the block's parameters.
    pub(super) height: u32,
    pub(super) params: Types<'a>,
    pub(super) results: Types<'a>,
    /// The region of the label.
    pub(super) region: usize,
    /// The cache registers of that region whose locals are up to date in their slots on every edge
    /// to the label compiled so far.
    pub(super) in_slot: u32,
    /// Whether a branch to the label was compiled.
    pub(super) branched: bool,
    /// The region around a `try` before it was opened.
    pub(super) outer_try: Option<u32>,
    /// For a block that joins, in a counting version: the run with whose executions the code after
    /// it is counted.
    pub(super) joined: Option<u32>,
}

impl<'a> Control<'a> {
    /// The types of the values that a branch to the label carries.
    pub(super) fn label_types(&self) -> Types<'a> {
        if self.kind == Kind::Loop { self.params } else { self.results }
    }
}

/// The open blocks, the function's own first.
#[derive(Debug)]
pub(super) struct ControlStack<'a> {
    blocks: Vec<Control<'a>>,
    pub(super) reachable: bool,
    /// Blocks that were opened and not closed in skipped code.
    pub(super) skipped: u32,
    /// The number of loops in the code so far: the index of the next one in the scan.
    pub(super) loops: usize,
}

impl<'a> ControlStack<'a> {
    pub(super) fn new() -> Self {
        Self { blocks: Vec::with_capacity(16), reachable: true, skipped: 0, loops: 0 }
    }

    pub(super) fn push(&mut self, block: Control<'a>) {
        self.blocks.push(block);
    }

    pub(super) fn pop(&mut self) -> Control<'a> {
        self.blocks.pop().expect("validated")
    }

    pub(super) fn innermost(&self) -> &Control<'a> {
        self.blocks.last().expect("validated")
    }

    pub(super) fn innermost_mut(&mut self) -> &mut Control<'a> {
        self.blocks.last_mut().expect("validated")
    }

    /// The block that a label's depth refers to.
    pub(super) fn at(&self, depth: u32) -> &Control<'a> {
        &self.blocks[self.blocks.len() - 1 - depth as usize]
    }

    pub(super) fn at_mut(&mut self, depth: u32) -> &mut Control<'a> {
        let index = self.blocks.len() - 1 - depth as usize;
        &mut self.blocks[index]
    }

    /// The depth of the function's own block.
    pub(super) fn outermost(&self) -> u32 {
        self.blocks.len() as u32 - 1
    }

    /// All blocks, the function's own first.
    pub(super) fn blocks(&self) -> &[Control<'a>] {
        &self.blocks
    }
}
