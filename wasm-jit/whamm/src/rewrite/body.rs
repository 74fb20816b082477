//! The bodies of the program's functions, with calls to rules.
//!
//! ```text
//! global.get $last  i64.const 1  i64.sub  local.tee $frame  global.set $last     if a rule asks for it
//! RULES OF THE ENTRY
//! block RESULTS                                                                  if its end is observed
//!     ..
//!     local.set $b  local.set $a  local.get $a  local.get $b                     operands
//!     local.get $b  i32.const 7  call $rule
//!     INSTRUCTION                                                                `return` becomes `br`
//!     ..
//! end
//! RULES OF THE EXIT
//! local.get $frame  i64.const 1  i64.add  global.set $last
//! ```
//!
//! The block has the same depth as the body has in the original, so that branches to the end of the
//! function lead to the end of the block. The rules of a `loop` are called inside it, where
//! branches to it continue; operands below its parameters are moved to locals before it.
//!
//! A frame has a smaller number than all frames that called it, and than those that have ended
//! since. An exception skips frames without restoring the number; the frame that catches it does
//! that when it ends.

use std::collections::HashMap;

use wasm_encoder::reencode::Reencode;
use wasm_encoder::{BlockType, Encode, Function, Instruction as I, RefType, ValType};
use wasm_jit::probes::{Bound, Place};
use wasm_jit::wasmparser::Operator;
use wasmparser::{
    CompositeInnerType, FuncType, FuncValidator, FunctionBody, HeapType, UnpackedIndex, ValidatorResources,
    WasmModuleResources,
};

use super::RewriteError;
use super::added;
use super::alternatives::Alternatives;
use super::callees::{Callees, Indirect};
use super::copied::Piece;
use super::merge::{Numbers, value_type};
use crate::monitor_module::{Matched, Replacement, RuleMatch};

/// A rule.
pub(super) struct Rule {
    pub(super) function: u32,
    /// The types of its parameters.
    types: Vec<ValType>,
    pub(super) replacement: Option<Replacement>,
    /// Its code, if it is copied in place of a call.
    copied: Option<Vec<Piece>>,
}

/// The calls that are inserted into the functions of a program.
pub(super) struct Bodies<'a> {
    numbers: Numbers,
    rules: Vec<Rule>,
    /// The matched rules by function, in the order of calls.
    found: HashMap<u32, Vec<&'a RuleMatch>>,
    /// Imported functions that end the program.
    proc_exit: Vec<u32>,
    alternatives: Alternatives,
    callees: Callees,
    /// Types of blocks that have several results.
    types: BlockTypes,
    defined: Option<DefinedTypes>,
}

impl<'a> Bodies<'a> {
    pub(super) fn new(
        numbers: Numbers,
        matched: &'a Matched,
        rules: Vec<(u32, Option<Replacement>, Option<Vec<Piece>>)>,
        proc_exit: &[u32],
        alternatives: Alternatives,
        callees: Callees,
    ) -> Self {
        let mut found: HashMap<u32, Vec<&RuleMatch>> = HashMap::new();
        for each in &matched.found {
            found.entry(each.location.function).or_default().push(each);
        }
        let types = matched.functions.iter().map(|function| function.parameters().iter().map(number));
        let rule = |((function, replacement, copied), types)| Rule { function, types, replacement, copied };
        let types = types.map(Iterator::collect);
        Self {
            numbers,
            rules: rules.into_iter().zip(types).map(rule).collect(),
            found,
            proc_exit: proc_exit.to_vec(),
            alternatives,
            callees,
            types: BlockTypes { numbers, all: Vec::new() },
            defined: None,
        }
    }

    /// The results of the types that are added.
    pub(super) fn types(&self) -> &[Vec<ValType>] {
        &self.types.all
    }

    /// The tables in which the program looks up the callees of indirect calls.
    pub(super) fn callees(&self) -> &Callees {
        &self.callees
    }
}

/// Types of blocks without parameters, which are added to the program.
pub(super) struct BlockTypes {
    numbers: Numbers,
    all: Vec<Vec<ValType>>,
}

impl BlockTypes {
    /// The type of a block with these results.
    pub(super) fn of(&mut self, results: &[ValType]) -> BlockType {
        match results {
            [] => BlockType::Empty,
            [one] => BlockType::Result(*one),
            _ => {
                let known = self.all.iter().position(|known| known == results);
                let number = known.unwrap_or_else(|| {
                    self.all.push(results.to_vec());
                    self.all.len() - 1
                });
                BlockType::FunctionType(self.numbers.added_type(number as u32))
            }
        }
    }
}

