//! Scripts that observe native programs: [`NativeMonitor`].
//!
//! A script with rules such as `native:func:entry` is compiled to a WebAssembly module by
//! [`Script::native`], as scripts for WebAssembly are. This module calls its functions; the caller
//! discovers functions of the program and observes calls to them:
//!
//! 1. [`NativeMonitor::function`] is called for each function that is discovered. It evaluates the
//!    static parts of predicates, which depend on names only, and creates what belongs to the
//!    places that match: variables of the place, and constants. The result says which of the
//!    function's events are to be observed. Rules may ask for arguments of the function, by
//!    position or name, and for its result, with a type; the caller says whether the function has
//!    them.
//! 2. [`NativeMonitor::fire`] is called for each such event. It evaluates the rest of the predicate
//!    and executes the statements, on the calling thread. If the rule uses frame variables
//!    ([`NativeMonitor::uses_frame`]), the call has a [`NativeFrame`], which the caller keeps from
//!    the first such event of the call until the call ends.
//! 3. [`NativeMonitor::finish`] executes the rules of the end. [`NativeMonitor::report`] reads the
//!    variables.
//!
//! All state is in the monitor, which one thread uses at a time: rules are executed one after the
//! other, and each variable exists once for all threads of the program.

mod value;

use std::collections::HashMap;
use std::sync::Arc;

use wasm_jit::{Caller, Config, Engine, Error, Instance, Linker, Module, NumericFunc, Store, Val, ValType};

use crate::conditions::{Actual, Index, Known};
use crate::described::Described;
use crate::failure;
use crate::lang::{FAILURES, FRAME_BLOCK, Script, ScriptReport, THREAD_BLOCK};
use crate::monitor_module::{
    Buffer, Call, Event, MonitorError, OFF, OfCall, PAUSE, PROBES, Parameter, Rule, Static, parse_native,
};

pub(crate) use self::value::UNUSED;
pub use self::value::{NativeValue, NumberType, ValueName};

/// A function of a native program, for [`NativeMonitor::function`].
#[derive(Clone, Copy, Debug)]
pub struct NativeFunction<'a> {
    /// The number that identifies the function in the report.
    pub number: u32,
    /// The name of the function.
    pub name: &'a str,
    /// The path of the executable or library that contains the function.
    pub object: &'a str,
}

/// The beginning or end of a call, as rules see it, for [`NativeMonitor::fire`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NativeCall<'a> {
    /// The number of the probe: `probe_id` in rules.
    pub probe: u32,
    /// The kernel's id of the thread.
    pub thread: u32,
    /// The time stamp of the event, in ticks of the time-stamp counter.
    pub ticks: u64,
    /// The time of the event, in nanoseconds since any fixed start.
    pub nanoseconds: u64,
    /// The number of open calls on the thread, including this one.
    pub depth: u32,
    /// The duration of the call in nanoseconds, at its end.
    pub duration: u64,
    /// The caller's number for the stack of open calls, including this one: [`Value::Stack`]. The
    /// same sequence of functions must always have the same number.
    ///
    /// [`Value::Stack`]: crate::lang::Value::Stack
    pub stack: u32,
    /// The function's arguments, and at the end its result, by the numbers that the caller has
    /// assigned to them ([`NativeMonitor::function`]). Integers and booleans are extended to 64
    /// bits; floats are their bits.
    pub values: &'a [u64],
    /// The call's frame variables, if the rule [uses](NativeMonitor::uses_frame) some.
    pub frame: Option<NativeFrame>,
}

/// The frame variables of a call, created by [`NativeMonitor::new_frame`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NativeFrame(u32);

/// A rule at a place of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaceId(u32);

/// The events of a function that are to be observed: the rules for each, in the order of the
/// script.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NativePlaces {
    /// The rules for the beginnings of the function's calls.
    pub entry: Vec<PlaceId>,
    /// The rules for the ends of the function's calls.
    pub exit: Vec<PlaceId>,
}

