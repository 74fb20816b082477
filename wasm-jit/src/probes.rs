//! Probes: actions that happen when a program is about to execute an instruction.
//!
//! A [`Probe`] is at a [`Location`] of a module, in all its instances or [in one](Scope), and is
//! switched on and off at any time, from any thread, while other threads run the code. It
//! [counts](Kind::Count), calls a [native function](Kind::Native) with values of the frame, or a
//! [closure](Kind::Generic) that sees the whole frame, or does [nothing](Kind::Empty). A place can
//! also be a probe of fastinst ([`Module::probe_id`]).
//!
//! # When a probe fires
//! When control is about to execute its instruction. A `loop` is executed when it is entered, and
//! by each branch to it. An `end` or `else` is executed when control reaches it from the preceding
//! instruction: a branch to the end of a block continues after the `end`. The probes of an
//! instruction that traps have fired; those of the next one have not. The *entry* of a function is
//! a separate place in front of its first instruction; a `loop` there does not repeat it.
//!
//! The probes of one place fire in the order in which they were activated. A probe that is switched
//! off and on again becomes the last one.
//!
//! # What it costs
//! Functions that were never probed contain no places for probes, and cost nothing. The first
//! [`Probe::activate`] in a function moves its calls and its existing frames to a version of its
//! code with sites, which was compiled when its probes were made ([`Module::probes`]). There, a
//! probe that is off is a NOP. One that counts takes a jump, an addition in memory and a jump back;
//! one that calls a function saves and restores the registers that are in use. Switching is one
//! store for each version (at most three), and for probes that call functions, a stub is generated
//! when a list of active probes is used for the first time. Functions return to their original code
//! when the last of their probes is dropped, or is switched off by [`deactivate_all`], unless there
//! was an [accessor](FrameAccessor) of one of their frames.
//!
//! With [`Config::probe_sites`](crate::Config::probe_sites), functions have sites from the start.
//! Counters there, and all probes at entries, need no version, and take effect at once for calls
//! that run. Probes that call functions elsewhere need one as above.
//!
//! A version takes as much memory as the function's code, and for each site 5 to 12 bytes and a
//! stub of 17 to 35 bytes; the engine stores some 100 bytes about each site and each probe. A stub
//! that calls functions takes about 100 to 200 bytes for the first and 20 to 90 for each further
//! one; with closures, 200 to 450 and about 90. A generic probe takes 24 bytes for each local and
//! operand at its place. Such stubs are kept, and limited to 16 MiB and 16 times the module's code
//! ([`ProbeError::StubMemory`]). Each instance has a counter of 8 bytes for each site, and reserves
//! addresses for as many as the module can have (eight bytes for each byte of its functions) from
//! the module's first probe on. All of it is freed with the module's code. Addresses for versions
//! follow that code (three times its size, up to 1 MiB), so that a small module with probes has no
//! more mappings than one without.
//!
//! # Consistency
//! - A thread sees a change of a site within the time that the processor needs to see a store of
//!   another thread in its instructions, some microseconds at most on all that were measured. No
//!   thread is waited for, and none is stopped.
//! - If the change required a new version (see above), an existing frame sees it at the next
//!   iteration of a loop, or when a call returns to it; a call begins in the new version.
//! - A thread that has reached a site completes the list of probes that the site had then. So the
//!   changes that a probe's function makes at its own place begin with the next event.
//! - When [`Probe::deactivate`] returns, another thread may still execute the probe's stub. It may
//!   call the probe's function once more; what it counts does not count for the probe.
//! - Counts are exact once the threads that run the module have seen the last change.
//! - Changes take a lock of the module's probes, and no thread holds a lock while a probe fires.
//!   Probes' functions may make all changes; signal handlers must not.
//!
//! Probes do not change programs: a trap, an interrupt or an exception in a function with probes is
//! the same as without, and a backtrace names the same instructions.
//!
//! In a forked child, probes cannot be switched before [`unshare`](wordpatch::text::unshare).
//!
//! # Example
//! ```
//! use wasm_jit::probes::{Kind, Location, Place, ProbeSpec};
//! use wasm_jit::{Engine, Instance, Module, Store};
//!
//! let engine = Engine::default();
//! let module = Module::new(&engine, "(module (func $fib (export \"fib\") (param i32) (result i32)
//!     (if (result i32) (i32.lt_u (local.get 0) (i32.const 2)) (then (local.get 0))
//!         (else (i32.add (call $fib (i32.sub (local.get 0) (i32.const 1)))
//!             (call $fib (i32.sub (local.get 0) (i32.const 2))))))))")?;
//! let calls = Location { function: 0, place: Place::Entry };
//! let probe = module.probe(ProbeSpec { location: calls, kind: Kind::Count })?;
//! let mut store = Store::new(&engine, ());
//! let fib = Instance::new(&mut store, &module, &[])?.get_typed_func::<i32, i32>(&mut store, "fib")?;
//! probe.activate()?;
//! assert_eq!(fib.call(&mut store, 10)?, 55);
//! assert_eq!(probe.count(), 177);
//! probe.deactivate()?;
//! fib.call(&mut store, 10)?;
//! assert_eq!(probe.count(), 177);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;