pub(super) fn number(ty: &wasm_jit::ValType) -> ValType {
    match ty {
        wasm_jit::ValType::I32 => ValType::I32,
        wasm_jit::ValType::I64 => ValType::I64,
        wasm_jit::ValType::F32 => ValType::F32,
        wasm_jit::ValType::F64 => ValType::F64,
        wasm_jit::ValType::V128 | wasm_jit::ValType::Ref(_) => {
            unreachable!("only numbers pass the checks of loading")
        }
    }
}

/// The type of a block, if it is one of the module's types.
fn function_type(
    validator: &FuncValidator<ValidatorResources>,
    ty: wasmparser::BlockType,
) -> Option<&FuncType> {
    let wasmparser::BlockType::FuncType(ty) = ty else { return None };
    match &validator.resources().sub_type_at(ty)?.composite_type.inner {
        CompositeInnerType::Func(ty) => Some(ty),
        _ => None,
    }
}

/// The program's types, by the validator's names for them. Equal types have one name, and may have
/// several numbers.
pub(super) struct DefinedTypes(HashMap<HeapType, u32>);

impl DefinedTypes {
    fn of(resources: &ValidatorResources) -> Self {
        let mut numbers = HashMap::new();
        for number in (0..).take_while(|number| resources.sub_type_at(*number).is_some()) {
            let mut ty = HeapType::Concrete(UnpackedIndex::Module(number));
            if resources.check_heap_type(&mut ty, 0).is_ok() {
                numbers.entry(ty).or_insert(number);
            }
        }
        Self(numbers)
    }

    /// The number of a type. A reference to exactly this type, as `ref.func` makes, is kept as one
    /// to any of its subtypes.
    fn number(&self, ty: HeapType) -> Option<&u32> {
        match ty {
            HeapType::Exact(ty) => self.0.get(&HeapType::Concrete(ty)),
            ty => self.0.get(&ty),
        }
    }

    /// Converts the type of a value from the validator to the encoder.
    pub(super) fn value_type(&self, ty: wasmparser::ValType) -> Result<ValType, RewriteError> {
        match ty {
            wasmparser::ValType::Ref(reference) => match self.number(reference.heap_type()) {
                Some(number) => Ok(ValType::Ref(RefType {
                    nullable: reference.is_nullable(),
                    heap_type: wasm_encoder::HeapType::Concrete(*number),
                })),
                None => value_type(ty),
            },
            _ => value_type(ty),
        }
    }
}

/// A function that is rewritten.
pub(super) struct Body<'a, 'v, R> {
    pub(super) numbers: Numbers,
    pub(super) defined: &'a DefinedTypes,
    pub(super) rules: &'a [Rule],
    found: HashMap<Place, Vec<&'a RuleMatch>>,
    /// Rules that act in place of the instruction.
    pub(super) replacing: HashMap<Place, Vec<&'a RuleMatch>>,
    /// For each open block that may be replaced, the number of blocks around it in the original.
    pub(super) replaceable: Vec<u32>,
    pub(super) alternatives: &'a Alternatives,
    pub(super) proc_exit: &'a [u32],
    pub(super) types: &'v mut BlockTypes,
    callees: &'v mut Callees,
    /// The indirect call that control has reached.
    indirect: Option<Indirect>,
    reencoder: &'v mut R,
    pub(super) validator: &'v mut FuncValidator<ValidatorResources>,
    out: Vec<u8>,
    /// The types of the added locals, the number of the first one, and the locals for operands, by
    /// type and depth.
    added: Vec<ValType>,
    first: u32,
    scratch: HashMap<(ValType, usize), u32>,
    frame: Option<u32>,
    is_wrapped: bool,
}

