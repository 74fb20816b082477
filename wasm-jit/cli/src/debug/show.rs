//! How stops, frames and values are shown.

use std::collections::HashMap;
use std::fmt::Write;
use std::fs;

use wasm_jit::Val;
use wasm_jit::probes::Location;
use wasm_jit_debug::{Code, Level, Outcome, Reason, Scope, SourceFrame, Stop, Stopped, Unwatched, Value};

/// The lines of source files that were read; `None` for files that cannot be read.
#[derive(Debug, Default)]
pub(super) struct Sources(HashMap<String, Option<Vec<String>>>);

impl Sources {
    pub(super) fn lines(&mut self, file: &str) -> Option<&[String]> {
        let read = || Some(fs::read_to_string(file).ok()?.lines().map(str::to_owned).collect());
        self.0.entry(file.to_owned()).or_insert_with(read).as_deref()
    }

    fn line(&mut self, file: &str, line: u32) -> Option<&str> {
        self.lines(file)?.get((line as usize).checked_sub(1)?).map(String::as_str)
    }
}

/// Where an instruction is: `0x2c gcd at gcd.c:12`, `0x2f twice (inlined in main) at main.c:3`.
pub(super) fn place(code: &Code, location: Location) -> String {
    let frames = code.source_frames(location);
    let mut text = format!("{:#x} {}", code.module_offset(location), frames[0].name);
    if let [_, .., own] = &frames[..] {
        let _ = write!(text, " (inlined in {})", own.name);
    }
    if let Some((file, line)) = &frames[0].line {
        let _ = write!(text, " at {file}:{line}");
    }
    text
}

/// What is executed next in the innermost frame at a location, or in one further out: the source
/// line if it can be read, else the instruction.
pub(super) fn next(code: &Code, location: Location, inner: usize, sources: &mut Sources) -> String {
    let frame = code.source_frames(location).into_iter().nth(inner);
    if let Some((file, line)) = frame.and_then(|frame| frame.line)
        && let Some(text) = sources.line(&file, line)
    {
        return format!("{line}\t{text}\n");
    }
    format!("=> {:#x}\t{}\n", code.module_offset(location), code.text(location))
}

/// Why the program has stopped; nothing for a step. `problems` has those of conditions that were
/// shown, by the number of the breakpoint: each is shown once.
pub(super) fn reasons(stop: &Stop, problems: &mut HashMap<u32, String>) -> String {
    let mut text = String::new();
    let mut report = |kind: &str, number: u32, problem: &Option<String>| match problem {
        Some(problem) if problems.get(&number) != Some(problem) => {
            problems.insert(number, problem.clone());
            format!("The condition of {kind} {number} has no value: {problem}\n")
        }
        _ => String::new(),
    };
    for reason in &stop.reasons {
        let _ = match reason {
            Reason::Breakpoint { number, once, problem } => {
                let kind = if *once { "Temporary breakpoint" } else { "Breakpoint" };
                text += &report("breakpoint", *number, problem);
                write!(text, "{kind} {number}, ")
            }
            Reason::Watch { number, expression, old, new, problem } => {
                text += &report("watchpoint", *number, problem);
                let shown = |value: &Result<Value, String>| match value {
                    Ok(value) => value.to_string(),
                    Err(problem) => format!("<{problem}>"),
                };
                let (old, new) = (shown(old), shown(new));
                write!(text, "Watchpoint {number}: {expression}\n  old: {old}\n  new: {new}\n")
            }
            Reason::OutOfScope { number, expression } => {
                writeln!(text, "Watchpoint {number} is deleted: the frame of {expression} has ended")
            }
            Reason::Finished { results } if !results.is_empty() => {
                let results: Vec<String> = results.iter().map(value).collect();
                writeln!(text, "Returned: {}", results.join(", "))
            }
            Reason::Pause => writeln!(text, "Paused"),
            Reason::Trapped { trap } => {
                writeln!(text, "The program has trapped, and ends when it continues: {trap}")
            }
            Reason::Thrown { exception } => {
                let fields = exception.fields.iter();
                let fields: Vec<String> =
                    fields.map(|field| field.as_ref().map_or("?".to_owned(), value)).collect();
                let tag = exception.tag.map(|tag| format!(": tag {tag} ({})", fields.join(", ")));
                let tag = tag.unwrap_or_default();
                writeln!(text, "The program does not catch an exception, and ends when it continues{tag}")
            }
            Reason::Failed { error } => {
                writeln!(text, "The program has failed, and ends when it continues: {error}")
            }
            Reason::HistoryStart => writeln!(text, "No more reverse-execution history"),
            Reason::NotReversed { problem } => writeln!(text, "It could not go back: {problem}"),
            _ => Ok(()),
        };
    }
    if stop.thread > 1 {
        let _ = write!(text, "thread {}: ", stop.thread);
    }
    text
}