use wasm_jit_codegen::{NoValue, Wanted};

use crate::code::probed::ids::NoId;
use crate::code::probed::{MakeError, NoProbe, Request, RequestedKind};
use crate::code::{CodeImage, ObserveError};
use crate::module::Module;

mod accessor;
mod frame;
mod generic;
mod native;

pub use crate::code::probed::counters::InstanceId;
pub use accessor::{AccessError, FrameAccessor};
pub use frame::Frame;
pub use generic::GenericFn;
pub use native::{Bound, NativeFn, NativeFunction, Values};

/// A place in a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location {
    /// The function's index, imports counted.
    pub function: u32,
    /// Where in the function.
    pub place: Place,
}

impl Location {
    /// The place at a position in the module.
    fn at(image: &CodeImage, function: u32, position: u32) -> Self {
        let offset = position - image.function(function).wasm_start;
        let place = if offset == 0 { Place::Entry } else { Place::Instruction { offset } };
        Self { function, place }
    }

    /// The offset from the start of the function's body; 0 for the entry.
    fn offset(self) -> u32 {
        match self.place {
            Place::Entry => 0,
            Place::Instruction { offset } => offset,
        }
    }

    /// The position in the module, if the function's body starts at `start`.
    fn position(self, start: u32) -> u32 {
        match self.place {
            Place::Entry => start,
            // The entry's position is that of no instruction.
            Place::Instruction { offset: 0 } => u32::MAX,
            Place::Instruction { offset } => start.saturating_add(offset),
        }
    }
}

/// A place in a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Place {
    /// The start of its calls, in front of its first instruction.
    Entry,
    /// An instruction.
    Instruction {
        /// Its offset from the start of the function's body, as
        /// [`FrameInfo::func_offset`](crate::FrameInfo::func_offset) gives it.
        offset: u32,
    },
}

/// What a probe does.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Nothing: measures the cost of the mechanism.
    Empty,
    /// Counts how often control comes to its place.
    Count,
    /// Calls a function of the host.
    Native {
        /// The function.
        function: NativeFn,
        /// Its arguments, one for each of its parameters.
        values: Values,
    },
    /// Calls a closure, which sees the frame.
    Generic(GenericFn),
}

/// In which instances of a module a probe fires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Scope {
    /// In all, those included that are created later.
    #[default]
    Module,
    /// In one.
    Instance(InstanceId),
}

/// A probe that is to be made.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProbeSpec {
    /// Where.
    pub location: Location,
    /// What it does.
    pub kind: Kind,
}

/// The reason why there is no probe at a place, or it cannot be switched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// The module has no such function, or imports it.
    #[error("the module has no function {function} of its own")]
    NoFunction {
        /// The index that was given.
        function: u32,
    },
    /// No instruction begins there.
    #[error("no instruction of function {function} begins at offset {offset:#x} of its body")]
    NoInstruction {
        /// The function.
        function: u32,
        /// The offset that was given.
        offset: u32,
    },
    /// Control never comes to the instruction: it has no code.
    #[error("the instruction at offset {offset:#x} of the body of function {function} is unreachable")]
    Unreachable {
        /// The function.
        function: u32,
        /// The offset that was given.
        offset: u32,
    },
    /// With sites, the function exceeds a limit of the compiler, or the compiler has a defect.
    #[error("no version with sites: {reason}")]
    Compile {
        /// The problem.
        reason: String,
    },
    /// A value cannot be passed to the probe's function: it does not exist, or the code does not
    /// keep it.
    #[error("{value:?} has no value at offset {offset:#x} of the body of function {function}: {reason}")]
    Value {
        /// The value that was asked for.
        value: Bound,
        /// The function.
        function: u32,
        /// The offset that was given; 0 for the entry.
        offset: u32,
        /// Why.
        reason: ValueError,
    },
    /// The number of values differs from the number of the function's parameters.
    #[error("the function of the probe has {parameters} parameters, but there are {values} values")]
    Parameters {
        /// Of the function.
        parameters: usize,
        /// Of the probe.
        values: usize,
    },
    /// The stubs of the module's probes have reached the limit of their memory. There are too many
    /// probes that call functions, or too many different orders in which they were activated.
    #[error("the stubs of the module's probes take more than {limit} bytes")]
    StubMemory {
        /// The limit for probes that are switched on. To switch probes off, as much again may be
        /// used.
        limit: usize,
    },
    /// The system refuses addresses for counters.
    #[error("no addresses for counters: {source}")]
    Memory {
        /// Why.
        source: io::Error,
    },
    /// There is no id for the place.
    #[error(transparent)]
    Id(fastinst::Error),
    /// Code cannot be placed, or cannot be patched, as in a forked child.
    #[error(transparent)]
    Patch(#[from] wordpatch::Error),
}

