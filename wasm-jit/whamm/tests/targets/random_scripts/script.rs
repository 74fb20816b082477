//! Random scripts: all packages, modes, storage classes, annotations and types of the language.
//!
//! They contain no divisions, since a division by zero in a rule ends a rewritten program, and
//! convert no floats to text. Their loops end.

use std::fmt::Write as _;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

const INTEGERS: [&str; 8] = ["u32", "i32", "u64", "i64", "u8", "i8", "u16", "i16"];
/// The types of map keys; pairs of them are also used.
const KEYS: [&str; 8] = ["u32", "i64", "bool", "str", "log2", "linear<10>", "u8", "i32"];

/// The events of a rule, and the variables that they bind: names with their types.
struct Event {
    pattern: &'static str,
    bound: &'static [(&'static str, &'static str)],
    /// Whether the rule can have annotations.
    can_select: bool,
}

const fn event(
    pattern: &'static str,
    bound: &'static [(&'static str, &'static str)],
    can_select: bool,
) -> Event {
    Event { pattern, bound, can_select }
}

/// The variables of all events of the program's code.
const EVERYWHERE: [(&str, &str); 5] =
    [("fid", "u32"), ("pc", "u32"), ("opidx", "u32"), ("fname", "str"), ("at_func_end", "bool")];

const EVENTS: [Event; 24] = [
    event("wasm:opcode:*:before", &[("opname", "str"), ("category_id", "u32")], true),
    event("wasm:opcode:*:after", &[("opname", "str")], false),
    event("wasm:opcode:*:semantic_after", &[("category_name", "str")], false),
    event(
        "wasm:opcode:i32.add|i32.sub|i32.mul|i32.and|i32.lt_u|i32.shl(arg0: i32, arg1: i32):before",
        &[("arg0", "i32"), ("arg1", "i32")],
        true,
    ),
    event(
        "wasm:opcode:i64.add|i64.sub|i64.eqz|i64.shl(arg0: i64):before",
        &[("arg0", "i64"), ("opname", "str")],
        true,
    ),
    event("wasm:opcode:i32.add|i32.const|i32.load|local.get(res0: i32):after", &[("res0", "i32")], false),
    event("wasm:opcode:i64.add|i64.const|i64.load|i64.mul(res0: i64):after", &[("res0", "i64")], false),
    event(
        "wasm:opcode:*load*|*store*:before",
        &[("effective_addr", "u32"), ("data_size", "u32"), ("offset", "u64"), ("is_write", "bool")],
        true,
    ),
    event(
        "wasm:opcode:*store*(arg0: i64):before",
        &[("arg0", "i64"), ("align", "u32"), ("effective_addr", "u32")],
        true,
    ),
    event("wasm:opcode:local.set|local.tee|drop(arg0: i32):before", &[("arg0", "i32")], true),
    event("wasm:opcode:local.*(local4: i64):before", &[("local4", "i64"), ("imm0", "u32")], true),
    event("wasm:opcode:br_if|if:before", &[("taken", "bool"), ("arg0", "u32")], true),
    event(
        "wasm:opcode:br_table:before",
        &[("target", "u32"), ("num_targets", "u32"), ("default_target", "u32")],
        true,
    ),
    event("wasm:opcode:select(arg0: i32, arg1: i64):before", &[("arg0", "i32"), ("arg1", "i64")], true),
    event("wasm:opcode:br*|return|if|call:semantic_after", &[("opname", "str")], false),
    event(
        "wasm:opcode:call:before",
        &[("target_fn_name", "str"), ("resolved_fid", "i32"), ("target_fn_type", "str")],
        true,
    ),
    event("wasm:opcode:block|loop|if:entry", &[("opname", "str")], false),
    event("wasm:opcode:block|loop|if:exit", &[], false),
    event("wasm:opcode:i32.const|i64.const:before", &[("category_id", "u32")], true),
    event("wasm:func:entry(local0: i32, local1: i64)", &[("local0", "i32"), ("local1", "i64")], true),
    event("wasm:func:entry", &[], true),
    event("wasm:func:exit", &[], true),
    event("wasm:block:start", &[], true),
    event("wasm:block:end", &[("instr_count", "u32")], true),
];

