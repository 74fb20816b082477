//! The commands of the debugger.

use std::fmt::Write;
use std::sync::Arc;

use wasm_jit::probes::Location;
use wasm_jit_debug::{Code, Debugger, Error, Event, Expression, Resume, Stop, Stopped, Value};

use super::memory::Format;
use super::program::Launcher;
use super::show::{self, Sources};

/// A command: its name, other names, and its help.
#[derive(Debug)]
pub(super) struct Command {
    pub name: &'static str,
    also: &'static [&'static str],
    usage: &'static str,
    help: &'static str,
    run: fn(&mut Session, &str) -> Done,
    /// Whether an empty line repeats it.
    repeats: bool,
}

/// A text for the user, or what is wrong.
type Done = Result<Answer, String>;

#[derive(Debug)]
pub(super) enum Answer {
    Text(String),
    Quit,
}

const PLACES: &str = "PLACE is FUNCTION, FUNCTION:+OFFSET, *OFFSET (as backtraces print it) or FILE:LINE";

macro_rules! command {
    ($name:literal, [$($also:literal),*], $usage:literal, $help:expr, $run:expr, $repeats:literal) => {
        Command { name: $name, also: &[$($also),*], usage: $usage, help: $help, run: $run, repeats: $repeats }
    };
}

/// All commands. An abbreviation means the first one that begins with it.
pub(super) const COMMANDS: &[Command] = &[
    command!("run", ["r"], "", "starts the program", Session::run, false),
    command!("start", [], "", "starts the program, and stops in its first function", Session::start, false),
    command!("break", ["b"], "PLACE [if EXPRESSION]", PLACES, |s, a| s.add_breakpoint(a, false), false),
    command!(
        "tbreak",
        ["tb"],
        "PLACE [if EXPRESSION]",
        "a breakpoint for one stop",
        |s, a| s.add_breakpoint(a, true),
        false
    ),
    command!("watch", ["w"], "EXPRESSION", "stops when its value has changed; slow", Session::watch, false),
    command!(
        "delete",
        ["d"],
        "[NUMBER...]",
        "deletes breakpoints and watchpoints; without a number, all",
        Session::delete,
        false
    ),
    command!(
        "enable",
        [],
        "[NUMBER...]",
        "switches breakpoints and watchpoints on",
        |s, a| s.enable(a, true),
        false
    ),
    command!(
        "disable",
        [],
        "[NUMBER...]",
        "switches breakpoints and watchpoints off",
        |s, a| s.enable(a, false),
        false
    ),
    command!(
        "condition",
        [],
        "NUMBER [EXPRESSION]",
        "changes the condition of a breakpoint",
        Session::condition,
        false
    ),
    command!("ignore", [], "NUMBER COUNT", "ignores the next hits of a breakpoint", Session::ignore, false),
    command!(
        "continue",
        ["c"],
        "[COUNT]",
        "continues; with a count, ignores the next hits of the breakpoint",
        Session::resume,
        true
    ),
    command!(
        "step",
        ["s"],
        "[COUNT]",
        "to another source line, also in callees",
        |s, a| s.step(a, Resume::Step),
        true
    ),
    command!(
        "next",
        ["n"],
        "[COUNT]",
        "to another source line, over calls",
        |s, a| s.step(a, Resume::Next),
        true
    ),
    command!(
        "stepi",
        ["si"],
        "[COUNT]",
        "one instruction, also in callees",
        |s, a| s.step(a, Resume::StepInstruction),
        true
    ),
    command!(
        "nexti",
        ["ni"],
        "[COUNT]",
        "one instruction, over calls",
        |s, a| s.step(a, Resume::NextInstruction),
        true
    ),
    command!(
        "finish",
        ["out"],
        "",
        "until the selected frame has returned; shows its results",
        Session::finish,
        false
    ),
    command!("until", ["advance"], "PLACE", "continues to a place", Session::until, false),
    command!(
        "print",
        ["p", "inspect"],
        "[/x] EXPRESSION",
        "shows a value; `help expressions`",
        Session::print,
        false
    ),
    command!(
        "set",
        [],
        "PLACE = EXPRESSION",
        "changes a local, operand, global, variable, or memory: set $local0 = 5",
        Session::set,
        false
    ),
    command!(
        "x",
        [],
        "[/COUNT FORMAT SIZE] ADDRESS",
        "shows memory: x/8xb 1024; formats x d u f c s, sizes b h w g",
        Session::memory,
        true
    ),
    command!("backtrace", ["bt", "where"], "[COUNT]", "shows the frames", Session::backtrace, false),
    command!("frame", ["f"], "[LEVEL]", "selects a frame, shows it", Session::frame, false),
    command!("up", [], "[COUNT]", "selects the caller", |s, a| s.move_frame(a, true), true),
    command!("down", [], "[COUNT]", "selects the callee", |s, a| s.move_frame(a, false), true),
    command!(
        "info",
        ["i"],
        "breakpoints|locals|stack|globals|functions|frame",
        "shows what there is",
        Session::info,
        false
    ),
    command!("list", ["l"], "[PLACE]", "shows source lines", Session::list, true),
    command!("disassemble", ["disas"], "[FUNCTION]", "shows instructions", Session::disassemble, false),
    command!("kill", ["k"], "", "ends the program", Session::kill, false),
    command!("help", ["h"], "[COMMAND]", "this", Session::help, false),
    command!("quit", ["q", "exit"], "", "ends the program and the debugger", |_, _| Ok(Answer::Quit), false),
];

