//! Matching of rules with places: the events of a program, and the values that they have when a
//! monitor is attached.

use std::collections::HashMap;
use std::rc::Rc;

use wasm_jit::probes::{Bound, Location, Place, Values, WasmFn};
use wasm_jit::wasmparser::Operator;
use wasm_jit::{FunctionInfo, Instance, Module, NumericFunc, Store, Val, ValType};
use wasm_jit_hooks::Flow;

use super::blame::{Libraries, name_of_call, of_rule};
use super::counted::RuleMatch;
use super::error::MonitorError;
use super::evaluate::Ways;
use super::instructions::{Immediate, access, immediates, name};
use super::load::MonitorModule;
use super::modes::{Continuations, results};
use super::names::{Call, Event, Parameter, Static};
use super::operands::Operands;
use super::rules::Rules;
use super::strings::Buffer;
use super::time_limit::TimeLimit;
use crate::conditions::Actual;

/// A place where an event occurs.
#[derive(Clone, Copy)]
struct Match<'m> {
    program: &'m Module,
    function: FunctionInfo<'m>,
    place: Place,
    offset: u32,
    index: usize,
    is_last: bool,
    instruction: Option<(&'m Operator<'m>, &'m [u8])>,
    /// The places where control continues, if a rule needs them.
    continuations: Option<&'m Continuations>,
    /// The operands and locals of the function, if a rule needs them.
    operands: Option<&'m Operands>,
    /// The number of instructions of the block that ends.
    count: Option<usize>,
}

/// A value that a rule binds, evaluated at a place.
enum Evaluated {
    Integer(u64),
    F32(u32),
    F64(u64),
    Text(String),
    /// The place has no such value.
    None,
}

pub(super) struct Matching<'a, T: 'static> {
    pub(super) monitor: &'a MonitorModule,
    pub(super) store: &'a mut Store<T>,
    pub(super) instance: &'a Instance,
    pub(super) buffer: Option<Buffer>,
    /// The functions by rule.
    pub(super) functions: Vec<WasmFn>,
    pub(super) rules: Rules,
    pub(super) found: Vec<RuleMatch>,
    /// By rule: the places that do not have its values, or have them in other types.
    pub(super) unfit: Vec<usize>,
    pub(super) limit: TimeLimit,
    pub(super) libraries: Libraries,
    /// The functions that are called at match time, for the names looked up so far.
    pub(super) callees: HashMap<String, Rc<Callee>>,
    /// The addresses of strings that the monitor has stored.
    pub(super) interned: HashMap<String, i32>,
}

/// A function that is called at match time.
pub(super) struct Callee {
    function: NumericFunc,
    parameters: Vec<ValType>,
    result: ValType,
}

impl<T: 'static> Matching<'_, T> {
    /// The rules for an event that is not a place of a function.
    pub(super) fn once(
        &mut self,
        event: &Event,
        mut action: impl FnMut(&mut Self, &str, Vec<Val>) -> Result<(), MonitorError>,
    ) -> Result<(), MonitorError> {
        let monitor = self.monitor;
        for (number, (export, rule)) in monitor.rules.iter().enumerate() {
            if rule.event != *event || !self.predicate(export, rule.predicate.as_ref(), None)? {
                continue;
            }
            let types = self.functions[number].parameters().to_vec();
            if let Some(arguments) = self.arguments(export, &rule.parameters, &types, None)? {
                action(self, export, arguments)?;
            }
        }
        Ok(())
    }