/// A value that expressions may use.
#[derive(Clone)]
struct Named {
    name: String,
    ty: String,
    can_change: bool,
}

/// A map.
#[derive(Clone)]
struct Map {
    name: String,
    keys: Vec<&'static str>,
    value: &'static str,
}

struct Writer {
    random: SmallRng,
    text: String,
    names: usize,
    /// The values in scope.
    values: Vec<Named>,
    maps: Vec<Map>,
    /// Maps that are only added to, mostly under keys that are known when a rule is matched.
    counted: Vec<Map>,
    /// Whether variables of frames are in scope, which are the last among the values.
    frame: Vec<Named>,
    calls_function: bool,
}

/// The script of a seed.
pub(super) fn script(seed: u64) -> String {
    let mut writer = Writer {
        random: SmallRng::seed_from_u64(seed),
        text: String::new(),
        names: 0,
        values: Vec::new(),
        maps: Vec::new(),
        counted: Vec::new(),
        frame: Vec::new(),
        calls_function: false,
    };
    writer.script();
    writer.text
}

impl Writer {
    fn below(&mut self, end: usize) -> usize {
        self.random.random_range(0..end)
    }

    fn one_in(&mut self, number: usize) -> bool {
        self.below(number) == 0
    }

    fn choose<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    fn name(&mut self) -> String {
        self.names += 1;
        format!("v{}", self.names)
    }

    fn push(&mut self, text: &str) {
        self.text.push_str(text);
        self.text.push('\n');
    }

    fn script(&mut self) {
        for _ in 0..1 + self.below(4) {
            self.variable("");
        }
        for _ in 0..self.below(3) {
            self.map("report ");
        }
        for _ in 0..self.below(3) {
            self.map("report ");
            self.counted.extend(self.maps.pop());
        }
        self.function();
        for _ in 0..self.below(3) {
            let (name, ty) = (self.name(), self.choose(&INTEGERS));
            let initial = if self.one_in(2) { format!(" = {}", self.below(100)) } else { String::new() };
            self.push(&format!("frame var {name}: {ty}{initial};"));
            self.frame.push(Named { name, ty: ty.to_owned(), can_change: true });
        }
        self.push("var events: u32;\nwasm:func:entry { events++; }");
        for at in ["begin", "end"] {
            if self.one_in(2) {
                self.push(&format!("wasm:{at} {{"));
                self.block(2);
                self.push("}");
            }
        }
        for _ in 0..1 + self.below(4) {
            self.rule();
        }
    }

    /// A variable in the current scope.
    fn variable(&mut self, storage: &str) {
        let ty = if self.one_in(5) { "bool" } else { self.choose(&INTEGERS) };
        let name = self.name();
        let initial = if self.one_in(2) { format!(" = {}", self.literal(ty)) } else { String::new() };
        let storage = match storage {
            "" if self.one_in(3) => "",
            "" => "report ",
            other => other,
        };
        self.push(&format!("{storage}var {name}: {ty}{initial};"));
        self.values.push(Named { name, ty: ty.to_owned(), can_change: true });
    }

    fn map(&mut self, storage: &str) {
        let name = self.name();
        let keys: Vec<&'static str> = (0..1 + self.below(2)).map(|_| self.choose(&KEYS)).collect();
        let value = if self.one_in(3) { self.choose(&INTEGERS) } else { "u64" };
        let key = if keys.len() == 1 { keys[0].to_owned() } else { format!("({})", keys.join(", ")) };
        self.push(&format!("{storage}var {name}: map<{key}, {value}>;"));
        self.maps.push(Map { name, keys, value });
    }

