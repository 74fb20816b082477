//! Decisions of conditional branches.

use wasm_jit::Module;
use wasm_jit::probes::{Bound, Callback, Place, ProbeError};
use wasm_jit::wasmparser::Operator;

use crate::attach::{Probes, Site, each_site};
use crate::hook::Hook;

/// What decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BranchKind {
    /// `br_if`.
    BrIf,
    /// `if`.
    If,
    /// `br_table`.
    BrTable,
    /// `select`.
    Select,
    /// `br_on_null`.
    BrOnNull,
    /// `br_on_non_null`.
    BrOnNonNull,
}

/// A decision that is about to take effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Branch {
    /// The function's index, imports included.
    pub function: u32,
    /// The offset of the instruction from the start of the function's body.
    pub offset: u32,
    /// What it is.
    pub kind: BranchKind,
    /// Whether the condition holds: whether a `br_if`, `br_on_null` or `br_on_non_null` branches,
    /// an `if` executes its first part, a `select` selects its first operand, and a `br_table` has
    /// a target at its index.
    pub taken: bool,
    /// Which target a `br_table` has chosen, by its number; the default target is the last one. For
    /// the others, 1 if the condition holds, else 0.
    pub choice: u32,
    /// Where control continues: the offset of the next instruction; for the exit, the length of the
    /// body.
    pub target: u32,
}

/// A branch as it is in the code.
struct Known {
    function: u32,
    offset: u32,
    kind: BranchKind,
    /// By choice: where control continues.
    targets: Box<[u32]>,
}

/// Calls a closure whenever one of the chosen branches has decided.
///
/// # Errors
/// Those of making and activating probes.
pub fn branches(
    module: &Module,
    filter: impl Fn(&Site<'_>) -> bool,
    hook: impl Fn(&Branch) + Send + Sync + 'static,
) -> Result<Hook, ProbeError> {
    let mut found = Vec::new();
    let is_wanted = |site: &Site<'_>| kind(site.operator).is_some() && filter(site);
    each_site(module, is_wanted, |site, flow, index| {
        let kind = kind(site.operator).expect("chosen");
        let successors = &flow.successors[index];
        let targets = match kind {
            BranchKind::BrTable => successors.iter().map(|next| flow.offset(*next)).collect(),
            // The true branch is the first successor.
            BranchKind::BrIf | BranchKind::If | BranchKind::BrOnNull | BranchKind::BrOnNonNull => {
                [1, 0].map(|choice| flow.offset(successors[choice])).into()
            }
            BranchKind::Select => [flow.offset(successors[0]); 2].into(),
        };
        found.push(Known { function: site.function, offset: site.offset, kind, targets });
    });
    let places: Vec<_> =
        found.iter().map(|branch| (branch.function, branch.offset, branch.kind.operand())).collect();
    let callback = Callback::new(move |values| {
        let Known { function, offset, kind, targets } = &found[values[0] as usize];
        let (function, offset, kind) = (*function, *offset, *kind);
        let value = values[1];
        let last = targets.len() as u64 - 1;
        let (taken, choice) = match kind {
            BranchKind::BrTable => (value < last, value.min(last)),
            BranchKind::BrOnNull => (value == 0, u64::from(value == 0)),
            BranchKind::BrIf | BranchKind::If | BranchKind::Select | BranchKind::BrOnNonNull => {
                (value != 0, u64::from(value != 0))
            }
        };
        let target = targets[choice as usize];
        hook(&Branch { function, offset, kind, taken, choice: choice as u32, target });
    });
    let mut probes = Probes::default();
    for (number, (function, offset, value)) in places.into_iter().enumerate() {
        probes.add((function, Place::Instruction { offset }), &callback, number, &[value]);
    }
    Hook::new(probes.make(module)?)
}

impl BranchKind {
    /// The operand that decides.
    fn operand(self) -> Bound {
        match self {
            Self::BrOnNull | Self::BrOnNonNull => Bound::Reference(0),
            Self::BrIf | Self::If | Self::BrTable | Self::Select => Bound::Operand(0),
        }
    }
}

fn kind(operator: &Operator<'_>) -> Option<BranchKind> {
    match operator {
        Operator::BrIf { .. } => Some(BranchKind::BrIf),
        Operator::If { .. } => Some(BranchKind::If),
        Operator::BrTable { .. } => Some(BranchKind::BrTable),
        Operator::BrOnNull { .. } => Some(BranchKind::BrOnNull),
        Operator::BrOnNonNull { .. } => Some(BranchKind::BrOnNonNull),
        Operator::Select | Operator::TypedSelect { .. } => Some(BranchKind::Select),
        _ => None,
    }
}
