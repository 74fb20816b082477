//! Emits the code of one function: statements and expressions become instructions.

use std::borrow::Cow;
use std::collections::HashMap;

use wasm_encoder::{BlockType, Catch, Function, Instruction, MemArg, MemArgTarget, ValType};

use super::super::ast::{BinaryOp, UnaryOp};
use super::super::ir::{Body, Const, Failing, Kind, Place, REPLACEMENT, Statement, TextOp, Typed};
use super::super::split::may_trap;
use super::super::types::{Buckets, Type};
use super::Strings;
use super::effort::Effort;
use super::maps::Finds;
use super::runtime::{FAILING, Runtime};

/// Facts about the module that are the same for all functions.
#[derive(Clone, Copy)]
pub(super) struct Layout<'r> {
    pub(super) runtime: &'r Runtime,
    /// The address of the variables that exist once.
    pub(super) variables: u32,
    /// The number of the script's first function.
    pub(super) functions: u32,
    /// The number of the function that returns the block of a frame, if there are variables of
    /// frames.
    pub(super) frame: Option<u32>,
    /// Whether this function may fail, because of initial values.
    pub(super) frame_fails: bool,
    /// What a rule does when it fails. If it does not trap, it cannot run without end.
    pub(super) failing: Failing,
    /// The number of the function that ends a rule that has failed, if it is an import.
    pub(super) failed: Option<u32>,
    /// The efforts of the script's functions.
    pub(super) efforts: &'r [Effort],
}

/// The tag of the exceptions that rules throw.
const FAILURE: u32 = 0;

/// The enclosing block catches the exception.
const CATCHES: [Catch; 1] = [Catch::One { tag: FAILURE, label: 0 }];

/// The minimum number of words on the stack that a call to a function takes.
const CALL_WORDS: u32 = 64;

/// A function whose code is being emitted.
pub(super) struct Code<'a> {
    layout: Layout<'a>,
    strings: &'a mut Strings,
    pub(super) parameters: Vec<ValType>,
    pub(super) results: Vec<ValType>,
    locals: Vec<ValType>,
    /// Local variables of values that the engine passes.
    requests: HashMap<String, u32>,
    /// The first local variable of the body.
    first: u32,
    has_own_parameters: bool,
    pub(super) code: Vec<Instruction<'static>>,
    /// The nesting depth of blocks, and that of each open loop.
    depth: u32,
    loops: Vec<u32>,
    /// The local variables with the addresses of the site's, frame's and thread's blocks.
    block: u32,
    frame: u32,
    thread: u32,
    /// The position from which steps are counted, if necessary.
    start: Option<usize>,
    takes_steps: bool,
    /// The positions of the constants with the size of the function's frame.
    frame_sizes: Vec<usize>,
    is_recursive: bool,
    pub(super) may_fail: bool,
    pub(super) found: Finds,
}

pub(super) fn memarg(offset: u32) -> MemArg {
    // Components are aligned to eight bytes, but addresses of sites are not known to the engine.
    MemArg { offset: u64::from(offset), align: 0, target: MemArgTarget::Memory(0), ordering: None }
}

impl<'a> Code<'a> {
    /// Begins a function with these parameters, without a body yet.
    pub(super) fn new(
        layout: Layout<'a>,
        strings: &'a mut Strings,
        parameters: Vec<ValType>,
        results: Vec<ValType>,
    ) -> Self {
        Self {
            layout,
            strings,
            parameters,
            results,
            locals: Vec::new(),
            requests: HashMap::new(),
            first: 0,
            has_own_parameters: false,
            code: Vec::new(),
            depth: 0,
            loops: Vec::new(),
            block: 0,
            frame: 0,
            thread: 0,
            start: None,
            takes_steps: false,
            frame_sizes: Vec::new(),
            is_recursive: false,
            may_fail: false,
            found: Finds::default(),
        }
    }

    /// A function of the script: its parameters are the first locals of its body.
    pub(super) fn parameters_are_locals(&mut self) {
        self.has_own_parameters = true;
    }

    /// Names a parameter that the engine passes.
    pub(super) fn request(&mut self, name: String, parameter: u32) {
        self.requests.insert(name, parameter);
    }

