//! [`Text`]: parses the text format.
//!
//! A line is an event with fields that are separated by `;`:
//!
//! | line | event |
//! | --- | --- |
//! | `IG;GLOBAL;MODULE;NAME;TYPE;MUTABLE;VALUE` | the program imports a global with this value |
//! | `IM;MEMORY;MODULE;NAME;PAGES;MAXIMUM` | the program imports a memory of this size |
//! | `IT;TABLE;MODULE;NAME;ELEMENTS;MAXIMUM;TYPE` | the program imports a table of this size |
//! | `EC;FUNCTION;NAME;ARGUMENTS` | the host calls a function |
//! | `TC;FUNCTION;NAME;TABLE;ARGUMENTS` | the same, by an element of a table |
//! | `ER` | this call returns; may be missing |
//! | `IC;IMPORT` | the program calls an imported function |
//! | `IR;IMPORT;RESULTS` | it returns |
//! | `L;MEMORY;ADDRESS;BYTES` | the program loads bytes that the host has written |
//! | `MG;MEMORY;PAGES` | it finds a memory larger than it was |
//! | `G;GLOBAL;NAME;VALUE;TYPE` | it reads a global that the host has set |
//! | `TG;TABLE;NAME;ELEMENTS` | it finds a table larger than it was |
//! | `T;TABLE;NAME;ELEMENT;FUNCTION;NAME` | it reads an element that the host has set |
//!
//! Some versions of the recorder also write names: after the index in `IR`, `L` and `MG`, and at
//! the end of `IC`. Some write a repeated `IC` or `IR` as the number of that line among the
//! different ones. Only one version writes `IM`, `IT` and `IF` (the imported functions); in it,
//! `EC` has the name of the exported function without its index. Extended recordings have further
//! lines, `FE`, `FR`, `LE` and `TE`, of what the program does by itself; these and `IF` are
//! skipped.
//!
//! The changes that the program notices were made by the host before it last called the program
//! (`EC`, `TC`) or returned to it (`IR`). Lists are separated by commas.
//!
//! The recorder starts when the module has been instantiated. Until then, it only notices calls: if
//! there is a start function, its `EC` and what belongs to it come first, without changes by the
//! host, and `IG` has the values afterwards. Some versions start when the first function is called.
//! After a call of another function by the host, there is no `IG`.

use std::collections::{BTreeMap, HashMap};
use std::io::BufRead;

use crate::error::Error;

/// The content of a text.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Text {
    pub(super) memories: BTreeMap<u32, Size>,
    pub(super) tables: BTreeMap<u32, Size>,
    /// The values of imported globals, each with its line: the first one, if a global has several.
    pub(super) globals: BTreeMap<u32, (u64, String)>,
    /// The changes that the host makes before the first step.
    pub(super) changes: Vec<Change>,
    pub(super) steps: Vec<Step>,
}

/// The size of a memory or table that the program imports.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Size {
    /// The line number, counted from 1.
    pub(super) line: u64,
    /// The number of pages or elements.
    pub(super) number: u32,
    pub(super) maximum: Option<u32>,
}

/// Something that the program imports.
enum Item {
    Memory { memory: u32, pages: u32, maximum: Option<u32> },
    Table { table: u32, elements: u32, maximum: Option<u32> },
    Global { global: u32, is_mutable: bool, value: String },
}

/// A call or return between the host and the program.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// The line number, counted from 1.
    pub(super) line: u64,
    pub(super) kind: Kind,
    /// The changes that the host makes before the step; for [`Kind::Leave`], after it.
    pub(super) changes: Vec<Change>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The host calls a function with these arguments.
    Enter { function: u32, arguments: String },
    /// The function that the host called last returns.
    Leave,
    /// The program calls an import.
    Call { import: u32 },
    /// The import returns these results.
    Return { import: u32, results: String },
}