/// A value that is passed to the function of a rule.
#[derive(Clone, Copy, Debug)]
enum Argument {
    Constant(u64),
    OfCall(OfCall),
    /// An argument of the function, or its result, by its number among the values of the call.
    OfFunction {
        number: u32,
        is_result: bool,
    },
}

/// The maximum number of parameters of a rule's function: the blocks and names of a place, values
/// of calls, and results of calls at match time.
const MAX_ARGUMENTS: usize = 64;

#[derive(Debug)]
struct Place {
    function: NumericFunc,
    is_exit: bool,
    has_thread: bool,
    arguments: Box<[Argument]>,
    /// The group of its rule, if the rule is sampled by time.
    group: Option<u32>,
}

/// What rules have requested while they were executed.
#[derive(Debug, Default)]
struct Said {
    /// Places at which a rule has finished.
    finished: Vec<PlaceId>,
    /// Groups of rules that do nothing until a time, in nanoseconds.
    pauses: Vec<(u32, u64)>,
}

/// A script that observes a native program.
pub struct NativeMonitor {
    script: Script,
    store: Store<Said>,
    instance: Instance,
    buffer: Option<Buffer>,
    /// The rules, with the names of their exports.
    rules: Arc<[(String, Rule)]>,
    /// What is known about predicates, by rule.
    known: Vec<Known>,
    /// The rules for functions.
    index: Index,
    places: Vec<Place>,
    /// The addresses of the variables of threads that have some, by thread id.
    threads: HashMap<u32, u32>,
    /// Creates the block of a call's variables, if there are frame variables.
    frame_block: Option<NumericFunc>,
    /// The blocks of calls that have ended.
    free_frames: Vec<NativeFrame>,
}

