//! Probes: actions that happen when a program is about to execute an instruction.
//!
//! A [`Probe`] acts at a [`Location`] of a module, in all or [some](Scope) of its instances. It can
//! be switched on and off at any time, from any thread, while other threads run the code.
//!
//! | kind | action |
//! | --- | --- |
//! | [`Kind::Empty`] | none |
//! | [`Kind::Count`] | counts executions |
//! | [`Kind::CountBranch`] | counts how often a branch goes each way |
//! | [`Kind::Record`] | appends a record of values of the frame to a buffer |
//! | [`Kind::Callback`] | calls a closure with values of the frame |
//! | [`Kind::Native`] | calls a native function with values of the frame |
//! | [`Kind::Shortcut`] | the same, but only in the cases that a few steps do not handle |
//! | [`Kind::Wasm`] | calls a WebAssembly function with values of the frame |
//! | [`Kind::Generic`] | calls a closure that sees the complete frame |
//!
//! A place can also be a probe of fastinst ([`Module::probe_id`]).
//!
//! # When a probe fires
//! A probe fires when control is about to execute its instruction. A `loop` is executed when it is
//! entered, and by each branch to it. An `end` or `else` is executed when control reaches it from
//! the preceding instruction: a branch to the end of a block continues after the `end`. The probes
//! of an instruction that traps have fired; those of the next one have not. The *entry* of a
//! function is a separate place before its first instruction; a `loop` there does not repeat it.
//! The [*exit*](Place::Exit) is another one, where the results are in their final locations: a
//! generic probe has them as operands. Frames that are left by a trap, an exception or an interrupt
//! do not reach the exit: they are reported by [`Module::watch_unwound`]. [`Module::watch_traps`]
//! reports a trap with a frame that can be read, before any frame is left.
//!
//! [Global probes](GlobalProbe) are on every instruction of a module or an engine. In functions
//! that may never run, probes can be made [when they are first called](Module::watch_first_calls).
//! The crate `wasm-jit-hooks` has closures for events of programs, such as memory accesses, with
//! typed values.
//!
//! The probes of one place fire in the order of their activation. A probe that is switched off and
//! on again becomes the last one.
//!
//! # Cost
//! Functions that were never probed contain no places for probes, and cost nothing. The first
//! [`Probe::activate`] in a function moves its calls and its existing frames to a version of its
//! code with sites, which was compiled when its probes were made ([`Module::probes`]). There, a
//! probe that is off is a NOP. A probe that counts takes a jump, an addition in memory and a jump
//! back. A probe that appends a record takes about ten instructions, without a call; one with a
//! [short WebAssembly function](WasmFn), about ten and those of the function. A probe that calls a
//! function saves and restores the registers that are in use. Switching is one store for each
//! version (the original, at most six others, and two plain ones). For probes that record or call
//! functions, a stub is generated when a list of active probes is used for the first time.
//! Switching a probe that counts also reads its counter in each instance of the module, as reading
//! its count does.
//!
//! A function returns to its original code when the last of its active probes is switched off or
//! dropped, unless closures may still use an [accessor](FrameAccessor) of one of its frames. That
//! takes a store for each
//! loop and call of the function, twice, and as much when a probe is switched on again. Therefore,
//! [`Probe::deactivate`] does this at most 16 times within 100 ms for a function; beyond that,
//! switching is one store as above, and the function stays in its version until its last active
//! probe is switched off again later, or by [`deactivate_all`], or until one of its probes is
//! dropped.
//!
//! A function with more counters than
//! [`Config::counter_stubs`](crate::Config::counter_stubs), or with one for
//! [branches](Kind::CountBranch), gets a *counting version* instead, which counts whichever probes
//! are on: one addition for each sequence of instructions without a branch or a call that has a
//! counter, or for all if half of the instructions have one. Switching such a counter changes no
//! code. Other kinds of probe have sites in counting versions, too.
//!
//! With [`Config::probe_sites`](crate::Config::probe_sites), functions have sites from the start,
//! at entries or also at control instructions. Counters there, and all probes at entries except
//! [generic](Kind::Generic) ones, need no version, and take effect at once for existing frames.
//! Generic probes, and those that record or call functions elsewhere, need one as above.
//! Alternatively, the first version of a function has sites at all instructions.
//!
//! # Memory
//! | item | bytes |
//! | --- | --- |
//! | a version | the size of the function's code; for each site 5 to 12, and a stub of 17 to 35 |
//! | a counting version | 20 for each instruction in tables; no stubs for counters |
//! | a plain version | several times the size of the function's code |
//! | the engine's data about a site | about 60 |
//! | the engine's data about a probe, with its handle | about 200 |
//! | a counter | 8 for each site, in each instance |
//! | a stub that calls functions | about 100 to 200 for the first, 20 to 130 for each further one |
//! | a stub that executes functions itself | about 200 to 400 for each |
//! | a stub that calls closures | 200 to 450 for the first, about 90 for each further one |
//! | a stub that only records | about 150 to 300 for each record |
//! | a version of which a waiting frame was read through an accessor | for each of its calls, what a place with generic probes takes |
//! | a function of which an operand was read that is a reference | 12 for each instruction that changes which references are on its stack, and 24 for each that is pushed |
//! | a place with generic probes | 32 for each operand there, 16 for each 8 locals, and 270 for each 8 of them of which one has changed its location since the place before; kept as long as a stub |
//!
//! A process with probes at all 80,000 instructions of a function was measured to keep 380 bytes
//! for each probe that counts, 1,240 to 1,260 for each that calls a native function or a closure
//! with values, and for each whose closure sees the frame 1,820 with 10 locals and 3,230 with 650.
//! At its peak, while probes are made, it takes up to 950 for each that counts, and 2,800 for each
//! that calls a closure in a function of few locals.
//!
//! Stubs that record or call functions are limited to the sum of 16 MiB, 32 times the size of the
//! module's code, and 512 bytes for each place that has or had such a probe
//! ([`ProbeError::StubMemory`]). Every instruction of a module can therefore have one with a few
//! values; larger stubs, further versions and lists share the rest.
//!
//! Such stubs are kept while their probes exist. The stubs of removed probes are freed, and their
//! closures dropped, when other probes need the memory and no thread is in the stubs. To find out,
//! making a probe may signal the threads that run the module (by the signal of
//! [`Config::interrupt_signal`](crate::Config::interrupt_signal), so that a system call by a host
//! function may fail with `EINTR`) and wait for them for up to 100 ms. Everything else is freed
//! with the module's code.
//!
//! From the module's first probe on, each instance reserves addresses for all counters that the
//! module can have (24 bytes for each byte of its functions). The plain version, which a function
//! gets when a [generic probe](Frame) changes a value that has no location in the code, has sites
//! at all instructions. Addresses for all code are reserved after the module's code (64 times its
//! size, and 48 MiB), so that probes can be made whatever else the process maps.
//!
//! # Consistency
//! - A thread sees a change of a site as soon as its instruction fetch sees a store by another
//!   thread: within [T_max](wordpatch::TMax), of which wordpatch's README has measured values. No
//!   thread is waited for, and none is stopped.
//! - If the change required a new version (see above), an existing frame sees it at the next
//!   iteration of a loop, or when a call returns to it; new calls begin in the new version.
//! - A thread that has reached a site completes the list of probes that the site had then. Changes
//!   that a probe function makes at its own place therefore take effect with the next event. An
//!   event is counted when it begins, before the functions of the list are called.
//! - When [`Probe::deactivate`] returns, another thread may still execute the probe's stub. It may
//!   call the probe function once more; what it counts is not attributed to the probe.
//! - Counts are exact once the threads that run the module have seen the last change. In a counting
//!   version, a thread counts a sequence of instructions when it begins the first one, and sees a
//!   change when it begins the next sequence. If a trap or an interrupt ends a sequence early, the
//!   thread subtracts what it has not executed: a counter that was switched on in the middle of
//!   this sequence, while other threads count the same instruction, may then have counted one less.
//! - Changes take a lock of the module's probes, and no thread holds a lock while a probe fires.
//!   Probe functions may make any change; signal handlers must not make any.
//!
//! Probes do not change programs: a trap, an interrupt or an exception in a function with probes is
//! the same as without, and a backtrace names the same instructions. The exceptions are WebAssembly
//! functions ([`WasmFn`]), which run in the program's store, may do there what any function may,
//! and end the program's call if they fail, and closures that change the frame or fail
//! ([`Kind::Generic`]).
//!
//! A forked child executes the code as it was when the process forked, with the probes that were
//! on, whatever its parent changes later: the parent's first change of a module's probes after a
//! fork copies the module's code, which takes about a millisecond for each MiB. A fork waits while
//! another thread changes probes. Children that were not made by `fork` (a raw `clone`) must not
//! execute code of modules with probes.
//!
//! Probes cannot be switched in a child before it has called
//! [`unshare`](wordpatch::text::unshare), which copies the code of all modules. A handler that the
//! program has registered with `pthread_atfork` must neither change probes nor wait for a thread
//! that does, or that compiles modules, unless it was registered after the first engine was made:
//! otherwise it waits forever. A child that was forked while another thread was in the closure of a
//! [`Recorder`] must not use this recorder, nor run programs with its probes. Programs that fork
//! while other threads ask for [ids](crate::Module::probe_id) register a handler that calls
//! [`fastinst::service::before_fork`].
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
use std::ops::Range;
use std::sync::Arc;

