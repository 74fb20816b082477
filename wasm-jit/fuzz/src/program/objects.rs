//! Structures, arrays and `i31`: allocated, stored in each other, cast, and read, in code that
//! keeps them in locals, globals and on the stack.
//!
//! A value of type `anyref` may be anything; what is done with it depends on a cast. Objects are
//! observed by the numbers that are read from them.

use std::fmt::Write as _;

use super::{F32, F64, Function, I32, I64, Ty, V128};
use crate::random::Random;

/// Numbers of globals, and of a function's locals, of type `anyref`.
const ANY_PLACES: u64 = 3;
/// Bytes of the data segment that arrays are made of.
const DATA: u64 = 64;
/// Number of elements of the element segment.
const ELEMENTS: u64 = 8;

/// What a field or element holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    I8,
    I16,
    Number(Ty),
    Any,
    I31,
    Extern,
    Func,
    /// A structure of the type of this number, or null.
    Struct(usize),
    /// An array of the type of this number, or null.
    Array(usize),
}

impl Holds {
    fn name(self) -> String {
        match self {
            Self::I8 => "i8".to_owned(),
            Self::I16 => "i16".to_owned(),
            Self::Number(ty) => ty.name().to_owned(),
            Self::Any => "anyref".to_owned(),
            Self::I31 => "i31ref".to_owned(),
            Self::Extern => "externref".to_owned(),
            Self::Func => "funcref".to_owned(),
            Self::Struct(at) => format!("(ref null $o{at})"),
            Self::Array(at) => format!("(ref null $a{at})"),
        }
    }

    fn random(random: &mut Random, structs: usize) -> Self {
        match random.below(14) {
            0 => Self::I8,
            1 => Self::I16,
            2..=6 => Self::Number(random.choose(&super::TYPES)),
            7 | 8 => Self::Any,
            9 => Self::I31,
            10 => Self::Extern,
            11 => Self::Func,
            12 => Self::Array(random.below(ARRAYS.len() as u64) as usize),
            _ => Self::Struct(random.below(structs as u64) as usize),
        }
    }
}

/// The element types of arrays.
const ARRAYS: [Holds; 9] = [
    Holds::I8,
    Holds::I16,
    Holds::Number(I32),
    Holds::Number(I64),
    Holds::Number(F64),
    Holds::Number(V128),
    Holds::Any,
    Holds::Struct(0),
    Holds::Func,
];

/// The types of structures.
#[derive(Clone, Debug, Default)]
pub(super) struct Objects {
    /// The fields, which begin with those of the supertype.
    structs: Vec<Vec<Holds>>,
}

impl Objects {
    /// Declares types, globals and segments.
    pub(super) fn declare(out: &mut String, random: &mut Random) -> Self {
        let count = random.choose(&[2, 6, 14]);
        let deep = random.one_in(2);
        let mut structs: Vec<Vec<Holds>> = Vec::new();
        out.push_str(" (rec\n");
        for at in 0..count {
            let above = match at {
                0 => None,
                _ if deep || random.one_in(2) => Some(at - 1),
                _ => Some(random.below(at as u64) as usize).filter(|_| !random.one_in(3)),
            };
            let mut fields = above.map_or(Vec::new(), |above| structs[above].clone());
            let most = random.choose(&[2, 2, 2, 40]);
            fields.extend((0..random.below(most)).map(|_| Holds::random(random, count)));
            let names: String =
                fields.iter().map(|field| format!(" (field (mut {}))", field.name())).collect();
            let above = above.map_or(String::new(), |above| format!(" $o{above}"));
            // Writing to a String cannot fail, here and below.
            let _ = writeln!(out, "  (type $o{at} (sub{above} (struct{names})))");
            structs.push(fields);
        }
        for (at, element) in ARRAYS.iter().enumerate() {
            let _ = writeln!(out, "  (type $a{at} (array (mut {})))", element.name());
        }
        out.push_str(" )\n");
        for at in 0..ANY_PLACES {
            let _ = writeln!(out, " (global $any{at} (mut anyref) (struct.new_default $o0))");
        }
        let _ = writeln!(out, " (data $bytes \"{}\")", "\\80\\01\\ff\\7f".repeat(DATA as usize / 4));
        let integers: String =
            (2..ELEMENTS).map(|at| format!(" (item (ref.i31 (i32.const {})))", at << 28)).collect();
        let _ = writeln!(
            out,
            " (elem $values anyref (item (array.new_fixed $a0 2 (i32.const 1) (i32.const 200))) \
             (item (struct.new_default $o1)){integers})"
        );
        Self { structs }
    }