const EXPRESSIONS: &str = "\
Values: 1, 0xff, 1.5, 'a'; $local0, $stack0 (an operand, counted from the top), $global0;
  $pc, $depth, $function; variables of the source; $name of a local or global in the name section;
  memory by type and address: i32[1024], also i64 f32 f64 u8 s8 u16 s16 u32
Operators as in C: - ! ~ * / % + << >> < <= > >= == != & ^ | && ||, and for variables of the source
  v.member, p->member, *p, a[1], &v
";

/// A session: the program, and what is selected.
#[derive(Debug)]
pub(super) struct Session {
    debugger: Arc<Debugger>,
    /// `None` if the program was started by something else.
    launcher: Option<Launcher>,
    sources: Sources,
    is_running: bool,
    stop: Option<Stop>,
    /// The selected frame.
    level: usize,
    /// Where the next `list` continues, and the next `x`.
    listed: Option<(String, u32)>,
    shown: Option<(Format, u64)>,
}

fn say(text: impl Into<String>) -> Done {
    Ok(Answer::Text(text.into()))
}

fn message(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// A count, 1 if there is none.
fn count(text: &str) -> Result<u64, String> {
    match text.trim() {
        "" => Ok(1),
        text => text.parse().map_err(|_| format!("`{text}` is no count")),
    }
}

/// Numbers of breakpoints.
fn numbers(text: &str) -> Result<Vec<u32>, String> {
    let number = |word: &str| word.parse().map_err(|_| format!("`{word}` is no number of a breakpoint"));
    text.split_whitespace().map(number).collect()
}

impl Session {
    pub(super) fn new(debugger: Arc<Debugger>, launcher: Launcher) -> Self {
        Self::of(debugger, Some(launcher))
    }

    /// A session with a program that runs: stops it.
    pub(super) fn attach(debugger: Arc<Debugger>) -> (Self, Done) {
        let mut session = Self::of(debugger, None);
        session.is_running = true;
        // What another session has left behind.
        session.detach();
        session.debugger.pause();
        let stopped = session.wait();
        (session, stopped)
    }

    /// Ends a session with a program that goes on: deletes its breakpoints.
    pub(super) fn detach(&self) {
        for breakpoint in self.debugger.breakpoints() {
            let _ = self.debugger.delete(breakpoint.number);
        }
        if self.debugger.is_stopped() {
            let _ = self.debugger.resume(Resume::Continue);
        }
    }

    /// Whether the program has not ended.
    pub(super) fn is_running(&self) -> bool {
        self.is_running
    }

    fn of(debugger: Arc<Debugger>, launcher: Option<Launcher>) -> Self {
        Self {
            debugger,
            launcher,
            sources: Sources::default(),
            is_running: false,
            stop: None,
            level: 0,
            listed: None,
            shown: None,
        }
    }

    /// Executes a line.
    pub(super) fn execute(&mut self, line: &str) -> Done {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            return say("");
        }
        let (command, arguments) = find(line)?;
        (command.run)(self, arguments.trim())
    }

    /// Names to complete.
    pub(super) fn function_names(&self) -> Vec<String> {
        let module = self.debugger.code().module();
        let symbols = module.symbols();
        let own = module.functions().filter(|function| function.body().is_some());
        own.map(|function| symbols.function(function.index())).filter(|name| !name.contains(' ')).collect()
    }

    /// Runs a closure on the thread that is stopped, with the number of the selected frame.
    fn inspect<R: Send + 'static>(
        &self,
        look: impl FnOnce(&mut Stopped<'_, '_>, usize) -> Result<R, Error> + Send + 'static,
    ) -> Result<R, String> {
        let level = self.level;
        self.debugger.inspect(move |stopped| look(stopped, level)).and_then(|found| found).map_err(message)
    }

    fn launcher(&self) -> Result<&Launcher, String> {
        self.launcher.as_ref().ok_or_else(|| "the program was started by something else".to_owned())
    }

    fn start(&mut self, _: &str) -> Done {
        if self.is_running {
            return Err("the program has started".to_owned());
        }
        let first =
            self.launcher()?.first_function().ok_or("the first function is unknown: use break and run")?;
        self.debugger.add_breakpoint(first, None, true).map_err(message)?;
        self.run("")
    }

    fn run(&mut self, _: &str) -> Done {
        if self.is_running {
            return Err("the program has started: kill ends it".to_owned());
        }
        self.launcher()?.start().map_err(|failure| failure.message)?;
        self.is_running = true;
        self.wait()
    }

    /// Waits until the program stops or ends.
    fn wait(&mut self) -> Done {
        self.stop = None;
        self.level = 0;
        self.listed = None;
        match self.debugger.wait() {
            Event::Stopped(stop) => {
                let text = self.stopped(&stop);
                self.stop = Some(stop);
                say(text)
            }
            Event::Ended(outcome) => {
                self.is_running = false;
                say(show::outcome(&outcome))
            }
            _ => say(""),
        }
    }

    fn stopped(&mut self, stop: &Stop) -> String {
        let code = self.debugger.code();
        let reasons = show::reasons(stop);
        let next = show::next(code, stop.location, &mut self.sources);
        format!("{reasons}{}\n{next}", show::place(code, stop.location))
    }

    fn must_be_stopped(&self) -> Result<&Stop, String> {
        match &self.stop {
            Some(stop) => Ok(stop),
            None if self.is_running => Err("the program runs".to_owned()),
            None => Err("the program does not run: start it by run or start".to_owned()),
        }
    }

    fn go(&mut self, resume: Resume) -> Done {
        self.must_be_stopped()?;
        self.debugger.resume(resume).map_err(message)?;
        self.wait()
    }

    fn resume(&mut self, arguments: &str) -> Done {
        use wasm_jit_debug::Reason;
        let times = count(arguments)?;
        let stop = self.must_be_stopped()?;
        let numbers = stop.reasons.iter().filter_map(|reason| match reason {
            Reason::Breakpoint { number, once: false, .. } => Some(*number),
            _ => None,
        });
        if times > 1 {
            for number in numbers.collect::<Vec<_>>() {
                self.debugger.ignore(number, times - 1).map_err(message)?;
            }
        }
        self.go(Resume::Continue)
    }

    fn step(&mut self, arguments: &str, resume: Resume) -> Done {
        use wasm_jit_debug::Reason;
        let mut text = String::new();
        for _ in 0..count(arguments)? {
            let Answer::Text(shown) = self.go(resume)? else { break };
            text = shown;
            // Something else has stopped it.
            let is_step = |stop: &Stop| stop.reasons.iter().any(|reason| matches!(reason, Reason::Step));
            if !self.stop.as_ref().is_some_and(is_step) {
                break;
            }
        }
        say(text)
    }

    fn finish(&mut self, _: &str) -> Done {
        let level = self.level;
        let depth = self.must_be_stopped()?.depth;
        if level >= depth {
            return Err("the frame is the outermost one: continue".to_owned());
        }
        self.go(Resume::Finish { level })
    }

    fn until(&mut self, arguments: &str) -> Done {
        self.must_be_stopped()?;
        let number = self.debugger.add_breakpoint(arguments, None, true).map_err(message)?;
        let done = self.go(Resume::Continue);
        // If something else has stopped it.
        let _ = self.debugger.delete(number);
        done
    }

    fn kill(&mut self, _: &str) -> Done {
        if !self.is_running {
            return Err("the program does not run".to_owned());
        }
        self.debugger.kill();
        self.wait()
    }

    fn add_breakpoint(&mut self, arguments: &str, once: bool) -> Done {
        let (place, condition) = match arguments.split_once(" if ") {
            Some((place, condition)) => (place.trim(), Some(Expression::parse(condition).map_err(message)?)),
            None => (arguments, None),
        };
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

    fn watch(&mut self, arguments: &str) -> Done {
        let expression = Expression::parse(arguments).map_err(message)?;
        let text = expression.text().to_owned();
        let number = self.debugger.add_watch(expression, self.level).map_err(message)?;
        say(format!("Watchpoint {number}: {text}\n"))
    }

    fn chosen(&self, arguments: &str) -> Result<Vec<u32>, String> {
        let chosen = numbers(arguments)?;
        let all = || self.debugger.breakpoints().iter().map(|breakpoint| breakpoint.number).collect();
        Ok(if chosen.is_empty() { all() } else { chosen })
    }

    fn delete(&mut self, arguments: &str) -> Done {
        let chosen = self.chosen(arguments)?;
        chosen.into_iter().try_for_each(|number| self.debugger.delete(number)).map_err(message)?;
        say("")
    }

    fn enable(&mut self, arguments: &str, is_enabled: bool) -> Done {
        let chosen = self.chosen(arguments)?;
        chosen
            .into_iter()
            .try_for_each(|number| self.debugger.enable(number, is_enabled))
            .map_err(message)?;
        say("")
    }

    fn condition(&mut self, arguments: &str) -> Done {
        let (number, condition) = arguments.split_once(' ').unwrap_or((arguments, ""));
        let number = number.parse().map_err(|_| format!("`{number}` is no number of a breakpoint"))?;
        let condition = match condition.trim() {
            "" => None,
            text => Some(Expression::parse(text).map_err(message)?),
        };
        self.debugger.set_condition(number, condition).map_err(message)?;
        say("")
    }

    fn ignore(&mut self, arguments: &str) -> Done {
        let numbers = numbers(arguments)?;
        let [number, count] = numbers[..] else { return Err("ignore NUMBER COUNT".to_owned()) };
        self.debugger.ignore(number, count.into()).map_err(message)?;
        say("")
    }

    fn print(&mut self, arguments: &str) -> Done {
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
            (Value::F32(bits), true) => format!("{bits:#x}\n"),
            (Value::F64(bits), true) => format!("{bits:#x}\n"),
            _ => format!("{value}\n"),
        })
    }

    fn set(&mut self, arguments: &str) -> Done {
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

    fn memory(&mut self, arguments: &str) -> Done {
        let (format, text) = match arguments.strip_prefix('/') {
            Some(rest) => {
                let (format, text) = rest.split_once(' ').unwrap_or((rest, ""));
                let wrong =
                    || format!("`/{format}` is no format: /8xb, with formats x d u f c s, sizes b h w g");
                (Format::parse(format).ok_or_else(wrong)?, text.trim())
            }
            None => (Format { count: 1, format: 'x', size: 4 }, arguments),
        };
        let (format, expression) = match (text, self.shown) {
            ("", Some((format, next))) => (format, next.to_string()),
            ("", None) => return Err("x ADDRESS".to_owned()),
            _ => (format, text.to_owned()),
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
            format.show(&scope, address)
        })?;
        self.shown = Some((format, next));
        say(text)
    }

    fn backtrace(&mut self, arguments: &str) -> Done {
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

    fn frame(&mut self, arguments: &str) -> Done {
        let level = match arguments {
            "" => self.level,
            text => text.parse().map_err(|_| format!("`{text}` is no frame"))?,
        };
        self.select(level)
    }

    fn move_frame(&mut self, arguments: &str, is_up: bool) -> Done {
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

    fn info(&mut self, arguments: &str) -> Done {
        let (what, rest) = arguments.split_once(' ').unwrap_or((arguments, ""));
        let is = |name: &str| !what.is_empty() && name.starts_with(what);
        if is("breakpoints") || what == "watchpoints" {
            say(self.list_breakpoints())
        } else if is("locals") {
            self.locals()
        } else if is("stack") || is("operands") {
            self.operands()
        } else if is("globals") {
            self.globals()
        } else if is("functions") {
            say(self.functions(rest.trim()))
        } else if is("frame") {
            self.frame("")
        } else {
            Err("info breakpoints|locals|stack|globals|functions|frame".to_owned())
        }
    }

    fn list_breakpoints(&self) -> String {
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

    fn locals(&self) -> Done {
        self.must_be_stopped()?;
        let text = self.inspect(|stopped, level| {
            let mut scope = stopped.frame(level)?;
            let mut text = String::new();
            for (name, value) in scope.variables() {
                let _ = match value {
                    Ok(value) => writeln!(text, "{name} = {value}"),
                    Err(error) => writeln!(text, "{name} = <{error}>"),
                };
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

    fn operands(&self) -> Done {
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

    fn globals(&self) -> Done {
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

    fn functions(&self, filter: &str) -> String {
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

    /// Where the selected frame is.
    fn selected(&self) -> Result<Location, String> {
        self.must_be_stopped()?;
        self.inspect(|stopped, level| Ok(stopped.frame(level)?.location()))
    }

    fn list(&mut self, arguments: &str) -> Done {
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

    fn disassemble(&mut self, arguments: &str) -> Done {
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

    fn help(&mut self, arguments: &str) -> Done {
        let usage = |command: &Command| match command.usage {
            "" => command.name.to_owned(),
            usage => format!("{} {usage}", command.name),
        };
        match arguments {
            "" => {
                let lines =
                    COMMANDS.iter().map(|command| format!("  {:34} {}\n", usage(command), command.help));
                say(lines.collect::<String>()
                    + "\nAn empty line repeats a step, list or x.\n\n"
                    + EXPRESSIONS)
            }
            "expressions" => say(EXPRESSIONS),
            name => {
                let (command, _) = find(name)?;
                let also = match command.also {
                    [] => String::new(),
                    also => format!("\nalso: {}", also.join(", ")),
                };
                say(format!("{}\n  {}{also}\n", usage(command), command.help))
            }
        }
    }
}

/// Whether an empty line repeats this one.
pub(super) fn may_repeat(line: &str) -> bool {
    find(line.trim()).is_ok_and(|(command, _)| command.repeats)
}

/// The command at the start of a line, and the rest.
fn find(line: &str) -> Result<(&'static Command, &str), String> {
    // `x/8xb` and `print/x` have their format at the name.
    let end = line.find(|c: char| c.is_whitespace() || c == '/').unwrap_or(line.len());
    let (name, rest) = line.split_at(end);
    let exact = COMMANDS.iter().find(|command| command.name == name || command.also.contains(&name));
    let found = exact.or_else(|| COMMANDS.iter().find(|command| command.name.starts_with(name)));
    found.map(|found| (found, rest)).ok_or_else(|| format!("there is no command `{name}`: help lists them"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_may_be_abbreviated() {
        #[track_caller]
        fn check(line: &str, expected: Option<(&str, &str)>) {
            assert_eq!(find(line).ok().map(|(command, rest)| (command.name, rest)), expected, "{line}");
        }
        check("b gcd", Some(("break", " gcd")));
        check("bre gcd", Some(("break", " gcd")));
        check("s", Some(("step", "")));
        check("si 3", Some(("stepi", " 3")));
        check("x/8xb 4", Some(("x", "/8xb 4")));
        check("p/x 4", Some(("print", "/x 4")));
        check("dis 1", Some(("disable", " 1")));
        check("out", Some(("finish", "")));
        check("xyz", None);
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<&str> =
            COMMANDS.iter().flat_map(|command| command.also.iter().copied().chain([command.name])).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