/// Why a value does not exist at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ValueError {
    /// The function has fewer parameters and locals.
    #[error("the function has fewer locals")]
    NoLocal,
    /// The stack has fewer operands.
    #[error("the stack has fewer operands")]
    NoOperand,
    /// The instruction is no load, store or atomic operation.
    #[error("the instruction does not access a memory at an address")]
    NoAccess,
}

impl From<MakeError> for ProbeError {
    fn from(error: MakeError) -> Self {
        match error {
            MakeError::Compile(error) => Self::compile(&error),
            MakeError::Code(error) => Self::Patch(error),
            MakeError::Counters(source) => Self::Memory { source },
            MakeError::StubMemory { limit } => Self::StubMemory { limit },
        }
    }
}

impl ProbeError {
    fn of_place(refused: NoProbe, location: Location) -> Self {
        let (function, offset) = (location.function, location.offset());
        match refused {
            NoProbe::NoInstruction => Self::NoInstruction { function, offset },
            NoProbe::Unreachable => Self::Unreachable { function, offset },
            NoProbe::NoValue(wanted, reason) => {
                let value = match wanted {
                    Wanted::Local(index) => Bound::Local(index),
                    Wanted::Operand(depth) => Bound::Operand(depth),
                };
                let reason = match reason {
                    NoValue::NotThere => ValueError::NoOperand,
                };
                Self::Value { value, function, offset, reason }
            }
        }
    }

    fn compile(error: &ObserveError) -> Self {
        Self::Compile { reason: error.to_string() }
    }
}

/// A probe of a module, off at first. Dropping it removes it.
///
/// It keeps the module's code. All of its functions may be called from any thread, and by functions
/// of probes. They take a lock that all probes of the module share.
pub struct Probe {
    image: Arc<CodeImage>,
    number: usize,
    spec: ProbeSpec,
    scope: Scope,
}

impl Module {
    /// Makes probes, off, and compiles versions of those functions in which they have no place yet.
    /// Returns for each the probe, or the reason why there is none.
    ///
    /// Nothing changes for running programs before a probe is activated. A function gets at most
    /// three versions: two with the sites that were requested so far, then one with sites at all
    /// instructions, which is slower by a NOP for each. Therefore, the probes of a function are
    /// best made in one call.
    pub fn probes(&self, specs: &[ProbeSpec]) -> Vec<Result<Probe, ProbeError>> {
        self.scoped_probes(Scope::Module, specs)
    }

    /// Makes probes of a scope: see [`Module::probes`].
    ///
    /// Code belongs to all instances, so the places of a probe of one instance exist in all of
    /// them; other instances execute its stub without calling its function.
    pub fn scoped_probes(&self, scope: Scope, specs: &[ProbeSpec]) -> Vec<Result<Probe, ProbeError>> {
        let mut by_function: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (number, spec) in specs.iter().enumerate() {
            by_function.entry(spec.location.function).or_default().push(number);
        }
        let mut made: Vec<Option<Result<Probe, ProbeError>>> = Vec::new();
        made.resize_with(specs.len(), || None);
        for (function, numbers) in by_function {
            let chosen: Vec<ProbeSpec> = numbers.iter().map(|number| specs[*number].clone()).collect();
            for (number, probe) in numbers.into_iter().zip(self.probes_in(function, scope, &chosen)) {
                made[number] = Some(probe);
            }
        }
        made.into_iter().map(|probe| probe.expect("each is in a function")).collect()
    }

    /// Makes one probe: see [`Module::probes`].
    ///
    /// # Errors
    /// Those of making probes.
    pub fn probe(&self, spec: ProbeSpec) -> Result<Probe, ProbeError> {
        self.probes_in(spec.location.function, Scope::Module, &[spec]).pop().expect("one for one")
    }

