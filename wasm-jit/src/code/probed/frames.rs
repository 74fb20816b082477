//! Frames that probes access: the values of waiting frames, and versions whose frames can have
//! accessors.
//!
//! The locations of a calling function's values are found by compiling it again, once for each
//! requested return address. At a site, they were found when the probe was made.
//!
//! # Accessors
//! An accessor must end with its frame, so the frame must be in a version that ends accessors
//! (`wasm_jit_codegen::Sites::end_accessors`): if it waits for a call in another one, its return
//! address is changed ([`CodeImage::return_with_accessor`]). The function keeps such a version
//! until the image has no probes. Frames then return to the original at their next transfer points,
//! where their accessors end ([`Transfer::ends_accessor`](super::Transfer)).
//!
//! With a shadow stack, return addresses cannot be changed. A frame may then wait in the original
//! while it has an accessor, and the function must keep its version for ever.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use wasm_jit_codegen::{Callee, Located, Observer, Position, Positions, State};
use wasmparser::{self as wp, Parser, ValidPayload, Validator};

use super::request::{Request, RequestedKind};
use super::{Changes, MakeError, PLAIN, Plain};
use crate::code::{CodeImage, FEATURES, ObserveError, forks};
use crate::types::RefType;

/// The locations that were found so far.
#[derive(Debug, Default)]
pub(super) struct KnownLocations {
    /// By return address: the position of the call, and the values.
    calls: Mutex<HashMap<usize, (u32, Arc<Located>)>>,
    /// By return address: where frames that become plain continue.
    pub(super) plain: Mutex<HashMap<usize, Plain>>,
    /// By position: the types of operands, the bottom one first; only those of references.
    operands: Mutex<HashMap<u32, Arc<[Option<RefType>]>>>,
}

/// The locations of values while a function waits for each of its calls.
#[derive(Debug, Default)]
struct Calls {
    positions: Positions,
    calls: Vec<(u32, Located)>,
}

impl Observer for Calls {
    fn instruction(&mut self, position: Position, state: &State<'_>) {
        self.positions.instruction(position, state);
    }

    fn moved(&mut self, from: u32, to: u32) {
        self.positions.moved(from, to);
    }

    fn more_code(&mut self, position: Position) {
        self.positions.more_code(position);
    }

    fn call(&mut self, wasm: u32, state: &State<'_>) {
        self.calls.push((wasm, state.located(self.calls.last().map(|(_, located)| located))));
    }
}

impl CodeImage {
    /// The position of the site in whose stub a frame waits, and its values there.
    ///
    /// # Errors
    /// There is no such site, which is a defect.
    pub(crate) fn site_values(
        &self,
        function: u32,
        return_address: usize,
    ) -> Result<(u32, Arc<Located>), ObserveError> {
        let differs = || ObserveError::Differs { function };
        let (block, version) = self.sited_at(return_address - 1).ok_or_else(differs)?;
        let position = block.stub.ok_or_else(differs)?;
        let changes = self.state();
        let site = changes.functions.site(function, position).ok_or_else(differs)?;
        let located = match version.is_plain() {
            true => site.more().and_then(|more| more.plain.clone()),
            false => site.values_in_stub(version.number, block.start),
        };
        Ok((position, located.ok_or_else(differs)?))
    }

    /// The position of the call for which a frame waits, and the frame's values during the call.
    ///
    /// # Errors
    /// As [`CodeImage::observe`].
    pub(crate) fn call_values(
        &self,
        function: u32,
        return_address: usize,
    ) -> Result<(u32, Arc<Located>), ObserveError> {
        let found = || forks::lock(&self.probed().found.calls);
        if let Some(call) = found().get(&return_address) {
            return Ok(call.clone());
        }
        let mut calls = Calls::default();
        // The call precedes its return address.
        let pc = return_address - 1;
        let (entry, again) = match self.version_at(pc) {
            Some((_, version)) => {
                let (_, again) = self.compile_again(function, version.instrumentation(), &mut calls)?;
                (version.at(version.entry), again)
            }
            None => {
                let again = self.observe(function, &mut calls)?;
                (self.at(self.function(function).entry).addr(), again)
            }
        };
        let positions = calls.positions.in_function(&again);
        let after = positions.partition_point(|position| position.code <= (pc - entry) as u32);
        let position = after.checked_sub(1).map(|at| positions[at].wasm);
        let call = position.and_then(|position| calls.calls.into_iter().find(|(at, _)| *at == position));
        let (position, located) = call.ok_or(ObserveError::Differs { function })?;
        let call = (position, Arc::new(located));
        found().insert(return_address, call.clone());
        Ok(call)
    }