    /// Returns if there is a guard and the instruction of this place and rule has not begun in the
    /// frame.
    pub(super) fn unless_completed(&mut self, frame: u32, guard: u32, rule: u32) {
        self.emit(Instruction::LocalGet(guard));
        self.open(Instruction::If(BlockType::Empty));
        self.emit(Instruction::LocalGet(frame));
        self.emit(Instruction::LocalGet(guard));
        self.int(rule);
        self.call("complete");
        self.emit(Instruction::I32Eqz);
        self.open(Instruction::If(BlockType::Empty));
        self.emit(Instruction::Return);
        self.close();
        self.close();
    }

    pub(super) fn is_bounded(&self) -> bool {
        self.layout.failing != Failing::Traps
    }

    /// Counts the steps of a rule from here on, if it takes any.
    pub(super) fn begin_steps(&mut self) {
        self.start = Some(self.code.len());
    }

    /// Counts a step of the rule.
    fn step(&mut self) {
        if self.is_bounded() {
            self.takes_steps = true;
            self.call("step");
        }
    }

    /// Begins a function of the script: if it needs to be limited, counts its calls and their
    /// nesting depth.
    pub(super) fn begin_call(&mut self, effort: Effort) {
        self.is_recursive = effort.is_recursive && self.is_bounded();
        if effort.is_counted {
            self.step();
        }
        self.nesting("enter_call");
    }

    /// Ends a function of the script, whose results are on the stack.
    pub(super) fn end_call(&mut self) {
        self.nesting("leave_call");
    }

    fn nesting(&mut self, name: &str) {
        if self.is_recursive {
            self.frame_sizes.push(self.code.len());
            self.int(0);
            self.call(name);
        }
    }

    pub(super) fn emit(&mut self, instruction: Instruction<'static>) {
        self.code.push(instruction);
    }

    pub(super) fn int(&mut self, value: u32) {
        self.emit(Instruction::I32Const(value.cast_signed()));
    }

    pub(super) fn call(&mut self, name: &str) {
        self.may_fail |= FAILING.contains(&name);
        self.emit(Instruction::Call(self.layout.runtime.function(name)));
    }

    /// Gets the block of the frame that the engine passes.
    pub(super) fn frame(&mut self, parameter: u32) {
        let Some(accessor) = self.layout.frame else { return };
        self.frame = self.local(ValType::I32);
        self.may_fail |= self.layout.frame_fails;
        self.emit(Instruction::LocalGet(parameter));
        self.emit(Instruction::Call(accessor));
        self.emit(Instruction::LocalSet(self.frame));
    }

    /// Uses the block of a frame in a local variable.
    pub(super) fn frame_is(&mut self, local: u32) {
        self.frame = local;
    }

    /// Uses the block of a thread in a parameter.
    pub(super) fn thread_is(&mut self, parameter: u32) {
        self.thread = parameter;
    }

    /// A new local variable.
    pub(super) fn local(&mut self, ty: ValType) -> u32 {
        self.locals.push(ty);
        (self.parameters.len() + self.locals.len() - 1) as u32
    }

    /// As [`finish`](Self::finish), for a function that the engine calls for a rule. If the rule
    /// fails, by an exception, the function reports this and returns, or else traps:
    ///
    /// ```text
    /// block (result i32)
    ///     try_table (catch $failure 0)
    ///         ..
    ///     end
    ///     return
    /// end
    /// i32.const RULE  i32.const LENGTH  call $failed
    /// ```
    pub(super) fn finish_rule(mut self, rule: &str) -> super::Function {
        use Instruction as I;
        let Some(failed) = self.layout.failed.filter(|_| self.may_fail) else { return self.finish() };
        self.insert_start();
        let ty = self.results.first().map_or(BlockType::Empty, |result| BlockType::Result(*result));
        let mut code =
            vec![I::Block(BlockType::Result(ValType::I32)), I::TryTable(ty, Cow::Borrowed(&CATCHES))];
        code.append(&mut self.code);
        code.extend([I::End, I::Return, I::End]);
        self.code = code;
        self.string(rule);
        self.emit(I::Call(failed));
        if !self.results.is_empty() {
            self.emit(I::Unreachable);
        }
        self.finish()
    }

    /// Counts the steps of the rule from its start on, if it takes any.
    fn insert_start(&mut self) {
        if let Some(start) = self.start.take()
            && self.takes_steps
        {
            self.code.insert(start, Instruction::Call(self.layout.runtime.function("begin_steps")));
        }
    }