use wasm_jit_codegen::{NoValue, Only, Wanted};

use crate::code::probed::ids::NoId;
use crate::code::probed::{MakeError, NoProbe, Request, RequestedKind};
use crate::code::{CodeImage, ObserveError};
use crate::error::Error;
use crate::module::Module;
use crate::types::ValType;

mod accessor;
mod branches;
mod first_calls;
mod frame;
mod generic;
mod global;
mod items;
mod native;
mod recorder;
mod running;
mod shortcut;
mod thread_word;
mod trapped;
mod unwound;
mod values;
mod wasm;

pub use crate::code::probed::counters::InstanceId;
pub use crate::code::probed::delays::{Around, on_delays};
pub use crate::code::probed::{Callback, Called};
pub use crate::store_id::StoreId;
pub use accessor::{AccessError, FrameAccessor};
pub use branches::Branches;
use branches::executions;
pub use first_calls::FirstCallWatch;
pub use frame::Frame;
pub use generic::{FuelThreshold, GenericFn};
pub use global::{GlobalProbe, RefusedFunction};
pub use native::{NativeFn, NativeFunction};
pub use recorder::Recorder;
pub use shortcut::{Operand, Quadword, Relation, Shortcut, Step, Temp};
pub use thread_word::ThreadWord;
pub use trapped::{Ending, TrapWatch};
pub use unwound::{UnwoundException, UnwoundFrame, UnwoundWatch};
pub use values::{Bound, Lane, NO_FUNCTION, OTHER_FUNCTION, Values};
pub use wasm::WasmFn;

