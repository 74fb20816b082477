//! The reference: a module rewritten so that it calls an imported function for each event.
//!
//! Programs import that function as their first one, whether they are rewritten or not, so that
//! rewriting does not change the indices of functions.

use wasm_encoder::{CodeSection, Encode, Module, RawSection, SectionId, ValType};
use wasmparser::{
    FuncValidator, FunctionBody, Operator, Parser, Payload, ValidPayload, Validator, ValidatorResources,
    WasmFeatures,
};

/// The import: the kind of event and its place, and two values.
pub(crate) const IMPORT: &str = "(import \"log\" \"log\" (func $log (param i32 i64 i64)))";

/// Kinds of events.
pub(crate) const ENTRY: u32 = 1;
pub(crate) const RETURN: u32 = 2;
pub(crate) const TAIL_CALL: u32 = 3;
pub(crate) const UNWOUND: u32 = 4;
pub(crate) const LOAD: u32 = 5;
pub(crate) const STORE: u32 = 6;
pub(crate) const BRANCH: u32 = 7;
pub(crate) const CALL: u32 = 8;
pub(crate) const BLOCK: u32 = 9;
pub(crate) const AFTER: u32 = 10;
/// Programs log by themselves where they have caught an exception.
pub(crate) const CAUGHT: u32 = 11;
/// Control comes to an instruction.
pub(crate) const EACH: u32 = 12;

/// An event: its kind, the function and the offset in its body, and two values.
pub(crate) type Event = (u32, u32, u32, u64, u64);

/// The first argument of the import.
fn packed(kind: u32, function: u32, offset: u32) -> i32 {
    assert!(function < 1 << 8 && offset < 1 << 20);
    (kind << 28 | function << 20 | offset) as i32
}

pub(crate) fn unpacked(packed: i32, a: i64, b: i64) -> Event {
    let packed = packed as u32;
    (packed >> 28, packed >> 20 & 0xff, packed & 0xf_ffff, a as u64, b as u64)
}

/// What is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    Functions,
    Memory,
    Branches,
    Calls,
    Blocks,
    After,
    Each,
}

/// The module with calls of its first import.
pub(crate) fn rewrite(bytes: &[u8], what: EventKind) -> Vec<u8> {
    let mut validator = Validator::new_with_features(WasmFeatures::all());
    let mut module = Module::new();
    let mut code = CodeSection::new();
    let mut left = 0;
    for payload in Parser::new(0).parse_all(bytes) {
        let payload = payload.unwrap();
        if let Payload::CodeSectionStart { count, .. } = &payload {
            left = *count;
        }
        if let ValidPayload::Func(function, body) = validator.payload(&payload).unwrap() {
            let mut function = Function::new(bytes, &body, function.into_validator(Default::default()), what);
            function.rewrite();
            code.raw(&function.out);
            left -= 1;
            if left == 0 {
                module.section(&code);
            }
        } else if let Some((id, range)) = payload.as_section()
            && id != 0
            && id != SectionId::Code as u8
        {
            module.section(&RawSection { id, data: &bytes[range.start as usize..range.end as usize] });
        }
    }
    module.finish()
}

struct Function<'a> {
    bytes: &'a [u8],
    body: &'a FunctionBody<'a>,
    validator: FuncValidator<ValidatorResources>,
    what: EventKind,
    index: u32,
    /// The first of the additional locals: three of each of the types.
    locals: u32,
    out: Vec<u8>,
}

const TYPES: [ValType; 4] = [ValType::I32, ValType::I64, ValType::F32, ValType::F64];

impl<'a> Function<'a> {
    fn new(
        bytes: &'a [u8],
        body: &'a FunctionBody<'a>,
        mut validator: FuncValidator<ValidatorResources>,
        what: EventKind,
    ) -> Self {
        let mut reader = body.get_locals_reader().unwrap();
        let mut out = Vec::new();
        (reader.get_count() + TYPES.len() as u32).encode(&mut out);
        for _ in 0..reader.get_count() {
            let at = reader.original_position();
            let (count, ty) = reader.read().unwrap();
            validator.define_locals(at, count, ty).unwrap();
            count.encode(&mut out);
            encode(ty).encode(&mut out);
        }
        for ty in TYPES {
            3_u32.encode(&mut out);
            ty.encode(&mut out);
        }
        let (index, locals) = (validator.index(), validator.len_locals());
        Self { bytes, body, validator, what, index, locals, out }
    }

