//! [`Functions`]: generates functions that do what the host did.
//!
//! The function for an import counts its calls. It is a tree: an inner node dispatches on eight
//! bits of the counter to up to [`FAN`] others, a leaf to one branch for each call. Equal calls
//! share a branch, and equal leaves share a function. Long lists of actions are split.

use std::collections::HashMap;

use wasm_encoder::{
    AbstractHeapType, BlockType, CodeSection, Function, FunctionSection, HeapType, InstructionSink, ValType,
};

use super::REPORT;
use super::program::{DATA, Items, Program};
use super::script::{Action, Call, Enter, Outcome, Script};
use super::values::{constant, encoded, type_of};
use crate::value::Value;

/// The type of references that can be compared.
const EQ: HeapType = HeapType::Abstract { shared: false, ty: AbstractHeapType::Eq };

/// Maximum number of branches of a function; a power of two.
const FAN: usize = 256;

/// Maximum number of actions in a function.
const ACTIONS: usize = 1024;

/// Maximum number of actions that are inlined in the branch of their call.
const FEW_ACTIONS: usize = ACTIONS / FAN;

/// The functions that are added to the program.
pub(super) struct Functions<'a> {
    pub(super) program: &'a Program,
    pub(super) indices: Indices,
    pub(super) check: bool,
    /// The event number that stands for calls that were not recorded.
    end: i32,
    /// Whether the trace ends while the program runs.
    is_cut: bool,
    /// [`Script::has_typed_nulls`].
    has_typed_nulls: bool,
    /// The numbers of the events that the replay reaches, in order.
    checkpoints: &'a [u64],
    /// Types that are added to those of the program: parameters and results.
    pub(super) added_types: Vec<(Vec<ValType>, Vec<ValType>)>,
    /// Whether unrecorded exceptions of calls to the program are detected.
    pub(super) notices_exceptions: bool,
    /// Tags that are added to those of the program: their numbers in the trace, and their types.
    pub(super) added_tags: Vec<(u32, u32)>,
    /// The type of functions without parameters and results.
    plain: u32,
    /// The index of the global [`DIFFERENCE`](super::DIFFERENCE), the first of [`REPORT`]. The
    /// others follow, then the counters of the imports.
    pub(super) difference: u32,
    /// The functions for the imports.
    replaced: CodeSection,
    /// The types of functions that the program does not have.
    pub(super) types_of_others: FunctionSection,
    others: CodeSection,
    /// The types of further functions.
    pub(super) types: FunctionSection,
    bodies: CodeSection,
    /// The function that restores the state of an instance that ran before.
    pub(super) restore: Option<u32>,
    /// The function that does what the host does by itself.
    pub(super) start: u32,
}

/// Maps the program's indices to those of the module that contains the functions.
#[derive(Debug)]
pub(super) struct Indices {
    /// The module's imports, if it is not the program's module.
    imported: Option<Imported>,
    /// The index of the first function that replaces an import.
    pub(super) replaced: u32,
    /// The index of the first function that replaces one that the program does not have.
    others: u32,
    /// The number of functions of the program.
    own: u32,
    /// The index of the first added function.
    added: u32,
    /// The data segment with the bytes of the script.
    segment: u32,
}

/// Functions of the program that another module imports, in this order.
#[derive(Debug)]
struct Imported {
    functions: Vec<u32>,
    /// The functions that empty these data segments, and then these element segments.
    segments: [Vec<u32>; 2],
}

impl Indices {
    /// The indices in the program's module.
    pub(super) fn inside(program: &Program, script: &Script) -> Self {
        let (own, segment) = (program.functions.len() as u32, program.number_of(DATA));
        let added = own + script.others.len() as u32;
        Self { imported: None, replaced: 0, others: own, own, added, segment }
    }