/// Rewrites the body of a function, in the form of the code section.
pub(super) fn rewritten<R: Reencode<Error = std::convert::Infallible>>(
    bodies: &mut Bodies<'_>,
    reencoder: &mut R,
    validator: &mut FuncValidator<ValidatorResources>,
    function: &FunctionBody<'_>,
) -> Result<Vec<u8>, RewriteError> {
    let mut locals = Vec::new();
    let mut reader = function.get_locals_reader()?;
    for _ in 0..reader.get_count() {
        let at = reader.original_position();
        let (count, ty) = reader.read()?;
        validator.define_locals(at, count, ty)?;
        locals.push((count, reencoder.val_type(ty)?));
    }
    let mut by_place: HashMap<Place, Vec<&RuleMatch>> = HashMap::new();
    let mut replacing: HashMap<Place, Vec<&RuleMatch>> = HashMap::new();
    for found in bodies.found.remove(&validator.index()).unwrap_or_default() {
        let replaces = bodies.rules[found.rule].replacement.is_some();
        let of_kind = if replaces { &mut replacing } else { &mut by_place };
        of_kind.entry(found.location.place).or_default().push(found);
    }
    let has_frame = |found: &&RuleMatch| found.values.as_slice().contains(&Bound::Frame);
    let asks_for_frame = by_place.values().chain(replacing.values()).flatten().any(has_frame);
    let is_wrapped = asks_for_frame || by_place.contains_key(&Place::Exit);
    let defined = bodies.defined.take().unwrap_or_else(|| DefinedTypes::of(validator.resources()));
    let mut results = Vec::new();
    if is_wrapped {
        let frame = validator.get_control_frame(0).map(|frame| frame.block_type);
        let ty = frame.and_then(|ty| function_type(validator, ty));
        for ty in ty.into_iter().flat_map(|ty| ty.results().to_vec()) {
            results.push(defined.value_type(ty)?);
        }
    }
    let block_type = bodies.types.of(&results);
    let defined = &*bodies.defined.insert(defined);
    let first = validator.len_locals();
    let mut body = Body {
        numbers: bodies.numbers,
        defined,
        rules: &bodies.rules,
        found: by_place,
        replacing,
        replaceable: Vec::new(),
        alternatives: &bodies.alternatives,
        proc_exit: &bodies.proc_exit,
        types: &mut bodies.types,
        callees: &mut bodies.callees,
        indirect: None,
        reencoder,
        validator,
        out: Vec::new(),
        added: Vec::new(),
        first,
        scratch: HashMap::new(),
        frame: None,
        is_wrapped,
    };
    if asks_for_frame {
        body.begin_frame();
    }
    body.call_rules(Place::Entry, &HashMap::new())?;
    if is_wrapped {
        body.push(&I::Block(block_type));
    }
    let start = function.range().start;
    let mut reader = function.get_operators_reader()?;
    while !reader.eof() {
        let at = reader.original_position();
        let operator = reader.read()?;
        let place = Place::Instruction { offset: (at - start) as u32 };
        body.operator(operator, at, place)?;
    }
    if is_wrapped {
        // The last `end` was that of the block.
        body.call_rules(Place::Exit, &HashMap::new())?;
        body.end_frame();
        body.push(&I::End);
    }
    locals.extend(body.added.iter().map(|ty| (1, *ty)));
    let mut function = Function::new(locals);
    function.raw(body.out);
    Ok(function.into_raw_body())
}

impl<R: Reencode<Error = std::convert::Infallible>> Body<'_, '_, R> {
    pub(super) fn push(&mut self, instruction: &I<'_>) {
        instruction.encode(&mut self.out);
    }

    fn local(&mut self, ty: ValType) -> u32 {
        self.added.push(ty);
        self.first + self.added.len() as u32 - 1
    }

    fn begin_frame(&mut self) {
        let (frame, last) = (self.local(ValType::I64), self.numbers.added_global(added::FRAME));
        self.frame = Some(frame);
        let code = [I::GlobalGet(last), I::I64Const(1), I::I64Sub, I::LocalTee(frame), I::GlobalSet(last)];
        code.iter().for_each(|instruction| self.push(instruction));
    }

    /// Restores the number of the last frame.
    fn end_frame(&mut self) {
        let Some(frame) = self.frame else { return };
        let last = self.numbers.added_global(added::FRAME);
        let code = [I::LocalGet(frame), I::I64Const(1), I::I64Add, I::GlobalSet(last)];
        code.iter().for_each(|instruction| self.push(instruction));
    }