    pub(super) fn finish(mut self) -> super::Function {
        self.insert_start();
        let words = CALL_WORDS + (self.parameters.len() + self.locals.len()) as u32;
        for at in &self.frame_sizes {
            self.code[*at] = Instruction::I32Const(words.cast_signed());
        }
        let mut runs: Vec<(u32, ValType)> = Vec::new();
        for ty in self.locals {
            match runs.last_mut() {
                Some((count, last)) if *last == ty => *count += 1,
                _ => runs.push((1, ty)),
            }
        }
        let mut function = Function::new(runs);
        for instruction in &self.code {
            function.instruction(instruction);
        }
        function.instruction(&Instruction::End);
        (self.parameters, self.results, function.into_raw_body())
    }

    /// Emits a body: declares its locals, then emits its statements.
    pub(super) fn body(&mut self, body: &Body) {
        if self.has_own_parameters {
            // The parameters are the first of the body's locals.
            self.first = 0;
            self.locals.extend(&body.locals[self.parameters.len()..]);
        } else {
            self.first = (self.parameters.len() + self.locals.len()) as u32;
            self.locals.extend(&body.locals);
        }
        // The locals of another body have the same numbers.
        self.found.forget();
        self.statements(&body.statements);
        self.found.forget();
    }

    fn statements(&mut self, statements: &[Statement]) {
        for statement in statements {
            self.statement(statement);
        }
    }

    fn statement(&mut self, statement: &Statement) {
        match statement {
            Statement::Set { place, component, value } => self.set(*place, *component, value),
            Statement::SetMap { map, key, value } => {
                let kept = self.keep(value);
                let address = self.slot(*map, key, &value.ty);
                for (index, local) in kept.into_iter().enumerate() {
                    self.emit(Instruction::LocalGet(address));
                    self.emit(Instruction::LocalGet(local));
                    self.store(self.type_of(local), 8 * index as u32);
                }
            }
            Statement::AddMap { map, key, amount } => {
                let address = self.slot(*map, key, &amount.ty);
                self.emit(Instruction::LocalGet(address));
                self.emit(Instruction::LocalGet(address));
                let ty = amount.ty.scalar().unwrap_or(ValType::I32);
                self.load(ty, 0);
                self.expr(amount);
                self.operation(BinaryOp::Add, &amount.ty);
                self.store(ty, 0);
            }
            Statement::Count(counter) => self.count(counter),
            Statement::Call(call) => {
                self.expr(call);
                for _ in call.ty.components() {
                    self.emit(Instruction::Drop);
                }
            }
            Statement::Return(value) => {
                if let Some(value) = value {
                    self.expr(value);
                }
                self.end_call();
                self.emit(Instruction::Return);
            }
            Statement::If { condition, yes, no } => {
                self.expr(condition);
                self.open(Instruction::If(BlockType::Empty));
                self.statements(yes);
                if !no.is_empty() {
                    self.otherwise();
                    self.statements(no);
                }
                self.close();
            }
            Statement::While { condition, body } => {
                self.open(Instruction::Block(BlockType::Empty));
                self.open(Instruction::Loop(BlockType::Empty));
                self.loops.push(self.depth);
                self.step();
                self.expr(condition);
                self.emit(Instruction::I32Eqz);
                self.emit(Instruction::BrIf(1));
                self.statements(body);
                self.emit(Instruction::Br(0));
                self.loops.pop();
                self.close();
                self.close();
            }
            Statement::Break | Statement::Continue => {
                // Only inside loops.
                let inner = self.loops.last().map_or(0, |depth| self.depth - depth);
                let outer = u32::from(*statement == Statement::Break);
                self.emit(Instruction::Br(inner + outer));
            }
        }
    }

    pub(super) fn open(&mut self, block: Instruction<'static>) {
        self.found.open(matches!(block, Instruction::If(_)));
        self.emit(block);
        self.depth += 1;
    }

    /// Begins the other arm of an `if`.
    fn otherwise(&mut self) {
        self.found.otherwise();
        self.emit(Instruction::Else);
    }

    pub(super) fn close(&mut self) {
        self.found.close();
        self.depth -= 1;
        self.emit(Instruction::End);
    }

    /// The type of a local variable, or parameter.
    pub(super) fn type_of(&self, local: u32) -> ValType {
        let local = local as usize;
        match self.parameters.get(local) {
            Some(ty) => *ty,
            None => self.locals[local - self.parameters.len()],
        }
    }