    /// The indices in a module that imports these functions of the program, and then those that
    /// empty these data and element segments. The functions for imports follow, then those for
    /// functions that the program does not have, then the added ones.
    pub(super) fn outside(
        program: &Program,
        script: &Script,
        functions: Vec<u32>,
        segments: [Vec<u32>; 2],
    ) -> Self {
        let replaced = (functions.len() + segments.iter().map(Vec::len).sum::<usize>()) as u32;
        let imported = Some(Imported { functions, segments });
        let (own, others) = (program.functions.len() as u32, replaced + program.imports);
        let added = others + script.others.len() as u32;
        Self { imported, replaced, others, own, added, segment: 0 }
    }

    /// The index of a function of the program, or of one that it does not have.
    pub(super) fn function(&self, index: u32) -> u32 {
        if index >= self.own {
            return self.others + (index - self.own);
        }
        self.imported.as_ref().map_or(index, |Imported { functions, .. }| {
            functions.binary_search(&index).expect("the module imports what it uses") as u32
        })
    }

    /// The index of the function that empties a segment, if there is one.
    fn drop(&self, segment: u32, is_data: bool) -> Option<u32> {
        let Imported { functions, segments: [data, elements] } = self.imported.as_ref()?;
        let found = match is_data {
            true => data.binary_search(&segment),
            false => elements.binary_search(&segment).map(|at| data.len() + at),
        };
        Some((functions.len() + found.expect("the module imports what it uses")) as u32)
    }
}

/// A function whose calls are replayed.
#[derive(Clone, Copy)]
struct Callee {
    /// The index of the function's calls in [`Script::calls`].
    number: u32,
    /// The index of the function's type.
    ty: u32,
    /// The number of the function's parameters.
    parameters: u32,
}

/// The effect of a call: calls with the same effect share code.
type Done<'a> = (&'a [Action], &'a Outcome);

impl<'a> Functions<'a> {
    /// The functions for these calls, which are those of the script: taken from it, since they take
    /// more memory than the functions that replay them.
    pub(super) fn of(
        program: &'a Program,
        script: &'a Script,
        calls: Vec<Vec<Call>>,
        check: bool,
        indices: Indices,
    ) -> Self {
        let mut this = Self {
            program,
            indices,
            check,
            end: script.events as i32,
            is_cut: script.is_cut,
            has_typed_nulls: script.has_typed_nulls,
            checkpoints: &script.checkpoints,
            added_types: Vec::new(),
            added_tags: Vec::new(),
            notices_exceptions: check
                && (script.has_exceptions || !program.tags.is_empty() && !program.has_legacy_exceptions),
            plain: 0,
            difference: program.globals.len() as u32,
            replaced: CodeSection::new(),
            types_of_others: FunctionSection::new(),
            others: CodeSection::new(),
            types: FunctionSection::new(),
            bodies: CodeSection::new(),
            restore: None,
            start: 0,
        };
        this.plain = this.function_type([], []);
        for (tag, values) in &script.other_tags {
            let ty = this.function_type(values.iter().map(|value| type_of(*value)), []);
            this.added_tags.push((*tag, ty));
        }
        for (number, calls) in (0_u32..).zip(calls) {
            match number.checked_sub(program.imports) {
                None => {
                    let parameters = program.type_of(number).map_or(0, |ty| ty.params().len() as u32);
                    let callee = Callee { number, ty: program.functions[number as usize], parameters };
                    let body = this.import(callee, &calls);
                    this.replaced.function(&body);
                }
                Some(other) => {
                    let ty = &script.others[other as usize];
                    let parameters = ty.params().len() as u32;
                    let ty = this.function_type(encoded(ty.params()), encoded(ty.results()));
                    let body = this.import(Callee { number, ty, parameters }, &calls);
                    this.types_of_others.function(ty);
                    this.others.function(&body);
                }
            }
        }
        this.restore = script.snapshot.as_ref().map(|actions| this.of_host(actions));
        this.start = this.of_host(&script.host);
        this
    }

    /// Takes the code: of functions that replace imports, of those that the program does not have,
    /// and of the added ones.
    pub(super) fn take_code(&mut self) -> [Items; 3] {
        [&mut self.replaced, &mut self.others, &mut self.bodies]
            .map(|code| Items::encoded(&std::mem::take(code)))
    }

