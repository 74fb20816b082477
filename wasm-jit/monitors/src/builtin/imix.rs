//! `imix`: how often instructions of each class were executed.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use wasm_jit::probes::Location;
use wasm_jit::wasmparser::Operator;
use wasm_jit::{Instruction, Module};

use super::counts::{self, Counts};
use crate::{Cell, Description, Error, Monitor, Program, Report, Table};

pub(super) const DESCRIPTION: Description = Description {
    name: "imix",
    summary: "The instruction mix: how often instructions of each class were executed",
    details: "Classes are those of the instruction set, not of the machine code: a compiler may need no machine \
              instruction for a block, a constant or a local. Branches are if, return and all br instructions, \
              those on casts as well; casts are ref.cast and ref.test. Loads, stores and constants of vectors are \
              among load, store and constant. An object is a struct or an array.",
    options: &[],
    example: "imix app.wasm",
    start: |setup| Ok(Box::new(Imix(Counts::of(setup)))),
};

struct Imix(Counts);

impl Monitor for Imix {
    fn activate(&self) -> Result<(), Error> {
        self.0.switch(true)
    }

    fn deactivate(&self) -> Result<(), Error> {
        self.0.switch(false)
    }

    fn report(&self, program: &Program<'_>, report: &mut Report) {
        let classes = by_class(&self.0.all(), program.module);
        let total = classes.values().sum();
        report.value("instructions", total);
        let mut rows: Vec<_> = classes.into_iter().collect();
        rows.sort_by_key(|(class, count)| (Reverse(*count), *class));
        let mut table = Table::new("by_class", ["times", "share", "class"]);
        for (class, count) in rows {
            table.row([count.into(), Cell::share(count, total), class.into()]);
        }
        report.table(table);
        self.0.report_refused(report);
    }
}

fn by_class(counts: &[(Location, u64)], module: &Module) -> BTreeMap<&'static str, u64> {
    let mut classes: BTreeMap<&str, u64> = BTreeMap::new();
    counts::for_each_executed(counts, module, |instruction, count| {
        *classes.entry(class(instruction)).or_default() += count;
    });
    classes
}

/// The class of an instruction.
fn class(instruction: &Instruction<'_>) -> &'static str {
    // A test checks that all operators that the parser knows have a class.
    class_of(visitor(instruction.operator())).unwrap_or("other")
}

macro_rules! visitors {
    ($( @$proposal:ident $op:ident $({ $($arg:ident: $ty:ty),* })? => $visit:ident ($($ann:tt)*) )*) => {
        /// The name of an operator's visitor: `visit_i32_add`.
        fn visitor(operator: &Operator<'_>) -> &'static str {
            match operator {
                $( Operator::$op { .. } => stringify!($visit), )*
                _ => "",
            }
        }

        #[cfg(test)]
        const VISITORS: &[&str] = &[$( stringify!($visit) ),*];
    };
}
wasm_jit::wasmparser::for_each_operator!(visitors);

/// The class of the operator whose visitor has this name; `None` for an operator that is not known
/// here.
fn class_of(visitor: &str) -> Option<&'static str> {
    let name = visitor.strip_prefix("visit_")?;
    Some(match name {
        "block" | "loop" | "else" | "end" | "nop" | "unreachable" => "block",
        "br"
        | "br_if"
        | "br_table"
        | "if"
        | "return"
        | "br_on_null"
        | "br_on_non_null"
        | "br_on_cast"
        | "br_on_cast_fail"
        | "br_on_cast_desc_eq"
        | "br_on_cast_desc_eq_fail" => "branch",
        "call"
        | "call_indirect"
        | "call_ref"
        | "return_call"
        | "return_call_indirect"
        | "return_call_ref" => "call",
        "drop" | "select" | "typed_select" | "typed_select_multi" => "drop and select",
        "try" | "try_table" | "catch" | "catch_all" | "delegate" | "throw" | "throw_ref" | "rethrow" => {
            "exception"
        }
        "cont_new" | "cont_bind" | "suspend" | "resume" | "resume_throw" | "resume_throw_ref" | "switch" => {
            "stack switching"
        }
        "pause" => "atomic",
        _ => {
            let (group, rest) = name.split_once('_')?;
            of_group(group, rest)?
        }
    })
}

/// The class of an operator that is called `GROUP.REST`, with `_` for further dots.
fn of_group(group: &str, rest: &str) -> Option<&'static str> {
    let unsigned = rest.trim_end_matches("_s").trim_end_matches("_u");
    Some(match (group, unsigned) {
        ("atomic", "fence") => "atomic",
        _ if rest.starts_with("atomic_") => "atomic",
        ("local", "get" | "set" | "tee") => "local",
        ("global", "get" | "set") => "global",
        ("memory", "size" | "grow" | "copy" | "fill" | "init" | "discard") | ("data", "drop") => {
            "memory, bulk"
        }
        ("table", "get" | "set" | "size" | "grow" | "copy" | "fill" | "init") | ("elem", "drop") => "table",
        ("ref", "null" | "is_null" | "as_non_null" | "func" | "eq" | "i31" | "i31_shared")
        | ("i31", "get")
        | ("any", "convert_extern")
        | ("extern", "convert_any") => "reference",
        ("ref", "test_non_null" | "test_nullable" | "cast_non_null" | "cast_nullable")
        | ("ref", "cast_desc_eq_non_null" | "cast_desc_eq_nullable") => "cast",
        ("ref", "get_desc")
        | ("struct", "new" | "new_default" | "new_desc" | "new_default_desc" | "get" | "set")
        | ("array", "new" | "new_default" | "new_fixed" | "new_data" | "new_elem" | "get" | "set" | "len")
        | ("array", "fill" | "copy" | "init_data" | "init_elem") => "object",
        ("i32" | "i64" | "f32" | "f64" | "v128", "const") => "constant",
        ("i32" | "i64" | "f32" | "f64" | "v128", _) if rest.starts_with("load") => "load",
        ("i32" | "i64" | "f32" | "f64" | "v128", _) if rest.starts_with("store") => "store",
        ("i32" | "i64", _) => integer(unsigned)?,
        ("f32" | "f64", _) => float(unsigned)?,
        ("v128" | "i8x16" | "i16x8" | "i32x4" | "i64x2" | "f32x4" | "f64x2", _) => {
            vector(group.starts_with('f'), unsigned)?
        }
        _ => return None,
    })
}