/// A change by the host.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Change {
    /// The line number, counted from 1.
    pub(super) line: u64,
    pub(super) effect: Effect,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Write { memory: u32, address: usize, bytes: Vec<u8> },
    Grow { memory: u32, pages: u64 },
    SetGlobal { global: u32, value: String },
    GrowTable { table: u32, elements: u64 },
    SetElement { table: u32, element: u64, function: u32 },
}

/// What a text does not say about the functions of the program.
#[derive(Debug)]
pub(super) struct Functions<'a> {
    /// The indices of the exported functions, by name.
    pub(super) exported: HashMap<&'a str, u32>,
    /// The start function.
    pub(super) start: Option<u32>,
}

/// The content of a line.
enum Line {
    Step(Kind),
    Change(Effect),
    Imported(Item),
    /// Nothing that the host does.
    Skipped,
}

/// Reads the entire text.
///
/// # Errors
/// [`Error::Text`], [`Error::Io`].
pub(super) fn read(mut text: impl BufRead, functions: &Functions<'_>) -> Result<Text, Error> {
    let mut found = Text::default();
    // The different lines of calls to imports and of their returns.
    let (mut numbered, mut numbers) = (Vec::new(), HashMap::new());
    let mut bytes = Vec::new();
    // The calls to imports that have not returned, and whether the host itself has called a
    // function that is not the start function.
    let (mut running, mut has_started) = (0_u64, functions.start.is_none());
    for line in 1.. {
        bytes.clear();
        if text.read_until(b'\n', &mut bytes)? == 0 {
            break;
        }
        let at = |what: &str| Error::Text { line, what: what.to_owned() };
        let read = std::str::from_utf8(&bytes).map_err(|_| at("it is not UTF-8"))?.trim();
        let read = match read.parse::<usize>() {
            Ok(number) => numbered.get(number).cloned().ok_or_else(|| at("no such line was before"))?,
            Err(_) => read.to_owned(),
        };
        if read.is_empty() {
            continue;
        }
        if (read.starts_with("IC;") || read.starts_with("IR;")) && !numbers.contains_key(&read) {
            numbers.insert(read.clone(), numbered.len());
            numbered.push(read.clone());
        }
        match parse(&read, &functions.exported).map_err(at)? {
            Line::Step(kind) => {
                match kind {
                    Kind::Call { .. } => running += 1,
                    Kind::Return { .. } => running = running.saturating_sub(1),
                    Kind::Enter { function, .. } if running == 0 => {
                        has_started |= !found.steps.is_empty() || Some(function) != functions.start;
                    }
                    Kind::Enter { .. } | Kind::Leave => {}
                }
                found.steps.push(Step { line, kind, changes: Vec::new() });
            }
            Line::Change(effect) => {
                let changes = match found.steps.last_mut() {
                    Some(Step { kind: Kind::Enter { .. } | Kind::Return { .. }, changes, .. }) => changes,
                    None => &mut found.changes,
                    Some(_) => return Err(at("the program does not run here")),
                };
                add(changes, Change { line, effect });
            }
            Line::Imported(item) => {
                match &item {
                    _ if found.steps.is_empty() => {}
                    // The start function has returned.
                    Item::Global { global, is_mutable, value } if running == 0 && !has_started => {
                        if found.steps.last().is_none_or(|step| step.kind != Kind::Leave) {
                            found.steps.push(Step { line, kind: Kind::Leave, changes: Vec::new() });
                        }
                        if *is_mutable && let Some(step) = found.steps.last_mut() {
                            let effect = Effect::SetGlobal { global: *global, value: value.clone() };
                            step.changes.push(Change { line, effect });
                        }
                    }
                    _ => return Err(at("an import in the middle of the run")),
                }
                let repeated = match item {
                    Item::Memory { memory, pages, maximum } => {
                        found.memories.insert(memory, Size { line, number: pages, maximum }).is_some()
                    }
                    Item::Table { table, elements, maximum } => {
                        found.tables.insert(table, Size { line, number: elements, maximum }).is_some()
                    }
                    // Also the value after the start function.
                    Item::Global { global, value, .. } => {
                        found.globals.entry(global).or_insert((line, value));
                        false
                    }
                };
                if repeated {
                    return Err(at("a second size of the same import"));
                }
            }
            Line::Skipped => {}
        }
    }
    Ok(found)
}