    /// A function that executes these actions.
    fn of_host(&mut self, actions: &[Action]) -> u32 {
        let mut body = Function::new([]);
        self.actions(&mut body.instructions(), actions, FEW_ACTIONS);
        self.add(self.plain, body)
    }

    /// The index of a function type, which is added if it does not exist yet.
    pub(super) fn function_type(
        &mut self,
        parameters: impl IntoIterator<Item = ValType>,
        results: impl IntoIterator<Item = ValType>,
    ) -> u32 {
        let ty = (parameters.into_iter().collect(), results.into_iter().collect());
        let known = self.added_types.iter().position(|known| *known == ty);
        let added = known.unwrap_or_else(|| {
            self.added_types.push(ty);
            self.added_types.len() - 1
        });
        (self.program.types.len() + added) as u32
    }

    /// The index of the global that counts the calls of a function.
    fn counter(&self, callee: Callee) -> u32 {
        self.difference + REPORT.len() as u32 + callee.number
    }

    /// The number of functions that were added.
    fn added(&self) -> u32 {
        self.types.len()
    }

    /// Adds a function and returns its index.
    fn add(&mut self, ty: u32, mut body: Function) -> u32 {
        body.instructions().end();
        self.types.function(ty);
        self.bodies.function(&body);
        self.indices.added + self.added() - 1
    }

    /// The function that replaces an import, or a function that the program does not have.
    fn import(&mut self, callee: Callee, calls: &[Call]) -> Function {
        let ty = callee.ty;
        let counter = self.counter(callee);
        // Equal calls get the same number, unless their events are checked.
        let mut numbers: HashMap<Done<'_>, u32> = HashMap::new();
        let mut numbered = Vec::with_capacity(calls.len());
        for (index, call) in (0..).zip(calls) {
            let known = numbers.entry((&call.actions, &call.outcome));
            numbered.push(if self.check { index } else { *known.or_insert(index) });
        }
        let mut leaves: HashMap<&[u32], u32> = HashMap::new();
        let mut level = Vec::new();
        for group in numbered.chunks(FAN) {
            let leaf = match leaves.get(group) {
                Some(leaf) => *leaf,
                None => {
                    let body = self.leaf(counter, calls, group);
                    let leaf = self.add(ty, body);
                    leaves.insert(group, leaf);
                    leaf
                }
            };
            level.push(leaf);
        }
        let mut shift = FAN.trailing_zeros();
        while level.len() > FAN {
            let nodes = level.chunks(FAN).map(|nodes| {
                let body = self.node(callee, shift, nodes, false);
                self.add(ty, body)
            });
            level = nodes.collect();
            shift += FAN.trailing_zeros();
        }
        let mut body = self.node(callee, shift, &level, true);
        body.instructions().end();
        body
    }

    /// Dispatches to one of these functions by the bits of the counter from `shift` on; in the
    /// root, by all of these bits.
    fn node(&self, callee: Callee, shift: u32, functions: &[u32], is_root: bool) -> Function {
        let mut body = Function::new([]);
        let mut code = body.instructions();
        open(&mut code, functions.len());
        code.global_get(self.counter(callee)).i32_const(shift as i32).i32_shr_u();
        if !is_root {
            code.i32_const(FAN as i32 - 1).i32_and();
        }
        let targets: Vec<u32> = (0..functions.len() as u32).collect();
        code.br_table(targets, functions.len() as u32);
        for function in functions {
            code.end();
            for parameter in 0..callee.parameters {
                code.local_get(parameter);
            }
            code.call(*function).return_();
        }
        code.end();
        self.ends(&mut code, self.end);
        body
    }