impl NativeMonitor {
    /// Compiles the module of a script, on this thread, and executes the script's initial
    /// statements and rules of the beginning.
    ///
    /// # Errors
    /// [`MonitorError::Instantiate`]: there is no memory for the code or the variables, or a
    /// statement failed.
    pub fn new(script: Script) -> Result<Self, MonitorError> {
        let failed =
            |source| MonitorError::Instantiate { module: "monitor".to_owned(), source: Box::new(source) };
        let mut config = Config::new();
        config.compile_threads(std::num::NonZero::<usize>::MIN);
        let engine = Engine::new(&config).map_err(failed)?;
        let module = Module::from_binary(&engine, script.module()).map_err(failed)?;
        let mut rules = Vec::new();
        for export in module.exports() {
            let parsed = parse_native(export.name());
            let rule = parsed.map_err(|(column, reason)| MonitorError::Name {
                export: export.name().to_owned(),
                column,
                reason,
            })?;
            rules.extend(rule.map(|rule| (export.name().to_owned(), rule)));
        }
        let predicates = Described::of(script.module()).predicates;
        let of_rule = |(_, rule): &(String, Rule)| predicates.known(rule.predicate.as_ref());
        let known: Vec<Known> = rules.iter().map(of_rule).collect();
        let mut index = Index::default();
        known.iter().enumerate().for_each(|(number, known)| index.add(number, known));
        let mut store = Store::new(&engine, Said::default());
        let mut linker = Linker::new(&engine);
        let (library, name) = FAILURES;
        linker
            .func_wrap(library, name, |reason: u32| -> Result<(), Error> {
                Err(Error::host(failure::reason(reason)))
            })
            .map_err(failed)?;
        let finish =
            |mut caller: Caller<'_, Said>, place: u32| caller.data_mut().finished.push(PlaceId(place));
        linker.func_wrap(PROBES, OFF, finish).map_err(failed)?;
        let pause = |mut caller: Caller<'_, Said>, group: u32, until: u64| {
            caller.data_mut().pauses.push((group, until));
        };
        linker.func_wrap(PROBES, PAUSE, pause).map_err(failed)?;
        let instance = linker.instantiate(&mut store, &module).map_err(failed)?;
        let frame_block = instance.get_func(&store, FRAME_BLOCK);
        let frame_block =
            frame_block.map(|make| NumericFunc::new(&store, make)).transpose().map_err(failed)?;
        let has_strings = instance.get_memory(&store, "whamm_buffer").is_some();
        let buffer = has_strings.then(|| Buffer::of(&mut store, &instance)).transpose()?;
        Ok(Self {
            script,
            store,
            instance,
            buffer,
            rules: rules.into(),
            known,
            index,
            places: Vec::new(),
            threads: HashMap::new(),
            frame_block,
            free_frames: Vec::new(),
        })
    }

    /// Does in advance what a thread's first call to a rule would do otherwise: finds the end of
    /// the thread's stack, for which the C library calls the program's `malloc`.
    pub fn prepare_thread() {
        wasm_jit::prepare_thread();
    }

    /// The names of the exported functions that are rules.
    pub fn rules(&self) -> impl ExactSizeIterator<Item = &str> + '_ {
        self.rules.iter().map(|(name, _)| name.as_str())
    }

    /// Whether rules ask for values that are known only if the beginning and end of each call are
    /// observed together: the duration, the depth, the stack or frame variables, and at the end the
    /// arguments.
    pub fn pairs_calls(&self) -> bool {
        let is_argument = |parameter: &Parameter| matches!(parameter, Parameter::NativeValue(value) if value.name != ValueName::Result && value.is_used);
        let asks_for_arguments =
            |rule: &Rule| rule.event == Event::NativeExit && rule.parameters.iter().any(is_argument);
        self.binds(OfCall::is_of_pair) || self.rules.iter().any(|(_, rule)| asks_for_arguments(rule))
    }

    /// Whether rules ask for times in nanoseconds.
    pub fn measures_time(&self) -> bool {
        self.binds(|value| matches!(value, OfCall::Nanoseconds | OfCall::Duration))
    }

    /// Whether rules ask for the enclosing calls: the depth or the stack.
    pub fn asks_for_nesting(&self) -> bool {
        self.binds(|value| matches!(value, OfCall::Depth | OfCall::Stack))
    }

    /// Whether rules ask for stacks.
    pub fn tells_stacks(&self) -> bool {
        self.binds(|value| value == OfCall::Stack)
    }

    /// Whether a rule binds a value for which the predicate holds.
    fn binds(&self, is_such: impl Fn(OfCall) -> bool) -> bool {
        let mut parameters = self.rules.iter().flat_map(|(_, rule)| &rule.parameters);
        parameters.any(|parameter| matches!(parameter, Parameter::OfCall(value) if is_such(*value)))
    }

    /// Whether the rule at a place asks for values that are known only if the beginning and end of
    /// each call are observed together.
    ///
    /// # Panics
    /// If the place does not belong to this monitor.
    pub fn needs_pairs(&self, place: PlaceId) -> bool {
        let Place { arguments, is_exit, .. } = &self.places[place.0 as usize];
        arguments.iter().any(|argument| match argument {
            Argument::OfCall(value) => value.is_of_pair(),
            Argument::OfFunction { is_result, .. } => *is_exit && !is_result,
            Argument::Constant(_) => false,
        })
    }

    /// The numbers of the function's arguments, and of its result, that the rule at a place asks
    /// for.
    ///
    /// # Panics
    /// If the place does not belong to this monitor.
    pub fn values(&self, place: PlaceId) -> impl Iterator<Item = u32> + '_ {
        self.places[place.0 as usize].arguments.iter().filter_map(|argument| match argument {
            Argument::OfFunction { number, .. } => Some(*number),
            _ => None,
        })
    }

    /// Matches the rules with a function.
    ///
    /// `value` is called for each argument and result that is needed by a rule whose static
    /// predicate holds. It returns the value's index in [`NativeCall::values`], or `None` if the
    /// function has no such argument or result, or one whose values do not all fit the type
    /// ([`NumberType::holds`]): then the rule does not match.
    ///
    /// # Errors
    /// [`MonitorError::Call`]: there is no memory for the variables of the function's places.
    pub fn function(
        &mut self,
        function: NativeFunction<'_>,
        value: &mut dyn FnMut(&NativeValue) -> Option<u32>,
    ) -> Result<NativePlaces, MonitorError> {
        let mut found = NativePlaces::default();
        let rules = self.rules.clone();
        for number in self.candidates(function) {
            let (export, rule) = &rules[number];
            if let Some(predicate) = &rule.predicate
                && self.call(export, predicate, function)? as u32 == 0
            {
                continue;
            }
            let of_function = |parameter: &Parameter| match parameter {
                Parameter::NativeValue(wanted) => Some(value(wanted)),
                _ => None,
            };
            // Values that are not used are asked for as well: the rule matches functions that have
            // them. Variables of the place are made only if the rule matches.
            let of_function: Option<Vec<u32>> = rule.parameters.iter().filter_map(of_function).collect();
            let Some(of_function) = of_function else { continue };
            let mut of_function = of_function.into_iter();
            let of_rule = self.instance.get_func(&self.store, export).expect("the rule is its name");
            let id = PlaceId(self.places.len() as u32);
            let mut arguments = Vec::with_capacity(rule.parameters.len());
            for parameter in &rule.parameters {
                arguments.push(match parameter {
                    Parameter::Static(Static::Probe) => Argument::Constant(id.0.into()),
                    Parameter::NativeValue(value) => {
                        let number = of_function.next().expect("each has a number");
                        match value.is_used {
                            true => {
                                Argument::OfFunction { number, is_result: value.name == ValueName::Result }
                            }
                            false => Argument::Constant(0),
                        }
                    }
                    Parameter::OfCall(value) => Argument::OfCall(*value),
                    Parameter::Call(call) => Argument::Constant(self.call(export, call, function)?),
                    Parameter::Static(value) => Argument::Constant(number_of(*value, function)),
                    _ => unreachable!("no such value has a name in native rules"),
                });
            }
            let numeric = NumericFunc::new(&self.store, of_rule)
                .map_err(|source| self.failed(export, "", function, source))?;
            assert!(arguments.len() <= MAX_ARGUMENTS, "the language binds fewer values");
            let is_exit = rule.event == Event::NativeExit;
            let is_block = |value: &Argument| matches!(value, Argument::OfCall(OfCall::ThreadBlock));
            let has_thread = arguments.iter().any(is_block);
            let (arguments, group) = (arguments.into(), rule.group());
            self.places.push(Place { function: numeric, is_exit, has_thread, arguments, group });
            match rule.event {
                Event::NativeEntry => found.entry.push(id),
                _ => found.exit.push(id),
            }
        }
        Ok(found)
    }

    /// The rules whose predicates may hold for a function.
    fn candidates(&self, function: NativeFunction<'_>) -> Vec<usize> {
        let text = |text| Actual::Text(self.buffer.as_ref().map_or(text, |buffer| buffer.cut(text)));
        let actual = |value| match value {
            Static::FunctionName => text(function.name),
            Static::Object => text(function.object),
            value => Actual::Integer(number_of(value, function)),
        };
        let mut found = self.index.rest().to_vec();
        self.index.values().for_each(|value| self.index.find(value, actual(value), &mut found));
        found.sort_unstable();
        found.retain(|number| {
            self.known[*number].requirements.iter().all(|required| required.allows(actual(required.value)))
        });
        found
    }

    fn failed(
        &self,
        export: &str,
        call: &str,
        function: NativeFunction<'_>,
        source: wasm_jit::Error,
    ) -> MonitorError {
        MonitorError::Call {
            export: export.to_owned(),
            call: call.to_owned(),
            name: format!("the export `{export}`: `{call}`"),
            function: function.number,
            offset: 0,
            source: Box::new(source),
        }
    }

    /// The result, as bits, of a function that is called at match time.
    fn call(&mut self, export: &str, call: &Call, function: NativeFunction<'_>) -> Result<u64, MonitorError> {
        let mut arguments = Vec::new();
        let callee = self.instance.get_func(&self.store, &call.name).expect("the compiler has exported it");
        let types: Vec<ValType> = callee.ty(&self.store).params().collect();
        for parameter in &call.parameters {
            match parameter {
                Parameter::Static(value) if value.is_string() => {
                    let text = if *value == Static::Object { function.object } else { function.name };
                    let buffer = self.buffer.as_ref().ok_or(MonitorError::Buffer)?;
                    arguments.extend(buffer.write(&mut self.store, text)?.map(u64::from));
                }
                Parameter::Static(value) => arguments.push(number_of(*value, function)),
                Parameter::Call(call) => arguments.push(self.call(export, call, function)?),
                _ => unreachable!("values of calls are not known at match time"),
            }
        }
        let arguments = arguments.iter().zip(types).map(|(bits, ty)| match ty {
            ValType::I32 => Val::I32(*bits as i32),
            ValType::F32 => Val::F32(*bits as u32),
            ValType::F64 => Val::F64(*bits),
            _ => Val::I64(*bits as i64),
        });
        let arguments: Vec<Val> = arguments.collect();
        let mut result = [Val::I32(0)];
        let done = callee.call(&mut self.store, &arguments, &mut result);
        done.map_err(|source| self.failed(export, &call.name, function, source))?;
        Ok(match result {
            [Val::I32(value)] => u64::from(value as u32),
            [Val::I64(value)] => value as u64,
            [Val::F32(bits)] => u64::from(bits),
            [Val::F64(bits)] => bits,
            _ => unreachable!("functions of match time have a number as their result"),
        })
    }

    /// Executes a rule at a place, for an event there.
    ///
    /// # Errors
    /// The reason why a statement failed: the script has divided by zero, has no memory left, or
    /// its functions recurse without end. The variables keep the values that they have then.
    ///
    /// # Panics
    /// If the place does not belong to this monitor, or one of its [values](Self::values) or the
    /// [frame](Self::uses_frame) is missing.
    pub fn fire(&mut self, place: PlaceId, of: &NativeCall<'_>) -> Result<(), wasm_jit::Error> {
        let thread = if self.places[place.0 as usize].has_thread { self.thread(of.thread)? } else { 0 };
        let Place { function, arguments, .. } = &self.places[place.0 as usize];
        let mut values = [0; MAX_ARGUMENTS];
        for (value, argument) in values.iter_mut().zip(arguments) {
            *value = match argument {
                Argument::Constant(bits) => *bits,
                Argument::OfCall(OfCall::Probe) => of.probe.into(),
                Argument::OfCall(OfCall::Thread) => of.thread.into(),
                Argument::OfCall(OfCall::Ticks) => of.ticks,
                Argument::OfCall(OfCall::Nanoseconds) => of.nanoseconds,
                Argument::OfCall(OfCall::Depth) => of.depth.into(),
                Argument::OfCall(OfCall::Duration) => of.duration,
                Argument::OfCall(OfCall::Stack) => of.stack.into(),
                Argument::OfCall(OfCall::ThreadBlock) => thread.into(),
                Argument::OfCall(OfCall::FrameBlock) => of.frame.expect("the rule uses it").0.into(),
                Argument::OfFunction { number, .. } => of.values[*number as usize],
            };
        }
        function.call(&mut self.store, &mut values)
    }

    /// The address of a thread's variables, which are created when a rule first needs them.
    fn thread(&mut self, number: u32) -> Result<u32, wasm_jit::Error> {
        if let Some(address) = self.threads.get(&number) {
            return Ok(*address);
        }
        let make = self.instance.get_func(&self.store, THREAD_BLOCK).expect("the compiler has exported it");
        let mut made = [Val::I32(0)];
        make.call(&mut self.store, &[Val::I32(number.cast_signed())], &mut made)?;
        let [Val::I32(address)] = made else { unreachable!("its result is an address") };
        self.threads.insert(number, address.cast_unsigned());
        Ok(address.cast_unsigned())
    }

    /// Whether the rule at a place uses frame variables.
    ///
    /// # Panics
    /// If the place does not belong to this monitor.
    pub fn uses_frame(&self, place: PlaceId) -> bool {
        let is_frame = |value: &Argument| matches!(value, Argument::OfCall(OfCall::FrameBlock));
        self.places[place.0 as usize].arguments.iter().any(is_frame)
    }

    /// Creates the frame variables of a call, with their initial values. They take memory until
    /// [`end_frame`](Self::end_frame).
    ///
    /// # Errors
    /// If the script has no memory left.
    ///
    /// # Panics
    /// If no rule [uses](Self::uses_frame) frame variables.
    pub fn new_frame(&mut self) -> Result<NativeFrame, wasm_jit::Error> {
        let make = self.frame_block.expect("a rule uses frame variables");
        let mut address = [self.free_frames.pop().map_or(0, |frame| frame.0).into()];
        make.call(&mut self.store, &mut address)?;
        Ok(NativeFrame(address[0] as u32))
    }

    /// Frees the frame variables of a call that has ended, in whatever way.
    pub fn end_frame(&mut self, frame: NativeFrame) {
        self.free_frames.push(frame);
    }

    /// The places at which a rule has finished since the last call to this function: it has the
    /// annotation `@once`, and its first event has happened. [`fire`](Self::fire) need not be
    /// called for them, but may be.
    pub fn take_finished(&mut self) -> Vec<PlaceId> {
        std::mem::take(&mut self.store.data_mut().finished)
    }

    /// The group of the rule at a place, if the rule is sampled by time.
    ///
    /// # Panics
    /// If the place does not belong to this monitor.
    pub fn group(&self, place: PlaceId) -> Option<u32> {
        self.places[place.0 as usize].group
    }

    /// The rules that have acted since the last call to this function and do nothing until a time:
    /// for the [group](Self::group) of each, the time in nanoseconds, as in
    /// [`NativeCall::nanoseconds`]. [`fire`](Self::fire) need not be called for events before it,
    /// but may be.
    pub fn take_pauses(&mut self) -> Vec<(u32, u64)> {
        std::mem::take(&mut self.store.data_mut().pauses)
    }

    /// Ends a thread: a later thread with the same id gets new variables.
    pub fn thread_ended(&mut self, number: u32) {
        self.threads.remove(&number);
    }

    /// Executes the rules of the end.
    ///
    /// # Errors
    /// [`MonitorError::Run`]: a statement failed.
    pub fn finish(&mut self) -> Result<(), MonitorError> {
        let export = "wasm:exit";
        let Some(last) = self.instance.get_func(&self.store, export) else { return Ok(()) };
        let done = last.call(&mut self.store, &[], &mut []);
        done.map_err(|source| MonitorError::Run { export: "native:end".to_owned(), source: Box::new(source) })
    }

    /// The values of the reported variables. In [`SiteReport`](crate::lang::SiteReport), `function`
    /// is the number that the function was given.
    ///
    /// # Errors
    /// [`MonitorError::Report`]: a library function or a defect has overwritten the values.
    pub fn report(&self) -> Result<ScriptReport, MonitorError> {
        self.script.report(&self.store, &self.instance)
    }
}

impl std::fmt::Debug for NativeMonitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NativeMonitor")
            .field("rules", &self.rules().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

/// A static value that is a number.
fn number_of(value: Static, function: NativeFunction<'_>) -> u64 {
    match value {
        Static::Function => function.number.into(),
        // An entry, or the exits, have no offset.
        _ => 0,
    }
}