pub(super) fn outcome(code: &Code, outcome: &Outcome) -> String {
    let unwatched = unwatched(code, outcome.unwatched.as_ref());
    match outcome.has_failed {
        true => format!("{unwatched}The program has failed: {}\n", outcome.text),
        false => format!("{unwatched}The program has ended: {}\n", outcome.text),
    }
}

/// A line about what watchpoints do not observe, if there is anything.
pub(super) fn unwatched(code: &Code, unwatched: Option<&Unwatched>) -> String {
    unwatched.map(|unwatched| format!("{}\n", unwatched.text(code))).unwrap_or_default()
}

/// A WebAssembly value.
pub(super) fn value(value: &Val) -> String {
    Value::from(value).to_string()
}

/// A local's name: `$x`, or its index.
pub(super) fn local_name(code: &Code, function: u32, index: u32) -> String {
    match code.local_name(function, index) {
        Some(name) => format!("${name}"),
        None => format!("$local{index}"),
    }
}

/// The parameters of a frame: those of the source, if they are known, or else those of the
/// function. Structures are not shown.
fn parameters(scope: &mut Scope<'_, '_>, is_inlined: bool) -> String {
    let known = scope.parameters();
    let shown: Vec<String> = if known.is_empty() && !is_inlined {
        let function = scope.location().function;
        let count = scope.code().module().function(function).map_or(0, |of| of.ty().params().len() as u32);
        let shown = |index: u32| {
            let name = local_name(scope.code(), function, index);
            match scope.local(index) {
                Ok(found) => format!("{name}={}", value(&found)),
                Err(_) => format!("{name}=?"),
            }
        };
        (0..count).map(shown).collect()
    } else {
        let shown = |(name, value): (String, Result<Value, _>)| match value {
            Ok(Value::Text(_)) => format!("{name}=..."),
            Ok(value) => format!("{name}={value}"),
            Err(_) => format!("{name}=?"),
        };
        known.into_iter().map(shown).collect()
    };
    format!(" ({})", shown.join(", "))
}

/// A line of a backtrace, with the parameters.
pub(super) fn frame(stopped: &mut Stopped<'_, '_>, number: usize, level: Level) -> String {
    let location = stopped.locations().get(level.frame).copied().flatten();
    let frame = location.map(|location| (location, stopped.code().source_frames(location)));
    let frame = frame.and_then(|(location, frames)| Some((location, frames.into_iter().nth(level.inner)?)));
    let Some((location, SourceFrame { name, line, is_inlined, .. })) = frame else {
        return format!("#{number:<3} <another module>\n");
    };
    let parameters = match stopped.frame(level) {
        Ok(mut scope) => parameters(&mut scope, is_inlined),
        Err(_) => String::new(),
    };
    let offset = stopped.code().module_offset(location);
    let line = line.map(|(file, line)| format!(" at {file}:{line}")).unwrap_or_default();
    let inlined = if is_inlined { " (inlined)" } else { "" };
    format!("#{number:<3} {offset:#x} {name}{parameters}{line}{inlined}\n")
}