    /// The places of a function.
    pub(super) fn function(
        &mut self,
        program: &Module,
        function: FunctionInfo<'_>,
        operands: Option<&Operands>,
    ) -> Result<(), MonitorError> {
        let entry = Match {
            program,
            function,
            place: Place::Entry,
            offset: 0,
            index: 0,
            is_last: false,
            instruction: None,
            continuations: None,
            operands,
            count: None,
        };
        self.known(&entry)?;
        let Some(body) = function.body() else { return Ok(()) };
        let (start, length) = (body.range().start, body.range().len() as u32);
        let instructions: Vec<_> = body.instructions().collect();
        self.all(&Event::Entry, &entry)?;
        let blocks = if self.rules.have_blocks { Flow::of(body).blocks() } else { Vec::new() };
        let mut blocks = blocks.into_iter().peekable();
        let continuations = self.rules.have_modes.then(|| Continuations::of(&Flow::of(body)));
        for (index, instruction) in instructions.iter().enumerate() {
            let offset = (instruction.offset() - start) as u32;
            let mut place = Match {
                place: Place::Instruction { offset },
                offset,
                index,
                is_last: index + 1 == instructions.len(),
                instruction: Some((instruction.operator(), instruction.bytes())),
                continuations: continuations.as_ref(),
                ..entry
            };
            if let Some(block) = blocks.peek().cloned() {
                if block.start == index {
                    self.all(&Event::BlockStart, &place)?;
                }
                if block.end == index + 1 {
                    place.count = Some(block.len());
                    self.all(&Event::BlockEnd, &place)?;
                    place.count = None;
                    blocks.next();
                }
            }
            let name = name(instruction.operator());
            let rules = self.rules.for_opcode(self.monitor, &name);
            for number in self.candidates(rules, &place)? {
                match self.monitor.rules[number].1.mode {
                    mode if mode.has_operands() => self.rule(number, &place)?,
                    mode => {
                        let places = continuations.iter().flat_map(|all| all.places(index, mode));
                        let places: Vec<Place> = places.collect();
                        self.rule_at(number, &place, &places, None)?;
                    }
                }
            }
        }
        let count = instructions.len();
        self.all(&Event::Exit, &Match { place: Place::Exit, offset: length, index: count, ..entry })
    }

    /// Tells the monitor about a function.
    fn known(&mut self, function: &Match<'_>) -> Result<(), MonitorError> {
        let monitor = self.monitor;
        for number in self.rules.of_functions.clone() {
            let (export, rule) = &monitor.rules[number];
            self.predicate(export, rule.predicate.as_ref(), Some(function))?;
        }
        Ok(())
    }

    /// The rules for an event that is not an opcode.
    fn all(&mut self, event: &Event, place: &Match<'_>) -> Result<(), MonitorError> {
        for number in self.candidates(self.rules.for_event(event), place)? {
            self.rule(number, place)?;
        }
        Ok(())
    }

    /// Those of the rules at a position of [`Rules::all`] whose predicates may hold at a place.
    fn candidates(&mut self, rules: usize, place: &Match<'_>) -> Result<Vec<usize>, MonitorError> {
        let function = Some(place.function.index());
        if self.rules.all[rules].function != function {
            let mut rest = Vec::new();
            for position in 0..self.rules.all[rules].index.rest().len() {
                let number = self.rules.all[rules].index.rest()[position];
                if self.may_hold_in_function(number, place)? {
                    rest.push(number);
                }
            }
            let of_event = &mut self.rules.all[rules];
            (of_event.function, of_event.rest) = (function, rest);
        }
        let of_event = &self.rules.all[rules];
        let mut found = of_event.rest.clone();
        let buffer = self.buffer.as_ref();
        for value in of_event.index.values() {
            place.with(value, buffer, |actual| of_event.index.find(value, actual, &mut found));
        }
        found.sort_unstable();
        found.retain(|number| {
            let requirements = &self.rules.known[*number].requirements;
            // The rule was found by a requirement if it has any.
            requirements.len() < 2
                || requirements.iter().all(|requirement| {
                    place.with(requirement.value, buffer, |actual| requirement.allows(actual))
                })
        });
        Ok(found)
    }

    /// Whether the predicate of a rule may hold in the function of a place: if it depends on the
    /// function only, it is evaluated once for the function.
    fn may_hold_in_function(&mut self, number: usize, place: &Match<'_>) -> Result<bool, MonitorError> {
        if !self.rules.known[number].is_of_function {
            return Ok(true);
        }
        let function = place.function.index();
        if let (of, holds) = self.rules.held[number]
            && of == Some(function)
        {
            return Ok(holds);
        }
        let (export, rule) = &self.monitor.rules[number];
        let holds = self.predicate(export, rule.predicate.as_ref(), Some(place))?;
        self.rules.held[number] = (Some(function), holds);
        Ok(holds)
    }

    /// A rule at a place.
    fn rule(&mut self, number: usize, place: &Match<'_>) -> Result<(), MonitorError> {
        let ways = place.instruction.and_then(|(operator, _)| Ways::of(operator));
        self.rule_at(number, place, &[place.place], ways)
    }

