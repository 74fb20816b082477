//! From instructions to probes.

use wasm_jit::Module;
use wasm_jit::probes::{
    Bound, Callback, GenericFn, Kind, Location, Place, Probe, ProbeError, ProbeSpec, Values,
};
use wasm_jit::wasmparser::Operator;

use crate::flow::Flow;

/// An instruction, for a filter to choose.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Site<'a> {
    /// The function's index, imports included.
    pub function: u32,
    /// The offset of the instruction from the start of the function's body.
    pub offset: u32,
    /// The instruction.
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

/// Probes that call one closure, whose first value says which of them it is; and some that call
/// others.
#[derive(Debug, Default)]
pub(crate) struct Probes(Vec<ProbeSpec>);

impl Probes {
    /// One at a place, with at most five values after its number.
    pub(crate) fn add(
        &mut self,
        (function, place): (u32, Place),
        callback: &Callback,
        number: usize,
        values: &[Bound],
    ) {
        let mut all = vec![Bound::Const(number as u64)];
        all.extend(values);
        let values = Values::from(&all[..]);
        let kind = Kind::Callback { function: callback.clone(), values };
        self.0.push(ProbeSpec { location: Location { function, place }, kind });
    }

    /// One at a place, which calls a closure of its own with the frame.
    pub(crate) fn add_generic(&mut self, (function, place): (u32, Place), closure: GenericFn) {
        let kind = Kind::Generic(closure);
        self.0.push(ProbeSpec { location: Location { function, place }, kind });
    }

    /// Makes those that can be reached, in the order in which they were added.
    ///
    /// # Errors
    /// Those of making probes.
    pub(crate) fn make(self, module: &Module) -> Result<Vec<Probe>, ProbeError> {
        let made = module.probes(&self.0).into_iter();
        made.filter(|probe| !matches!(probe, Err(ProbeError::Unreachable { .. }))).collect()
    }
}