    /// The script's function.
    fn function(&mut self) {
        if self.one_in(2) {
            return;
        }
        self.push("fn mix(a: u32, b: i64) -> u64 {");
        let outer = self.values.len();
        for (name, ty) in [("a", "u32"), ("b", "i64")] {
            self.values.push(Named { name: name.to_owned(), ty: ty.to_owned(), can_change: false });
        }
        self.block(1);
        let result = self.expression("u64", 2);
        self.push(&format!("return {result};\n}}"));
        self.values.truncate(outer);
        self.calls_function = true;
    }

    fn rule(&mut self) {
        let number = self.below(EVENTS.len());
        let Event { pattern, bound, can_select } = &EVENTS[number];
        let (values, maps) = (self.values.len(), self.maps.len());
        for (name, ty) in EVERYWHERE.iter().chain(*bound) {
            self.values.push(Named { name: (*name).to_owned(), ty: (*ty).to_owned(), can_change: false });
        }
        let selection = match self.below(8) {
            0 if *can_select => "@once ",
            1 if *can_select => "@sample(30%) ",
            2 if *can_select => "@once @sample(10%) ",
            _ => "",
        };
        let mut selection = selection.to_owned();
        let predicate = match self.below(6) {
            0..3 => format!(" / {} /", self.expression("bool", 2)),
            // Conditions on variables of the script switch probes.
            3 if *can_select => {
                if self.one_in(2) {
                    selection.push_str("@toggle ");
                }
                let limit = self.below(40);
                format!(" / events % 64 > {limit} && ({}) /", self.expression("bool", 1))
            }
            _ => String::new(),
        };
        self.push(&format!("{selection}{pattern}{predicate} {{"));
        if self.one_in(3) {
            self.push("events++;");
        }
        for _ in 0..self.below(3) {
            let storage =
                self.choose(&["report unshared ", "report shared ", "report ", "unshared ", "shared "]);
            self.variable(storage);
        }
        if self.one_in(3) {
            let storage = self.choose(&["report unshared ", "report shared ", "report "]);
            self.map(storage);
        }
        let frame = self.frame.clone();
        self.values.extend(frame);
        self.block(2);
        self.push("}");
        self.values.truncate(values);
        self.maps.truncate(maps);
    }

    fn block(&mut self, depth: usize) {
        let outer = self.values.len();
        for _ in 0..1 + self.below(3) {
            self.statement(depth);
        }
        self.values.truncate(outer);
    }

    fn statement(&mut self, depth: usize) {
        if !self.counted.is_empty() && self.one_in(4) {
            return self.addition();
        }
        match self.below(if depth == 0 { 6 } else { 9 }) {
            0..=1 => match self.changeable() {
                Some(Named { name, ty, .. }) if ty == "bool" => {
                    let value = self.expression("bool", 2);
                    self.push(&format!("{name} = {value};"));
                }
                Some(Named { name, .. }) => {
                    let operator = self.choose(&["++", "++", "--"]);
                    self.push(&format!("{name}{operator};"));
                }
                None => {}
            },
            2 => {
                if let Some(Named { name, ty, .. }) = self.changeable() {
                    let value = self.expression(&ty, 3);
                    self.push(&format!("{name} = {value};"));
                }
            }
            3 | 4 => {
                let Some(map) = self.any_map() else { return };
                let key = self.key(&map);
                if self.one_in(3) {
                    let value = self.expression(map.value, 2);
                    self.push(&format!("{}[{key}] = {value};", map.name));
                } else {
                    self.push(&format!("{}[{key}]++;", map.name));
                }
            }
            5 => {
                let (name, ty) = (self.name(), self.choose(&INTEGERS));
                let value = self.expression(ty, 2);
                self.push(&format!("var {name}: {ty} = {value};"));
                self.values.push(Named { name, ty: ty.to_owned(), can_change: true });
            }
            6 | 7 => {
                let condition = self.expression("bool", 2);
                self.push(&format!("if ({condition}) {{"));
                self.block(depth - 1);
                if self.one_in(3) {
                    let condition = self.expression("bool", 1);
                    self.push(&format!("}} elif ({condition}) {{"));
                    self.block(depth - 1);
                }
                if self.one_in(2) {
                    self.push("} else {");
                    self.block(depth - 1);
                }
                self.push("}");
            }
            _ => {
                let (name, end) = (self.name(), 1 + self.below(4));
                self.push(&format!("var {name}: u32 = 0;\nwhile ({name} < {end}) {{"));
                self.push(&format!("{name}++;"));
                self.values.push(Named { name, ty: "u32".to_owned(), can_change: false });
                self.block(depth - 1);
                self.push("}");
            }
        }
    }