/// A place in a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location {
    /// The function's index, imports included.
    pub function: u32,
    /// The place in the function.
    pub place: Place,
}

impl Location {
    /// The location at a position in the module.
    fn at(image: &CodeImage, function: u32, position: u32) -> Self {
        let body = image.body_range(function);
        let place = match position - body.start {
            0 => Place::Entry,
            _ if position == body.end => Place::Exit,
            offset => Place::Instruction { offset },
        };
        Self { function, place }
    }

    /// The offset from the start of the function's body, which has this length.
    fn offset(self, length: u32) -> u32 {
        match self.place {
            Place::Entry => 0,
            Place::Exit => length,
            Place::Instruction { offset } => offset,
        }
    }

    /// The position in the module, if the function's body is in this range.
    fn position(self, body: Range<u32>) -> u32 {
        match self.place {
            Place::Entry => body.start,
            Place::Exit => body.end,
            // The positions of entry and exit are those of no instruction.
            Place::Instruction { offset } if offset == 0 || offset == body.end - body.start => u32::MAX,
            Place::Instruction { offset } => body.start.saturating_add(offset),
        }
    }
}

/// A place in a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Place {
    /// The start of a call, before the function's first instruction.
    Entry,
    /// The end of a call, where the results are in the locations in which the caller finds them:
    /// after `return`, after the last `end`, and after branches to the outermost block. A call that
    /// ends in a tail call (`return_call`, `return_call_indirect`, `return_call_ref`), a trap or an
    /// exception does not reach it.
    Exit,
    /// An instruction.
    Instruction {
        /// The offset of the instruction from the start of the function's body, as given by
        /// [`FrameInfo::func_offset`](crate::FrameInfo::func_offset).
        offset: u32,
    },
}