fn integer(name: &str) -> Option<&'static str> {
    Some(match name {
        "add" | "sub" | "add128" | "sub128" => "integer, add",
        "mul" | "mul_wide" => "integer, multiply",
        "div" | "rem" => "integer, divide",
        "and" | "or" | "xor" | "shl" | "shr" | "rotl" | "rotr" | "clz" | "ctz" | "popcnt" => "integer, bits",
        "eqz" | "eq" | "ne" | "lt" | "gt" | "le" | "ge" => "integer, compare",
        "wrap_i64" | "extend_i32" | "extend8" | "extend16" | "extend32" | "trunc_f32" | "trunc_f64"
        | "trunc_sat_f32" | "trunc_sat_f64" | "reinterpret_f32" | "reinterpret_f64" => "conversion",
        _ => return None,
    })
}

fn float(name: &str) -> Option<&'static str> {
    Some(match name {
        "add" | "sub" => "float, add",
        "mul" => "float, multiply",
        "div" | "sqrt" => "float, divide",
        "eq" | "ne" | "lt" | "gt" | "le" | "ge" => "float, compare",
        "abs" | "neg" | "ceil" | "floor" | "trunc" | "nearest" | "min" | "max" | "copysign" => "float, other",
        "convert_i32" | "convert_i64" | "demote_f64" | "promote_f32" | "reinterpret_i32"
        | "reinterpret_i64" => "conversion",
        _ => return None,
    })
}

/// The class of an operator on vectors of floats or integers. Integers may be in it even so:
/// `f32x4.convert_i32x4_s`.
fn vector(is_float: bool, name: &str) -> Option<&'static str> {
    let name = name.strip_prefix("relaxed_").unwrap_or(name);
    // An operation on parts of the operands: `extmul_low_i8x16`.
    let operation = name.split('_').next().unwrap_or(name);
    Some(match (name, operation) {
        ("and" | "andnot" | "or" | "xor" | "not" | "bitselect" | "laneselect", _)
        | ("any_true" | "all_true" | "bitmask", _) => "vector, bits",
        ("shuffle" | "swizzle" | "splat" | "extract_lane" | "replace_lane", _) => "vector, lanes",
        ("eq" | "ne" | "lt" | "gt" | "le" | "ge", _) => "vector, compare",
        ("ceil" | "floor" | "trunc" | "nearest" | "sqrt" | "div" | "pmin" | "pmax" | "madd" | "nmadd", _)
        | ("abs" | "neg" | "add" | "sub" | "mul" | "min" | "max", _)
            if is_float =>
        {
            "vector, float"
        }
        (_, "narrow" | "extend" | "trunc" | "convert" | "demote" | "promote") => "vector, conversion",
        ("abs" | "neg" | "popcnt" | "shl" | "shr" | "add" | "add_sat" | "sub" | "sub_sat" | "mul", _)
        | ("min" | "max" | "avgr" | "q15mulr" | "q15mulr_sat", _)
        | (_, "extadd" | "extmul" | "dot")
            if !is_float =>
        {
            "vector, integer"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All operators that the parser knows, by class, are those of `imix_classes.txt`: a new one
    /// must be added to its class, and to this list.
    #[test]
    fn every_operator_has_its_class() {
        let mut classes: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for visitor in VISITORS {
            let class = class_of(visitor).unwrap_or_else(|| panic!("{visitor} has no class"));
            classes.entry(class).or_default().push(visitor.strip_prefix("visit_").unwrap());
        }
        let mut expected: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        let mut class = "";
        for line in include_str!("imix_classes.txt").lines() {
            match line.strip_suffix(':') {
                Some(name) => class = name,
                None => expected.entry(class).or_default().extend(line.split_whitespace()),
            }
        }
        assert_eq!(classes, expected);
    }
}