    /// Replays up to [`FAN`] calls of an import, given by their numbers.
    fn leaf(&mut self, counter: u32, calls: &[Call], group: &[u32]) -> Function {
        let mut unique: Vec<u32> = group.to_vec();
        unique.sort_unstable();
        unique.dedup();
        let branch = |number: &u32| unique.binary_search(number).expect("it is one of them") as u32;
        let targets: Vec<u32> = group.iter().map(branch).collect();
        let mut body = Function::new([]);
        let mut code = body.instructions();
        open(&mut code, unique.len());
        code.global_get(counter);
        code.global_get(counter).i32_const(1).i32_add().global_set(counter);
        code.i32_const(FAN as i32 - 1).i32_and();
        code.br_table(targets, unique.len() as u32);
        for call in unique.iter().map(|number| &calls[*number as usize]) {
            code.end();
            if self.check {
                self.reaches(&mut code, call.event);
                for (local, value) in (0..).zip(&call.arguments) {
                    code.local_get(local);
                    self.compare(&mut code, value, call.event);
                }
            }
            self.actions(&mut code, &call.actions, FEW_ACTIONS);
            if self.check && call.outcome != Outcome::Unknown {
                self.reaches(&mut code, call.end);
            }
            match &call.outcome {
                Outcome::Returned(results) => {
                    results.iter().for_each(|result| self.constant(&mut code, *result));
                    code.return_();
                }
                Outcome::Threw(exception) => self.throw(&mut code, exception),
                Outcome::Failed | Outcome::Unknown => {
                    code.unreachable();
                }
            }
        }
        code.end();
        self.ends(&mut code, self.end);
        body
    }

    /// Executes actions; in separate functions if there are more than `few`.
    fn actions(&mut self, code: &mut InstructionSink<'_>, actions: &[Action], few: usize) {
        if actions.len() > few {
            for part in actions.chunks(ACTIONS) {
                let mut body = Function::new([]);
                self.actions(&mut body.instructions(), part, ACTIONS);
                code.call(self.add(self.plain, body));
            }
            return;
        }
        for action in actions {
            match action {
                Action::Grow { memory, pages } => {
                    self.address(code, *memory, *pages);
                    code.memory_grow(*memory).drop();
                }
                Action::Write { memory, address, from, length } => {
                    self.address(code, *memory, *address);
                    code.i32_const(*from as i32).i32_const(*length as i32);
                    code.memory_init(*memory, self.indices.segment);
                }
                Action::SetGlobal { global, value } => {
                    self.constant(code, *value);
                    code.global_set(*global);
                }
                Action::GrowTable { table, elements, null } => {
                    self.constant(code, *null);
                    self.index(code, *table, *elements);
                    code.table_grow(*table).drop();
                }
                Action::SetElement { table, element, value } => {
                    self.index(code, *table, *element);
                    self.constant(code, *value);
                    code.table_set(*table);
                }
                Action::DropData { segment } => {
                    match self.indices.drop(*segment, true) {
                        Some(function) => code.call(function),
                        None => code.data_drop(*segment),
                    };
                }
                Action::DropElements { segment } => {
                    match self.indices.drop(*segment, false) {
                        Some(function) => code.call(function),
                        None => code.elem_drop(*segment),
                    };
                }
                Action::Enter(enter) => self.enter(code, enter),
            }
        }
    }

    /// Calls a function of the program as the host does.
    fn enter(&mut self, code: &mut InstructionSink<'_>, enter: &Enter) {
        if self.catches(enter) {
            return self.enter_and_catch(code, enter);
        }
        self.call(code, enter);
        match &enter.outcome {
            Outcome::Returned(results) if self.check => self.compare_all(code, results, enter.end),
            Outcome::Returned(results) => results.iter().for_each(|_| {
                code.drop();
            }),
            Outcome::Unknown => self.ends(code, enter.end as i32),
            // The recorded call failed, and its replay fails before this.
            _ => self.is_elsewhere(code, enter.end as i32),
        }
    }

    /// A value that the program can have.
    pub(super) fn constant(&self, code: &mut InstructionSink<'_>, value: Value) {
        match value {
            Value::Func(Some(index)) => {
                let index = self.indices.function(index);
                constant(code, Value::Func(Some(index)), self.has_typed_nulls);
            }
            value => constant(code, value, self.has_typed_nulls),
        }
    }

    pub(super) fn call(&self, code: &mut InstructionSink<'_>, enter: &Enter) {
        enter.arguments.iter().for_each(|argument| self.constant(code, *argument));
        code.call(self.indices.function(enter.function));
    }