    /// The type of a reference among the operands before an instruction, or below the arguments of
    /// a call, counted from the bottom of the stack.
    pub(crate) fn operand_type(&self, function: u32, position: u32, height: usize) -> Option<RefType> {
        let mut found = forks::lock(&self.probed().found.operands);
        let types = found.entry(position).or_insert_with(|| self.operand_types(function, position).into());
        types.get(height).copied().flatten()
    }

    /// The types of references among the operands before an instruction, the bottom one first.
    fn operand_types(&self, function: u32, position: u32) -> Vec<Option<RefType>> {
        let mut validator = Validator::new_with_features(FEATURES);
        for payload in Parser::new(0).parse_all(&self.bytes) {
            let Ok(payload) = payload else { break };
            let Ok(ValidPayload::Func(of, body)) = validator.payload(&payload) else { continue };
            if of.index != function {
                continue;
            }
            let mut operators = of.into_validator(Default::default());
            for (count, ty) in body.get_locals_reader().into_iter().flatten().flatten() {
                let _ = operators.define_locals(body.range().start, count, ty);
            }
            let reader = body.get_operators_reader().into_iter();
            for (operator, at) in reader.flat_map(|reader| reader.into_iter_with_offsets()).flatten() {
                if at >= u64::from(position) || operators.op(at, &operator).is_err() {
                    break;
                }
            }
            let height = operators.operand_stack_height() as usize;
            let operands = (0..height).rev().map(|depth| operators.get_operand_type(depth));
            return operands.map(|ty| self.reference_type(&validator, ty??)).collect();
        }
        Vec::new()
    }

    /// The type, if it is a reference type. The validator, which has read the declarations, has its
    /// own numbers for types.
    fn reference_type(&self, validator: &Validator, ty: wp::ValType) -> Option<RefType> {
        let wp::ValType::Ref(ty) = ty else { return None };
        let ids = &self.module.type_ids;
        match ty.heap_type() {
            wp::HeapType::Concrete(wp::UnpackedIndex::Id(id)) => {
                let types = validator.types(0)?;
                let is_it = |index: &u32| types.core_type_at_in_module(*index) == id;
                let index = (0..ids.len() as u32).find(is_it)?;
                let index = wp::UnpackedIndex::Module(index);
                let ty = wp::RefType::new(ty.is_nullable(), wp::HeapType::Concrete(index))?;
                RefType::from_wasm(ty, &self.module)
            }
            _ => RefType::from_wasm(ty, &self.module),
        }
    }

    /// Makes sure that frames of a function can have accessors: gives it a version whose frames end
    /// their accessors, and which it keeps until the image has no probes. With `always`, it keeps
    /// such a version for ever.
    ///
    /// # Errors
    /// There is no such version.
    pub(crate) fn keep_for_accessors(self: &Arc<Self>, index: u32, always: bool) -> Result<(), MakeError> {
        let function = || self.probed().function(self, index);
        if !always && function().is_some_and(|function| function.has_accessors.load(Ordering::Acquire)) {
            return Ok(());
        }
        // Global probes that wait for the function's entry make their probes first.
        self.before_probing(index);
        let ends = || {
            let versions = function().into_iter().flat_map(|function| &function.versions[..PLAIN]);
            versions.filter_map(|version| version.get()).last().is_some_and(|last| last.ends_accessors())
        };
        let mut changes = loop {
            let changes = self.changes();
            if ends() {
                break changes;
            }
            drop(changes);
            let position = self.body_range(index).start;
            let what = RequestedKind::Call { callee: Callee::Native(0), arguments: Vec::new() };
            let request = Request { position, what, only: None };
            // Never switched on; it only causes a version to be made.
            let made = self.make_probes_where(index, &[request], true)?;
            made.into_iter().flatten().for_each(|number| self.remove(&mut self.changes(), number));
        };
        let function = function().expect("it has a version");
        let last = function.made() - 1;
        debug_assert!((1..PLAIN).contains(&last));
        changes.change_version(index, function, last)?;
        changes.state(index).keeps_version = true;
        if always {
            changes.keeping.retain(|kept| *kept != index);
        } else if !function.has_accessors.swap(true, Ordering::Release) {
            changes.keeping.push(index);
        }
        Ok(())
    }
}

impl Changes {
    /// Lets the functions return to their originals that kept versions for accessors.
    ///
    /// A frame that has an accessor is in a version whose frames end them. It leaves this version
    /// at a trap, or to handle an exception: there, its accessor ends.
    pub(super) fn keep_no_versions(&mut self, image: &CodeImage) {
        for index in std::mem::take(&mut self.keeping) {
            let function = image.probed().function(image, index).expect("it has versions");
            function.has_accessors.store(false, Ordering::Release);
            self.state(index).keeps_version = false;
            // In a forked child, it keeps its version.
            let _ = self.change_version(index, function, 0);
        }
    }
}
