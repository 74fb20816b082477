//! Our own generator of programs, in text form, for code that random bytes rarely produce.
//!
//! A function has locals that are live across loops, branches and calls, operands that stay on the
//! stack during calls, conditions that become branches or selections, addresses with offsets: the
//! work of a register allocator. Every program terminates: a loop counts in a local that nothing
//! else assigns, and functions call only later ones.
//!
//! Control flow with values is in `values.rs`, exceptions are in `exceptions.rs`, references to
//! functions in `references.rs`, structures and arrays in `objects.rs`, vectors in `vectors.rs`;
//! this file has all other statements, and the expressions.
//!
//! A third of the programs have vectors. Each memory and each kind of table has 64-bit addresses or
//! indices in a third of the programs.
//!
//! The bits of a NaN differ between engines, so none becomes observable (memory, integers, signs),
//! and [`Case::same_nans`](crate::Case::same_nans) is set, so that those of results are ignored.

mod exceptions;
mod objects;
mod references;
mod values;
mod vectors;

use std::fmt::Write as _;

pub use exceptions::Form;
use objects::Objects;
use references::Places;

use crate::random::{Random, mixed};

/// Features that the reference engine supports.
#[derive(Clone, Copy, Debug, Default)]
pub struct Features {
    /// try_table and exnref.
    pub exceptions: bool,
    /// Atomic accesses, and shared memories.
    pub threads: bool,
    /// Typed references to functions.
    pub function_references: bool,
    /// Structures, arrays and `i31`.
    pub gc: bool,
    /// Relaxed vector operators, with the results of the deterministic profile.
    pub relaxed_simd: bool,
    /// Instructions consume as much fuel as wasm-jit's.
    pub fuel: bool,
}

impl Features {
    /// All of them.
    pub const ALL: Self = Self {
        exceptions: true,
        threads: true,
        function_references: true,
        gc: true,
        relaxed_simd: true,
        fuel: true,
    };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ty {
    I32,
    I64,
    F32,
    F64,
    V128,
}

use Ty::{F32, F64, I32, I64, V128};

const TYPES: [Ty; 5] = [I32, I64, F32, F64, V128];

/// The types of a program's values, as often as they are chosen.
const MIXES: [&[Ty]; 6] = [
    &[I32, I32, I64],
    &[I32, I32, I64],
    &[I32, I64, F32, F64],
    &[I32, I64, F32, F64],
    &[I32, I64, F32, F64, V128],
    &[I32, I64, V128, V128],
];

/// The functions of the host.
const HOST: [(&str, Ty); 5] = [("h32", I32), ("h64", I64), ("hf32", F32), ("hf64", F64), ("hv128", V128)];

impl Ty {
    fn name(self) -> &'static str {
        match self {
            I32 => "i32",
            I64 => "i64",
            F32 => "f32",
            F64 => "f64",
            V128 => "v128",
        }
    }
}

/// The types of addresses and indices.
#[derive(Clone, Copy, Debug)]
struct Indices {
    /// Of the first memory, and of the other one.
    memory: Ty,
    other: Ty,
    /// Of the table of all functions, and of those of functions of one type.
    table: Ty,
    tables: Ty,
}

impl Indices {
    fn random(random: &mut Random) -> Self {
        let mut ty = || if random.one_in(3) { I64 } else { I32 };
        Self { memory: ty(), other: ty(), table: ty(), tables: ty() }
    }

    /// The word for such a memory or table in its declaration.
    fn declared(ty: Ty) -> &'static str {
        if ty == I64 { "i64 " } else { "" }
    }
}

/// The signature of a function.
#[derive(Clone, Debug)]
struct Signature {
    params: Vec<Ty>,
    results: Vec<Ty>,
}

const ITERATIONS: u64 = 4;

/// Maximum depth of loops in a function.
const MAX_LOOPS: usize = 5;

/// The text of the module of a seed.
#[must_use]
pub fn text_of(seed: u64, features: Features, form: Form) -> String {
    text(&mut Random::new(mixed(seed)), features, form)
}