    /// Adds to a map that is only added to.
    fn addition(&mut self) {
        let number = self.below(self.counted.len());
        let map = self.counted[number].clone();
        let key = match self.one_in(6) {
            true => self.key(&map),
            false => self.known_key(&map),
        };
        let (name, amount) = (&map.name.clone(), self.literal(map.value));
        let statement = match self.below(6) {
            0..=1 => format!("{name}[{key}]++;"),
            2 => format!("{name}[{key}]--;"),
            3 => format!("{name}[{key}] = {name}[{key}] + {amount};"),
            4 => format!("{name}[{key}] = {amount} + {name}[{key}];"),
            _ => format!("{name}[{key}] = {name}[{key}] - {amount};"),
        };
        self.push(&statement);
    }

    /// A key that is a constant of the location.
    fn known_key(&mut self, map: &Map) -> String {
        let known: Vec<Named> = self
            .values
            .iter()
            .filter(|value| {
                let name = value.name.as_str();
                name == "opname" || EVERYWHERE.iter().any(|(known, _)| *known == name)
            })
            .cloned()
            .collect();
        let of_type = |ty: &str| known.iter().find(|value| value.ty == ty).map(|value| value.name.clone());
        let mut parts = Vec::new();
        for key in &map.keys {
            let value = match *key {
                "str" | "bool" => of_type(key),
                "log2" | "linear<10>" => of_type("u32").map(|name| format!("({name} as u64)")),
                other => of_type("u32").map(|name| format!("({name} as {other})")),
            };
            parts.push(match value.filter(|_| !self.one_in(3)) {
                Some(value) => value,
                None => self.literal(if matches!(*key, "log2" | "linear<10>") { "u64" } else { key }),
            });
        }
        if parts.len() == 1 { parts.remove(0) } else { format!("({})", parts.join(", ")) }
    }

    fn changeable(&mut self) -> Option<Named> {
        let all: Vec<Named> = self.values.iter().filter(|value| value.can_change).cloned().collect();
        (!all.is_empty()).then(|| all[self.below(all.len())].clone())
    }

    fn any_map(&mut self) -> Option<Map> {
        if self.maps.is_empty() {
            return None;
        }
        let number = self.below(self.maps.len());
        Some(self.maps[number].clone())
    }

    fn key(&mut self, map: &Map) -> String {
        let mut parts = Vec::new();
        for key in &map.keys {
            parts.push(match *key {
                "log2" | "linear<10>" => self.expression("u64", 1),
                other => self.expression(other, 1),
            });
        }
        if parts.len() == 1 { parts.remove(0) } else { format!("({})", parts.join(", ")) }
    }

    fn literal(&mut self, ty: &str) -> String {
        match ty {
            "bool" => self.choose(&["true", "false"]).to_owned(),
            "str" => self.choose(&["\"\"", "\"f1\"", "\"a, \\\"b\\\"\"", "\"i32.add\""]).to_owned(),
            "i8" | "i16" | "i32" | "i64" if self.one_in(3) => format!("-{}", 1 + self.below(100)),
            _ => self.choose(&["0", "1", "2", "7", "31", "100", "127"]).to_owned(),
        }
    }