    /// Keeps the components of a value in new locals.
    pub(super) fn keep(&mut self, value: &Typed) -> Vec<u32> {
        self.expr(value);
        let locals: Vec<_> = value.ty.components().into_iter().map(|ty| self.local(ty)).collect();
        for local in locals.iter().rev() {
            self.emit(Instruction::LocalSet(*local));
        }
        locals
    }

    /// Pushes the base address of a variable in memory; returns its offset.
    pub(super) fn base(&mut self, place: Place) -> u32 {
        match place {
            Place::Absolute(address) => {
                self.int(0);
                self.layout.variables + address
            }
            Place::Replacement(offset) => {
                self.int(0);
                REPLACEMENT + offset
            }
            Place::Frame(offset) => {
                self.emit(Instruction::LocalGet(self.frame));
                offset
            }
            Place::Thread(offset) => {
                self.emit(Instruction::LocalGet(self.thread));
                offset
            }
            Place::Site(offset) | Place::Local(offset) => {
                self.emit(Instruction::LocalGet(self.block));
                offset
            }
        }
    }

    fn set(&mut self, place: Place, component: u32, value: &Typed) {
        self.set_components(place, component, value);
        self.found.forget_keys_of(place);
    }

    fn set_components(&mut self, place: Place, component: u32, value: &Typed) {
        let types = value.ty.components();
        if let Place::Local(local) = place {
            self.expr(value);
            for index in (0..types.len() as u32).rev() {
                self.emit(Instruction::LocalSet(self.first + local + component + index));
            }
            return;
        }
        if let [ty] = types.as_slice() {
            let offset = self.base(place) + 8 * component;
            self.expr(value);
            self.store(*ty, offset);
            return;
        }
        let kept = self.keep(value);
        for (index, local) in kept.into_iter().enumerate() {
            let offset = self.base(place) + 8 * (component + index as u32);
            self.emit(Instruction::LocalGet(local));
            self.store(types[index], offset);
        }
    }

    pub(super) fn load(&mut self, ty: ValType, offset: u32) {
        let at = memarg(offset);
        self.emit(match ty {
            ValType::I64 => Instruction::I64Load(at),
            ValType::F32 => Instruction::F32Load(at),
            ValType::F64 => Instruction::F64Load(at),
            _ => Instruction::I32Load(at),
        });
    }

    pub(super) fn store(&mut self, ty: ValType, offset: u32) {
        let at = memarg(offset);
        self.emit(match ty {
            ValType::I64 => Instruction::I64Store(at),
            ValType::F32 => Instruction::F32Store(at),
            ValType::F64 => Instruction::F64Store(at),
            _ => Instruction::I32Store(at),
        });
    }