    /// The additional local of a type with this number.
    fn local(&self, number: u32, ty: ValType) -> u32 {
        self.locals + 3 * TYPES.iter().position(|known| *known == ty).unwrap() as u32 + number
    }

    fn op(&mut self, code: u8, index: u32) {
        self.out.push(code);
        index.encode(&mut self.out);
    }

    /// The type of an operand.
    fn ty(&self, depth: usize) -> ValType {
        encode(self.validator.get_operand_type(depth).unwrap().unwrap())
    }

    /// Moves the top operands to locals, and back; they stay there.
    fn save(&mut self, count: usize) -> Vec<(u32, ValType)> {
        let saved: Vec<_> =
            (0..count).map(|depth| (self.local(depth as u32, self.ty(depth)), self.ty(depth))).collect();
        saved.iter().for_each(|(local, _)| self.op(0x21, *local));
        saved.iter().rev().for_each(|(local, _)| self.op(0x20, *local));
        saved
    }

    /// Pushes a local as an i64.
    fn get(&mut self, (local, ty): (u32, ValType)) {
        self.op(0x20, local);
        match ty {
            // i64.extend_i32_u, after i32.reinterpret_f32; i64.reinterpret_f64
            ValType::I32 => self.out.push(0xad),
            ValType::F32 => self.out.extend([0xbc, 0xad]),
            ValType::F64 => self.out.push(0xbd),
            _ => {}
        }
    }

    fn constant(&mut self, value: u64) {
        self.out.push(0x42);
        (value as i64).encode(&mut self.out);
    }

    /// Calls the import, with two values that `values` pushes.
    fn log(&mut self, kind: u32, offset: u32, values: impl FnOnce(&mut Self)) {
        self.out.push(0x41);
        packed(kind, self.index, offset).encode(&mut self.out);
        values(self);
        self.op(0x10, 0);
    }

    fn log_place(&mut self, kind: u32, offset: u32) {
        self.log(kind, offset, |function| {
            function.constant(0);
            function.constant(0);
        });
    }

    /// The address, which is the sum of a local and a constant, and the value, which is a local.
    fn log_access(
        &mut self,
        kind: u32,
        offset: u32,
        address: (u32, ValType),
        constant: u64,
        value: (u32, ValType),
    ) {
        self.log(kind, offset, |function| {
            function.get(address);
            function.constant(constant);
            function.out.push(0x7c);
            function.get(value);
        });
    }