    /// An expression of a type: a bound value, a variable, or a combination of expressions.
    fn expression(&mut self, ty: &str, depth: usize) -> String {
        let known: Vec<String> =
            self.values.iter().filter(|value| value.ty == ty).map(|value| value.name.clone()).collect();
        let leaf = |writer: &mut Self| match known.is_empty() || writer.one_in(4) {
            true => format!("({} as {ty})", writer.literal(ty)),
            false => known[writer.below(known.len())].clone(),
        };
        if ty == "str" {
            return match known.is_empty() || self.one_in(4) {
                true => self.literal("str"),
                false => known[self.below(known.len())].clone(),
            };
        }
        if ty == "bool" {
            return self.condition(&known, depth);
        }
        if depth == 0 {
            return leaf(self);
        }
        match self.below(10) {
            0..=2 => leaf(self),
            3..=5 => {
                let operator = self.choose(&["+", "-", "*", "&", "|", "^", "<<", ">>"]);
                let (left, right) = (self.expression(ty, depth - 1), self.expression(ty, depth - 1));
                format!("({left} {operator} {right})")
            }
            6 => {
                let from = self.choose(&INTEGERS);
                format!("({} as {ty})", self.expression(from, depth - 1))
            }
            7 => {
                let condition = self.expression("bool", depth - 1);
                let (yes, no) = (self.expression(ty, depth - 1), self.expression(ty, depth - 1));
                format!("({condition} ? {yes} : {no})")
            }
            8 => match self.any_map().filter(|map| map.value == ty) {
                Some(map) => format!("{}[{}]", map.name, self.key(&map)),
                None => leaf(self),
            },
            _ => match ty {
                "u32" => {
                    let from = self.choose(&["u32", "u64", "u16"]);
                    format!("log2({})", self.expression(from, depth - 1))
                }
                "u64" if self.calls_function => {
                    let (a, b) = (self.expression("u32", depth - 1), self.expression("i64", depth - 1));
                    format!("mix({a}, {b})")
                }
                _ => leaf(self),
            },
        }
    }

    fn condition(&mut self, known: &[String], depth: usize) -> String {
        match self.below(if depth == 0 { 3 } else { 9 }) {
            0 if !known.is_empty() => known[self.below(known.len())].clone(),
            0 => self.literal("bool"),
            1 => {
                let text = self.expression("str", 0);
                format!("{text} == {}", self.literal("str"))
            }
            2 | 3 => {
                let names: Vec<String> = self
                    .values
                    .iter()
                    .filter(|value| value.ty == "str")
                    .map(|value| value.name.clone())
                    .collect();
                match names.is_empty() {
                    true => self.literal("bool"),
                    false => {
                        let name = names[self.below(names.len())].clone();
                        let call = self.choose(&[
                            "starts_with(\"f\")",
                            "contains(\"i\")",
                            "matches(\"*2*\")",
                            "len() > 4",
                        ]);
                        format!("{name}.{call}")
                    }
                }
            }
            4 => format!("!({})", self.expression("bool", depth - 1)),
            5 => {
                let operator = self.choose(&["&&", "||"]);
                let (left, right) = (self.expression("bool", depth - 1), self.expression("bool", depth - 1));
                format!("({left}) {operator} ({right})")
            }
            _ => {
                let ty = self.choose(&INTEGERS);
                let operator = self.choose(&["==", "!=", "<", "<=", ">", ">="]);
                let (left, right) = (self.expression(ty, depth - 1), self.expression(ty, depth - 1));
                format!("{left} {operator} {right}")
            }
        }
    }
}

/// The script and the program, for messages.
pub(super) fn with_program(script: &str, program: &str) -> String {
    let mut text = String::new();
    let _ = write!(text, "{program}\n\n{script}");
    text
}