    /// Adds a rule about a place whose function is called at other places; `ways` are the outcomes
    /// of the instruction there.
    fn rule_at(
        &mut self,
        number: usize,
        place: &Match<'_>,
        at: &[Place],
        ways: Option<Ways>,
    ) -> Result<(), MonitorError> {
        if at.is_empty() {
            return Ok(());
        }
        let (export, rule) = &self.monitor.rules[number];
        let instruction = place.instruction.map(|_| place.index);
        let fit = |operands: &Operands| operands.fit(rule, self.functions[number].parameters(), instruction);
        let has_result = |value: &Parameter| match value {
            Parameter::Result(depth) => *depth < place.results(),
            _ => true,
        };
        if !place.operands.is_none_or(fit) || !rule.parameters.iter().all(has_result) {
            self.unfit[number] += 1;
            return Ok(());
        }
        let holds = match self.rules.known[number].is_of_function {
            true => self.may_hold_in_function(number, place)?,
            false => self.predicate(export, rule.predicate.as_ref(), Some(place))?,
        };
        if !holds {
            return Ok(());
        }
        let types = self.functions[number].parameters().to_vec();
        let mut values = Vec::with_capacity(types.len());
        for (value, ty) in rule.parameters.iter().zip(types) {
            values.push(match value {
                Parameter::Argument(depth) => Bound::Operand(*depth),
                Parameter::Reference(depth) => Bound::Reference(*depth),
                Parameter::Result(depth) => Bound::Operand(*depth),
                Parameter::Local(index) => Bound::Local(*index),
                Parameter::Frame => Bound::Frame,
                // No place of a module has one.
                Parameter::OfCall(_) | Parameter::NativeValue(_) => return Ok(()),
                Parameter::Callee => Bound::Callee,
                // The name of the export is enough.
                Parameter::Replaced(_) | Parameter::Alternative(_) => Bound::Const(0),
                Parameter::Static(_) | Parameter::Call(_) => {
                    let of_value = self.arguments(export, std::slice::from_ref(value), &[ty], Some(place))?;
                    let Some(of_value) = of_value else {
                        self.unfit[number] += 1;
                        return Ok(());
                    };
                    Bound::Const(bits(&of_value[0]))
                }
            });
        }
        let values = Values::from(&values[..]);
        let (group, asks_for_callee) = (rule.group(), rule.asks_for_callee());
        self.found.extend(at.iter().map(|at| RuleMatch {
            rule: number,
            location: Location { function: place.function.index(), place: *at },
            values: values.clone(),
            ways,
            adds: None,
            group,
            asks_for_callee,
        }));
        Ok(())
    }

    /// Whether there is no predicate, or it holds.
    fn predicate(
        &mut self,
        export: &str,
        predicate: Option<&Call>,
        place: Option<&Match<'_>>,
    ) -> Result<bool, MonitorError> {
        let Some(call) = predicate else { return Ok(true) };
        let result = self.call(export, call, place)?;
        Ok(result.is_some_and(|result| result.i32() != Some(0)))
    }

    /// The result of a function; `None` if the place does not have the values that it needs.
    fn call(
        &mut self,
        export: &str,
        call: &Call,
        place: Option<&Match<'_>>,
    ) -> Result<Option<Val>, MonitorError> {
        let text = self.interned_text(call, place);
        if let Some(address) = text.as_ref().and_then(|text| self.interned.get(text)) {
            return Ok(Some(Val::I32(*address)));
        }
        let callee = self.callee(&call.name);
        let Some(arguments) = self.arguments(export, &call.parameters, &callee.parameters, place)? else {
            return Ok(None);
        };
        let mut values: Vec<u64> = arguments.iter().map(bits).collect();
        // There is room for the result.
        values.push(0);
        self.limit.renew();
        let done = callee.function.call(&mut *self.store, &mut values);
        done.map_err(|source| {
            let name = name_of_call(&self.monitor.module, export, &call.name);
            let name = self.libraries.with_called(name, &source);
            if self.limit.has_passed() {
                let when = "when the rule is matched";
                return MonitorError::TooSlow { name, when, limit: self.monitor.call_limit };
            }
            let (name, source) = of_rule(source).unwrap_or_else(|source| (name, source));
            MonitorError::Call {
                export: export.to_owned(),
                call: call.name.clone(),
                name,
                function: place.map_or(0, |place| place.function.index()),
                offset: place.map_or(0, |place| place.offset),
                source: Box::new(source),
            }
        })?;
        let result = match callee.result {
            ValType::I64 => Val::I64(values[0] as i64),
            ValType::F32 => Val::F32(values[0] as u32),
            ValType::F64 => Val::F64(values[0]),
            _ => Val::I32(values[0] as i32),
        };
        if let (Some(text), Val::I32(address)) = (text, &result) {
            self.interned.insert(text, *address);
        }
        Ok(Some(result))
    }

