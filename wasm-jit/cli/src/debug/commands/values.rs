//! Commands about values: expressions, memory, locals, operands and globals.

use std::fmt::Write;

use wasm_jit_debug::{Error, Expression, Value};

use super::{Done, Session, message, say};
use crate::debug::memory::Format;
use crate::debug::show;

impl Session {
    pub(super) fn print(&mut self, arguments: &str) -> Done {
        let (is_hexadecimal, text) = match arguments.strip_prefix("/x") {
            Some(text) => (true, text.trim()),
            None => (false, arguments),
        };
        let expression = Expression::parse(text).map_err(message)?;
        let value = self.inspect(move |stopped, level| expression.evaluate(&mut stopped.frame(level)?))?;
        say(match (&value, is_hexadecimal) {
            (Value::I32(value), true) => format!("{value:#x}\n"),
            (Value::I64(value), true) => format!("{value:#x}\n"),
            (Value::Unsigned(value), true) => format!("{value:#x}\n"),
            (Value::Named { value, .. }, true) => format!("{value:#x}\n"),
            (Value::F32(bits), true) => format!("{bits:#x}\n"),
            (Value::F64(bits), true) => format!("{bits:#x}\n"),
            (Value::F128(bits), true) => format!("{bits:#x}\n"),
            _ => format!("{value}\n"),
        })
    }

    pub(super) fn set(&mut self, arguments: &str) -> Done {
        // As in gdb, where `set` alone may change a setting; a variable may have this name, too.
        let is_place = |rest: &&str| !rest.trim_start().starts_with('=');
        let arguments = arguments.strip_prefix("var ").filter(is_place).unwrap_or(arguments);
        let usage = || "set PLACE = EXPRESSION: set $local0 = 5".to_owned();
        // `==` and `<=` are operators.
        let is_assignment = |at: &usize| {
            let (before, after) = arguments.split_at(*at);
            !after.starts_with("==") && !before.ends_with(['=', '!', '<', '>'])
        };
        let at = arguments.match_indices('=').map(|(at, _)| at).find(is_assignment).ok_or_else(usage)?;
        let to = Expression::parse(&arguments[..at]).map_err(message)?;
        let from = Expression::parse(&arguments[at + 1..]).map_err(message)?;
        self.inspect(move |stopped, level| {
            let mut scope = stopped.frame(level)?;
            let value = from.evaluate(&mut scope)?;
            to.assign(&mut scope, &value)
        })?;
        say("")
    }

    pub(super) fn memory(&mut self, arguments: &str) -> Done {
        let (format, text) = match arguments.strip_prefix('/') {
            Some(rest) => {
                let (format, text) = rest.split_once(' ').unwrap_or((rest, ""));
                let wrong =
                    || format!("`/{format}` is no format: /8xb, with formats x d u f c s, sizes b h w g");
                (Format::parse(format).ok_or_else(wrong)?, text.trim())
            }
            None => (Format { count: 1, format: 'x', size: 4 }, arguments),
        };
        let (format, memory, expression) = match (text, self.shown) {
            ("", Some((format, memory, next))) => (format, memory, next.to_string()),
            ("", None) => return Err("x ADDRESS".to_owned()),
            _ => {
                let (memory, address) = of_memory(text)?;
                (format, memory, address.to_owned())
            }
        };
        let expression = Expression::parse(&expression).map_err(message)?;
        let (text, next) = self.inspect(move |stopped, level| {
            let mut scope = stopped.frame(level)?;
            let address = expression.evaluate(&mut scope)?;
            let wrong = || Error::Value(format!("{address} is no address"));
            let address = match address {
                Value::I32(address) => address.cast_unsigned().into(),
                _ => address.integer().and_then(|address| u64::try_from(address).ok()).ok_or_else(wrong)?,
            };
            format.show(&scope, memory, address)
        })?;
        self.shown = Some((format, memory, next));
        say(text)
    }

    /// The source variables; if none is known, or with `all`, the WebAssembly locals.
    pub(super) fn locals(&self, which: &str) -> Done {
        let shows_all = match which {
            "" => false,
            "all" => true,
            _ => return Err("info locals [all]".to_owned()),
        };
        self.must_be_stopped()?;
        let text = self.inspect(move |stopped, level| {
            let mut scope = stopped.frame(level)?;
            let mut text = String::new();
            for (name, value) in scope.variables() {
                let _ = match value {
                    Ok(value) => writeln!(text, "{name} = {value}"),
                    Err(error) => writeln!(text, "{name} = <{error}>"),
                };
            }
            if !text.is_empty() && !shows_all {
                return Ok(text);
            }
            let function = scope.location().function;
            for index in 0..scope.code().locals(function) {
                let name = show::local_name(scope.code(), function, index);
                let _ = match scope.local(index) {
                    Ok(value) => writeln!(text, "{name} = {}", show::value(&value)),
                    Err(error) => writeln!(text, "{name} = <{error}>"),
                };
            }
            Ok(text)
        })?;
        say(if text.is_empty() { "no locals\n".to_owned() } else { text })
    }

    pub(super) fn operands(&self) -> Done {
        self.must_be_stopped()?;
        let text = self.inspect(|stopped, level| {
            let mut scope = stopped.frame(level)?;
            let mut text = String::new();
            for depth in 0..scope.operands()? as u32 {
                let _ = match scope.operand(depth) {
                    Ok(value) => writeln!(text, "$stack{depth} = {}", show::value(&value)),
                    Err(error) => writeln!(text, "$stack{depth} = <{error}>"),
                };
            }
            Ok(text)
        })?;
        say(if text.is_empty() { "no operands\n".to_owned() } else { text })
    }

    pub(super) fn globals(&self) -> Done {
        self.must_be_stopped()?;
        let text = self.inspect(|stopped, level| {
            let mut scope = stopped.frame(level)?;
            let mut text = String::new();
            for index in 0.. {
                let Ok(value) = scope.global(index) else { break };
                let name = match scope.code().global_name(index) {
                    Some(name) => format!("$global{index} ({name})"),
                    None => format!("$global{index}"),
                };
                let _ = writeln!(text, "{name} = {}", show::value(&value));
            }
            Ok(text)
        })?;
        say(if text.is_empty() { "no globals\n".to_owned() } else { text })
    }
}

/// The index of the memory that precedes an address, as in `1:0x10`, otherwise 0; and the address.
fn of_memory(text: &str) -> Result<(u32, &str), String> {
    match text.split_once(':') {
        Some((memory, address)) => {
            let memory = memory.trim();
            let memory = memory.parse().map_err(|_| format!("`{memory}` is no index of a memory"))?;
            Ok((memory, address))
        }
        None => Ok((0, text)),
    }
}