/// What a probe does.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Nothing: measures the cost of the mechanism.
    Empty,
    /// Counts how often control reaches the probe's place.
    Count,
    /// Counts how often each way is taken by a `br_if`, `if`, `br_table`, `select`, `br_on_null`,
    /// `br_on_non_null`, `br_on_cast` or `br_on_cast_fail` ([`Probe::branches`]).
    CountBranch,
    /// Calls a native function.
    Native {
        /// The native function.
        function: NativeFn,
        /// The arguments, one for each of the function's parameters.
        values: Values,
    },
    /// Executes a few steps, and calls a native function in the cases that these do not handle.
    Shortcut {
        /// The steps that the stub executes.
        shortcut: Shortcut,
        /// The native function.
        function: NativeFn,
        /// The arguments, one for each of the function's parameters.
        values: Values,
    },
    /// Calls a WebAssembly function, only in the instances of the function's store.
    Wasm {
        /// The WebAssembly function.
        function: WasmFn,
        /// The arguments, one for each of the function's parameters.
        values: Values,
    },
    /// Calls a closure.
    Callback {
        /// The closure.
        function: Callback,
        /// The values that the closure gets, in order.
        values: Values,
    },
    /// Calls a closure that sees the complete frame.
    Generic(GenericFn),
    /// Appends a record to a buffer, which takes a few instructions. A closure gets the records
    /// when the buffer is full.
    Record {
        /// The owner of the buffers and the closure.
        recorder: Recorder,
        /// The values of a record, as many as the recorder's records have.
        values: Values,
    },
}

impl Kind {
    /// The values that the probe passes, if they are chosen individually.
    fn values(&self) -> &[Bound] {
        match self {
            Self::Native { values, .. }
            | Self::Shortcut { values, .. }
            | Self::Wasm { values, .. }
            | Self::Callback { values, .. }
            | Self::Record { values, .. } => values.as_slice(),
            Self::Empty | Self::Count | Self::CountBranch | Self::Generic(_) => &[],
        }
    }

    /// Whether the probe calls a function of this store.
    fn is_of(&self, store: StoreId) -> bool {
        matches!(self, Self::Wasm { function, .. } if function.store() == store.number())
    }
}

/// In which instances of a module a probe fires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Scope {
    /// In all instances, including those that are created later.
    #[default]
    Module,
    /// In one instance.
    Instance(InstanceId),
    /// In the instances of a [store](crate::Store::id), including those that are created later.
    Store(StoreId),
}

/// The description of a probe to be made.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProbeSpec {
    /// The location of the probe.
    pub location: Location,
    /// The action of the probe.
    pub kind: Kind,
}

