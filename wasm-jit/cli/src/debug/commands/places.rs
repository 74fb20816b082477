//! Commands about locations: frames, functions, source lines and instructions.

use std::fmt::Write;

use wasm_jit::probes::Location;
use wasm_jit_debug::{Code, Level};

use super::{Done, Session, count, message, say};
use crate::debug::show;

impl Session {
    pub(super) fn backtrace(&mut self, arguments: &str) -> Done {
        let limit = if arguments.is_empty() { u64::MAX } else { count(arguments)? };
        self.must_be_stopped()?;
        let text = self.inspect(move |stopped, _| {
            let all = stopped.levels();
            let shown = all.len().min(usize::try_from(limit).unwrap_or(usize::MAX));
            let frames = all.iter().enumerate().take(shown);
            let mut text: String =
                frames.map(|(number, level)| show::frame(stopped, number, *level)).collect();
            if shown < all.len() {
                let _ = writeln!(text, "({} more)", all.len() - shown);
            }
            Ok(text)
        })?;
        say(text)
    }

    /// The threads that have stopped in this run; the thread that is stopped now is marked.
    pub(super) fn threads(&self) -> String {
        let mut text = String::new();
        for number in 1..=self.debugger.threads() {
            let stop = self.stop.as_ref().filter(|stop| stop.thread == number);
            let _ = match stop {
                Some(stop) => {
                    writeln!(text, "* {number:<4}{}", show::place(self.debugger.code(), stop.location))
                }
                None => writeln!(text, "  {number:<4}not stopped, or has ended"),
            };
        }
        if text.is_empty() { "no thread has stopped\n".to_owned() } else { text }
    }

    /// Selects a frame by its number in backtraces, and shows it.
    fn select(&mut self, number: usize) -> Done {
        let level = self.levels()?.get(number).copied();
        self.level = level.ok_or_else(|| format!("there is no frame {number}"))?;
        self.number = number;
        self.listed = None;
        let (text, location) = self.inspect(move |stopped, level| {
            let location = stopped.locations().get(level.frame).copied().flatten();
            Ok((show::frame(stopped, number, level), location))
        })?;
        let (code, inner) = (self.debugger.code(), self.level.inner);
        let next = location.map(|location| show::next(code, location, inner, &mut self.sources));
        say(text + &next.unwrap_or_default())
    }

    /// All frames, the innermost first.
    fn levels(&self) -> Result<Vec<Level>, String> {
        self.must_be_stopped()?;
        self.inspect(|stopped, _| Ok(stopped.levels()))
    }

    pub(super) fn frame(&mut self, arguments: &str) -> Done {
        let number = match arguments {
            "" => self.number,
            text => text.parse().map_err(|_| format!("`{text}` is no frame"))?,
        };
        self.select(number)
    }

    pub(super) fn move_frame(&mut self, arguments: &str, is_up: bool) -> Done {
        let count = usize::try_from(count(arguments)?).unwrap_or(usize::MAX);
        let outermost = self.levels()?.len().saturating_sub(1);
        let number = match is_up {
            true if self.number == outermost => return Err("this is the outermost frame".to_owned()),
            true => self.number.saturating_add(count).min(outermost),
            false if self.number == 0 => return Err("this is the innermost frame".to_owned()),
            false => self.number.saturating_sub(count),
        };
        self.select(number)
    }

    pub(super) fn functions(&self, filter: &str) -> String {
        let module = self.debugger.code().module();
        let symbols = module.symbols();
        let mut text = String::new();
        for function in module.functions() {
            let name = symbols.function(function.index());
            if name.contains(filter) {
                let offset = function.body().map(|body| format!("{:#x}", body.range().start));
                let offset = offset.unwrap_or_else(|| "import".to_owned());
                let _ = writeln!(text, "{:<6}{offset:<10}{name}", function.index());
            }
        }
        text
    }

    /// The location of the selected frame.
    fn selected(&self) -> Result<Location, String> {
        self.must_be_stopped()?;
        self.inspect(|stopped, level| Ok(stopped.frame(level)?.location()))
    }

    pub(super) fn list(&mut self, arguments: &str) -> Done {
        let code = self.debugger.code();
        let around = |code: &Code, location: Location, inner: usize| {
            let unknown = || format!("the source of {} is unknown", show::place(code, location));
            let frame = code.source_frames(location).into_iter().nth(inner);
            let line = frame.and_then(|frame| frame.line);
            line.map(|(file, line)| (file, line.saturating_sub(5).max(1))).ok_or_else(unknown)
        };
        let next = || match &self.listed {
            Some(next) => Ok(next.clone()),
            None => around(code, self.selected()?, self.level.inner),
        };
        let ((file, first), count) = match range(arguments)? {
            _ if arguments.is_empty() => (next()?, 10),
            // Lines of the same file.
            Some((first, last)) => ((next()?.0, first), (last - first) as usize + 1),
            None => {
                let places = code.places(arguments).map_err(message)?;
                let (file, first) = around(code, *places.first().ok_or("no place")?, 0)?;
                // The code of a line may begin at a later one.
                let line = arguments.rsplit_once(':').and_then(|(_, line)| line.parse::<u32>().ok());
                ((file, line.map_or(first, |line| line.saturating_sub(5).max(1))), 10)
            }
        };
        let lines = self.sources.lines(&file).ok_or_else(|| format!("{file} cannot be read"))?;
        let start = (first as usize - 1).min(lines.len());
        let end = start.saturating_add(count).min(lines.len());
        if start == end {
            return Err(format!("{file} has {} lines", lines.len()));
        }
        let shown = lines[start..end].iter().zip(first..).map(|(line, number)| format!("{number}\t{line}\n"));
        let text = shown.collect::<String>();
        self.listed = Some((file, end as u32 + 1));
        say(text)
    }

    pub(super) fn disassemble(&mut self, arguments: &str) -> Done {
        let code = self.debugger.code();
        let here = if self.stop.is_some() { self.selected().ok() } else { None };
        let function = match arguments {
            "" => here.ok_or("disassemble FUNCTION")?.function,
            name => code.function(name).map_err(message)?,
        };
        let at = here.map(|location| code.module_offset(location));
        let mut text = String::new();
        for (offset, instruction) in code.instructions(function).map_err(message)? {
            let mark = if at == Some(offset) { "=>" } else { "  " };
            let _ = writeln!(text, "{mark} {offset:#x}\t{instruction}");
        }
        say(text)
    }
}

/// The lines of a text `FIRST,LAST`.
fn range(text: &str) -> Result<Option<(u32, u32)>, String> {
    let Some((first, last)) = text.split_once(',') else { return Ok(None) };
    let [first, last] = [first, last].map(|line| line.trim().parse::<u32>());
    match (first, last) {
        (Ok(first @ 1..), Ok(last)) if first <= last => Ok(Some((first, last))),
        _ => Err(format!("`{text}` are no lines FIRST,LAST")),
    }
}
