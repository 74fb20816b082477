//! Decisions of conditional branches.

use std::sync::Arc;

use wasm_jit::probes::{Bound, GenericFn, InstanceId, Place, ProbeError};
use wasm_jit::wasmparser::Operator;
use wasm_jit::{Module, RefType, ValType};

use crate::attach::{Instances, Probes, Site, callback, each_site};
use crate::hook::Hook;

/// The kind of a conditional instruction.
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
    /// `br_on_cast`.
    BrOnCast,
    /// `br_on_cast_fail`.
    BrOnCastFail,
}

/// A decision that is about to take effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Branch {
    /// The function's index, imports included.
    pub function: u32,
    /// The offset of the instruction from the start of the function's body.
    pub offset: u32,
    /// The kind of instruction.
    pub kind: BranchKind,
    /// Whether the condition holds: whether a `br_if` or a `br_on_...` branches, an `if` executes
    /// its first part, a `select` selects its first operand, and a `br_table` has a target at its
    /// index.
    pub taken: bool,
    /// The number of the target that a `br_table` has chosen; the default target is the last one.
    /// For other instructions, 1 if the condition holds, else 0.
    pub choice: u32,
    /// The offset at which control continues, from the start of the function's body: that of the
    /// next instruction, or for the exit, the length of the body.
    pub target: u32,
    /// The instance that executes the branch.
    pub instance: InstanceId,
}

/// The static properties of a branch.
struct Known {
    function: u32,
    offset: u32,
    kind: BranchKind,
    /// The offset at which control continues, by choice.
    targets: Box<[u32]>,
    decides: Decides,
}

/// Calls a closure whenever one of the chosen branches has decided.
///
/// # Errors
/// As [`Module::probes`] and
/// [`Probe::activate`](wasm_jit::probes::Probe::activate).
pub fn branches<'a>(
    of: impl Into<Instances<'a>>,
    filter: impl Fn(&Site<'_>) -> bool,
    hook: impl Fn(&Branch) + Send + Sync + 'static,
) -> Result<Hook, ProbeError> {
    let of = of.into();
    let mut found = Vec::new();
    let is_wanted = |site: &Site<'_>| kind(site.operator).is_some() && filter(site);
    each_site(of.module, is_wanted, |site, flow, index| {
        let kind = kind(site.operator).expect("chosen");
        let successors = &flow.successors[index];
        let targets = match kind {
            BranchKind::BrTable => successors.iter().map(|next| flow.offset(*next)).collect(),
            // The true branch is the first successor.
            BranchKind::Select => [flow.offset(successors[0]); 2].into(),
            _ => [1, 0].map(|choice| flow.offset(successors[choice])).into(),
        };
        let decides = Decides::of(of.module, site.operator);
        found.push(Known { function: site.function, offset: site.offset, kind, targets, decides });
    });
    let found = Arc::new(found);
    let hook = Arc::new(hook);
    let decides = callback({
        let (found, hook) = (found.clone(), hook.clone());
        move |number, instance, values| hook(&found[number].decided(values[0], instance))
    });
    let mut probes = Probes::default();
    for (number, branch) in found.iter().enumerate() {
        let place = (branch.function, Place::Instruction { offset: branch.offset });
        match branch.decides {
            Decides::Operand => probes.add(place, &decides, number, &[Bound::Operand(0)]),
            Decides::Reference => probes.add(place, &decides, number, &[Bound::Reference(0)]),
            Decides::Type(ty) => {
                let (found, hook) = (found.clone(), hook.clone());
                probes.add_generic(
                    place,
                    GenericFn::new(move |frame| {
                        let value = frame.operand(0)?;
                        let is_of_type = frame.is_of_type(&value, &ValType::Ref(ty));
                        hook(&found[number].decided(is_of_type.into(), frame.instance_id()));
                        Ok(())
                    }),
                );
            }
        }
    }
    Hook::new(probes.make(of)?)
}

/// What decides a branch.
#[derive(Clone, Copy, Debug)]
enum Decides {
    /// The top operand, an integer.
    Operand,
    /// Whether the top operand is null.
    Reference,
    /// Whether the top operand is of this type.
    Type(RefType),
}

impl Decides {
    fn of(module: &Module, operator: &Operator<'_>) -> Self {
        match operator {
            Operator::BrOnNull { .. } | Operator::BrOnNonNull { .. } => Self::Reference,
            Operator::BrOnCast { to_ref_type, .. } | Operator::BrOnCastFail { to_ref_type, .. } => {
                Self::Type(module.ref_type(*to_ref_type).expect("a type of the module"))
            }
            _ => Self::Operand,
        }
    }
}

impl Known {
    /// The decision, according to the operand, or to whether it is null or of the type.
    fn decided(&self, value: u64, instance: InstanceId) -> Branch {
        let last = self.targets.len() as u64 - 1;
        let (taken, choice) = match self.kind {
            BranchKind::BrTable => (value < last, value.min(last)),
            BranchKind::BrOnNull | BranchKind::BrOnCastFail => (value == 0, u64::from(value == 0)),
            _ => (value != 0, u64::from(value != 0)),
        };
        let Self { function, offset, kind, .. } = *self;
        let target = self.targets[choice as usize];
        Branch { function, offset, kind, taken, choice: choice as u32, target, instance }
    }
}

fn kind(operator: &Operator<'_>) -> Option<BranchKind> {
    match operator {
        Operator::BrIf { .. } => Some(BranchKind::BrIf),
        Operator::If { .. } => Some(BranchKind::If),
        Operator::BrTable { .. } => Some(BranchKind::BrTable),
        Operator::BrOnNull { .. } => Some(BranchKind::BrOnNull),
        Operator::BrOnNonNull { .. } => Some(BranchKind::BrOnNonNull),
        Operator::BrOnCast { .. } => Some(BranchKind::BrOnCast),
        Operator::BrOnCastFail { .. } => Some(BranchKind::BrOnCastFail),
        Operator::Select | Operator::TypedSelect { .. } => Some(BranchKind::Select),
        _ => None,
    }
}