/// The reason why a probe cannot be made, or cannot be switched.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// The module has no such function, or imports it.
    #[error("the module has no function {function} of its own")]
    NoFunction {
        /// The requested function's index, imports included.
        function: u32,
    },
    /// The module has no such instance, or it has ended.
    #[error("the module has no instance {instance:?}, or it has ended")]
    NoInstance {
        /// The requested instance.
        instance: InstanceId,
    },
    /// No instruction begins there.
    #[error("no instruction of function {function} begins at offset {offset:#x} of its body")]
    NoInstruction {
        /// The function's index, imports included.
        function: u32,
        /// The requested offset from the start of the function's body.
        offset: u32,
    },
    /// The instruction is unreachable, so there is no code for it: it follows an instruction that
    /// never continues with the next one, such as `unreachable`, `br`, or a `br_if` or `br_table`
    /// whose operand is a constant for the compiler. (The code in an `if` whose condition is
    /// constant has probes, which do not fire.) If a probe changes such an operand, the code that
    /// follows is executed, without probes.
    #[error("the instruction at offset {offset:#x} of the body of function {function} is unreachable")]
    Unreachable {
        /// The function's index, imports included.
        function: u32,
        /// The requested offset from the start of the function's body.
        offset: u32,
    },
    /// The function had not been compiled, and cannot be: see
    /// [`Config::lazy_compilation`](crate::Config::lazy_compilation).
    #[error(transparent)]
    First(Arc<Error>),
    /// The function cannot be compiled with sites: it exceeds a limit of the compiler, or the
    /// compiler has a defect.
    #[error("no version with sites: {reason}")]
    Compile {
        /// A description of the problem.
        reason: String,
    },
    /// The instruction is not one of those that [`Kind::CountBranch`] can count.
    #[error(
        "the instruction at offset {offset:#x} of the body of function {function} is none of br_if, if, br_table, select, br_on_null, br_on_non_null, br_on_cast and br_on_cast_fail"
    )]
    NoBranch {
        /// The function's index, imports included.
        function: u32,
        /// The requested offset from the start of the function's body; 0 for the entry.
        offset: u32,
    },
    /// A value cannot be passed to the probe function: it does not exist, or the code does not keep
    /// it.
    #[error("{value:?} has no value at offset {offset:#x} of the body of function {function}: {reason}")]
    Value {
        /// The value that was requested.
        value: Bound,
        /// The function's index, imports included.
        function: u32,
        /// The requested offset from the start of the function's body; 0 for the entry, the length
        /// of the body for the exit.
        offset: u32,
        /// Why the value cannot be passed.
        reason: ValueError,
    },
    /// A global probe cannot pass a value, whatever the function.
    #[error("a global probe cannot pass {value:?}: {reason}")]
    GlobalValue {
        /// The value that was requested.
        value: Bound,
        /// Why the value cannot be passed.
        reason: ValueError,
    },
    /// The number of the probe's values differs from the number of the function's parameters, or
    /// from the length of the recorder's records.
    #[error("the function or record of the probe has {parameters} parameters, but there are {values} values")]
    Parameters {
        /// The number of the function's parameters, or of the values of a record.
        parameters: usize,
        /// The number of the probe's values.
        values: usize,
    },
    /// A closure gets too many values.
    #[error("a closure gets at most {limit} values")]
    TooManyValues {
        /// The largest number of values of a closure.
        limit: usize,
    },
    /// The probe function has results, which it must not have.
    #[error("the function of a probe must have no results, and this one has {results}")]
    Results {
        /// The number of the function's results.
        results: usize,
    },
    /// At the exit of a function, a WebAssembly function would overwrite results that are not in
    /// registers: the third integer or float, and those after it.
    #[error(
        "the exit of function {function} cannot have a probe that calls WebAssembly while results are in memory"
    )]
    AtExit {
        /// The function's index, imports included.
        function: u32,
    },
    /// The stubs of the module's probes have reached the limit of their memory. There are too many
    /// probes that call functions, or too many were removed while threads that do not respond may
    /// be in their stubs ([memory](self#memory)).
    #[error("the stubs of the module's probes take more than {limit} bytes")]
    StubMemory {
        /// The limit, in bytes, for switching probes on. To switch probes off, as much again may be
        /// used.
        limit: usize,
    },
    /// There are as many recorders as a process can have, including those that were dropped while
    /// stubs of their probes are kept ([memory](self#memory)).
    #[error("there are {limit} recorders")]
    TooManyRecorders {
        /// The largest number of recorders in a process.
        limit: usize,
    },
    /// The system refuses to reserve addresses for counters.
    #[error("cannot reserve addresses for counters: {source}")]
    Memory {
        /// The error of the system.
        source: Arc<io::Error>,
    },
    /// The function of a global probe belongs to the module that is probed: it would call itself
    /// until the stack overflows.
    #[error("the function of the probe belongs to the module that the probe is on, and would call itself")]
    OwnModule,
    /// The place cannot have an id.
    #[error(transparent)]
    Id(Arc<fastinst::Error>),
    /// There is no memory for code near the module's code, or code cannot be patched, as in a
    /// forked child.
    #[error(transparent)]
    Patch(Arc<wordpatch::Error>),
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
    /// The value is a vector, and the probe function takes 64-bit values: pass its lanes.
    #[error("it is a vector, of which the probe's function can get single lanes only")]
    Vector,
    /// A lane is requested of a value that is not a vector.
    #[error("it is no vector, so it has no lanes")]
    NotVector,
    /// The place is not an exit, or the function has fewer results.
    #[error("the place is no exit, or the function has fewer results")]
    NoResult,
    /// The place is an exit, where only results have locations.
    #[error("at the exit of a function, only its results have places")]
    AtExit,
    /// A global probe cannot pass the value, because not every instruction has it.
    #[error("it passes only values that every instruction has")]
    NotEverywhere,
    /// The instruction is not an indirect call, or the probe does not call a closure.
    #[error("the instruction is no indirect call, or the probe does not call a closure")]
    NoCallee,
    /// The instruction is not a load, store or atomic operation.
    #[error("the instruction does not access a memory at an address")]
    NoAccess,
    /// The parameter of the probe function has another type. References on the operand stack cannot
    /// be passed to WebAssembly functions.
    #[error("it cannot be passed as a parameter of the type {parameter}")]
    Type {
        /// The parameter's type.
        parameter: ValType,
    },
    /// The operand is not a reference.
    #[error("the operand is no reference")]
    NotReference,
}