    /// Copies an instruction, with the rules for it.
    fn operator(&mut self, operator: Operator<'_>, at: u64, place: Place) -> Result<(), RewriteError> {
        self.indirect = Indirect::of(&operator);
        // The rules of a loop are called inside it.
        let of_loop = match operator {
            Operator::Loop { blockty } => Some(self.outer_operands(place, blockty)?),
            _ => None,
        };
        if of_loop.is_none() {
            self.call_rules(place, &HashMap::new())?;
        }
        let is_reachable = self.is_reachable();
        let depth = self.validator.control_stack_height();
        let replacement = self.replacement(&operator, place)?;
        self.validator.op(at, &operator)?;
        let is_replaceable = match replacement {
            Some(replacement) => self.begin_replacement(replacement, &operator)?,
            None => false,
        };
        if is_reachable {
            match operator {
                Operator::Call { function_index } | Operator::ReturnCall { function_index }
                    if self.proc_exit.contains(&function_index) =>
                {
                    self.push(&I::Call(added::report(self.numbers)));
                }
                Operator::ReturnCall { .. }
                | Operator::ReturnCallIndirect { .. }
                | Operator::ReturnCallRef { .. } => self.end_frame(),
                _ => {}
            }
        }
        let mut instruction = match operator {
            Operator::Return if self.is_wrapped => I::Br(depth - 1),
            _ => self.reencoder.instruction(operator.clone())?,
        };
        self.move_labels(&mut instruction, depth);
        self.push(&instruction);
        if is_replaceable {
            self.begin_original(&operator, depth);
        }
        self.end_original();
        match of_loop {
            Some(outer) => self.call_rules(place, &outer),
            None => Ok(()),
        }
    }

    pub(super) fn is_reachable(&self) -> bool {
        self.validator.get_control_frame(0).is_some_and(|frame| !frame.unreachable)
    }

    /// The type of an operand of the innermost block that is open, or of those around it.
    pub(super) fn operand(&self, depth: usize) -> Result<Option<ValType>, RewriteError> {
        let ty = self.validator.get_operand_type(depth).flatten();
        ty.map(|ty| self.defined.value_type(ty)).transpose()
    }

    /// Moves operands that the rules of a loop want, and that are not parameters of the loop, to
    /// locals that nothing else uses. Returns these by depth, as the loop sees them.
    fn outer_operands(
        &mut self,
        place: Place,
        ty: wasmparser::BlockType,
    ) -> Result<HashMap<usize, u32>, RewriteError> {
        let wanted = self.found.get(&place).map_or(0, |found| operands(found));
        let parameters = function_type(self.validator, ty).map_or(0, |ty| ty.params().len());
        let mut outer = HashMap::new();
        if wanted <= parameters || !self.is_reachable() {
            return Ok(outer);
        }
        let mut moved = Vec::new();
        for depth in 0..wanted {
            let Some(ty) = self.operand(depth)? else { break };
            let local = self.local(ty);
            moved.push(local);
            if depth >= parameters {
                outer.insert(depth, local);
            }
        }
        self.move_operands(&moved);
        Ok(outer)
    }

    /// Copies operands to locals, the topmost one to the first.
    fn move_operands(&mut self, locals: &[u32]) {
        locals.iter().for_each(|local| self.push(&I::LocalSet(*local)));
        locals.iter().rev().for_each(|local| self.push(&I::LocalGet(*local)));
    }

    /// Calls the rules of a place; `outer` are the operands that are already in locals.
    fn call_rules(&mut self, place: Place, outer: &HashMap<usize, u32>) -> Result<(), RewriteError> {
        let Some(found) = self.found.remove(&place) else { return Ok(()) };
        // At the exit, control comes from branches as well.
        if place != Place::Exit && !self.is_reachable() {
            return Ok(());
        }
        let mut calls = Vec::new();
        for each in found {
            if self.fits(each)? {
                calls.push(each);
            }
        }
        let wanted = operands(&calls);
        let inner = (0..wanted).take_while(|depth| !outer.contains_key(depth)).count();
        let mut places = Vec::new();
        let of_block = self.validator.get_control_frame(0).map_or(0, |frame| frame.height);
        let reachable = (self.validator.operand_stack_height() as usize).saturating_sub(of_block);
        for depth in 0..inner {
            let Some(ty) = self.operand(depth)?.filter(|_| depth < reachable) else {
                let reason = "an operand is not in the block that contains its instruction".to_owned();
                return Err(RewriteError::Unsupported { reason });
            };
            places.push(self.scratch(ty, depth));
        }
        self.move_operands(&places);
        self.call(&calls, |depth| outer.get(&depth).copied().unwrap_or_else(|| places[depth]));
        Ok(())
    }

