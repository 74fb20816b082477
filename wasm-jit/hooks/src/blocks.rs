//! Entries of blocks, and iterations of loops.

use wasm_jit::probes::{InstanceId, Place, ProbeError};
use wasm_jit::wasmparser::Operator;

use crate::attach::{Instances, Probes, Site, callback, each_site};
use crate::hook::Hook;

/// The kind of a block that is entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BlockKind {
    /// A `block`.
    Block,
    /// A `loop`, both when it is entered and at each branch to it.
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
    /// The kind of block.
    pub kind: BlockKind,
    /// The instance that executes the block.
    pub instance: InstanceId,
}

/// Calls a closure whenever one of the chosen blocks is entered, or a loop repeated.
///
/// # Errors
/// As [`Module::probes`](wasm_jit::Module::probes) and
/// [`Probe::activate`](wasm_jit::probes::Probe::activate).
pub fn blocks<'a>(
    of: impl Into<Instances<'a>>,
    filter: impl Fn(&Site<'_>) -> bool,
    hook: impl Fn(&Block) + Send + Sync + 'static,
) -> Result<Hook, ProbeError> {
    let of = of.into();
    let mut found = Vec::new();
    let is_wanted = |site: &Site<'_>| kind(site.operator).is_some() && filter(site);
    each_site(of.module, is_wanted, |site, _, _| {
        let kind = kind(site.operator).expect("chosen");
        found.push((site.function, site.offset, kind));
    });
    let places: Vec<_> = found.iter().map(|(function, offset, _)| (*function, *offset)).collect();
    let entered = callback(move |number, instance, _| {
        let (function, offset, kind) = found[number];
        hook(&Block { function, offset, kind, instance });
    });
    let mut probes = Probes::default();
    for (number, (function, offset)) in places.into_iter().enumerate() {
        probes.add((function, Place::Instruction { offset }), &entered, number, &[]);
    }
    Hook::new(probes.make(of)?)
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