impl From<MakeError> for ProbeError {
    fn from(error: MakeError) -> Self {
        match error {
            MakeError::Compile(error) => Self::compile(&error),
            MakeError::First(error) => Self::First(Arc::new(error.into())),
            MakeError::Code(error) => Self::Patch(Arc::new(error)),
            MakeError::Counters(source) => Self::Memory { source: Arc::new(source) },
            MakeError::StubMemory { limit } => Self::StubMemory { limit },
        }
    }
}

impl ProbeError {
    fn of_place(refused: NoProbe, location: Location, body: Range<u32>, kind: &Kind) -> Self {
        let (function, offset) = (location.function, location.offset(body.end - body.start));
        let of_value = |argument: usize, reason| {
            let value = kind.values()[argument];
            Self::Value { value, function, offset, reason }
        };
        match refused {
            NoProbe::NoInstruction => Self::NoInstruction { function, offset },
            NoProbe::Unreachable => Self::Unreachable { function, offset },
            NoProbe::NoChoice => Self::NoBranch { function, offset },
            NoProbe::NoValue(wanted, reason) => {
                let value = match wanted {
                    Wanted::Local(index) => Bound::Local(index),
                    Wanted::Operand(depth) => Bound::Operand(depth),
                    Wanted::Result(index) => Bound::Result(index),
                };
                let reason = match reason {
                    NoValue::NotThere => ValueError::NoOperand,
                };
                Self::Value { value, function, offset, reason }
            }
            NoProbe::NotReference(argument) => of_value(argument, ValueError::NotReference),
            NoProbe::NotVector(argument) => of_value(argument, ValueError::NotVector),
            NoProbe::Vector(argument) => of_value(argument, ValueError::Vector),
            NoProbe::Type(argument) => {
                let types = match kind {
                    Kind::Wasm { function, .. } => Some(function.parameters()),
                    Kind::Callback { function, .. } => function.types(),
                    _ => unreachable!("others have no types"),
                };
                let parameter = types.expect("it has types")[argument];
                of_value(argument, ValueError::Type { parameter })
            }
        }
    }

    fn compile(error: &ObserveError) -> Self {
        Self::Compile { reason: error.to_string() }
    }
}

/// A probe of a module, off at first. Dropping it removes it: it is switched off as by
/// [`Probe::deactivate`], whatever the memory for stubs. If code cannot be changed, as in a forked
/// child that shares it, or if there is no memory at all, it fires until the next change of probes
/// of the module for which this does not hold.
///
/// A probe keeps the module's code alive. All of its methods may be called from any thread, and by
/// probe functions. They take a lock that all probes of the module share.
#[must_use = "the probe is removed when it is dropped"]
pub struct Probe {
    image: Arc<CodeImage>,
    number: usize,
    spec: ProbeSpec,
    scope: Scope,
}

impl Module {
    /// Makes probes, which are off, and compiles versions of functions that lack sites for them.
    /// Returns the probe for each specification, or the reason why there is none.
    ///
    /// Nothing changes for running programs before a probe is activated. A function gets at most
    /// three versions: two with the sites that were requested so far, then one with sites at all
    /// instructions, which is slower by a NOP for each; and as many counting versions. Therefore,
    /// the probes of a function are best made in one call.
    #[must_use = "each probe may have failed"]
    pub fn probes(&self, specs: &[ProbeSpec]) -> Vec<Result<Probe, ProbeError>> {
        self.scoped_probes(Scope::Module, specs)
    }