/// Appends a change. Loads are written byte by byte: loads of adjacent bytes are merged.
fn add(changes: &mut Vec<Change>, change: Change) {
    match (changes.last_mut().map(|last| &mut last.effect), &change.effect) {
        (
            Some(Effect::Write { memory, address, bytes }),
            Effect::Write { memory: same, address: next, bytes: more },
        ) if memory == same && address.checked_add(bytes.len()) == Some(*next) => bytes.extend(more),
        _ => changes.push(change),
    }
}

fn parse(line: &str, exported: &HashMap<&str, u32>) -> Result<Line, &'static str> {
    let fields: Vec<&str> = line.split(';').collect();
    let step = |kind| Ok(Line::Step(kind));
    let change = |effect| Ok(Line::Change(effect));
    match fields[..] {
        ["EC", function, _, arguments] | ["TC", function, _, _, arguments] => {
            step(Kind::Enter { function: number(function)?, arguments: arguments.to_owned() })
        }
        ["EC", name, arguments] => {
            let function = *exported.get(name).ok_or("a name that no exported function has")?;
            step(Kind::Enter { function, arguments: arguments.to_owned() })
        }
        ["ER", ..] => step(Kind::Leave),
        ["IC", import, ..] => step(Kind::Call { import: number(import)? }),
        ["IR", import, results] | ["IR", import, _, results] => {
            step(Kind::Return { import: number(import)?, results: results.to_owned() })
        }
        ["L", memory, address, data] | ["L", memory, _, address, data] => {
            let bytes = data.split(',').map(byte).collect::<Result<_, _>>()?;
            change(Effect::Write { memory: number(memory)?, address: number(address)? as usize, bytes })
        }
        ["MG", memory, pages] | ["MG", memory, _, pages] => {
            change(Effect::Grow { memory: number(memory)?, pages: number(pages)?.into() })
        }
        ["G", global, _, value, _] => {
            change(Effect::SetGlobal { global: number(global)?, value: value.to_owned() })
        }
        ["TG", table, _, elements] => {
            change(Effect::GrowTable { table: number(table)?, elements: number(elements)?.into() })
        }
        ["T", table, _, element, function, ..] => {
            let (element, function) = (number(element)?.into(), number(function)?);
            change(Effect::SetElement { table: number(table)?, element, function })
        }
        ["IG", global, _, _, _, mutable, value] => {
            let is_mutable = match mutable.trim() {
                "0" => false,
                "1" => true,
                _ => return Err("a field that is neither 0 nor 1"),
            };
            let (global, value) = (number(global)?, value.to_owned());
            Ok(Line::Imported(Item::Global { global, is_mutable, value }))
        }
        ["IM", memory, _, _, pages, maximum] => {
            let (memory, pages, maximum) = (number(memory)?, number(pages)?, optional(maximum)?);
            Ok(Line::Imported(Item::Memory { memory, pages, maximum }))
        }
        ["IT", table, _, _, elements, maximum, _] => {
            let (table, elements, maximum) = (number(table)?, number(elements)?, optional(maximum)?);
            Ok(Line::Imported(Item::Table { table, elements, maximum }))
        }
        ["IF" | "FE" | "FR" | "LE" | "TE", ..] => Ok(Line::Skipped),
        ["EC" | "TC" | "IC" | "IR" | "IG" | "IM" | "IT" | "L" | "MG" | "G" | "T" | "TG", ..] => {
            Err("another number of fields than it has")
        }
        _ => Err("an unknown event"),
    }
}

fn number(field: &str) -> Result<u32, &'static str> {
    field.trim().parse().map_err(|_| "a field that is no number of 32 bits")
}

/// A number, or nothing.
fn optional(field: &str) -> Result<Option<u32>, &'static str> {
    if field.trim().is_empty() { Ok(None) } else { number(field).map(Some) }
}

