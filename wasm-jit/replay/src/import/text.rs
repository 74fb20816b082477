//! [`Step`]: parses the text format.
//!
//! A line is an event with fields that are separated by `;`:
//!
//! | line | event |
//! | --- | --- |
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
//! different ones. The changes that the program notices were made by the host before it last called
//! the program (`EC`, `TC`) or returned to it (`IR`). Lists are separated by commas.

use std::collections::HashMap;
use std::io::BufRead;

use crate::error::Error;

/// A call or return between the host and the program.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// The line number, counted from 1.
    pub(super) line: u64,
    pub(super) kind: Kind,
    /// The changes that the host makes before the step.
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

/// The content of a line.
enum Line {
    Step(Kind),
    Change(Effect),
}

/// Reads the entire text.
///
/// # Errors
/// [`Error::Text`], [`Error::Io`].
pub(super) fn steps(mut text: impl BufRead) -> Result<Vec<Step>, Error> {
    let mut steps: Vec<Step> = Vec::new();
    // The different lines of calls to imports and of their returns.
    let (mut numbered, mut numbers) = (Vec::new(), HashMap::new());
    let mut bytes = Vec::new();
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
        match parse(&read).map_err(at)? {
            Line::Step(kind) => steps.push(Step { line, kind, changes: Vec::new() }),
            Line::Change(effect) => match steps.last_mut() {
                Some(Step { kind: Kind::Enter { .. } | Kind::Return { .. }, changes, .. }) => {
                    add(changes, Change { line, effect });
                }
                _ => return Err(at("the program does not run here")),
            },
        }
    }
    Ok(steps)
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

fn parse(line: &str) -> Result<Line, &'static str> {
    let fields: Vec<&str> = line.split(';').collect();
    let step = |kind| Ok(Line::Step(kind));
    let change = |effect| Ok(Line::Change(effect));
    match fields[..] {
        ["EC", function, _, arguments] | ["TC", function, _, _, arguments] => {
            step(Kind::Enter { function: number(function)?, arguments: arguments.to_owned() })
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
        ["IG", ..] => Err("an imported global, which is not supported"),
        ["EC" | "TC" | "IC" | "IR" | "L" | "MG" | "G" | "T" | "TG", ..] => {
            Err("another number of fields than it has")
        }
        _ => Err("an unknown event"),
    }
}

fn number(field: &str) -> Result<u32, &'static str> {
    field.trim().parse().map_err(|_| "a field that is no number of 32 bits")
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

    #[track_caller]
    fn fails(text: &[u8], expected: &str) {
        let error = steps(text).unwrap_err().to_string();
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
        assert_eq!(steps(text.as_bytes()).unwrap(), expected);
        assert_eq!(steps(&b""[..]).unwrap(), []);
    }

    #[test]
    fn mistakes_name_their_line() {
        fails(b"EC;1;run;\nER\nL;0;1;2\n", "line 3: the program does not run here");
        fails(b"MG;0;1", "line 1: the program does not run here");
        fails(b"\n\nEC;x;run;", "line 3: a field that is no number of 32 bits");
        fails(b"EC;4294967296;run;", "line 1: a field that is no number of 32 bits");
        fails(b"EC;1;run;\nL;0;1;256", "line 2: a field that is no byte");
        fails(b"EC;1;run;\nL;0;1;", "line 2: a field that is no byte");
        fails(b"EC;1", "line 1: another number of fields than it has");
        fails(b"EC;1;run;\nG;1;2", "line 2: another number of fields than it has");
        fails(b"IC;0\n1", "line 2: no such line was before");
        fails(b"ImportMemory;0;env;memory;64", "line 1: an unknown event");
        fails(b"IG;0;env;g;i32;0;5", "line 1: an imported global, which is not supported");
        fails(b"EC;1;run;\nTG;0;2", "line 2: another number of fields than it has");
        fails(b"EC;1;run;\nT;0;t;2;foo;5", "line 2: a field that is no number of 32 bits");
        fails(b"EC;1;\xff;", "line 1: it is not UTF-8");
    }
}