    /// Pushes the components of a value.
    pub(super) fn expr(&mut self, expr: &Typed) {
        match &expr.kind {
            Kind::Const(value) => self.constant(value, &expr.ty),
            Kind::Variable(place, component) => {
                for (index, ty) in (0..).zip(expr.ty.components()) {
                    let component = component + index;
                    if let Place::Local(local) = place {
                        self.emit(Instruction::LocalGet(self.first + local + component));
                    } else {
                        let offset = self.base(*place) + 8 * component;
                        self.load(ty, offset);
                    }
                }
            }
            Kind::Request(name) => {
                let parameter = self.requests.get(name).copied();
                let parameter = parameter.expect("a function has a parameter for each request of its body");
                self.emit(Instruction::LocalGet(parameter));
                if expr.ty == Type::Str {
                    // Loads the string's address and length.
                    self.load(ValType::I32, 0);
                    self.emit(Instruction::LocalGet(parameter));
                    self.load(ValType::I32, 8);
                }
            }
            Kind::MapGet(map, key) => {
                let address = self.find(*map, key, &expr.ty);
                for (index, ty) in (0..).zip(expr.ty.components()) {
                    self.emit(Instruction::LocalGet(address));
                    self.open(Instruction::If(BlockType::Result(ty)));
                    self.emit(Instruction::LocalGet(address));
                    self.load(ty, 8 * index);
                    self.otherwise();
                    self.zero(ty);
                    self.close();
                }
            }
            Kind::Counter(counters, key) => self.counter(*counters, key),
            Kind::Call(function, arguments) => {
                for argument in arguments {
                    self.expr(argument);
                }
                if self.is_bounded() {
                    let Effort { takes_steps, may_fail, .. } = self.layout.efforts[*function];
                    self.takes_steps |= takes_steps;
                    self.may_fail |= may_fail;
                }
                self.emit(Instruction::Call(self.layout.functions + *function as u32));
                self.found.forget();
            }
            Kind::Library(function, arguments) => {
                for argument in arguments {
                    self.expr(argument);
                }
                // Imported functions are the first of all.
                self.emit(Instruction::Call(*function as u32));
                self.found.forget();
            }
            Kind::AtMatch(value) => match self.requests.get(&super::key(value)) {
                Some(parameter) => self.emit(Instruction::LocalGet(*parameter)),
                // This is a function of match time.
                None => self.expr(value),
            },
            Kind::Text(op, text, pattern) => {
                self.expr(text);
                self.expr(pattern);
                self.call(match op {
                    TextOp::StartsWith => "starts_with",
                    TextOp::EndsWith => "ends_with",
                    TextOp::Contains => "contains",
                    TextOp::Matches => "matches",
                });
            }
            Kind::Length(text) => {
                let kept = self.keep(text);
                self.emit(Instruction::LocalGet(kept[1]));
            }
            Kind::Transfer(transfer, operands) => self.transfer(*transfer, operands),
            Kind::Address(text) => {
                let kept = self.keep(text);
                self.emit(Instruction::LocalGet(kept[0]));
            }
            Kind::Target(targets, index) => {
                let text = self.keep(targets);
                let index = self.keep(index)[0];
                self.emit(Instruction::LocalGet(text[0]));
                self.emit(Instruction::LocalGet(text[1]));
                self.emit(Instruction::LocalGet(index));
                self.call("target");
            }
            Kind::Log2(number) => {
                self.int(63);
                self.expr(number);
                self.cast(&number.ty, &Type::U64);
                for instruction in [
                    Instruction::I64Const(1),
                    Instruction::I64Or,
                    Instruction::I64Clz,
                    Instruction::I32WrapI64,
                    Instruction::I32Sub,
                ] {
                    self.emit(instruction);
                }
            }
            Kind::Bucket(buckets, number) => {
                self.expr(number);
                let value = self.local(ValType::I64);
                match buckets {
                    // The highest bit that is 1: 1 << 63 shifted by the number of leading zeros.
                    // Zero has 64, which shifts by 0, and has no such bit.
                    Buckets::Log2 => {
                        self.emit(Instruction::LocalTee(value));
                        self.emit(Instruction::I64Const(i64::MIN));
                        self.emit(Instruction::LocalGet(value));
                        self.emit(Instruction::I64Clz);
                        self.emit(Instruction::I64ShrU);
                        self.emit(Instruction::I64And);
                    }
                    Buckets::Linear(width) => {
                        self.emit(Instruction::LocalTee(value));
                        self.emit(Instruction::LocalGet(value));
                        self.emit(Instruction::I64Const(width.cast_signed()));
                        self.emit(Instruction::I64RemU);
                        self.emit(Instruction::I64Sub);
                    }
                }
            }
            Kind::Unary(op, operand) => self.unary(*op, operand),
            Kind::Binary(op, left, right) => self.binary(*op, left, right),
            Kind::Cast(operand) => {
                self.expr(operand);
                self.cast(&operand.ty, &expr.ty);
            }
            Kind::Ternary(condition, yes, no) => {
                let results: Vec<_> = expr.ty.components().into_iter().map(|ty| self.local(ty)).collect();
                self.expr(condition);
                self.open(Instruction::If(BlockType::Empty));
                for (is_no, value) in [(false, yes), (true, no)] {
                    if is_no {
                        self.otherwise();
                    }
                    self.expr(value);
                    for local in results.iter().rev() {
                        self.emit(Instruction::LocalSet(*local));
                    }
                }
                self.close();
                for local in results {
                    self.emit(Instruction::LocalGet(local));
                }
            }
            Kind::Tuple(fields) => {
                for field in fields {
                    self.expr(field);
                }
            }
        }
    }

    pub(super) fn zero(&mut self, ty: ValType) {
        self.emit(match ty {
            ValType::I64 => Instruction::I64Const(0),
            ValType::F32 => Instruction::F32Const(0.0_f32.into()),
            ValType::F64 => Instruction::F64Const(0.0_f64.into()),
            _ => Instruction::I32Const(0),
        });
    }