    /// A local for an operand, which is in use until the next instruction of the program.
    pub(super) fn scratch(&mut self, ty: ValType, depth: usize) -> u32 {
        let known = self.scratch.get(&(ty, depth)).copied();
        let local = known.unwrap_or_else(|| self.local(ty));
        self.scratch.insert((ty, depth), local);
        local
    }

    /// Calls rules, whose operands are in locals, or copies their code.
    pub(super) fn call(&mut self, calls: &[&RuleMatch], operand: impl Fn(usize) -> u32) {
        for each in calls {
            let Rule { function, types, copied, .. } = &self.rules[each.rule];
            let values: Vec<_> = each.values.as_slice().iter().copied().zip(types.iter().copied()).collect();
            let Some(pieces) = copied else {
                values.iter().for_each(|(value, ty)| self.push_value(*value, *ty, &operand));
                self.push(&I::Call(*function));
                continue;
            };
            for piece in pieces {
                match piece {
                    Piece::Code(code) => self.out.extend(code),
                    Piece::Parameter(number) => {
                        let (value, ty) = values[*number as usize];
                        self.push_value(value, ty, &operand);
                    }
                }
            }
        }
    }

    /// Pushes a value that a rule binds, for a parameter of this type.
    fn push_value(&mut self, value: Bound, ty: ValType, operand: impl Fn(usize) -> u32) {
        let instruction = match value {
            Bound::Callee => return self.push_callee(operand(0)),
            Bound::Const(bits) => constant(ty, bits),
            Bound::Local(index) => I::LocalGet(index),
            Bound::Frame => I::LocalGet(self.frame.expect("a rule asks for it")),
            Bound::Operand(depth) | Bound::Reference(depth) => I::LocalGet(operand(depth as usize)),
            other => unreachable!("matching binds no {other:?}"),
        };
        self.push(&instruction);
        if matches!(value, Bound::Reference(_)) {
            // 1 if it is not null.
            let code = [I::RefIsNull, I::I32Eqz, I::I64ExtendI32U];
            code.iter().for_each(|instruction| self.push(instruction));
        }
    }

    /// Pushes the index of the function that is about to be called, given the operand of the call
    /// in a local.
    fn push_callee(&mut self, operand: u32) {
        let indirect = self.indirect.expect("the rule fits");
        let code = self.callees.look_up(indirect, operand, self.numbers.lookups());
        code.iter().for_each(|instruction| self.push(instruction));
    }

    /// Whether the place has the values that a rule wants, in the types of its parameters.
    pub(super) fn fits(&mut self, found: &RuleMatch) -> Result<bool, RewriteError> {
        let types = &self.rules[found.rule].types;
        for (value, ty) in found.values.as_slice().iter().zip(types) {
            let actual = match *value {
                Bound::Operand(depth) => self.operand(depth as usize)?,
                Bound::Reference(depth) => {
                    if !matches!(self.operand(depth as usize)?, Some(ValType::Ref(_))) {
                        return Ok(false);
                    }
                    continue;
                }
                Bound::Local(index) => {
                    let ty = self.validator.get_local_type(index);
                    ty.map(|ty| self.defined.value_type(ty)).transpose()?
                }
                Bound::Callee => {
                    let Some(indirect) = self.indirect else { return Ok(false) };
                    self.callees.find(indirect)?;
                    continue;
                }
                _ => continue,
            };
            if actual != Some(*ty) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The number of operands that these rules bind.
fn operands(found: &[&RuleMatch]) -> usize {
    let depth = |value: &Bound| match value {
        Bound::Operand(depth) | Bound::Reference(depth) => *depth as usize + 1,
        Bound::Callee => 1,
        _ => 0,
    };
    let values = found.iter().flat_map(|found| found.values.as_slice());
    values.map(depth).max().unwrap_or(0)
}

fn constant(ty: ValType, bits: u64) -> I<'static> {
    match ty {
        ValType::I32 => I::I32Const(bits as i32),
        ValType::I64 => I::I64Const(bits as i64),
        ValType::F32 => I::F32Const(f32::from_bits(bits as u32).into()),
        _ => I::F64Const(f64::from_bits(bits).into()),
    }
}