    /// The string of a place that a call stores, if it does nothing else.
    fn interned_text(&self, call: &Call, place: Option<&Match<'_>>) -> Option<String> {
        let value = self.monitor.described.predicates.interned(call)?;
        match place?.value(value) {
            Evaluated::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A function that is called at match time.
    fn callee(&mut self, name: &str) -> Rc<Callee> {
        if let Some(callee) = self.callees.get(name) {
            return callee.clone();
        }
        let function = self.instance.get_func(&*self.store, name).expect("checked at loading");
        let ty = function.ty(&*self.store);
        let callee = Rc::new(Callee {
            function: NumericFunc::new(&*self.store, function).expect("checked at loading"),
            parameters: ty.params().collect(),
            result: ty.results().next().expect("checked at loading"),
        });
        self.callees.insert(name.to_owned(), callee.clone());
        callee
    }

    /// Static values as parameters of these types; `None` if the place does not have all of them.
    fn arguments(
        &mut self,
        export: &str,
        values: &[Parameter],
        types: &[ValType],
        place: Option<&Match<'_>>,
    ) -> Result<Option<Vec<Val>>, MonitorError> {
        let mut arguments = Vec::with_capacity(types.len());
        for value in values {
            let ty = types[arguments.len()];
            match value {
                Parameter::Call(call) => match self.call(export, call, place)? {
                    Some(result) => arguments.push(result),
                    None => return Ok(None),
                },
                Parameter::Static(value) => {
                    let evaluated = match (*value, place) {
                        (value, None) => nowhere(value),
                        // The number of the match that is added next.
                        (Static::Probe, Some(_)) => Evaluated::Integer(self.found.len() as u64),
                        (value, Some(place)) => place.value(value),
                    };
                    match (evaluated, ty) {
                        (Evaluated::Integer(value), ValType::I32) => arguments.push(Val::I32(value as i32)),
                        (Evaluated::Integer(value), ValType::I64) => arguments.push(Val::I64(value as i64)),
                        (Evaluated::F32(value), ValType::F32) => arguments.push(Val::F32(value)),
                        (Evaluated::F64(value), ValType::F64) => arguments.push(Val::F64(value)),
                        (Evaluated::Text(text), _) => {
                            let buffer = self.buffer.as_ref().ok_or(MonitorError::Buffer)?;
                            if *value == Static::Targets && buffer.cut(&text).len() < text.len() {
                                let targets = text.len() / TARGET_DIGITS - 1;
                                let function = place.map_or(0, |place| place.function.index());
                                return Err(MonitorError::Targets { targets, function });
                            }
                            let [start, length] = buffer.write(self.store, &text)?;
                            arguments.extend([Val::I32(start as i32), Val::I32(length as i32)]);
                        }
                        _ => return Ok(None),
                    }
                }
                _ => unreachable!("refused at loading"),
            }
        }
        Ok(Some(arguments))
    }
}

/// The number of characters that stand for a target of a `br_table`.
const TARGET_DIGITS: usize = 4;

/// A target of a `br_table` as text: digits of 6 bits, the lowest first, each added to `@`. Labels
/// are smaller than the size of a function, which has fewer bits.
fn target_digits(target: u32) -> [char; TARGET_DIGITS] {
    [0, 6, 12, 18].map(|shift| char::from(b'@' + (target >> shift & 0x3f) as u8))
}

/// The value of an event without a place: the beginning and the end.
fn nowhere(value: Static) -> Evaluated {
    match value {
        Static::Pc | Static::Opidx | Static::Function => Evaluated::Integer(0),
        Static::FunctionName => Evaluated::Text(String::new()),
        _ => Evaluated::None,
    }
}

fn bits(value: &Val) -> u64 {
    match value {
        Val::I32(value) => u64::from(*value as u32),
        Val::I64(value) => *value as u64,
        Val::F32(bits) => (*bits).into(),
        Val::F64(bits) => *bits,
        _ => unreachable!("only numbers pass the checks of loading"),
    }
}

/// The name of a function; for an imported one, that of the import.
fn name_of(function: FunctionInfo<'_>) -> &str {
    let imported = function.import().map(|import| import.name());
    imported.or(function.name()).unwrap_or_default()
}

impl Match<'_> {
    /// Calls a function with a value, cut as strings for the monitor are.
    fn with<R>(&self, value: Static, buffer: Option<&Buffer>, read: impl FnOnce(Actual<'_>) -> R) -> R {
        match self.value(value) {
            Evaluated::Text(text) => read(Actual::Text(buffer.map_or(&*text, |buffer| buffer.cut(&text)))),
            Evaluated::Integer(value) => read(Actual::Integer(value)),
            Evaluated::F32(_) | Evaluated::F64(_) | Evaluated::None => read(Actual::None),
        }
    }

    fn value(&self, value: Static) -> Evaluated {
        let integer = |value: Option<u64>| value.map_or(Evaluated::None, Evaluated::Integer);
        let text = |text: Option<&str>| text.map_or(Evaluated::None, |text| Evaluated::Text(text.to_owned()));
        let access = || self.instruction.and_then(|(operator, bytes)| access(operator, bytes));
        let targets = || match self.instruction {
            Some((Operator::BrTable { targets }, _)) => Some(targets),
            _ => None,
        };
        match value {
            Static::Pc => Evaluated::Integer(self.offset.into()),
            Static::Opidx => Evaluated::Integer(self.index as u64),
            Static::Probe => unreachable!("the caller knows it"),
            Static::Group(group) => Evaluated::Integer(group.into()),
            Static::Callee => Evaluated::Integer(0),
            Static::Function => Evaluated::Integer(self.function.index().into()),
            Static::AtFunctionEnd => Evaluated::Integer(self.is_last.into()),
            Static::Immediate(index) => {
                let all = self.instruction.map(|(operator, bytes)| immediates(operator, bytes));
                match all.unwrap_or_default().get(index as usize) {
                    Some(Immediate::Integer(value)) => Evaluated::Integer(*value),
                    Some(Immediate::F32(value)) => Evaluated::F32(*value),
                    Some(Immediate::F64(value)) => Evaluated::F64(*value),
                    None => Evaluated::None,
                }
            }
            Static::Object => Evaluated::None,
            Static::Offset => integer(access().map(|access| access.offset)),
            Static::Align => integer(access().map(|access| access.align)),
            Static::Memory => integer(access().map(|access| access.memory)),
            Static::TargetCount => integer(targets().map(|targets| targets.len().into())),
            Static::Targets => match targets() {
                Some(targets) => {
                    let all = targets.targets().filter_map(Result::ok).chain([targets.default()]);
                    Evaluated::Text(all.flat_map(target_digits).collect())
                }
                None => Evaluated::None,
            },
            Static::DefaultTarget => integer(targets().map(|targets| targets.default().into())),
            Static::InstructionCount => integer(self.count.map(|count| count as u64)),
            Static::FunctionName => text(Some(name_of(self.function))),
            Static::OpcodeName => text(self.instruction.map(|(operator, _)| name(operator)).as_deref()),
            Static::TargetName => text(self.target().map(name_of)),
            Static::TargetModule => {
                let module = |target: FunctionInfo<'_>| {
                    target.import().map_or(String::new(), |import| import.module().to_owned())
                };
                text(self.target().map(module).as_deref())
            }
            Static::TargetType => text(self.target().map(|target| match target.import() {
                Some(_) => "import",
                None => "local",
            })),
            Static::Guard(mode) => {
                let start = self.function.body().map_or(0, |body| body.range().start as u64);
                let guarded = self.continuations.map(|all| all.is_shared(self.index, mode));
                // No instruction is at the start of a module.
                integer(guarded.map(|guarded| if guarded { start + u64::from(self.offset) } else { 0 }))
            }
        }
    }

    /// The number of results that the instruction pushes.
    fn results(&self) -> u32 {
        self.instruction.map_or(0, |(operator, _)| results(self.program, operator))
    }

    /// The function that the instruction calls.
    fn target(&self) -> Option<FunctionInfo<'_>> {
        match self.instruction {
            Some((Operator::Call { function_index } | Operator::ReturnCall { function_index }, _)) => {
                self.program.function(*function_index)
            }
            _ => None,
        }
    }
}
