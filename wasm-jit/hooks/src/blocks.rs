//! Blocks that control enters, and loops that it repeats.

use wasm_jit::Module;
use wasm_jit::probes::{Callback, ProbeError};
use wasm_jit::wasmparser::Operator;

use crate::attach::{Probes, Site, each_site};
use crate::hook::Hook;

/// What kind of block control enters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BlockKind {
    /// A `block`.
    Block,
    /// A `loop`: when it is entered, and with each branch to it.
    Loop,
    /// An `if`, whether or not its condition holds.
    If,
    /// A `try` or `try_table`.
    Try,
}

/// Control enters a block, or repeats a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Block {
    /// The function's index, imports included.
    pub function: u32,
    /// The offset of the instruction from the start of the function's body.
    pub offset: u32,
    /// What it is.
    pub kind: BlockKind,
}

/// Calls a closure whenever one of the chosen blocks is entered, or a loop repeated.
///
/// # Errors
/// Those of making and activating probes.
pub fn blocks(
    module: &Module,
    filter: impl Fn(&Site<'_>) -> bool,
    hook: impl Fn(&Block) + Send + Sync + 'static,
) -> Result<Hook, ProbeError> {
    let mut found = Vec::new();
    let is_wanted = |site: &Site<'_>| kind(site.operator).is_some() && filter(site);
    each_site(module, is_wanted, |site, _, _| {
        let kind = kind(site.operator).expect("chosen");
        found.push(Block { function: site.function, offset: site.offset, kind });
    });
    let places: Vec<_> = found.iter().map(|block| (block.function, block.offset)).collect();
    let callback = Callback::new(move |values| hook(&found[values[0] as usize]));
    let mut probes = Probes::default();
    for (number, (function, offset)) in places.into_iter().enumerate() {
        probes.add((function, wasm_jit::probes::Place::Instruction { offset }), &callback, number, &[]);
    }
    Hook::new(probes.make(module)?)
}

fn kind(operator: &Operator<'_>) -> Option<BlockKind> {
    match operator {
        Operator::Block { .. } => Some(BlockKind::Block),
        Operator::Loop { .. } => Some(BlockKind::Loop),
        Operator::If { .. } => Some(BlockKind::If),
        Operator::Try { .. } | Operator::TryTable { .. } => Some(BlockKind::Try),
        _ => None,
    }
}