    /// Makes probes for a scope: see [`Module::probes`].
    ///
    /// Code belongs to all instances, so the sites of a probe for one instance or store exist in
    /// all instances; the other instances execute its stub without calling its function.
    ///
    /// If the scope is an instance that does not exist, each result is [`ProbeError::NoInstance`].
    #[must_use = "each probe may have failed"]
    pub fn scoped_probes(&self, scope: Scope, specs: &[ProbeSpec]) -> Vec<Result<Probe, ProbeError>> {
        if let Scope::Instance(instance) = scope
            && !self.code().counters.has_instance(instance)
        {
            return specs.iter().map(|_| Err(ProbeError::NoInstance { instance })).collect();
        }
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
    /// As [`Module::probes`].
    pub fn probe(&self, spec: ProbeSpec) -> Result<Probe, ProbeError> {
        self.probes_in(spec.location.function, Scope::Module, &[spec]).pop().expect("one for one")
    }

    /// The id of a place as a probe of fastinst. A new id is announced to the discovery callbacks.
    ///
    /// [`fastinst::activate`] adds a probe to the place, in the order of activation, which calls a
    /// function with the id, the address of the site and a number that identifies the running
    /// instance ([`Bound::Context`]); [`fastinst::deactivate`] removes it. If the probe is already
    /// active, only its function changes. Both take the lock of the module's probes, may allocate,
    /// and are not async-signal-safe. The function's contract is that of [`NativeFn::new`].
    ///
    /// The metadata have the provider `wasm`, the names of the module and the function, the
    /// function's index, the offset, and the opcode of the instruction, with its prefix (if any) in
    /// the upper half. Probes at entries have the kind `ENTRY`, those at exits `EXIT`, those at
    /// instructions `FIRST_OF_PROVIDERS`. The address of the site is that in the most recent
    /// version of the function.
    ///
    /// A discovery callback may switch the probes that it is called for. It must not make probes of
    /// modules with [first-call closures](Module::watch_first_calls), which it may have to wait
    /// for: such a closure may wait for the callback.
    ///
    /// Ids are retired when the module's code is freed: fastinst then returns
    /// [`Retired`](fastinst::Error::Retired).
    ///
    /// # Errors
    /// As [`Module::probes`]; [`ProbeError::Id`] if there are no more ids, or inside a discovery
    /// callback.
    pub fn probe_id(&self, location: Location) -> Result<fastinst::ProbeId, ProbeError> {
        let (image, Location { function, .. }) = (self.code(), location);
        if !image.indices().contains(&function) {
            return Err(ProbeError::NoFunction { function });
        }
        image.before_probing(function);
        let body = image.body_range(function);
        let id = image.probe_id(function, location.position(body.clone()));
        id.map_err(|error| match error {
            NoId::Place(refused) => ProbeError::of_place(refused, location, body, &Kind::Empty),
            NoId::Make(error) => error.into(),
            NoId::Ids(error) => ProbeError::Id(Arc::new(error)),
        })
    }

    fn probes_in(&self, function: u32, scope: Scope, specs: &[ProbeSpec]) -> Vec<Result<Probe, ProbeError>> {
        let image = self.code();
        if !image.indices().contains(&function) {
            return specs.iter().map(|_| Err(ProbeError::NoFunction { function })).collect();
        }
        // A global probe that waits for the function's first call makes its probes first.
        image.before_probing(function);
        let range = image.body_range(function);
        let mut body = values::Body::of(image, function);
        let requests: Vec<Result<Request, ProbeError>> = specs
            .iter()
            .map(|spec| {
                let position = spec.location.position(range.clone());
                let what = requested(&mut body, &spec.kind, spec.location, position)?;
                let only = match scope {
                    Scope::Module => None,
                    Scope::Instance(instance) => Some(Only::Instance(instance.number())),
                    // Its stub compares the store anyway.
                    Scope::Store(store) if spec.kind.is_of(store) => None,
                    Scope::Store(store) => Some(Only::Store(store.number())),
                };
                Ok(Request { position, what, only })
            })
            .collect();
        let valid: Vec<Request> = requests.iter().flatten().cloned().collect();
        let made = match image.make_probes(function, &valid) {
            Ok(made) => made,
            Err(error) => {
                let error = ProbeError::from(error);
                let positions = body.positions();
                // `error` is about all of the requests; of some, the reason is known by itself.
                let refused = |request: Result<Request, ProbeError>, spec: &ProbeSpec| match request {
                    Ok(Request { position, .. }) if !positions.contains(&position) => {
                        let no = NoProbe::NoInstruction;
                        ProbeError::of_place(no, spec.location, range.clone(), &spec.kind)
                    }
                    Ok(_) => error.clone(),
                    Err(own) => own,
                };
                return requests
                    .into_iter()
                    .zip(specs)
                    .map(|(made, spec)| Err(refused(made, spec)))
                    .collect();
            }
        };
        let mut made = made.into_iter();
        let handles = requests.into_iter().zip(specs).map(|(request, spec)| {
            request?;
            match made.next().expect("one for each request") {
                Ok(number) => Ok(Probe { image: image.clone(), number, spec: spec.clone(), scope }),
                Err(refused) => Err(ProbeError::of_place(refused, spec.location, range.clone(), &spec.kind)),
            }
        });
        handles.collect()
    }
}

/// The request for a probe of a kind at a location.
fn requested(
    body: &mut values::Body<'_>,
    kind: &Kind,
    location: Location,
    position: u32,
) -> Result<RequestedKind, ProbeError> {
    let length = body.range().len() as u32;
    values::check(kind, location.function, location.offset(length))?;
    if matches!(kind, Kind::Wasm { .. }) && location.place == Place::Exit && !body.results_are_in_registers()
    {
        return Err(ProbeError::AtExit { function: location.function });
    }
    Ok(match kind {
        Kind::Empty => RequestedKind::Nothing,
        Kind::Count => RequestedKind::Count,
        Kind::CountBranch => RequestedKind::CountChoice,
        Kind::Generic(function) => function.request(),
        Kind::Native { function, values } => body.call(function.callee(), values, location, position)?,
        Kind::Shortcut { shortcut, function, values } => {
            body.call(shortcut.callee(*function), values, location, position)?
        }
        Kind::Wasm { function, values } => body.call_wasm(function, values, location, position)?,
        Kind::Callback { function, values } => body.call_back(function, values, location, position)?,
        Kind::Record { recorder, values } => body.record(recorder, values, location, position)?,
    })
}

impl Probe {
    /// The description with which the probe was made.
    pub fn spec(&self) -> &ProbeSpec {
        &self.spec
    }

