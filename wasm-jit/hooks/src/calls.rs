//! Call events, with the called functions.

use std::sync::Arc;

use wasm_jit::probes::{InstanceId, NO_FUNCTION, OTHER_FUNCTION, Place, ProbeError};

use crate::attach::{Instances, Probes, Site, callback, callback_with_callee, each_site};
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

/// The callee of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Callee {
    /// A function that the running instance defines, by its index, imports included.
    Function(u32),
    /// A function that the instance imports, from the host or another instance, by its index.
    Import(u32),
    /// A function of the host or of another instance that the instance does not import.
    Other,
    /// No function: the call traps, since the table has no function at the index, or the reference
    /// is null.
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
    /// Whether the call is direct or indirect.
    pub kind: CallKind,
    /// Whether it is a tail call, which ends the frame.
    pub is_tail: bool,
    /// The called function.
    pub callee: Callee,
    /// Whether the call traps instead: there is no function, or one of another type.
    pub traps: bool,
    /// The instance that makes the call.
    pub instance: InstanceId,
}

/// The static properties of a call.
struct Known {
    function: u32,
    offset: u32,
    is_tail: bool,
    /// `None` for an indirect call.
    callee: Option<u32>,
}

/// Calls a closure whenever one of the chosen calls is about to be made.
///
/// # Errors
/// As [`Module::probes`](wasm_jit::Module::probes) and
/// [`Probe::activate`](wasm_jit::probes::Probe::activate).
pub fn calls<'a>(
    of: impl Into<Instances<'a>>,
    filter: impl Fn(&Site<'_>) -> bool,
    hook: impl Fn(&Call) + Send + Sync + 'static,
) -> Result<Hook, ProbeError> {
    let of = of.into();
    let imported = of.module.functions().filter(|function| function.body().is_none()).count() as u32;
    let callee = move |index: u64| match index {
        NO_FUNCTION => Callee::None,
        OTHER_FUNCTION => Callee::Other,
        _ if index < u64::from(imported) => Callee::Import(index as u32),
        _ => Callee::Function(index as u32),
    };
    let mut found: Vec<Known> = Vec::new();
    let is_wanted = |site: &Site<'_>| CallForm::of(site.operator).is_some() && filter(site);
    each_site(of.module, is_wanted, |site, _, _| {
        let CallForm { callee, is_tail } = CallForm::of(site.operator).expect("chosen");
        found.push(Known { function: site.function, offset: site.offset, is_tail, callee });
    });
    let found = Arc::new(found);
    let hook = Arc::new(hook);
    let direct = callback({
        let (found, hook) = (found.clone(), hook.clone());
        move |number, instance, _| {
            let Known { function, offset, is_tail, callee: index } = found[number];
            let (kind, callee) = (CallKind::Direct, callee(index.map_or(NO_FUNCTION, u64::from)));
            hook(&Call { function, offset, kind, is_tail, callee, traps: false, instance });
        }
    });
    let indirect = callback_with_callee({
        let found = found.clone();
        move |number, instance, called| {
            let Known { function, offset, is_tail, .. } = found[number];
            let (kind, callee, traps) = (CallKind::Indirect, callee(called.index()), !called.is_called());
            hook(&Call { function, offset, kind, is_tail, callee, traps, instance });
        }
    });
    let mut probes = Probes::default();
    for (number, known) in found.iter().enumerate() {
        let called = if known.callee.is_some() { &direct } else { &indirect };
        probes.add((known.function, Place::Instruction { offset: known.offset }), called, number, &[]);
    }
    Hook::new(probes.make(of)?)
}