    /// The id of a place as a probe of fastinst, which is announced to the discovery callbacks when
    /// it is new.
    ///
    /// [`fastinst::activate`] makes the place call a function, with the id, the address of the site
    /// and a number that identifies the running instance ([`Bound::Context`]), as one more probe of
    /// the place, in the order of activation; [`fastinst::deactivate`] ends that. If the probe is
    /// already active, only its function changes. Both take the lock of the module's probes, may
    /// allocate, and are not async-signal-safe. The function's contract is that of
    /// [`NativeFn::new`].
    ///
    /// The metadata have the provider `wasm`, the names of the module and the function, and the
    /// function's index, the offset, and the opcode of the instruction, with its prefix, if it has
    /// one, in the upper half. Probes at entries have the kind `ENTRY`, those at instructions
    /// `FIRST_OF_PROVIDERS`. The address of the site is that in the last version of the function so
    /// far.
    ///
    /// Ids end with the module's code: fastinst then returns
    /// [`Retired`](fastinst::Error::Retired). Until then, their functions do not return to their
    /// original code.
    ///
    /// # Errors
    /// Those of making probes; [`ProbeError::Id`] if there are no more ids, or inside a discovery
    /// callback.
    pub fn probe_id(&self, location: Location) -> Result<fastinst::ProbeId, ProbeError> {
        let (image, Location { function, .. }) = (self.code(), location);
        if !image.indices().contains(&function) {
            return Err(ProbeError::NoFunction { function });
        }
        let id = image.probe_id(function, location.position(image.function(function).wasm_start));
        id.map_err(|error| match error {
            NoId::Place(refused) => ProbeError::of_place(refused, location),
            NoId::Make(error) => error.into(),
            NoId::Ids(error) => ProbeError::Id(error),
        })
    }

    fn probes_in(&self, function: u32, scope: Scope, specs: &[ProbeSpec]) -> Vec<Result<Probe, ProbeError>> {
        let image = self.code();
        if !image.indices().contains(&function) {
            return specs.iter().map(|_| Err(ProbeError::NoFunction { function })).collect();
        }
        let start = image.function(function).wasm_start;
        let mut body = native::Body::of(image, function);
        let requests: Vec<Result<Request, ProbeError>> = specs
            .iter()
            .map(|spec| {
                let position = spec.location.position(start);
                let what = match &spec.kind {
                    Kind::Empty => RequestedKind::Nothing,
                    Kind::Count => RequestedKind::Count,
                    Kind::Native { function, values } => {
                        body.call(*function, values, spec.location, position)?
                    }
                    Kind::Generic(function) => function.request(),
                };
                let instance = match scope {
                    Scope::Module => None,
                    Scope::Instance(instance) => Some(instance.number()),
                };
                Ok(Request { position, what, instance })
            })
            .collect();
        let valid: Vec<Request> = requests.iter().flatten().cloned().collect();
        let made = match image.make_probes(function, &valid) {
            Ok(made) => made,
            Err(error) => {
                // The first result has the error, the others its text.
                let reason = error.to_string();
                let again = || ProbeError::Compile { reason: reason.clone() };
                let others = specs.iter().skip(1).map(|_| Err(again())).collect::<Vec<_>>();
                return std::iter::once(Err(error.into())).chain(others).collect();
            }
        };
        let mut made = made.into_iter();
        let handles = requests.into_iter().zip(specs).map(|(request, spec)| {
            request?;
            match made.next().expect("one for each request") {
                Ok(number) => Ok(Probe { image: image.clone(), number, spec: spec.clone(), scope }),
                Err(refused) => Err(ProbeError::of_place(refused, spec.location)),
            }
        });
        handles.collect()
    }
}

impl Probe {
    /// Where it is, and what it does.
    pub fn spec(&self) -> &ProbeSpec {
        &self.spec
    }

    /// In which instances it fires.
    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// Switches it on; does nothing if it is.
    ///
    /// # Errors
    /// [`ProbeError::Patch`], [`ProbeError::StubMemory`]: it stays off.
    pub fn activate(&self) -> Result<(), ProbeError> {
        Ok(self.image.activate_probe(self.number)?)
    }

    /// Switches it off; does nothing if it is. It can be switched on again, and counts on then.
    ///
    /// # Errors
    /// [`ProbeError::Patch`], [`ProbeError::StubMemory`]: it stays on.
    pub fn deactivate(&self) -> Result<(), ProbeError> {
        self.image.deactivate_probe(self.number, false)?;
        Ok(())
    }

    /// The number of times that control reached its place while it was on, in all instances of its
    /// scope, including those that have ended. Other threads may be counting.
    pub fn count(&self) -> u64 {
        self.image.probe_count(self.number)
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.image.remove_probe(self.number);
    }
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Probe").field("spec", &self.spec).finish_non_exhaustive()
    }
}

/// Switches probes on, one after the other.
pub fn activate_all<'a>(probes: impl IntoIterator<Item = &'a Probe>) -> Vec<Result<(), ProbeError>> {
    probes.into_iter().map(Probe::activate).collect()
}

/// Switches probes off, one after the other. Functions without active probes return to their
/// original code: with the next call, and in existing frames when a loop is repeated or a call
/// returns.
pub fn deactivate_all<'a>(probes: impl IntoIterator<Item = &'a Probe>) -> Vec<Result<(), ProbeError>> {
    let deactivate = |probe: &Probe| {
        probe.image.deactivate_probe(probe.number, true)?;
        Ok(())
    };
    probes.into_iter().map(deactivate).collect()
}
