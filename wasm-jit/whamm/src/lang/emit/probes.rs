//! Emits the functions of probes, and the functions that they need at match time.

use wasm_encoder::{Instruction as I, ValType};

use super::super::ast::BinaryOp;
use super::super::bound::TARGETS;
use super::super::events::Mode;
use super::super::ir::{Body, Failing, Import, Kind, Place, Probe, Statement, Typed};
use super::super::split::Part;
use super::super::toggled;
use super::super::types::Type;
use super::Emitter;
use super::code::Code;
use super::known;
use super::requests::{self, Requested, reads, requests, requests_of, sets};
use super::runtime::keyword_of;
use crate::native::UNUSED;

impl Emitter<'_> {
    /// The engine's name for a value.
    fn argument(&mut self, requested: &Requested) -> String {
        match requested {
            Requested::Value(name, _) => name.clone(),
            Requested::Text(name) => {
                self.has_targets |= name == TARGETS;
                format!("${}({name})", self.intern())
            }
            Requested::AtMatch(value) => {
                let mut arguments = Vec::new();
                value.children().into_iter().for_each(|value| requests(value, true, &mut arguments));
                let name = match value.kind {
                    Kind::Counter(..) => format!("a key of {}", self.rule),
                    _ => format!("`@static` of {}", self.rule),
                };
                self.at_match(&name, &arguments, value.ty.scalar(), |code| code.expr(value))
            }
        }
    }

    fn arguments(&mut self, requested: &[Requested]) -> String {
        let all: Vec<_> = requested.iter().map(|requested| self.argument(requested)).collect();
        all.join(", ")
    }

    /// The function that stores a string, called at match time.
    fn intern(&mut self) -> u32 {
        if let Some(number) = self.intern {
            return number;
        }
        let parameters = vec![ValType::I32; 2];
        let mut code = Code::new(self.layout, &mut self.strings, parameters, vec![ValType::I32]);
        code.raw([I::LocalGet(0), I::LocalGet(1)]);
        code.call("intern");
        let number = self.functions.append(code.finish_rule("names"));
        self.export(format!("${number}"), number);
        self.intern = Some(number);
        number
    }

    /// Adds a function that is called at match time. `name` says for messages what it executes.
    fn at_match(
        &mut self,
        name: &str,
        requested: &[Requested],
        result: Option<ValType>,
        emit: impl FnOnce(&mut Code<'_>),
    ) -> String {
        self.call_at_match(name, requested, result, false, emit)
    }

    /// As [`at_match`](Self::at_match); with `is_separate`, the function is no other one, and its
    /// name is new.
    fn call_at_match(
        &mut self,
        name: &str,
        requested: &[Requested],
        result: Option<ValType>,
        is_separate: bool,
        emit: impl FnOnce(&mut Code<'_>),
    ) -> String {
        let arguments = self.arguments(requested);
        let parameters = requested.iter().map(Requested::parameter).collect();
        let mut code =
            Code::new(self.layout, &mut self.strings, parameters, vec![result.unwrap_or(ValType::I32)]);
        for (index, requested) in (0..).zip(requested) {
            code.request(requested.key(), index);
        }
        emit(&mut code);
        let function = code.finish_rule(name);
        let number = match is_separate {
            true => self.functions.append_named(function, name),
            false => self.functions.add_named(function, name),
        };
        // A unique name, as the interface requires.
        let name = format!("${number}");
        self.export(name.clone(), number);
        format!("{name}({arguments})")
    }

    /// The part of an export's name that is the predicate.
    fn predicate(&mut self, condition: &Typed, is_separate: bool) -> String {
        let mut requested = Vec::new();
        requests(condition, true, &mut requested);
        let name = format!("the predicate of {}", self.rule);
        let call = self.call_at_match(&name, &requested, None, is_separate, |code| code.expr(condition));
        if !known::calls_at_match(condition) {
            let name = call.split('(').next().unwrap_or_default().to_owned();
            self.predicates.insert(name, known::conditions(condition, &requested));
        }
        format!(" / {call} /")
    }

    /// Stores the names of all functions, by their numbers, in a map: the predicate of a rule that
    /// matches nothing.
    pub(super) fn names(&mut self, map: Place) {
        let requested = [Requested::Value("fid".to_owned(), Type::U32), Requested::Text("fname".to_owned())];
        let (key, value) = (Typed::request(Type::U32, "fid"), Typed::request(Type::Str, "fname"));
        let keep = Body { statements: vec![Statement::SetMap { map, key, value }], ..Body::default() };
        let call = self.at_match("names of functions", &requested, None, |code| {
            code.body(&keep);
            code.int(0);
        });
        let code = Code::new(self.layout, &mut self.strings, Vec::new(), Vec::new());
        let number = self.functions.add(code.finish());
        self.export(format!("wasm:func:known / {call} / ()"), number);
    }

    /// Whether statements, or a condition, ask for the function that is called.
    fn asks_for_callee(&self, condition: Option<&Typed>, statements: &[Statement]) -> bool {
        let callee = Import::callee();
        let Some(callee) = self.program.imports.iter().position(|known| *known == callee) else {
            return false;
        };
        condition.is_some_and(|condition| calls(condition, callee))
            || requests::any(statements, &mut |value| calls(value, callee))
    }

    /// The number of the group that a part of a probe belongs to.
    fn group(&self, probe: &Probe, part: &Part) -> Option<usize> {
        let condition = part.at_run.as_ref().and_then(toggled::condition)?;
        self.program
            .groups
            .iter()
            .position(|group| *group == condition)
            .filter(|_| probe.mode == Mode::Before)
    }

    /// Emits a part of a probe. `predicate` is its predicate at match time, if that has been
    /// emitted.
    pub(super) fn probe(&mut self, probe: &Probe, part: &Part, predicate: &mut Option<String>) {
        let guard = (!probe.mode.has_operands()).then(|| format!("guard_{}", probe.mode.text()));
        if let Some(guard) = &guard {
            self.begin(probe, part, guard);
        }
        if predicate.is_none() {
            *predicate = part.at_match.as_ref().map(|condition| self.predicate(condition, false));
        }
        let mut arguments = Vec::new();
        let mut parameters = Vec::new();
        if let Some(size) = probe.site {
            let mut requested: Vec<_> =
                ["fid", "pc"].map(|name| Requested::Value(name.to_owned(), Type::U32)).into();
            requests_of(&probe.init.statements, true, &mut requested);
            let list = self.lists[&probe.rule];
            let is_call = |statement: &Statement| matches!(statement, Statement::Call(_));
            let calls = probe.init.statements.iter().any(is_call);
            let what = if calls { "`@init`" } else { "an initial value" };
            let name = format!("{what} of {}", self.rule);
            arguments.push(self.at_match(&name, &requested, None, |code| site(code, probe, size, list)));
            parameters.push(ValType::I32);
        }
        let first = parameters.len() as u32;
        let mut requested = Vec::new();
        part.at_run.iter().for_each(|condition| requests(condition, false, &mut requested));
        requests_of(&probe.body.statements, false, &mut requested);
        let requested_by_code = requested.clone();
        let mut add = |name: &str, ty: &Type| {
            let value = Requested::Value(name.to_owned(), ty.clone());
            if !requested.contains(&value) {
                requested.push(value);
            }
        };
        // The engine compares these types. Native values are not fetched only for that.
        let is_native = self.program.failing == Failing::Calls;
        for (name, ty) in &probe.bounds {
            match is_native && !requested_by_code.contains(&Requested::Value(name.clone(), ty.clone())) {
                true => add(&format!("{UNUSED}{name}"), &Type::U32),
                false => add(name, ty),
            }
        }
        let condition = part.at_run.as_ref();
        let uses = |is_such: fn(Place) -> bool| {
            condition.is_some_and(|condition| reads(condition, is_such))
                || requests::any(&probe.body.statements, &mut |value| reads(value, is_such))
                || sets(&probe.body.statements, is_such)
        };
        let (in_frame, in_thread) = (uses(Place::is_of_frame), uses(Place::is_of_thread));
        let has_frame_block = in_frame && self.program.has_frame_blocks;
        if has_frame_block {
            add("frame_block", &Type::U32);
        } else if in_frame || guard.is_some() {
            add("frame", &Type::U64);
        }
        if in_thread {
            add("thread_block", &Type::U32);
        }
        if let Some(guard) = &guard {
            add(guard, &Type::U32);
        }
        if self.asks_for_callee(part.at_run.as_ref(), &probe.body.statements) {
            add("callee", &Type::U32);
        }
        // Their names tell the program what to do with the results.
        if probe.mode.replaces() {
            add(&format!("replaced_{}", replaced(probe.results.as_deref())), &Type::U32);
            for number in &probe.alternatives {
                add(&format!("alternative{number}"), &Type::U32);
            }
        }
        // The engine sees that the rule belongs to the group.
        let group = self.group(probe, part).map(|group| group as u32);
        if let Some(group) = group.or(probe.pauses) {
            add(&format!("group{group}"), &Type::U32);
        }
        parameters.extend(requested.iter().map(Requested::parameter));
        let of_engine = self.arguments(&requested);
        let mut code = Code::new(self.layout, &mut self.strings, parameters, Vec::new());
        for (index, requested) in (first..).zip(&requested) {
            code.request(requested.key(), index);
        }
        let position = |name: &str| {
            let index = requested.iter().position(|requested| requested.key() == name);
            first + index.unwrap_or(0) as u32
        };
        code.begin_steps();
        if let Some(guard) = &guard {
            code.unless_completed(position("frame"), position(guard), probe.rule as u32);
        }
        if has_frame_block {
            code.frame_is(position("frame_block"));
        } else if in_frame {
            code.frame(position("frame"));
        }
        if in_thread {
            code.thread_is(position("thread_block"));
        }
        let guarded = condition.map(|condition| {
            let yes = probe.body.statements.clone();
            let statement = Statement::If { condition: condition.clone(), yes, no: Vec::new() };
            Body { locals: probe.body.locals.clone(), statements: vec![statement], rule: None }
        });
        code.body(guarded.as_ref().unwrap_or(&probe.body));
        let number = self.functions.add_named(code.finish_rule(&self.rule), &self.rule);
        if !of_engine.is_empty() {
            arguments.push(of_engine);
        }
        let arguments = arguments.join(", ");
        let event = &probe.event;
        let mut name = format!("{event}{} ({arguments})", predicate.as_deref().unwrap_or_default());
        if self.has_other_types(&name, number) {
            let key = (name, self.parameters(number).to_vec());
            name = match self.separate.get(&key) {
                Some(name) => name.clone(),
                None => {
                    let always = Typed::bool(true);
                    let predicate = self.predicate(part.at_match.as_ref().unwrap_or(&always), true);
                    let name = format!("{event}{predicate} ({arguments})");
                    self.separate.insert(key, name.clone());
                    name
                }
            };
        }
        *self.sums.entry(name.clone()).or_insert(true) &= self.used.leaves(probe);
        self.export(name, number);
    }

    /// Emits the code that notes that an instruction begins, so that its completion is recognized.
    fn begin(&mut self, probe: &Probe, part: &Part, guard: &str) {
        let number = Typed::request(Type::U32, guard);
        let mut condition = Typed::binary(BinaryOp::Ne, number, Typed::int(Type::U32, 0));
        if let Some(at_match) = &part.at_match {
            condition = Typed::binary(BinaryOp::And, condition, at_match.clone());
        }
        let before = probe.event.replace(&format!(":{}", probe.mode.text()), ":before");
        let name = format!("{before}{} (frame, {guard})", self.predicate(&condition, false));
        let parameters = vec![ValType::I64, ValType::I32];
        let mut code = Code::new(self.layout, &mut self.strings, parameters, Vec::new());
        code.raw([I::LocalGet(0), I::LocalGet(1)]);
        code.int(probe.rule as u32);
        code.call("begin");
        let number = self.functions.add_named(code.finish_rule(&self.rule), &self.rule);
        self.sums.insert(name.clone(), false);
        self.export(name, number);
    }
}

/// The results of what a rule replaces, for the name of a value.
fn replaced(results: Option<&[Type]>) -> String {
    match results {
        None => "any".to_owned(),
        Some([]) => "nothing".to_owned(),
        Some(types) => {
            let word = |ty: &Type| ty.scalar().map_or("ref", keyword_of);
            types.iter().map(word).collect::<Vec<_>>().join("_")
        }
    }
}

/// Whether an expression calls an imported function.
fn calls(value: &Typed, import: usize) -> bool {
    matches!(value.kind, Kind::Library(number, _) if number == import)
        || value.children().into_iter().any(|child| calls(child, import))
}

/// Emits the function that allocates a site at match time.
fn site(code: &mut Code<'_>, probe: &Probe, size: u32, list: u32) {
    code.int(list);
    code.int(size);
    code.raw([I::LocalGet(0), I::LocalGet(1)]);
    code.string(&probe.event);
    code.call("site");
    if !probe.init.is_empty() {
        code.initialize(&probe.init);
    }
}