fn text(random: &mut Random, features: Features, form: Form) -> String {
    let types = random.choose(&MIXES);
    let indices = Indices::random(random);
    let list = |random: &mut Random, most: u64| {
        (0..random.below(most)).map(|_| random.choose(types)).collect::<Vec<_>>()
    };
    let functions = 2 + random.below(5) as usize;
    let mut signatures: Vec<Signature> = Vec::new();
    for _ in 0..functions {
        let params = if random.one_in(5) { list(random, 20) } else { list(random, 6) };
        let mut results = if random.one_in(10) { list(random, 8) } else { Vec::new() };
        if results.is_empty() && !random.one_in(5) {
            results.push(random.choose(types));
        }
        // A tail call requires the same results.
        if let Some(before) = signatures.last().filter(|_| random.one_in(2)) {
            results = before.results.clone();
        }
        signatures.push(Signature { params, results });
    }
    let mut out = String::from("(module\n");
    for (name, ty) in HOST {
        let ty = ty.name();
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(out, " (import \"host\" \"{name}\" (func ${name} (param i32 {ty}) (result {ty})))");
    }
    let shared = if features.threads && random.one_in(2) { " shared" } else { "" };
    let (memory, other) = (Indices::declared(indices.memory), Indices::declared(indices.other));
    let _ = writeln!(
        out,
        " (memory (export \"memory\") {memory}1 2{shared})\n (data ({}.const 0) \"the first bytes are not all zero\")",
        indices.memory.name()
    );
    let _ = writeln!(out, " (memory $other (export \"other\") {other}1 1)");
    for (at, ty) in TYPES.into_iter().enumerate() {
        let (ty, lanes) = (ty.name(), if ty == V128 { "i64x2 -1 " } else { "" });
        let _ = writeln!(out, " (global $g{at} (export \"g{at}\") (mut {ty}) ({ty}.const {lanes}{at}))");
    }
    if features.exceptions {
        out.push_str(" (tag $t0 (param i32))\n (tag $t1 (param f64 i64))\n");
    }
    if features.function_references {
        references::declare(&mut out, &signatures, Indices::declared(indices.tables));
    }
    let objects = if features.gc { Objects::declare(&mut out, random) } else { Objects::default() };
    for (index, signature) in signatures.iter().enumerate() {
        Function::write(
            &mut out,
            random,
            features,
            form,
            &signatures,
            &objects,
            index,
            signature,
            types,
            indices,
        );
    }
    let _ = write!(out, " (table $table {}funcref (elem (ref.null func)", Indices::declared(indices.table));
    for index in 0..functions {
        let _ = write!(out, " (ref.func $f{index})");
    }
    out.push_str("))\n)\n");
    out
}

struct Function<'r> {
    random: &'r mut Random,
    features: Features,
    form: Form,
    signatures: &'r [Signature],
    objects: &'r Objects,
    index: usize,
    /// Types of parameters and locals; they are followed by the counters of loops.
    locals: Vec<Ty>,
    counters: usize,
    /// Labels of the handlers that have a local for their exception, after the counters.
    exceptions: Vec<usize>,
    /// Locals for references.
    references: Places,
    /// Labels of the enclosing blocks without values.
    labels: Vec<usize>,
    /// Labels of the enclosing blocks with one value, and their types.
    value_labels: Vec<(usize, Ty)>,
    /// Counters of the enclosing loops: a branch to a loop also counts down.
    loops: Vec<usize>,
    /// Number of enclosing loops.
    open_loops: usize,
    /// Whether statements and expressions may call: in some loops none does.
    calls: bool,
    /// Number of labels so far.
    label: usize,
    /// Remaining number of statements and expressions.
    budget: i32,
    /// The types of values, as often as they are chosen.
    types: &'static [Ty],
    indices: Indices,
}