    /// The instances in which the probe fires.
    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// Switches the probe on; does nothing if it is on.
    ///
    /// # Errors
    /// [`ProbeError::Patch`], [`ProbeError::StubMemory`]: it stays off.
    pub fn activate(&self) -> Result<(), ProbeError> {
        Ok(self.image.activate_probe(self.number)?)
    }

    /// Switches the probe off; does nothing if it is off. It can be switched on again, and then
    /// continues to count. A function without active probes returns to its original code, unless
    /// its probes are toggled all the time ([cost](self#cost)).
    ///
    /// # Errors
    /// [`ProbeError::Patch`], [`ProbeError::StubMemory`]: it stays on.
    pub fn deactivate(&self) -> Result<(), ProbeError> {
        self.image.deactivate_probe(self.number, false)?;
        Ok(())
    }

    /// The number of times that control reached the probe's place while it was on, in all instances
    /// of its scope, including those that have ended. 0 for probes that do not count.
    ///
    /// While other threads run the module, the count may include what they are about to execute
    /// before their next branch or call.
    pub fn count(&self) -> u64 {
        executions(&self.image, self.number, &self.spec.kind)
    }

    /// How often the instruction went each way while the probe was on, as for [`Probe::count`];
    /// `None` unless it is a probe that [counts branches](Kind::CountBranch).
    ///
    /// If a thread is about to execute the instruction when the probe is switched on, and the
    /// instruction then does not jump, a later execution that jumps may be counted as one that does
    /// not. If a thread executes the instruction during this call, the executions of a few tens of
    /// nanoseconds may be counted as going the other way. The sum is exact, and so is the
    /// difference between two counts.
    pub fn branches(&self) -> Option<Branches> {
        match self.spec.kind {
            Kind::CountBranch => Branches::of(&self.image, self.number),
            _ => None,
        }
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
#[must_use = "each probe may have failed"]
pub fn activate_all<'a>(probes: impl IntoIterator<Item = &'a Probe>) -> Vec<Result<(), ProbeError>> {
    probes.into_iter().map(Probe::activate).collect()
}

/// Switches probes off, one after the other. Functions without active probes always return to their
/// original code: with the next call, and in existing frames when a loop is repeated or a call
/// returns.
pub fn deactivate_all<'a>(probes: impl IntoIterator<Item = &'a Probe>) -> Vec<Result<(), ProbeError>> {
    let deactivate = |probe: &Probe| {
        probe.image.deactivate_probe(probe.number, true)?;
        Ok(())
    };
    probes.into_iter().map(deactivate).collect()
}