/// Some versions write bytes as signed numbers.
fn byte(field: &str) -> Result<u8, &'static str> {
    match field.trim().parse::<i16>() {
        Ok(value @ -128..=255) => Ok(value as u8),
        _ => Err("a field that is no byte"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8]) -> Result<Text, Error> {
        super::read(text, &Functions { exported: HashMap::from([("start", 7)]), start: Some(7) })
    }

    #[track_caller]
    fn fails(text: &[u8], expected: &str) {
        let error = read(text).unwrap_err().to_string();
        assert_eq!(error, expected, "{}", String::from_utf8_lossy(text));
    }

    #[test]
    fn changes_belong_to_the_last_call_or_return_of_the_host() {
        let write = |line, byte| Change {
            line,
            effect: Effect::Write { memory: 0, address: 9, bytes: vec![byte, 1] },
        };
        let below = Change { line: 12, effect: Effect::Write { memory: 0, address: 8, bytes: vec![4] } };
        let grow = Change { line: 5, effect: Effect::Grow { memory: 1, pages: 2 } };
        let set = Change { line: 6, effect: Effect::SetGlobal { global: 3, value: "-0.5".to_owned() } };
        let call = |line| Step { line, kind: Kind::Call { import: 4 }, changes: Vec::new() };
        let enter = |line, function, changes| {
            let kind = Kind::Enter { function, arguments: "1,2.5".to_owned() };
            Step { line, kind, changes }
        };
        let leave = |line, changes| {
            let kind = Kind::Return { import: 4, results: "7".to_owned() };
            Step { line, kind, changes }
        };
        let text = "EC;5;run;1,2.5\nL;0;9;-1,1\r\nIC;4;name\nIR;4;7\nMG;1;2\nG;3;g;-0.5;f64\n\n0\nIR;4;7\n\
            L;0;memory;9;254\nL;0;10;1\nL;0;8;4\nTC;8;name;0;1,2.5\n0\n1\nER";
        let expected = [
            enter(1, 5, vec![write(2, 255)]),
            call(3),
            leave(4, vec![grow, set]),
            call(8),
            leave(9, vec![write(10, 254), below]),
            enter(13, 8, vec![]),
            call(14),
            leave(15, vec![]),
            Step { line: 16, kind: Kind::Leave, changes: Vec::new() },
        ];
        let found = read(text.as_bytes()).unwrap();
        assert_eq!(found, Text { steps: expected.into(), ..Text::default() });
        assert_eq!(read(&b""[..]).unwrap(), Text::default());
    }

    #[test]
    fn imports_come_before_the_run_or_after_the_start_function() {
        let text = "IM;0;env;memory;3;\nIT;1;env;table;2;9;anyfunc\nIF;0;env;f\nIG;0;env;g;f64;0;NaN\n\
            MG;0;1\nEC;start;\nFE;2;1\nLE;0;memory;1;2\nTE;0;t;1;2;f\nFR;2;\nER\nIG;1;env;h;i64;1;-1\n\
            IG;0;env;g;f64;0;2";
        let memories = BTreeMap::from([(0, Size { line: 1, number: 3, maximum: None })]);
        let tables = BTreeMap::from([(1, Size { line: 2, number: 2, maximum: Some(9) })]);
        let globals = BTreeMap::from([(0, (4, "NaN".to_owned())), (1, (12, "-1".to_owned()))]);
        let changes = vec![Change { line: 5, effect: Effect::Grow { memory: 0, pages: 1 } }];
        let set = Effect::SetGlobal { global: 1, value: "-1".to_owned() };
        let enter = Kind::Enter { function: 7, arguments: String::new() };
        let steps = vec![
            Step { line: 6, kind: enter, changes: vec![] },
            Step { line: 11, kind: Kind::Leave, changes: vec![Change { line: 12, effect: set }] },
        ];
        assert_eq!(read(text.as_bytes()).unwrap(), Text { memories, tables, globals, changes, steps });
    }

    /// Whether the text has the return of the start function, and calls of imports and of other
    /// functions within it, or not.
    #[test]
    fn globals_have_values_when_the_start_function_has_returned() {
        let set = "IG;1;env;h;i64;1;-1";
        for start in [
            "EC;start;",
            "EC;start;\nIC;0;f\nIR;0;f;1",
            "EC;start;\nIC;0;f\nEC;1;run;\nER\nEC;1;run;\nIR;0;f;1",
            "IC;0;f\nIR;0;f;1",
        ] {
            let found = read(format!("{start}\n{set}\nEC;1;run;").as_bytes()).unwrap();
            let line = start.lines().count() as u64 + 1;
            let effect = Effect::SetGlobal { global: 1, value: "-1".to_owned() };
            let leave = Step { line, kind: Kind::Leave, changes: vec![Change { line, effect }] };
            assert_eq!(found.steps[found.steps.len() - 2], leave, "{start}");
            let returned = read(format!("{start}\nER\n{set}\nEC;1;run;").as_bytes()).unwrap();
            assert_eq!(returned.steps.len(), found.steps.len(), "{start}");
        }
        for (start, line) in [
            ("EC;start;\nIC;0;f", 3),
            ("EC;start;\nIC;0;f\nEC;1;run;", 4),
            ("EC;start;\nIC;0;f\nEC;1;run;\nER", 5),
            ("EC;start;\nER\nEC;1;run;\nER", 5),
            ("EC;start;\nEC;start;\nER", 4),
            ("EC;1;run;\nER", 3),
        ] {
            let text = format!("{start}\n{set}");
            fails(text.as_bytes(), &format!("line {line}: an import in the middle of the run"));
        }
        let without = Functions { exported: HashMap::new(), start: None };
        let error = super::read(&b"EC;7;;\nER\nIG;1;env;h;i64;1;-1"[..], &without).unwrap_err();
        assert_eq!(error.to_string(), "line 3: an import in the middle of the run");
    }

    #[test]
    fn mistakes_name_their_line() {
        fails(b"EC;1;run;\nER\nL;0;1;2\n", "line 3: the program does not run here");
        fails(b"\n\nEC;x;run;", "line 3: a field that is no number of 32 bits");
        fails(b"EC;4294967296;run;", "line 1: a field that is no number of 32 bits");
        fails(b"EC;1;run;\nL;0;1;256", "line 2: a field that is no byte");
        fails(b"EC;1;run;\nL;0;1;", "line 2: a field that is no byte");
        fails(b"EC;run;1", "line 1: a name that no exported function has");
        fails(b"EC;1", "line 1: another number of fields than it has");
        fails(b"EC;1;run;\nG;1;2", "line 2: another number of fields than it has");
        fails(b"IC;0\n1", "line 2: no such line was before");
        fails(b"ImportMemory;0;env;memory;64", "line 1: an unknown event");
        fails(b"IG;0;env;g;i32;5", "line 1: another number of fields than it has");
        fails(b"IG;0;env;g;i32;mut;5", "line 1: a field that is neither 0 nor 1");
        fails(b"IM;0;env;memory;1;x", "line 1: a field that is no number of 32 bits");
        fails(b"EC;1;run;\nIG;0;env;g;i32;1;5", "line 2: an import in the middle of the run");
        fails(b"EC;1;run;\nER\nIM;0;env;memory;1;", "line 3: an import in the middle of the run");
        fails(b"IM;0;env;m;1;\nIM;1;env;n;1;\nIM;0;env;m;2;", "line 3: a second size of the same import");
        fails(b"IT;0;env;t;1;;anyfunc\nIT;0;env;t;1;;anyfunc", "line 2: a second size of the same import");
        fails(b"EC;1;run;\nTG;0;2", "line 2: another number of fields than it has");
        fails(b"EC;1;run;\nT;0;t;2;foo;5", "line 2: a field that is no number of 32 bits");
        fails(b"EC;1;\xff;", "line 1: it is not UTF-8");
    }
}
