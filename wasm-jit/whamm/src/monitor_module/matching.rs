//! Matching of rules with places: the events of a program, and the values that they have when a
//! monitor is attached.

use std::collections::HashMap;

use wasm_jit::probes::{Bound, Location, Place, Values, WasmFn};
use wasm_jit::wasmparser::Operator;
use wasm_jit::{FunctionInfo, Instance, Module, Store, Val, ValType};
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
use super::strings::Buffer;
use super::time_limit::TimeLimit;

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
    /// The rules for instructions, by instruction name, for the names looked up so far.
    pub(super) opcodes: HashMap<String, Vec<usize>>,
    pub(super) found: Vec<RuleMatch>,
    /// By rule: the places that do not have its values, or have them in other types.
    pub(super) unfit: Vec<usize>,
    pub(super) limit: TimeLimit,
    pub(super) libraries: Libraries,
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
        let of_blocks = |(_, rule): &(String, super::names::Rule)| {
            matches!(rule.event, Event::BlockStart | Event::BlockEnd)
        };
        let has_blocks = self.monitor.rules.iter().any(of_blocks);
        let blocks = if has_blocks { Flow::of(body).blocks() } else { Vec::new() };
        let mut blocks = blocks.into_iter().peekable();
        let has_modes = self.monitor.rules.iter().any(|(_, rule)| !rule.mode.has_operands());
        let continuations = has_modes.then(|| Continuations::of(&Flow::of(body)));
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
            let rules = match self.opcodes.get(&name) {
                Some(rules) => rules.clone(),
                None => {
                    let rules = self.rules_of(&name);
                    self.opcodes.insert(name, rules.clone());
                    rules
                }
            };
            for number in rules {
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
        for (export, rule) in monitor.rules.iter().filter(|(_, rule)| rule.event == Event::Known) {
            self.predicate(export, rule.predicate.as_ref(), Some(function))?;
        }
        Ok(())
    }

    /// The rules for an instruction.
    fn rules_of(&self, name: &str) -> Vec<usize> {
        let wants = |event: &Event| matches!(event, Event::Opcode(patterns) if patterns.iter().any(|pattern| pattern.matches(name)));
        let rules = self.monitor.rules.iter().enumerate();
        rules.filter(|(_, (_, rule))| wants(&rule.event)).map(|(number, _)| number).collect()
    }

    /// The rules for an event that is not an opcode.
    fn all(&mut self, event: &Event, place: &Match<'_>) -> Result<(), MonitorError> {
        for number in 0..self.monitor.rules.len() {
            if self.monitor.rules[number].1.event == *event {
                self.rule(number, place)?;
            }
        }
        Ok(())
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
        if !self.predicate(export, rule.predicate.as_ref(), Some(place))? {
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
        let function = self.instance.get_func(&*self.store, &call.name).expect("checked at loading");
        let ty = function.ty(&*self.store);
        let types: Vec<ValType> = ty.params().collect();
        let Some(arguments) = self.arguments(export, &call.parameters, &types, place)? else {
            return Ok(None);
        };
        let mut result = [Val::I32(0)];
        self.limit.renew();
        let done = function.call(&mut *self.store, &arguments, &mut result);
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
        let [result] = result;
        Ok(Some(result))
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
