//! Commands about breakpoints and watchpoints.

use std::fmt::Write;

use wasm_jit_debug::Expression;

use super::{Done, PLACES, Session, message, say};
use crate::debug::show;

/// Numbers of breakpoints.
fn numbers(text: &str) -> Result<Vec<u32>, String> {
    let number = |word: &str| word.parse().map_err(|_| format!("`{word}` is no number of a breakpoint"));
    text.split_whitespace().map(number).collect()
}

/// The text before ` if `, and the condition after it.
fn with_condition(arguments: &str) -> Result<(&str, Option<Expression>), String> {
    Ok(match arguments.split_once(" if ") {
        Some((what, condition)) => (what.trim(), Some(Expression::parse(condition).map_err(message)?)),
        None => (arguments, None),
    })
}

impl Session {
    pub(super) fn add_breakpoint(&mut self, arguments: &str, once: bool) -> Done {
        let (place, condition) = with_condition(arguments)?;
        let number = match (place, &self.stop) {
            ("", None) => return Err(format!("break PLACE: {PLACES}")),
            ("", Some(stop)) => {
                let code = self.debugger.code();
                let text = format!("*{:#x}", code.module_offset(stop.location));
                self.debugger.add_breakpoint_at(&text, vec![stop.location], condition, once)
            }
            _ => self.debugger.add_breakpoint(place, condition, once),
        };
        let number = number.map_err(message)?;
        let all = self.debugger.breakpoints();
        let added = all.iter().find(|breakpoint| breakpoint.number == number);
        let locations = added.map(|added| added.locations.as_slice()).unwrap_or_default();
        let code = self.debugger.code();
        let places: Vec<String> = locations.iter().map(|location| show::place(code, *location)).collect();
        let kind = if once { "Temporary breakpoint" } else { "Breakpoint" };
        say(format!("{kind} {number}: {}\n", places.join(", ")))
    }

    pub(super) fn watch(&mut self, arguments: &str) -> Done {
        let (what, condition) = with_condition(arguments)?;
        let expression = Expression::parse(what).map_err(message)?;
        let text = expression.text().to_owned();
        let number = self.debugger.add_watch(expression, condition, self.level).map_err(message)?;
        let unwatched = show::unwatched(self.debugger.code(), self.debugger.unwatched().as_ref());
        say(format!("Watchpoint {number}: {text}\n{unwatched}"))
    }

    fn chosen(&self, arguments: &str) -> Result<Vec<u32>, String> {
        let chosen = numbers(arguments)?;
        let all = || self.debugger.breakpoints().iter().map(|breakpoint| breakpoint.number).collect();
        Ok(if chosen.is_empty() { all() } else { chosen })
    }

    pub(super) fn delete(&mut self, arguments: &str) -> Done {
        let chosen = self.chosen(arguments)?;
        chosen.iter().for_each(|number| _ = self.problems.remove(number));
        chosen.into_iter().try_for_each(|number| self.debugger.delete(number)).map_err(message)?;
        say("")
    }

    pub(super) fn enable(&mut self, arguments: &str, is_enabled: bool) -> Done {
        let chosen = self.chosen(arguments)?;
        chosen
            .into_iter()
            .try_for_each(|number| self.debugger.enable(number, is_enabled))
            .map_err(message)?;
        say("")
    }

    pub(super) fn condition(&mut self, arguments: &str) -> Done {
        let (number, condition) = arguments.split_once(' ').unwrap_or((arguments, ""));
        let number = number.parse().map_err(|_| format!("`{number}` is no number of a breakpoint"))?;
        let condition = match condition.trim() {
            "" => None,
            text => Some(Expression::parse(text).map_err(message)?),
        };
        self.debugger.set_condition(number, condition).map_err(message)?;
        self.problems.remove(&number);
        say("")
    }

    pub(super) fn ignore(&mut self, arguments: &str) -> Done {
        let numbers = numbers(arguments)?;
        let [number, count] = numbers[..] else { return Err("ignore NUMBER COUNT".to_owned()) };
        self.debugger.ignore(number, count.into()).map_err(message)?;
        say("")
    }

    pub(super) fn list_breakpoints(&self) -> String {
        let all = self.debugger.breakpoints();
        if all.is_empty() {
            return "no breakpoints\n".to_owned();
        }
        let mut text = String::new();
        let code = self.debugger.code();
        for breakpoint in all {
            let kind = match (breakpoint.is_watch, breakpoint.once) {
                (true, _) => "watch",
                (false, true) => "tbreak",
                (false, false) => "break",
            };
            let state = if breakpoint.is_enabled { "" } else { ", disabled" };
            let _ = writeln!(
                text,
                "{:<4}{kind:8}{}{state}, {} hits",
                breakpoint.number, breakpoint.text, breakpoint.hits
            );
            for location in &breakpoint.locations {
                let _ = writeln!(text, "            {}", show::place(code, *location));
            }
            if let Some(condition) = &breakpoint.condition {
                let _ = writeln!(text, "            if {}", condition.text());
            }
            if breakpoint.ignore > 0 {
                let _ = writeln!(text, "            ignores the next {}", breakpoint.ignore);
            }
        }
        text
    }
}
