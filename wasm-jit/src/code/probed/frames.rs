//! Frames that probes access: the values of waiting frames, and versions whose frames can have
//! accessors.
//!
//! The locations of a calling function's values are found by compiling it again, once for all calls
//! in one of its versions. At a site, they were found when the probe was made.
//!
//! # Accessors
//! An accessor must end with its frame, so the frame must be in a version that ends accessors
//! (`wasm_jit_codegen::Sites::end_accessors`): if it waits for a call in another one, its return
//! address is changed ([`CodeImage::return_with_accessor`]). The function keeps such a version as
//! long as closures of the image that requested the accessor may use it
//! ([`accessor_users`](super::accessor_users)). Frames then return to the original at their next
//! transfer points, where their accessors end ([`Transfer::ends_accessor`](super::Transfer)).
//!
//! With a shadow stack, return addresses cannot be changed. A frame may then wait in the original
//! while it has an accessor, and the function must keep its version for ever.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use wasm_jit_codegen::{Callee, Located, Observer, Position, State};

use super::accessor_users::{AccessorUsers, FOR_EVER};
use super::request::{Request, RequestedKind};
use super::stack_types::StackTypes;
use super::{MakeError, PLAIN, Plain};
use crate::code::{CodeImage, ObserveError, forks};
use crate::types::RefType;

/// The locations that were found so far.
#[derive(Debug, Default)]
pub(super) struct KnownLocations {
    /// By return address: the position of the call, and the values.
    calls: Mutex<HashMap<usize, (u32, Arc<Located>)>>,
    /// By return address: where frames that become plain continue.
    pub(super) plain: Mutex<HashMap<usize, Plain>>,
    /// By function: the types of references on the operand stack.
    stack_types: Mutex<HashMap<u32, Arc<StackTypes>>>,
}

/// The locations of values while a function waits for each of its calls.
#[derive(Debug, Default)]
struct Calls {
    /// The instruction whose code is compiled.
    position: u32,
    /// In ascending order.
    calls: Vec<(u32, Arc<Located>)>,
    /// The code offsets to which calls return, each with the number of the call.
    returns: Vec<(u32, usize)>,
}

impl Observer for Calls {
    fn instruction(&mut self, position: Position, _: &State<'_>) {
        self.position = position.wasm;
    }

    fn more_code(&mut self, position: Position) {
        self.position = position.wasm;
    }

    /// NOPs are inserted after the point to which a call returns.
    fn moved(&mut self, _: u32, _: u32) {}

    fn call(&mut self, wasm: u32, state: &State<'_>) {
        let last = self.calls.last().map(|(_, located)| &**located);
        self.calls.push((wasm, Arc::new(state.located(last))));
    }

    /// Calls return to transfer points.
    fn transfer(&mut self, code: u32) {
        if let Ok(call) = self.calls.binary_search_by_key(&self.position, |(wasm, _)| *wasm) {
            self.returns.push((code, call));
        }
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
        let (entry, again) = match self.version_at(return_address - 1) {
            Some((_, version)) => {
                let (_, again) = self.compile_again(function, version.instrumentation(), &mut calls)?;
                (version.at(version.entry), again)
            }
            None => {
                let again = self.observe(function, &mut calls)?;
                (self.at(self.function(function).entry).addr(), again)
            }
        };
        let Calls { calls, returns, .. } = calls;
        let mut found = found();
        let of_call =
            |(code, call): (u32, usize)| (entry + (code - again.entry) as usize, calls[call].clone());
        found.extend(returns.into_iter().map(of_call));
        found.get(&return_address).cloned().ok_or(ObserveError::Differs { function })
    }

    /// The type of a reference among the operands before an instruction, or below the arguments of
    /// a call, counted from the bottom of the stack.
    pub(crate) fn operand_type(&self, function: u32, position: u32, height: usize) -> Option<RefType> {
        let found = || forks::lock(&self.probed().found.stack_types);
        let known = found().get(&function).cloned();
        let types = known.unwrap_or_else(|| {
            let types = Arc::new(self.stack_types(function));
            found().entry(function).or_insert(types).clone()
        });
        types.get(position, height)
    }

