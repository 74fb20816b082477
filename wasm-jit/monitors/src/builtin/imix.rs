//! `imix`: how often instructions of each class were executed.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::counts::Counts;
use super::opcodes::by_opcode;
use crate::{Cell, Description, Error, Monitor, Program, Report, Table};

pub(super) const DESCRIPTION: Description = Description {
    name: "imix",
    summary: "The instruction mix: how often instructions of each class were executed",
    details: "Classes are those of the instruction set, not of the machine code: a compiler may need no machine \
              instruction for a block, a constant or a local.",
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
        let mut classes: BTreeMap<&str, u64> = BTreeMap::new();
        for (opcode, (count, _)) in by_opcode(&self.0, program.module) {
            *classes.entry(class(&opcode)).or_default() += count;
        }
        let total = classes.values().sum();
        report.value("instructions", total);
        let mut rows: Vec<_> = classes.into_iter().collect();
        rows.sort_by_key(|(class, count)| (Reverse(*count), *class));
        let mut table = Table::new("by_class", ["times", "share", "class"]);
        for (class, count) in rows {
            table.row([count.into(), Cell::share(count, total), class.into()]);
        }
        report.table(table);
    }
}

/// The class of an opcode.
fn class(opcode: &str) -> &'static str {
    let (group, name) = opcode.split_once('.').unwrap_or(("", opcode));
    match (group, name) {
        (
            "",
            "call"
            | "call_indirect"
            | "call_ref"
            | "return_call"
            | "return_call_indirect"
            | "return_call_ref",
        ) => "call",
        ("", "br" | "br_if" | "br_table" | "br_on_null" | "br_on_non_null" | "if" | "return") => "branch",
        ("", "block" | "loop" | "else" | "end" | "nop" | "unreachable") => "block",
        ("", "drop" | "select") => "drop and select",
        ("", _) => "exception",
        ("local", _) => "local",
        ("global", _) => "global",
        ("memory", _) | ("data", _) if !name.starts_with("atomic") => "memory, bulk",
        ("table" | "elem", _) => "table",
        ("ref", _) => "reference",
        _ if name.contains("atomic") || group == "atomic" => "atomic",
        (_, "const") => "constant",
        _ if name.starts_with("load") => "load",
        _ if name.starts_with("store") => "store",
        ("i32" | "i64", _) => integer(name),
        ("f32" | "f64", _) => float(name),
        _ => "other",
    }
}

fn integer(name: &str) -> &'static str {
    match name.trim_end_matches("_s").trim_end_matches("_u") {
        "add" | "sub" => "integer, add",
        "mul" => "integer, multiply",
        "div" | "rem" => "integer, divide",
        "and" | "or" | "xor" | "shl" | "shr" | "rotl" | "rotr" | "clz" | "ctz" | "popcnt" => "integer, bits",
        "eqz" | "eq" | "ne" | "lt" | "gt" | "le" | "ge" => "integer, compare",
        _ => "conversion",
    }
}

fn float(name: &str) -> &'static str {
    match name {
        "add" | "sub" => "float, add",
        "mul" => "float, multiply",
        "div" | "sqrt" => "float, divide",
        "eq" | "ne" | "lt" | "gt" | "le" | "ge" => "float, compare",
        "abs" | "neg" | "ceil" | "floor" | "trunc" | "nearest" | "min" | "max" | "copysign" => "float, other",
        _ => "conversion",
    }
}