    /// The locals of a function.
    pub(super) fn locals(&self) -> String {
        let any = (0..ANY_PLACES).map(|at| format!(" (local $any{at} anyref)"));
        let structs = (0..self.structs.len()).map(|at| format!(" (local $o{at} (ref null $o{at}))"));
        // Nothing in a module without objects.
        let arrays = (0..ARRAYS.len()).map(|at| format!(" (local $a{at} (ref null $a{at}))"));
        if self.structs.is_empty() { String::new() } else { any.chain(structs).chain(arrays).collect() }
    }
}

impl Function<'_> {
    fn any_place(&mut self) -> u64 {
        self.random.below(ANY_PLACES)
    }

    fn struct_number(&mut self) -> usize {
        self.random.below(self.objects.structs.len() as u64) as usize
    }

    fn array_number(&mut self) -> usize {
        self.random.below(ARRAYS.len() as u64) as usize
    }

    fn object_label(&mut self) -> usize {
        self.label += 1;
        self.label - 1
    }

    /// The types of objects, and the abstract ones.
    fn reference_type(&mut self) -> String {
        let null = self.random.choose(&["", "null "]);
        match self.random.below(10) {
            0..=3 => format!("(ref {null}$o{})", self.struct_number()),
            4 | 5 => format!("(ref {null}$a{})", self.array_number()),
            _ => format!(
                "(ref {null}{})",
                self.random.choose(&["any", "eq", "i31", "struct", "array", "none"])
            ),
        }
    }

    /// A value for a field or element.
    fn held(&mut self, what: Holds, depth: usize) -> String {
        match what {
            Holds::I8 | Holds::I16 => self.expression(I32, depth + 1),
            // NaNs may be read as anything.
            Holds::Number(ty @ (I32 | I64 | V128)) => self.expression(ty, depth + 1),
            Holds::Number(ty) => self.constant(ty),
            Holds::Any => self.any(depth + 1),
            Holds::I31 => format!("(ref.i31 {})", self.expression(I32, depth + 1)),
            Holds::Extern => format!("(extern.convert_any {})", self.any(depth + 1)),
            Holds::Func if self.index + 1 < self.signatures.len() => {
                format!("(ref.func $f{})", self.index + 1)
            }
            Holds::Func => "(ref.null func)".to_owned(),
            Holds::Struct(at) => match self.random.below(3) {
                0 => format!("(ref.null $o{at})"),
                1 => format!("(local.get $o{at})"),
                _ => self.new_struct(at, depth + 1),
            },
            Holds::Array(at) if self.random.one_in(2) => format!("(local.get $a{at})"),
            Holds::Array(at) => self.new_array(at, depth + 1),
        }
    }

    fn new_struct(&mut self, at: usize, depth: usize) -> String {
        let fields = self.objects.structs[at].clone();
        if depth > 4 || self.budget < 0 || self.random.one_in(4) {
            return format!("(struct.new_default $o{at})");
        }
        let fields: String =
            fields.iter().map(|field| format!(" {}", self.held(*field, depth + 1))).collect();
        format!("(struct.new $o{at}{fields})")
    }

    fn new_array(&mut self, at: usize, depth: usize) -> String {
        let length = match self.random.below(6) {
            0 => self.random.choose(&[0, 1, 3000]),
            _ => 8 + self.random.below(30),
        };
        let element = ARRAYS[at];
        if depth > 4 || self.budget < 0 {
            return format!("(array.new_default $a{at} (i32.const {length}))");
        }
        match self.random.below(5) {
            0 => format!("(array.new_default $a{at} (i32.const {length}))"),
            1 if at < 6 => {
                let from = self.random.below(16);
                format!("(array.new_data $a{at} $bytes (i32.const {from}) (i32.const 3))")
            }
            1 if element == Holds::Any => {
                let from = self.random.below(3);
                format!("(array.new_elem $a{at} $values (i32.const {from}) (i32.const {}))", ELEMENTS - 2)
            }
            2 => {
                let count = self.random.choose(&[0, 1, 8, 20]);
                let elements: String =
                    (0..count).map(|_| format!(" {}", self.held(element, depth + 2))).collect();
                format!("(array.new_fixed $a{at} {count}{elements})")
            }
            _ => format!("(array.new $a{at} {} (i32.const {length}))", self.held(element, depth + 1)),
        }
    }

    /// A value of type `anyref`.
    pub(super) fn any(&mut self, depth: usize) -> String {
        self.budget -= 1;
        let choices = if depth > 4 || self.budget < 0 { 5 } else { 17 };
        match self.random.below(choices) {
            0 | 1 => format!("(local.get $any{})", self.any_place()),
            2 => format!("(global.get $any{})", self.any_place()),
            3 => format!("(ref.i31 {})", self.constant(I32)),
            4 => match self.random.below(3) {
                0 => "(ref.null none)".to_owned(),
                1 => format!("(local.get $o{})", self.struct_number()),
                _ => format!("(local.get $a{})", self.array_number()),
            },
            5..=7 => {
                let at = self.struct_number();
                self.new_struct(at, depth + 1)
            }
            8 | 9 => {
                let at = self.array_number();
                self.new_array(at, depth + 1)
            }
            10 => format!("(ref.i31 {})", self.expression(I32, depth + 1)),
            11 => format!("(any.convert_extern (extern.convert_any {}))", self.any(depth + 1)),
            12 => {
                let (left, right) = (self.any(depth + 1), self.any(depth + 1));
                format!("(select (result anyref) {left} {right} {})", self.condition())
            }
            13 => {
                // It stays on the stack during statements, which may allocate.
                let (value, between) = (self.any(depth + 1), self.statements(3));
                format!("(block (result anyref) {value} {between})")
            }
            14 => format!("(local.tee $any{} {})", self.any_place(), self.any(depth + 1)),
            15 => {
                let (label, to, value) = (self.object_label(), self.reference_type(), self.any(depth + 1));
                let cast = self.random.choose(&["br_on_cast", "br_on_cast_fail"]);
                let other = self.any(depth + 1);
                format!(
                    "(block $x{label} (result anyref) (drop ({cast} $x{label} anyref {to} {value})) {other})"
                )
            }
            _ => self
                .read(Holds::Any, depth)
                .unwrap_or_else(|| format!("(local.get $any{})", self.any_place())),
        }
    }

    /// Code with an object of a type in its local `$o` or `$a`, if a cast succeeds.
    fn with_object(&mut self, name: &str, code: &str, depth: usize) -> String {
        let (label, value) = (self.object_label(), self.any(depth + 1));
        if self.random.one_in(30) {
            return format!("(local.set ${name} (ref.cast (ref ${name}) {value})) {code}");
        }
        match self.random.below(3) {
            0 => format!(
                "(local.set ${name} (block $x{label} (result (ref null ${name})) \
                 (drop (br_on_cast $x{label} anyref (ref null ${name}) {value})) (ref.null none))) \
                 (if (i32.eqz (ref.is_null (local.get ${name}))) (then {code}))"
            ),
            1 => format!(
                "(local.set $any0 {value}) (if (ref.test (ref ${name}) (local.get $any0)) (then \
                 (local.set ${name} (ref.cast (ref ${name}) (local.get $any0))) {code}))"
            ),
            _ => format!(
                "(drop (block $x{label} (result anyref) (local.set ${name} \
                 (br_on_cast_fail $x{label} anyref (ref ${name}) {value})) {code} (ref.null none)))"
            ),
        }
    }

    /// What a field or element of this kind holds, or another value.
    fn read(&mut self, what: Holds, depth: usize) -> Option<String> {
        let label = self.object_label();
        let fits = |holds: &Holds| {
            *holds == what
                || what == Holds::Number(I32) && matches!(holds, Holds::I8 | Holds::I16 | Holds::Number(V128))
        };
        let at = self.struct_number();
        let fields: Vec<usize> = (0..self.objects.structs[at].len())
            .filter(|field| fits(&self.objects.structs[at][*field]))
            .collect();
        let (name, holds, rest) = if !fields.is_empty() && self.random.one_in(2) {
            let field = self.random.choose(&fields);
            (format!("o{at}"), self.objects.structs[at][field], format!("$o{at} {field} (local.get $o{at})"))
        } else {
            let arrays: Vec<usize> = (0..ARRAYS.len()).filter(|at| fits(&ARRAYS[*at])).collect();
            if arrays.is_empty() {
                return None;
            }
            let at = self.random.choose(&arrays);
            (format!("a{at}"), ARRAYS[at], format!("$a{at} (local.get $a{at}) {}", self.index_of(at)))
        };
        let kind = if name.starts_with('o') { "struct" } else { "array" };
        let sign = match holds {
            Holds::I8 | Holds::I16 => self.random.choose(&["_s", "_u"]),
            _ => "",
        };
        let get = format!("({kind}.get{sign} {rest})");
        let get = match (what, holds) {
            (Holds::Number(I32), Holds::Number(V128)) => format!("(i32x4.extract_lane 2 {get})"),
            _ => get,
        };
        let result = match what {
            Holds::Number(ty) => ty.name(),
            _ => "anyref",
        };
        let other = match what {
            Holds::Number(ty) => self.expression(ty, depth + 1),
            _ => "(ref.null none)".to_owned(),
        };
        let code = self.with_object(&name, &format!("(br $v{label} {get})"), depth);
        Some(format!("(block $v{label} (result {result}) {code} {other})"))
    }

    /// An index of the array in a local, mostly of one of its elements.
    fn index_of(&mut self, at: usize) -> String {
        match self.random.below(8) {
            0 => format!("(i32.const {})", self.random.below(9)),
            _ => {
                let index = self.expression(I32, 4);
                format!("(i32.rem_u {index} (i32.or (array.len (local.get $a{at})) (i32.const 1)))")
            }
        }
    }

    /// A number that depends on objects.
    pub(super) fn number_of_object(&mut self, ty: Ty, depth: usize) -> String {
        let number = match ty {
            I32 => match self.random.below(6) {
                0 => Some(format!("(ref.test {} {})", self.reference_type(), self.any(depth + 1))),
                1 => {
                    let (label, value) = (self.object_label(), self.any(depth + 1));
                    let get = self.random.choose(&["i31.get_s", "i31.get_u"]);
                    let other = self.expression(I32, depth + 1);
                    Some(format!(
                        "(block $v{label} (result i32) (drop (block $x{label} (result anyref) (br $v{label} ({get} \
                         (br_on_cast_fail $x{label} anyref (ref i31) {value}))))) {other})"
                    ))
                }
                2 => {
                    let (left, right) = (self.struct_number(), self.struct_number());
                    Some(format!("(ref.eq (local.get $o{left}) (local.get $o{right}))"))
                }
                3 => {
                    let at = self.array_number();
                    Some(format!(
                        "(if (result i32) (ref.is_null (local.get $a{at})) (then (i32.const 5)) (else (array.len (local.get $a{at}))))"
                    ))
                }
                _ => self.read(Holds::Number(I32), depth),
            },
            I64 | F32 | F64 | V128 => self.read(Holds::Number(ty), depth),
        };
        number.unwrap_or_else(|| self.constant(ty))
    }

    /// A statement that creates or changes objects.
    pub(super) fn object_statement(&mut self, depth: usize) -> String {
        match self.random.below(9) {
            0 | 1 => format!("(local.set $any{} {})", self.any_place(), self.any(0)),
            2 => format!("(global.set $any{} {})", self.any_place(), self.any(0)),
            3 => {
                let at = self.struct_number();
                format!("(local.set $o{at} {})", self.new_struct(at, 0))
            }
            4 => {
                let at = self.array_number();
                format!("(local.set $a{at} {})", self.new_array(at, 0))
            }
            5 | 6 => {
                let at = self.struct_number();
                let count = self.objects.structs[at].len() as u64;
                if count == 0 {
                    return self.assignment();
                }
                let field = self.random.below(count) as usize;
                let value = self.held(self.objects.structs[at][field], 2);
                let code = format!("(struct.set $o{at} {field} (local.get $o{at}) {value})");
                self.with_object(&format!("o{at}"), &code, depth)
            }
            7 => {
                let at = self.array_number();
                let (index, value) = (self.index_of(at), self.held(ARRAYS[at], 2));
                let code = format!("(array.set $a{at} (local.get $a{at}) {index} {value})");
                self.with_object(&format!("a{at}"), &code, depth)
            }
            _ => {
                let at = self.array_number();
                let code = self.many_elements(at);
                self.with_object(&format!("a{at}"), &code, depth)
            }
        }
    }

    /// An operation on many elements of the array in a local.
    fn many_elements(&mut self, at: usize) -> String {
        let array = format!("(local.get $a{at})");
        let (to, from) = (self.random.below(4), self.random.below(4));
        // At most as many as there are after the first ones.
        let length = format!(
            "(i32.and (i32.shr_u (array.len {array}) (i32.const 1)) (i32.const {}))",
            self.random.choose(&[1, 3, 0xff])
        );
        match self.random.below(4) {
            0 => {
                let value = self.held(ARRAYS[at], 3);
                format!("(array.fill $a{at} {array} (i32.const {to}) {value} {length})")
            }
            1 if at < 6 => format!(
                "(array.init_data $a{at} $bytes {array} (i32.const {to}) (i32.const {from}) (i32.const 3))"
            ),
            1 if ARRAYS[at] == Holds::Any => format!(
                "(array.init_elem $a{at} $values {array} (i32.const {to}) (i32.const {from}) (i32.const 5))"
            ),
            _ => {
                let source = if self.random.one_in(2) { array.clone() } else { self.new_array(at, 3) };
                format!(
                    "(array.copy $a{at} $a{at} {array} (i32.const {to}) {source} (i32.const {from}) (i32.const 2))"
                )
            }
        }
    }
}