    /// Compares the top operands with the values of an event.
    pub(super) fn compare_all(&self, code: &mut InstructionSink<'_>, values: &[Value], event: u64) {
        self.reaches(code, event);
        values.iter().rev().for_each(|value| self.compare(code, value, event));
    }

    /// A memory address or number of pages.
    fn address(&self, code: &mut InstructionSink<'_>, memory: u32, value: u64) {
        match self.program.memories[memory as usize].memory64 {
            true => code.i64_const(value as i64),
            false => code.i32_const(value as u32 as i32),
        };
    }

    /// A table index or number of elements.
    fn index(&self, code: &mut InstructionSink<'_>, table: u32, value: u64) {
        match self.program.tables[table as usize].table64 {
            true => code.i64_const(value as i64),
            false => code.i32_const(value as u32 as i32),
        };
    }

    /// Compares the top operand with a recorded value, bit by bit; for functions, compares only
    /// whether they are null.
    fn compare(&self, code: &mut InstructionSink<'_>, value: &Value, event: u64) {
        match *value {
            Value::I32(value) => code.i32_const(value).i32_ne(),
            Value::I64(value) => code.i64_const(value).i64_ne(),
            Value::F32(bits) => code.i32_reinterpret_f32().i32_const(bits as i32).i32_ne(),
            Value::F64(bits) => code.i64_reinterpret_f64().i64_const(bits as i64).i64_ne(),
            Value::V128(bits) => code.v128_const(bits as i128).i8x16_ne().v128_any_true(),
            Value::Func(Some(_)) => code.ref_is_null(),
            Value::Func(None) | Value::Extern(None) | Value::Any(None) | Value::Exn => {
                code.ref_is_null().i32_eqz()
            }
            // In a replay, there are only references that can be compared.
            Value::Extern(Some(number)) => {
                code.any_convert_extern().ref_cast_nullable(EQ);
                code.i32_const(number as i32).ref_i31().ref_eq().i32_eqz()
            }
            Value::Any(Some(value)) => {
                code.ref_cast_nullable(EQ).i32_const(value).ref_i31().ref_eq().i32_eqz()
            }
        };
        code.if_(BlockType::Empty);
        self.differs(code, event as i32);
        code.end();
    }

    /// The replay reaches a checkpoint: a difference, unless it is the next one.
    fn reaches(&self, code: &mut InstructionSink<'_>, event: u64) {
        code.global_get(self.next()).i32_const(event as i32).i32_ne();
        code.if_(BlockType::Empty);
        self.is_elsewhere(code, event as i32);
        code.end();
        code.i32_const(event as i32).global_set(self.difference + 1);
        let following = self.checkpoints.partition_point(|checkpoint| *checkpoint <= event);
        let following = self.checkpoints.get(following).map_or(self.end, |event| *event as i32);
        code.i32_const(following).global_set(self.next());
    }

    /// The index of the global [`NEXT`](super::NEXT).
    fn next(&self) -> u32 {
        self.difference + 2
    }

    /// The program does something that is not in the trace: a difference, unless the trace ends
    /// here because the process was killed while the program ran.
    fn ends(&self, code: &mut InstructionSink<'_>, event: i32) {
        if self.is_cut && self.check {
            code.global_get(self.next()).i32_const(self.end).i32_eq();
            code.if_(BlockType::Empty).unreachable().end();
        }
        self.is_elsewhere(code, event);
    }

    /// The program does not do what it did at the next checkpoint. Without checks, that is taken
    /// for this event.
    pub(super) fn is_elsewhere(&self, code: &mut InstructionSink<'_>, event: i32) {
        if !self.check {
            return self.differs(code, event);
        }
        code.global_get(self.next()).global_set(self.difference).unreachable();
    }

    fn differs(&self, code: &mut InstructionSink<'_>, event: i32) {
        code.i32_const(event).global_set(self.difference).unreachable();
    }
}

/// Opens the blocks of a dispatch to this number of branches: each `end` that follows starts a
/// branch, and the last one starts the branch for all other numbers.
fn open(code: &mut InstructionSink<'_>, branches: usize) {
    for _ in 0..=branches {
        code.block(BlockType::Empty);
    }
}