    fn constant(&mut self, value: &Const, ty: &Type) {
        match (value, ty.scalar()) {
            (Const::Int(value), Some(ValType::I64)) => self.emit(Instruction::I64Const(*value as i64)),
            (Const::Int(value), _) => self.emit(Instruction::I32Const(*value as i32)),
            (Const::Bool(value), _) => self.int(u32::from(*value)),
            (Const::Float(value), Some(ValType::F32)) => {
                self.emit(Instruction::F32Const((*value as f32).into()))
            }
            (Const::Float(value), _) => self.emit(Instruction::F64Const((*value).into())),
            (Const::Str(text), _) => {
                let (address, length) = self.strings.address(text);
                self.int(address);
                self.int(length);
            }
        }
    }

    /// Notes that strings are made, which must be compared with those of the script.
    pub(super) fn reads_strings(&mut self) {
        self.strings.are_read = true;
    }

    /// Pushes address and length of a string.
    pub(super) fn string(&mut self, text: &str) {
        self.constant(&Const::Str(text.to_owned()), &Type::Str);
    }

    fn unary(&mut self, op: UnaryOp, operand: &Typed) {
        let scalar = operand.ty.scalar();
        match (op, scalar) {
            (UnaryOp::Not, _) => {
                self.expr(operand);
                self.emit(Instruction::I32Eqz);
            }
            (UnaryOp::Complement, Some(ValType::I64)) => {
                self.expr(operand);
                self.emit(Instruction::I64Const(-1));
                self.emit(Instruction::I64Xor);
            }
            (UnaryOp::Complement, _) => {
                self.expr(operand);
                self.emit(Instruction::I32Const(-1));
                self.emit(Instruction::I32Xor);
                self.narrow(&operand.ty);
            }
            (UnaryOp::Negate, Some(ValType::F32)) => {
                self.expr(operand);
                self.emit(Instruction::F32Neg);
            }
            (UnaryOp::Negate, Some(ValType::F64)) => {
                self.expr(operand);
                self.emit(Instruction::F64Neg);
            }
            (UnaryOp::Negate, ty) => {
                self.zero(ty.unwrap_or(ValType::I32));
                self.expr(operand);
                self.operation(BinaryOp::Sub, &operand.ty);
            }
        }
    }

    fn binary(&mut self, op: BinaryOp, left: &Typed, right: &Typed) {
        self.expr(left);
        match op {
            BinaryOp::And => {
                self.open(Instruction::If(BlockType::Result(ValType::I32)));
                self.expr(right);
                self.otherwise();
                self.int(0);
                self.close();
            }
            BinaryOp::Or => {
                self.open(Instruction::If(BlockType::Result(ValType::I32)));
                self.int(1);
                self.otherwise();
                self.expr(right);
                self.close();
            }
            _ if left.ty == Type::Str => {
                self.expr(right);
                self.strings_equal();
                if op == BinaryOp::Ne {
                    self.emit(Instruction::I32Eqz);
                }
            }
            // The remainder of numbers of 32 bits is one.
            BinaryOp::Rem if left.ty.is_float() => {
                self.cast(&left.ty, &Type::F64);
                self.expr(right);
                self.cast(&right.ty, &Type::F64);
                self.call("remainder");
                self.cast(&Type::F64, &left.ty);
            }
            _ => {
                self.expr(right);
                if may_trap(op, left, right) {
                    self.check_division(op, &left.ty);
                }
                self.operation(op, &left.ty);
            }
        }
    }

    /// Compares strings by address: each string is stored once.
    fn strings_equal(&mut self) {
        let other_length = self.local(ValType::I32);
        let other = self.local(ValType::I32);
        let length = self.local(ValType::I32);
        self.emit(Instruction::LocalSet(other_length));
        self.emit(Instruction::LocalSet(other));
        self.emit(Instruction::LocalSet(length));
        self.emit(Instruction::LocalGet(other));
        self.emit(Instruction::I32Eq);
        self.emit(Instruction::LocalGet(length));
        self.emit(Instruction::LocalGet(other_length));
        self.emit(Instruction::I32Eq);
        self.emit(Instruction::I32And);
    }

    /// Sets the initial values of a site, whose block is on the stack, and pushes the block again.
    pub(super) fn initialize(&mut self, body: &Body) {
        self.block = self.local(ValType::I32);
        self.emit(Instruction::LocalSet(self.block));
        self.body(body);
        self.emit(Instruction::LocalGet(self.block));
    }

    /// Emits these instructions; their blocks must be balanced.
    pub(super) fn raw(&mut self, instructions: impl IntoIterator<Item = Instruction<'static>>) {
        self.code.extend(instructions);
    }
}
