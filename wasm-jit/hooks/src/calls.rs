//! Calls, with the functions that they call.

use wasm_jit::Module;
use wasm_jit::probes::{Bound, Callback, NO_FUNCTION, OTHER_FUNCTION, Place, ProbeError};

use crate::attach::{Probes, Site, each_site};
use crate::call_form::CallForm;
use crate::hook::Hook;

/// How a function is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CallKind {
    /// `call` and `return_call`.
    Direct,
    /// `call_indirect` and `call_ref`, `return_call_indirect` and `return_call_ref`.
    Indirect,
}

/// A function that is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Callee {
    /// One of the running instance, by its index.
    Function(u32),
    /// One that the instance imports, from the host or another instance, by its index.
    Import(u32),
    /// A function of the host or of another instance, which the instance does not import.
    Other,
    /// None: the call traps, since the table has no function at the index, or the reference is
    /// null.
    None,
}

/// A function is about to be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Call {
    /// The calling function's index, imports included.
    pub function: u32,
    /// The offset of the instruction from the start of the function's body.
    pub offset: u32,
    /// How.
    pub kind: CallKind,
    /// Whether it is a tail call, which ends the frame.
    pub is_tail: bool,
    /// What is called. An indirect call may still trap, because the function has another type.
    pub callee: Callee,
}

/// Calls a closure whenever one of the chosen calls is about to be made.
///
/// # Errors
/// Those of making and activating probes.
pub fn calls(
    module: &Module,
    filter: impl Fn(&Site<'_>) -> bool,
    hook: impl Fn(&Call) + Send + Sync + 'static,
) -> Result<Hook, ProbeError> {
    let imported = module.functions().filter(|function| function.body().is_none()).count() as u32;
    let callee = move |index: u64| match index {
        NO_FUNCTION => Callee::None,
        OTHER_FUNCTION => Callee::Other,
        _ if index < u64::from(imported) => Callee::Import(index as u32),
        _ => Callee::Function(index as u32),
    };
    // An indirect call has the callee when it is executed.
    let mut found: Vec<Call> = Vec::new();
    let is_wanted = |site: &Site<'_>| CallForm::of(site.operator).is_some() && filter(site);
    each_site(module, is_wanted, |site, _, _| {
        let CallForm { callee: direct, is_tail } = CallForm::of(site.operator).expect("chosen");
        found.push(Call {
            function: site.function,
            offset: site.offset,
            kind: if direct.is_some() { CallKind::Direct } else { CallKind::Indirect },
            is_tail,
            callee: direct.map_or(Callee::None, |index| callee(index.into())),
        });
    });
    let places: Vec<_> = found.iter().map(|call| (call.function, call.offset, call.kind)).collect();
    let callback = Callback::new(move |values| {
        let mut call = found[values[0] as usize];
        if let Some(index) = values.get(1) {
            call.callee = callee(*index);
        }
        hook(&call);
    });
    let mut probes = Probes::default();
    for (number, (function, offset, kind)) in places.into_iter().enumerate() {
        let values: &[Bound] = if kind == CallKind::Indirect { &[Bound::Callee] } else { &[] };
        probes.add((function, Place::Instruction { offset }), &callback, number, values);
    }
    Hook::new(probes.make(module)?)
}