    /// Makes sure that frames of a function can have accessors: gives it a version whose frames end
    /// their accessors, and which it keeps as long as there are these users. With `always`, it
    /// keeps such a version for ever.
    ///
    /// # Errors
    /// There is no such version.
    pub(crate) fn keep_for_accessors(
        self: &Arc<Self>,
        index: u32,
        users: &AccessorUsers,
        always: bool,
    ) -> Result<(), MakeError> {
        let function = || self.probed().function(self, index);
        let period = if always { FOR_EVER } else { users.period() };
        if period != 0
            && function().is_some_and(|function| function.kept_for.load(Ordering::Acquire) == period)
        {
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
            made.into_iter().flatten().for_each(|number| self.remove_probe(number));
        };
        let function = function().expect("it has a version");
        let last = function.made() - 1;
        debug_assert!((1..PLAIN).contains(&last));
        changes.change_version(index, function, last)?;
        let kept_for = &mut changes.state(index).kept_for;
        if always {
            kept_for.insert(FOR_EVER);
            function.kept_for.store(FOR_EVER, Ordering::Release);
            return Ok(());
        }
        let period = users.keep(self, index, |period| kept_for.insert(period));
        function.kept_for.store(period, Ordering::Release);
        // Without users, the frame leaves the version again.
        changes.return_if_unused(self, index);
        Ok(())
    }

    /// Lets a function return to its original, unless it keeps its version for another period.
    ///
    /// A frame that has an accessor is in a version whose frames end them. It leaves this version
    /// at a trap, or to handle an exception: there, its accessor ends.
    pub(super) fn end_period(self: &Arc<Self>, index: u32, period: u64) {
        let changes = &mut *self.changes();
        let function = self.probed().function(self, index).expect("it has versions");
        // Stored with the lock of changes only.
        if function.kept_for.load(Ordering::Relaxed) == period {
            function.kept_for.store(0, Ordering::Release);
        }
        changes.state(index).kept_for.remove(&period);
        changes.return_if_unused(self, index);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use crate::probes::{GenericFn, Kind, Location, Place, ProbeSpec};
    use crate::{Engine, Instance, Module, Store, Val};

    /// When the values of a waiting frame are read, those at the other calls of its version are
    /// found, too, and so are the types of references before all instructions of its function.
    #[test]
    fn calls_and_types_are_found_once_for_a_function() {
        let text = "(module (func $leaf)
            (func (export \"run\") (param externref)
                (local.get 0) (ref.null func) (call $leaf) (call $leaf) (drop) (call $leaf) (drop)))";
        let module = Module::new(&Engine::default(), text).unwrap();
        let seen: Arc<Mutex<Vec<(Val, usize, usize)>>> = Arc::default();
        let (of_closure, its_module) = (seen.clone(), module.clone());
        let kind = Kind::Generic(GenericFn::new(move |frame| {
            let caller = frame.caller()?.expect("there is one");
            let operand = caller.operand(frame, 0)?;
            let found = &its_module.code().probed().found;
            let known = (found.calls.lock().unwrap().len(), found.stack_types.lock().unwrap().len());
            of_closure.lock().unwrap().push((operand, known.0, known.1));
            Ok(())
        }));
        let location = Location { function: 0, place: Place::Entry };
        let probe = module.probe(ProbeSpec { location, kind }).unwrap();
        probe.activate().unwrap();
        let mut store = Store::new(module.engine(), ());
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        let run = instance.get_func(&mut store, "run").unwrap();
        run.call(&mut store, &[Val::ExternRef(None)], &mut []).unwrap();
        use Val::{ExternRef, FuncRef};
        let seen = seen.lock().unwrap();
        assert!(
            matches!(seen[..], [(FuncRef(None), 3, 1), (FuncRef(None), 3, 1), (ExternRef(None), 3, 1)]),
            "{seen:?}"
        );
    }
}
