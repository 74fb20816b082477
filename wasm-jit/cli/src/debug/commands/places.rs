//! Commands about locations: frames, functions, source lines and instructions.

use std::fmt::Write;

use wasm_jit::probes::Location;
use wasm_jit_debug::Code;

use super::{Done, Session, count, message, say};
use crate::debug::show;

impl Session {
    pub(super) fn backtrace(&mut self, arguments: &str) -> Done {
        let limit = if arguments.is_empty() { u64::MAX } else { count(arguments)? };
        self.must_be_stopped()?;
        let text = self.inspect(move |stopped, _| {
            let all = stopped.locations().len();
            let shown = all.min(usize::try_from(limit).unwrap_or(usize::MAX));
            let mut text: String = (0..shown).map(|level| show::frame(stopped, level)).collect();
            if shown < all {
                let _ = writeln!(text, "({} more)", all - shown);
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

    fn select(&mut self, level: usize) -> Done {
        let depth = self.must_be_stopped()?.depth;
        if level > depth {
            return Err(format!("there is no frame {level}"));
        }
        self.level = level;
        self.listed = None;
        let (text, location) = self.inspect(move |stopped, level| {
            let location = stopped.locations().get(level).copied().flatten();
            Ok((show::frame(stopped, level), location))
        })?;
        let next = location.map(|location| show::next(self.debugger.code(), location, &mut self.sources));
        say(text + &next.unwrap_or_default())
    }

    pub(super) fn frame(&mut self, arguments: &str) -> Done {
        let level = match arguments {
            "" => self.level,
            text => text.parse().map_err(|_| format!("`{text}` is no frame"))?,
        };
        self.select(level)
    }

    pub(super) fn move_frame(&mut self, arguments: &str, is_up: bool) -> Done {
        let count = usize::try_from(count(arguments)?).unwrap_or(usize::MAX);
        let depth = self.must_be_stopped()?.depth;
        let level = match is_up {
            true if self.level == depth => return Err("this is the outermost frame".to_owned()),
            true => self.level.saturating_add(count).min(depth),
            false if self.level == 0 => return Err("this is the innermost frame".to_owned()),
            false => self.level.saturating_sub(count),
        };
        self.select(level)
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
        let around = |code: &Code, location: Location| {
            let unknown = || format!("the source of {} is unknown", show::place(code, location));
            code.line(location).map(|(file, line)| (file, line.saturating_sub(5).max(1))).ok_or_else(unknown)
        };
        let (file, first) = match (arguments, &self.listed) {
            ("", Some(next)) => next.clone(),
            ("", None) => around(code, self.selected()?)?,
            _ => {
                let places = code.places(arguments).map_err(message)?;
                around(code, *places.first().ok_or("no place")?)?
            }
        };
        let lines = self.sources.lines(&file).ok_or_else(|| format!("{file} cannot be read"))?;
        let start = (first as usize - 1).min(lines.len());
        let end = (start + 10).min(lines.len());
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