impl Function<'_> {
    #[expect(clippy::too_many_arguments, reason = "all that a function depends on, in its only constructor")]
    fn write(
        out: &mut String,
        random: &mut Random,
        features: Features,
        form: Form,
        signatures: &[Signature],
        objects: &Objects,
        index: usize,
        signature: &Signature,
        types: &'static [Ty],
        indices: Indices,
    ) {
        let mut locals = signature.params.clone();
        // Often more than there are registers.
        for _ in 0..=random.choose(&[4, 10, 30]).min(random.below(40)) {
            locals.push(random.choose(types));
        }
        let budget = random.choose(&[30, 100, 300]);
        let mut function = Function {
            random,
            features,
            form,
            signatures,
            objects,
            index,
            locals,
            counters: 0,
            exceptions: Vec::new(),
            references: Places::default(),
            labels: Vec::new(),
            value_labels: Vec::new(),
            loops: Vec::new(),
            open_loops: 0,
            calls: true,
            label: 0,
            budget,
            types,
            indices,
        };
        let body = function.statements(0);
        let results: Vec<String> = signature.results.iter().map(|ty| function.result(*ty)).collect();
        let names = |types: &[Ty]| types.iter().map(|ty| format!(" {}", ty.name())).collect::<String>();
        let exceptions: String = match form {
            Form::Table => {
                function.exceptions.iter().map(|at| format!(" (local $exception{at} exnref)")).collect()
            }
            Form::Legacy => String::new(),
        };
        let references = function.references.locals() + &objects.locals();
        let _ = writeln!(
            out,
            " (func $f{index} (export \"f{index}\") (param{}) (result{})\n  (local{}{}){exceptions}{references}\n{body}  {})",
            names(&signature.params),
            names(&signature.results),
            names(&function.locals[signature.params.len()..]),
            " i32".repeat(function.counters),
            results.join("\n  "),
        );
    }

    fn ty(&mut self) -> Ty {
        self.random.choose(self.types)
    }

    fn has_vectors(&self) -> bool {
        self.types.contains(&V128)
    }

    /// The global of a type.
    fn global(ty: Ty) -> usize {
        TYPES.iter().position(|other| *other == ty).expect("there is one of each type")
    }

    /// A local of the type, if there is one.
    fn local(&mut self, ty: Ty) -> Option<usize> {
        let of_type: Vec<usize> = (0..self.locals.len()).filter(|local| self.locals[*local] == ty).collect();
        if of_type.is_empty() { None } else { Some(self.random.choose(&of_type)) }
    }

    /// A number for a new loop's counter, which is declared after the other locals.
    fn counter(&mut self) -> usize {
        self.counters += 1;
        self.locals.len() + self.counters - 1
    }

    /// Counts a loop's counter down; the result is whether to run the loop again.
    fn counted_down(counter: usize) -> String {
        format!(
            "(i32.gt_s (local.tee {counter} (i32.sub (local.get {counter}) (i32.const 1))) (i32.const 0))"
        )
    }

    fn statements(&mut self, depth: usize) -> String {
        let count = 1 + self.random.below(5);
        (0..count).map(|_| self.statement(depth)).collect()
    }

    fn statement(&mut self, depth: usize) -> String {
        self.budget -= 1;
        let choices = if depth > 4 || self.budget < 0 { 7 } else { 20 };
        let line = match self.random.below(choices) {
            _ if self.calls && self.features.function_references && choices > 7 && self.random.one_in(6) => {
                self.reference_statement(depth)
            }
            _ if self.calls && self.features.gc && choices > 7 && self.random.one_in(4) => {
                self.object_statement(depth)
            }
            0..=2 => self.assignment(),
            3 if self.has_vectors() && self.random.one_in(2) => self.vector_store(),
            3 => {
                let (place, address) = self.access();
                let ty = self.random.choose(&[I32, I64]);
                let width = match ty {
                    I32 => self.random.choose(&["", "8", "16"]),
                    _ => self.random.choose(&["", "8", "16", "32"]),
                };
                let value = self.expression(ty, 0);
                let atomic = if self.features.threads && self.random.one_in(3) { "atomic." } else { "" };
                format!("({}.{atomic}store{width}{place} {address} {value})", ty.name())
            }
            4 => {
                let ty = self.ty();
                let value = self.visible(ty);
                format!("(global.set $g{} {value})", Self::global(ty))
            }
            5 => self.call_statement(),
            6 if !self.value_labels.is_empty() && self.random.one_in(2) => {
                let (target, ty) = self.random.choose(&self.value_labels);
                let (value, condition) = (self.expression(ty, 2), self.condition());
                if self.random.one_in(2) {
                    format!("(drop (br_if $v{target} {value} {condition}))")
                } else {
                    format!("(if {condition} (then (br $v{target} {value})))")
                }
            }
            6 if !self.loops.is_empty() && self.random.one_in(3) => {
                let counter = self.random.choose(&self.loops);
                format!("(br_if $l{counter} {})", Self::counted_down(counter))
            }
            6 if !self.labels.is_empty() => {
                let target = self.random.choose(&self.labels);
                let condition = self.condition();
                format!("(br_if $b{target} {condition})")
            }
            6 => "(nop)".to_owned(),
            7 | 8 => {
                let condition = self.condition();
                let (label, then) = self.labelled(depth);
                let otherwise = if self.random.one_in(2) {
                    format!(" (else {})", self.statements(depth + 1))
                } else {
                    String::new()
                };
                format!("(if $b{label} {condition} (then {then}){otherwise})")
            }
            9 | 10 | 16 if self.open_loops >= MAX_LOOPS => self.assignment(),
            9 | 10 => {
                let counter = self.counter();
                let iterations = 1 + self.random.below(ITERATIONS);
                self.loops.push(counter);
                self.open_loops += 1;
                let calls = self.calls;
                self.calls &= !self.random.one_in(3);
                let body = self.statements(depth + 1);
                self.calls = calls;
                self.open_loops -= 1;
                self.loops.pop();
                format!(
                    "(local.set {counter} (i32.const {iterations})) (loop $l{counter} {body} (br_if $l{counter} {}))",
                    Self::counted_down(counter)
                )
            }
            11 => {
                let (label, body) = self.labelled(depth);
                format!("(block $b{label} {body})")
            }
            12 => {
                let first = self.label;
                let cases = 1 + self.random.below(4) as usize;
                self.label += cases + 1;
                let labels: String = (0..=cases)
                    .map(|_| format!(" $b{}", first + self.random.below(cases as u64 + 1) as usize))
                    .collect();
                let mut code = format!("(br_table{labels} {})", self.expression(I32, 1));
                for case in 0..=cases {
                    // After the block of this case, the blocks of the later ones are still open.
                    self.labels.extend(first + case + 1..=first + cases);
                    let arm = self.statement(depth + 1);
                    self.labels.truncate(self.labels.len() - (cases - case));
                    code = format!("(block $b{} {code}) {arm}", first + case);
                }
                code
            }
            15 => {
                let ty = self.ty();
                let label = self.label;
                self.label += 1;
                self.value_labels.push((label, ty));
                let body = self.statements(depth + 1);
                self.value_labels.pop();
                let value = self.expression(ty, 2);
                let to = self.local(ty).map_or("drop".to_owned(), |local| format!("local.set {local}"));
                format!("({to} (block $v{label} (result {}) {body} {value}))", ty.name())
            }
            13 if self.calls && self.features.exceptions => self.handled(depth),
            13 if self.calls => {
                let (to, length) = (self.random.below(60000), self.random.below(300));
                let value = self.expression(I32, 2);
                let ty = self.indices.memory.name();
                format!("(memory.fill ({ty}.const {to}) {value} ({ty}.const {length}))")
            }
            16 => self.loop_with_values(depth),
            17 => self.table_with_value(depth),
            18 => self.tail_call().unwrap_or_else(|| self.assignment()),
            19 => self.dead_code(depth),
            _ if self.features.exceptions && self.random.one_in(2) => self.throw(),
            _ => {
                let results = self.signatures[self.index].results.clone();
                let values: String = results.iter().map(|ty| self.result(*ty) + " ").collect();
                let condition = self.condition();
                format!("(if {condition} (then {values}(return)))")
            }
        };
        format!("  {line}\n")
    }

    /// Statements inside a new block, and its label.
    fn labelled(&mut self, depth: usize) -> (usize, String) {
        let label = self.label;
        self.label += 1;
        self.labels.push(label);
        let body = self.statements(depth + 1);
        self.labels.pop();
        (label, body)
    }

    fn assignment(&mut self) -> String {
        let local = self.random.below(self.locals.len() as u64) as usize;
        let ty = self.locals[local];
        let value = self.expression(ty, 0);
        format!("(local.set {local} {value})")
    }

    /// A call whose results are assigned to locals or dropped.
    fn call_statement(&mut self) -> String {
        let Some((call, results)) = self.call() else { return self.assignment() };
        call + &self.take_all(&results)
    }

    /// A call to a later function, directly or through the table.
    fn call(&mut self) -> Option<(String, Vec<Ty>)> {
        let later = self.signatures.len() - self.index - 1;
        if later == 0 || !self.calls {
            return None;
        }
        let callee = self.index + 1 + self.random.below(later as u64) as usize;
        Some((format!("({})", self.call_of(callee)), self.signatures[callee].results.clone()))
    }

    /// A call to a function, without its parentheses.
    fn call_of(&mut self, callee: usize) -> String {
        let signature = self.signatures[callee].clone();
        let arguments: String =
            signature.params.iter().map(|ty| format!(" {}", self.expression(*ty, 2))).collect();
        if self.features.function_references && self.random.one_in(3) {
            self.call_by_reference(callee, &arguments)
        } else if self.random.one_in(4) {
            let names = |types: &[Ty]| types.iter().map(|ty| format!(" {}", ty.name())).collect::<String>();
            format!(
                "call_indirect $table (param{}) (result{}){arguments} ({}.const {})",
                names(&signature.params),
                names(&signature.results),
                self.indices.table.name(),
                callee + 1
            )
        } else {
            format!("call $f{callee}{arguments}")
        }
    }

    fn condition(&mut self) -> String {
        self.expression(I32, 1)
    }

    /// The memory and the offset of an access, and its address.
    fn access(&mut self) -> (String, String) {
        let (memory, ty) = match self.random.one_in(5) {
            true => (" $other", self.indices.other),
            false => ("", self.indices.memory),
        };
        let value = self.expression(ty, 2);
        // Occasionally out of bounds.
        let mask = self.random.choose(&[0xff, 0xfff8, 0xfff8, 0xffff]);
        let name = ty.name();
        let address = match self.random.one_in(40) {
            true => value,
            false => format!("({name}.and {value} ({name}.const {mask}))"),
        };
        let offset = match self.random.below(6) {
            0..=2 => return (memory.to_owned(), address),
            3 => self.random.below(100),
            4 => 8 * self.random.below(100),
            _ if ty == I64 && self.random.one_in(4) => {
                self.random.choose(&[1 << 32, (1 << 32) - 4, 1 << 63, u64::MAX - 100, u64::MAX])
            }
            _ => self.random.choose(&[1000, 65000, 65535, 70000, 0x8000_0000]),
        };
        (format!("{memory} offset={offset}"), address)
    }

    /// A result of the function.
    fn result(&mut self, ty: Ty) -> String {
        self.expression(ty, 1)
    }

    /// A value whose bits are all observable: a NaN is the one that constants have.
    fn visible(&mut self, ty: Ty) -> String {
        match (ty, self.local(ty)) {
            (I32 | I64 | V128, _) => self.expression(ty, 1),
            (_, Some(local)) => {
                let (name, value) = (ty.name(), self.expression(ty, 1));
                format!(
                    "(block (result {name}) (local.set {local} {value}) (select (local.get {local}) ({name}.const nan) \
                     ({name}.eq (local.get {local}) (local.get {local}))))"
                )
            }
            (_, None) => self.constant(ty),
        }
    }

    fn constant(&mut self, ty: Ty) -> String {
        if ty == V128 {
            return self.vector_constant();
        }
        let name = ty.name();
        let value = match ty {
            I32 => self
                .random
                .choose(&[
                    "0",
                    "1",
                    "-1",
                    "2",
                    "3",
                    "7",
                    "31",
                    "32",
                    "255",
                    "256",
                    "4096",
                    "65535",
                    "0x7fffffff",
                    "0x80000000",
                    "123456789",
                ])
                .to_owned(),
            I64 => self
                .random
                .choose(&[
                    "0",
                    "1",
                    "-1",
                    "5",
                    "8",
                    "63",
                    "64",
                    "127",
                    "128",
                    "-129",
                    "0x7fffffff",
                    "0x80000000",
                    "0xffffffff",
                    "0x100000000",
                    "0x7fffffffffffffff",
                    "0x8000000000000000",
                    "0x123456789abcdef",
                ])
                .to_owned(),
            _ => self
                .random
                .choose(&[
                    "0",
                    "-0",
                    "1",
                    "-1",
                    "0.5",
                    "1.5",
                    "2.5",
                    "-3.75",
                    "1e10",
                    "-1e20",
                    "4294967296",
                    "2147483648",
                    "inf",
                    "-inf",
                    "nan",
                    "0x1p-126",
                    "0.1",
                ])
                .to_owned(),
        };
        format!("({name}.const {value})")
    }

    fn expression(&mut self, ty: Ty, depth: usize) -> String {
        self.budget -= 1;
        let choices = if depth > 5 || self.budget < 0 { 4 } else { 16 };
        match self.random.below(choices) {
            _ if self.features.gc && choices > 4 && self.random.one_in(8) => self.number_of_object(ty, depth),
            0 => self.constant(ty),
            1..=3 => match self.local(ty) {
                Some(local) => format!("(local.get {local})"),
                None => self.constant(ty),
            },
            4..=7 => self.binary(ty, depth),
            8 => self.unary(ty, depth),
            9 | 10 => {
                let (left, right) = (self.expression(ty, depth + 1), self.expression(ty, depth + 1));
                format!("(select {left} {right} {})", self.expression(I32, depth + 1))
            }
            11 => match self.local(ty) {
                Some(local) => format!("(local.tee {local} {})", self.expression(ty, depth + 1)),
                None => self.constant(ty),
            },
            12 => self.load(ty),
            13 if self.budget > 0 && self.random.one_in(3) && matches!(ty, I32 | I64 | V128) => {
                // A local's value that stays on the stack during statements.
                let (Some(waiting), name) = (self.local(ty), ty.name()) else { return self.constant(ty) };
                let (between, value) = (self.statements(3), self.expression(ty, depth + 1));
                let of = if ty == V128 { "i32x4" } else { name };
                format!("({of}.sub (local.get {waiting}) (block (result {name}) {between} {value}))")
            }
            13 => {
                let condition = self.expression(I32, depth + 1);
                let (then, otherwise) = (self.expression(ty, depth + 1), self.expression(ty, depth + 1));
                format!("(if (result {0}) {condition} (then {then}) (else {otherwise}))", ty.name())
            }
            14 if self.calls => {
                let (host, _) = HOST[Self::global(ty)];
                // The host must not see a NaN that was computed.
                let (number, value) = (
                    self.expression(I32, depth + 1),
                    match ty {
                        I32 | I64 | V128 => self.expression(ty, depth + 1),
                        F32 | F64 => self.constant(ty),
                    },
                );
                match self.features.function_references && self.random.one_in(4) {
                    true => {
                        format!("(call_ref $h{} {number} {value} (ref.func ${host}))", ty.name())
                    }
                    false => format!("(call ${host} {number} {value})"),
                }
            }
            _ => match self.call() {
                Some((call, results)) if results == [ty] => call,
                _ if self.random.one_in(2) => format!("(global.get $g{})", Self::global(ty)),
                _ => {
                    let (value, condition) =
                        (self.expression(ty, depth + 1), self.expression(I32, depth + 1));
                    let other = self.expression(ty, depth + 1);
                    format!("(block (result {0}) (drop (br_if 0 {value} {condition})) {other})", ty.name())
                }
            },
        }
    }

    /// An atomic access that returns a value.
    fn atomic(&mut self, ty: Ty) -> String {
        let part = match ty {
            I32 => self.random.choose(&["", "8", "16"]),
            _ => self.random.choose(&["", "8", "16", "32"]),
        };
        let sign = if part.is_empty() { "" } else { "_u" };
        let (name, (at, address)) = (ty.name(), self.access());
        match self.random.below(8) {
            0 => format!("({name}.atomic.load{part}{sign}{at} {address})"),
            1 => {
                let (expected, value) = (self.expression(ty, 2), self.expression(ty, 2));
                format!("({name}.atomic.rmw{part}.cmpxchg{sign}{at} {address} {expected} {value})")
            }
            _ => {
                let what = self.random.choose(&["add", "sub", "and", "or", "xor", "xchg"]);
                format!("({name}.atomic.rmw{part}.{what}{sign}{at} {address} {})", self.expression(ty, 2))
            }
        }
    }

    fn load(&mut self, ty: Ty) -> String {
        if ty == V128 {
            return self.vector_load();
        }
        if self.features.threads && matches!(ty, I32 | I64) && self.random.one_in(2) {
            return self.atomic(ty);
        }
        let (place, address) = self.access();
        let load = match ty {
            I32 => self.random.choose(&[
                "i32.load",
                "i32.load8_s",
                "i32.load8_u",
                "i32.load16_s",
                "i32.load16_u",
            ]),
            I64 => self.random.choose(&[
                "i64.load",
                "i64.load8_s",
                "i64.load8_u",
                "i64.load16_s",
                "i64.load16_u",
                "i64.load32_s",
                "i64.load32_u",
            ]),
            F32 => "f32.load",
            _ => "f64.load",
        };
        format!("({load}{place} {address})")
    }

    fn binary(&mut self, ty: Ty, depth: usize) -> String {
        const INTEGER: [&str; 17] = [
            "add", "add", "add", "sub", "sub", "mul", "and", "or", "xor", "shl", "shr_s", "shr_u", "rotl",
            "rotr", "div_u", "rem_s", "rem_u",
        ];
        const FLOAT: [&str; 7] = ["add", "add", "sub", "mul", "div", "min", "max"];
        const COMPARE: [&str; 10] =
            ["eq", "ne", "lt_s", "lt_u", "gt_s", "gt_u", "le_s", "le_u", "ge_s", "ge_u"];
        const COMPARE_FLOAT: [&str; 6] = ["eq", "ne", "lt", "gt", "le", "ge"];
        if ty == I32 && self.random.one_in(3) {
            let of = self.ty();
            if of == V128 {
                return self.number_of_vector(I32, depth);
            }
            let (left, right) = (self.expression(of, depth + 1), self.expression(of, depth + 1));
            let what = match of {
                I32 | I64 => self.random.choose(&COMPARE),
                _ => self.random.choose(&COMPARE_FLOAT),
            };
            return format!("({}.{what} {left} {right})", of.name());
        }
        if ty == I64 && self.random.one_in(8) {
            return self.wide(depth);
        }
        if ty == V128 {
            return self.vector_binary(depth);
        }
        let (left, mut right) = (self.expression(ty, depth + 1), self.expression(ty, depth + 1));
        let what = match ty {
            I32 | I64 => self.random.choose(&INTEGER),
            _ => self.random.choose(&FLOAT),
        };
        // Rarely division by zero.
        if (what.starts_with("div_") || what.starts_with("rem_")) && !self.random.one_in(30) {
            right = format!("({0}.or {right} ({0}.const 1))", ty.name());
        }
        format!("({}.{what} {left} {right})", ty.name())
    }

    /// Both halves of a 128-bit result, or the low one.
    fn wide(&mut self, depth: usize) -> String {
        let (what, operands) =
            self.random.choose(&[("add128", 4), ("sub128", 4), ("mul_wide_s", 2), ("mul_wide_u", 2)]);
        let operands: String = (0..operands).map(|_| self.expression(I64, depth + 1)).collect();
        match self.local(I64) {
            Some(local) if self.random.one_in(2) => format!("(local.set {local} (i64.{what} {operands}))"),
            _ => format!("(i64.xor (i64.{what} {operands}))"),
        }
    }

    fn unary(&mut self, ty: Ty, depth: usize) -> String {
        if ty == V128 {
            return self.vector_unary(depth);
        }
        if self.has_vectors() && self.random.one_in(3) {
            return self.number_of_vector(ty, depth);
        }
        let (what, of) = match ty {
            I32 => self.random.choose(&[
                ("i32.eqz", I32),
                ("i64.eqz", I64),
                ("i32.clz", I32),
                ("i32.ctz", I32),
                ("i32.popcnt", I32),
                ("i32.wrap_i64", I64),
                ("i32.extend8_s", I32),
                ("i32.extend16_s", I32),
                ("i32.trunc_sat_f32_s", F32),
                ("i32.trunc_sat_f64_u", F64),
                ("i32.trunc_sat_f64_s", F64),
                ("i32.trunc_sat_f32_u", F32),
            ]),
            I64 => self.random.choose(&[
                ("i64.extend_i32_s", I32),
                ("i64.extend_i32_u", I32),
                ("i64.clz", I64),
                ("i64.ctz", I64),
                ("i64.popcnt", I64),
                ("i64.extend8_s", I64),
                ("i64.extend32_s", I64),
                ("i64.trunc_sat_f32_u", F32),
                ("i64.trunc_sat_f64_s", F64),
                ("i64.trunc_sat_f64_u", F64),
            ]),
            F32 => self.random.choose(&[
                ("f32.neg", F32),
                ("f32.abs", F32),
                ("f32.sqrt", F32),
                ("f32.floor", F32),
                ("f32.nearest", F32),
                ("f32.demote_f64", F64),
                ("f32.convert_i32_s", I32),
                ("f32.convert_i32_u", I32),
                ("f32.convert_i64_s", I64),
                ("f32.convert_i64_u", I64),
            ]),
            _ => self.random.choose(&[
                ("f64.neg", F64),
                ("f64.abs", F64),
                ("f64.sqrt", F64),
                ("f64.ceil", F64),
                ("f64.trunc", F64),
                ("f64.promote_f32", F32),
                ("f64.convert_i32_s", I32),
                ("f64.convert_i32_u", I32),
                ("f64.convert_i64_s", I64),
                ("f64.convert_i64_u", I64),
            ]),
        };
        let value = self.expression(of, depth + 1);
        format!("({what} {value})")
    }
}