    fn rewrite(&mut self) {
        let start = self.body.range().start as u32;
        if self.what == EventKind::Functions {
            self.log_place(ENTRY, 0);
            // A block around the body, to which all exits lead.
            self.out.push(0x02);
            let results = self.validator.get_control_frame(0).unwrap().block_type;
            match results {
                wasmparser::BlockType::FuncType(_) => {
                    let results: Vec<ValType> = self.results();
                    match results[..] {
                        [] => self.out.push(0x40),
                        [ty] => ty.encode(&mut self.out),
                        _ => panic!("one result at most"),
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        let mut reader = self.body.get_operators_reader().unwrap();
        while !reader.eof() {
            let at = reader.original_position();
            let operator = reader.read().unwrap();
            let code = &self.bytes[at as usize..reader.original_position() as usize];
            let is_reachable = self.validator.get_control_frame(0).is_some_and(|frame| !frame.unreachable);
            let is_last = reader.eof();
            let offset = at as u32 - start;
            if is_reachable {
                self.instruction(offset, &operator, code, is_last, at)
            } else {
                if is_last && self.what == EventKind::Functions {
                    self.end()
                }
                self.validator.op(at, &operator).unwrap();
                // In unreachable code, `return` keeps its meaning.
                self.out.extend(code);
            }
        }
    }

    fn results(&self) -> Vec<ValType> {
        use wasmparser::WasmModuleResources;
        let resources = self.validator.resources();
        let id = resources.type_index_of_function(self.index).unwrap();
        let ty = resources.sub_type_at(id).unwrap().unwrap_func();
        ty.results().iter().map(|ty| encode(*ty)).collect()
    }

    /// The end of the block around the body, and the event.
    fn end(&mut self) {
        self.out.push(0x0b);
        self.log_place(RETURN, 0);
    }

    fn instruction(&mut self, offset: u32, operator: &Operator<'_>, code: &[u8], is_last: bool, at: u64) {
        let mut loaded = None;
        match self.what {
            EventKind::Functions => match operator {
                Operator::Return => {
                    // A branch to the block around the body.
                    let depth = self.validator.control_stack_height() - 1;
                    self.op(0x0c, depth);
                    self.validator.op(at, operator).unwrap();
                    return;
                }
                Operator::ReturnCall { .. } | Operator::ReturnCallIndirect { .. } => {
                    self.log_place(TAIL_CALL, 0)
                }
                _ if is_last => self.end(),
                _ => {}
            },
            EventKind::Memory => match access(operator) {
                Some((false, constant)) => {
                    let saved = self.save(1);
                    loaded = Some((saved[0], constant));
                }
                Some((true, constant)) => {
                    let saved = self.save(2);
                    self.log_access(STORE, offset, saved[1], constant, saved[0]);
                }
                None => {}
            },
            EventKind::Branches => match operator {
                Operator::BrIf { .. } | Operator::If { .. } | Operator::Select | Operator::BrTable { .. } => {
                    let saved = self.save(1);
                    self.log(BRANCH, offset, |function| {
                        function.get(saved[0]);
                        function.constant(0);
                    });
                }
                _ => {}
            },
            EventKind::Calls => match operator {
                Operator::Call { function_index } | Operator::ReturnCall { function_index } => {
                    self.log(CALL, offset, |function| {
                        function.constant((*function_index).into());
                        function.constant(0);
                    });
                }
                Operator::CallIndirect { .. } | Operator::ReturnCallIndirect { .. } => {
                    let saved = self.save(1);
                    self.log(CALL, offset, |function| {
                        function.get(saved[0]);
                        function.constant(1);
                    });
                }
                _ => {}
            },
            EventKind::Blocks => match operator {
                Operator::Block { .. } | Operator::If { .. } | Operator::TryTable { .. } => {
                    self.log_place(BLOCK, offset);
                }
                _ => {}
            },
            // Where control does not continue with the code that follows.
            EventKind::After => match operator {
                Operator::Br { .. }
                | Operator::BrIf { .. }
                | Operator::BrTable { .. }
                | Operator::If { .. }
                | Operator::Else
                | Operator::End
                | Operator::Return => self.log_place(AFTER, offset),
                _ => {}
            },
            // A loop is executed with each iteration.
            EventKind::Each if !matches!(operator, Operator::Loop { .. }) => self.log_place(EACH, offset),
            EventKind::Each => {}
        }
        self.validator.op(at, operator).unwrap();
        self.out.extend(code);
        match (self.what, operator) {
            (EventKind::Blocks, Operator::Loop { .. }) => self.log_place(BLOCK, offset),
            (EventKind::Each, Operator::Loop { .. }) => self.log_place(EACH, offset),
            (EventKind::After, _) if !is_branch(operator) => self.log_place(AFTER, offset),
            _ => {}
        }
        if let Some(((local, ty), constant)) = loaded {
            // The address before the value: they may be of one type.
            let address = self.local(1, ty);
            self.op(0x20, local);
            self.op(0x21, address);
            let value = self.save(1)[0];
            self.log_access(LOAD, offset, (address, ty), constant, value);
        }
    }
}

fn is_branch(operator: &Operator<'_>) -> bool {
    matches!(
        operator,
        Operator::Br { .. }
            | Operator::BrIf { .. }
            | Operator::BrTable { .. }
            | Operator::If { .. }
            | Operator::Else
            | Operator::End
            | Operator::Return
            | Operator::ReturnCall { .. }
            | Operator::ReturnCallIndirect { .. }
            | Operator::Throw { .. }
            | Operator::Unreachable
    )
}

/// Of the accesses in these tests: whether it stores, and the constant offset.
fn access(operator: &Operator<'_>) -> Option<(bool, u64)> {
    match operator {
        Operator::I32Load { memarg }
        | Operator::I64Load { memarg }
        | Operator::F64Load { memarg }
        | Operator::F32Load { memarg }
        | Operator::I32Load8S { memarg }
        | Operator::I64Load16U { memarg } => Some((false, memarg.offset)),
        // Of values that fit.
        Operator::I32Store8 { memarg }
        | Operator::I32Store { memarg }
        | Operator::I64Store { memarg }
        | Operator::F64Store { memarg } => Some((true, memarg.offset)),
        _ => None,
    }
}

fn encode(ty: wasmparser::ValType) -> ValType {
    match ty {
        wasmparser::ValType::I32 => ValType::I32,
        wasmparser::ValType::I64 => ValType::I64,
        wasmparser::ValType::F32 => ValType::F32,
        wasmparser::ValType::F64 => ValType::F64,
        other => panic!("{other}"),
    }
}
