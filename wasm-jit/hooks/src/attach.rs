//! Choosing instructions, and making probes for them.

use wasm_jit::Module;
use wasm_jit::probes::{
    Bound, Callback, Called, GenericFn, InstanceId, Kind, Location, Place, Probe, ProbeError, ProbeSpec,
    Scope, Values,
};
use wasm_jit::wasmparser::Operator;

use crate::flow::Flow;

/// The instances whose events are reported: either all instances of a module, converted from
/// `&Module`, or some of them, converted from `(&Module, Scope)`.
///
/// An instance must exist when it is chosen ([`ProbeError::NoInstance`]).
#[derive(Clone, Copy, Debug)]
pub struct Instances<'a> {
    /// The module whose instances are observed.
    pub module: &'a Module,
    /// Which of the module's instances are observed.
    pub scope: Scope,
}

impl<'a> From<&'a Module> for Instances<'a> {
    fn from(module: &'a Module) -> Self {
        Self { module, scope: Scope::Module }
    }
}

impl<'a> From<(&'a Module, Scope)> for Instances<'a> {
    fn from((module, scope): (&'a Module, Scope)) -> Self {
        Self { module, scope }
    }
}

/// An instruction, for a filter to choose.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Site<'a> {
    /// The function's index, imports included.
    pub function: u32,
    /// The offset of the instruction from the start of the function's body.
    pub offset: u32,
    /// The decoded instruction.
    pub operator: &'a Operator<'a>,
}

/// The functions of a module that have a body, with their instructions.
pub(crate) fn bodies(module: &Module) -> impl Iterator<Item = (u32, Flow<'_>)> + '_ {
    module.functions().filter_map(|function| Some((function.index(), Flow::of(function.body()?))))
}

/// Visits the instructions that a filter chooses.
pub(crate) fn each_site(
    module: &Module,
    filter: impl Fn(&Site<'_>) -> bool,
    mut visit: impl FnMut(&Site<'_>, &Flow<'_>, usize),
) {
    for (function, flow) in bodies(module) {
        for (index, (offset, operator)) in flow.instructions.iter().enumerate() {
            let site = Site { function, offset: *offset, operator };
            if filter(&site) {
                visit(&site, &flow, index);
            }
        }
    }
}

/// A closure for [`Probes`]: it gets the number of the probe, the running instance, and the probe's
/// values.
pub(crate) fn callback(closure: impl Fn(usize, InstanceId, &[u64]) + Send + Sync + 'static) -> Callback {
    Callback::new(move |values| {
        let [number, instance, values @ ..] = values else { return };
        closure(*number as usize, InstanceId::of_value(*instance), values);
    })
}

/// As [`callback`], for indirect calls: the closure gets the callee instead of values.
pub(crate) fn callback_with_callee(
    closure: impl Fn(usize, InstanceId, &Called<'_>) + Send + Sync + 'static,
) -> Callback {
    Callback::with_callee(move |values, called| {
        let [number, instance] = *values else { return };
        closure(number as usize, InstanceId::of_value(instance), called);
    })
}

/// Probes that call closures with their numbers and the running instance, and some that call other
/// closures.
#[derive(Debug, Default)]
pub(crate) struct Probes(Vec<ProbeSpec>);

impl Probes {
    /// Adds a probe at a place, which calls a closure made by [`callback`].
    pub(crate) fn add(
        &mut self,
        (function, place): (u32, Place),
        function_of_all: &Callback,
        number: usize,
        values: &[Bound],
    ) {
        let all = [&[Bound::Const(number as u64), Bound::Instance], values].concat();
        let values = Values::from(&all[..]);
        let kind = Kind::Callback { function: function_of_all.clone(), values };
        self.0.push(ProbeSpec { location: Location { function, place }, kind });
    }

    /// Adds a probe at a place, which calls its own closure with the frame.
    pub(crate) fn add_generic(&mut self, (function, place): (u32, Place), closure: GenericFn) {
        let kind = Kind::Generic(closure);
        self.0.push(ProbeSpec { location: Location { function, place }, kind });
    }

    /// Makes the probes of reachable places, in the order in which they were added.
    ///
    /// # Errors
    /// As [`Module::probes`].
    pub(crate) fn make(self, Instances { module, scope }: Instances<'_>) -> Result<Vec<Probe>, ProbeError> {
        let made = module.scoped_probes(scope, &self.0).into_iter();
        made.filter(|probe| !matches!(probe, Err(ProbeError::Unreachable { .. }))).collect()
    }
}
