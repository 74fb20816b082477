//! The commands of the debugger: their table, the session, and the commands that run the program.

mod breakpoints;
mod complete;
mod places;
mod values;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use wasm_jit_debug::{Debugger, Error, Event, Level, Resume, Reverse, Stop, Stopped};

pub(super) use complete::word_start;

use super::memory::Format;
use super::program::Launcher;
use super::show::{self, Sources};

/// Maximum time until it is noticed that the user of a session is gone.
const POLL: Duration = Duration::from_millis(50);

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

/// A text for the user, or the description of an error.
type Done = Result<Answer, String>;

#[derive(Debug)]
pub(super) enum Answer {
    Text(String),
    Quit,
}

const PLACES: &str = "PLACE is FUNCTION (all copies of it that were inlined, too), #INDEX of a function, \
                      FUNCTION:+OFFSET, *OFFSET (as backtraces print it) or FILE:LINE";

/// The arguments of `info`.
const INFO: &[&str] = &["breakpoints", "locals", "stack", "globals", "functions", "frame", "threads"];

macro_rules! command {
    ($name:literal, [$($also:literal),*], $usage:literal, $help:expr, $run:expr, $repeats:literal) => {
        Command { name: $name, also: &[$($also),*], usage: $usage, help: $help, run: $run, repeats: $repeats }
    };
}

/// All commands. An abbreviation stands for the first command that begins with it.
const COMMANDS: &[Command] = &[
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
    command!(
        "watch",
        ["w"],
        "EXPRESSION [if CONDITION]",
        "stops when its value has changed; slow",
        Session::watch,
        false
    ),
    command!(
        "catch",
        [],
        "[on|off]",
        "whether traps, other errors and uncaught exceptions stop the program: initially on",
        Session::catch,
        false
    ),
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
    command!(
        "ignore",
        [],
        "NUMBER COUNT",
        "ignores the next hits of a breakpoint or watchpoint",
        Session::ignore,
        false
    ),
    command!(
        "continue",
        ["c"],
        "[COUNT]",
        "continues; with a count, ignores the next hits of the breakpoint or watchpoint",
        Session::resume,
        true
    ),
    command!(
        "step",
        ["s"],
        "[COUNT]",
        "to another source line, also in callees, inlined ones too",
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
        "until the selected frame has returned; shows its results, unless the call is inlined",
        Session::finish,
        false
    ),
    command!(
        "reverse-continue",
        ["rc"],
        "[COUNT]",
        "goes back to the last breakpoint or change of a watched value; only with --replay, as the others",
        |s, a| s.reverse(a, Reverse::Continue),
        true
    ),
    command!(
        "reverse-step",
        ["rs"],
        "[COUNT]",
        "back to the beginning of the last source line, also in callees",
        |s, a| s.reverse(a, Reverse::Step),
        true
    ),
    command!(
        "reverse-next",
        ["rn"],
        "[COUNT]",
        "back to the beginning of the last source line, over calls",
        |s, a| s.reverse(a, Reverse::Next),
        true
    ),
    command!(
        "reverse-stepi",
        ["rsi"],
        "[COUNT]",
        "back by one instruction, also in callees",
        |s, a| s.reverse(a, Reverse::StepInstruction),
        true
    ),
    command!(
        "reverse-nexti",
        ["rni"],
        "[COUNT]",
        "back by one instruction, over calls",
        |s, a| s.reverse(a, Reverse::NextInstruction),
        true
    ),
    command!(
        "reverse-finish",
        [],
        "",
        "back to the call of the selected frame's function",
        Session::reverse_finish,
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
        "shows memory: x/8xb 1024, or of memory 1: x/8xb 1:1024; formats x d u f c s, sizes b h w g",
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
        "breakpoints|locals|stack|globals|functions|frame|threads",
        "shows what there is; `info locals all`: those of WebAssembly besides the variables of the source",
        Session::info,
        false
    ),
    command!("list", ["l"], "[PLACE|FIRST,LAST]", "shows source lines", Session::list, true),
    command!("disassemble", ["disas"], "[FUNCTION]", "shows instructions", Session::disassemble, false),
    command!("kill", ["k"], "", "ends the program", Session::kill, false),
    command!("help", ["h"], "[COMMAND]", "this", Session::help, false),
    command!("complete", [], "LINE", "lists what TAB completes a line to", Session::complete, false),
    command!(
        "detach",
        [],
        "",
        "ends the debugger, not the program that it has attached to",
        Session::detach,
        false
    ),
    command!(
        "quit",
        ["q", "exit"],
        "",
        "ends the debugger and the program, unless it has attached to it",
        |_, _| Ok(Answer::Quit),
        false
    ),
];

const EXPRESSIONS: &str = "\
Values: 1, 0xff, 1.5, 'a'; $local0, $stack0 (an operand, counted from the top), $global0;
  $pc, $depth, $function; variables of the source; $name of a local or global in the name section;
  memory by type and address: i32[1024], also i64 f32 f64 u8 s8 u16 s16 u32; memory 1: i32[1:1024]
Operators as in C: - ! ~ * / % + << >> < <= > >= == != & ^ | && ||, a ? b : c, sizeof(type),
  sizeof(expression), and for variables of the source v.member, p->member, *p, a[1], &v, p + 1, p - q,
  (type) x, (type *) x; static variables have also longer names: ns::name, function::name
";

/// A session: the program and the selected frame.
#[derive(Debug)]
pub(super) struct Session {
    debugger: Arc<Debugger>,
    /// `None` if the program was started by something else.
    launcher: Option<Arc<Launcher>>,
    sources: Sources,
    is_running: bool,
    stop: Option<Stop>,
    /// The selected frame, and its number in backtraces.
    level: Level,
    number: usize,
    /// The positions at which the next `list` and the next `x` continue.
    listed: Option<(String, u32)>,
    shown: Option<(Format, u32, u64)>,
    /// The problems of conditions that were reported, by the number of the breakpoint.
    problems: HashMap<u32, String>,
    /// Set when the user of the session is gone, if that may happen.
    is_gone: Option<Arc<AtomicBool>>,
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

impl Session {
    pub(super) fn new(debugger: Arc<Debugger>, launcher: Arc<Launcher>) -> Self {
        Self::of(debugger, Some(launcher))
    }

    /// Begins a session with a running program, which it stops. Its commands no longer wait once
    /// `is_gone` is set.
    pub(super) fn attach(debugger: Arc<Debugger>, is_gone: Arc<AtomicBool>) -> (Self, Done) {
        let mut session = Self::of(debugger, None);
        session.is_gone = Some(is_gone);
        session.is_running = true;
        // Another session may have left breakpoints.
        session.debugger.release();
        session.debugger.catch_traps(true);
        session.debugger.pause();
        let stopped = session.wait();
        (session, stopped)
    }

    /// Whether the program has not ended.
    pub(super) fn is_running(&self) -> bool {
        self.is_running
    }

    fn of(debugger: Arc<Debugger>, launcher: Option<Arc<Launcher>>) -> Self {
        debugger.catch_traps(true);
        Self {
            debugger,
            launcher,
            sources: Sources::default(),
            is_running: false,
            stop: None,
            level: Level::default(),
            number: 0,
            listed: None,
            shown: None,
            problems: HashMap::new(),
            is_gone: None,
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

    /// As [`Session::execute`] for `complete`, whose line may end with a space.
    pub(super) fn execute_or_complete(&mut self, line: &str) -> Done {
        match line.strip_prefix("complete ") {
            Some(line) => self.complete(line),
            None => self.execute(line),
        }
    }

    /// Runs a closure on the thread that is stopped, with the selected frame.
    fn inspect<R: Send + 'static>(
        &self,
        look: impl FnOnce(&mut Stopped<'_, '_>, Level) -> Result<R, Error> + Send + 'static,
    ) -> Result<R, String> {
        let level = self.level;
        self.debugger.inspect(move |stopped| look(stopped, level)).and_then(|found| found).map_err(message)
    }

    fn launcher(&self) -> Result<&Launcher, String> {
        self.launcher.as_deref().ok_or_else(|| "the program was started by something else".to_owned())
    }

    fn start(&mut self, _: &str) -> Done {
        if self.is_running {
            return Err("the program has started".to_owned());
        }
        let first =
            self.launcher()?.first_function().ok_or("the first function is unknown: use break and run")?;
        self.debugger.add_breakpoint(&first, None, true).map_err(message)?;
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
        (self.level, self.number) = (Level::default(), 0);
        self.listed = None;
        match self.event()? {
            Event::Stopped(stop) => {
                let text = self.stopped(&stop);
                self.stop = Some(stop);
                say(text)
            }
            Event::Ended(outcome) => {
                self.is_running = false;
                say(show::outcome(self.debugger.code(), &outcome))
            }
            _ => say(""),
        }
    }

    /// Waits for an event, as long as the user does.
    fn event(&self) -> Result<Event, String> {
        let Some(is_gone) = &self.is_gone else { return Ok(self.debugger.wait()) };
        loop {
            match self.debugger.wait_for(POLL) {
                Some(event) => return Ok(event),
                None if is_gone.load(Ordering::Acquire) => return Err("the user is gone".to_owned()),
                None => {}
            }
        }
    }

    fn stopped(&mut self, stop: &Stop) -> String {
        let code = self.debugger.code();
        let unwatched = show::unwatched(code, stop.unwatched.as_ref());
        let reasons = unwatched + &show::reasons(stop, &mut self.problems);
        let next = show::next(code, stop.location, 0, &mut self.sources);
        format!("{reasons}{}\n{next}", show::place(code, stop.location))
    }

    fn catch(&mut self, arguments: &str) -> Done {
        match arguments {
            "" => say(match self.debugger.catches_traps() {
                true => "traps, other errors and uncaught exceptions stop the program\n",
                false => "traps, other errors and uncaught exceptions do not stop the program\n",
            }),
            "on" | "off" => {
                self.debugger.catch_traps(arguments == "on");
                say("")
            }
            _ => Err("catch [on|off]".to_owned()),
        }
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
            Reason::Breakpoint { number, once: false, .. } | Reason::Watch { number, .. } => Some(*number),
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
        if self.is_inlined()? {
            return self.go(Resume::FinishInlined { level });
        }
        if level.frame >= depth {
            return Err("the frame is the outermost one: continue".to_owned());
        }
        self.go(Resume::Finish { level: level.frame })
    }

    /// Whether the selected frame is that of an inlined call.
    fn is_inlined(&self) -> Result<bool, String> {
        self.inspect(|stopped, level| {
            let next = stopped.levels().into_iter().skip_while(|other| *other != level).nth(1);
            Ok(next.is_some_and(|next| next.frame == level.frame))
        })
    }

    fn reverse(&mut self, arguments: &str, how: Reverse) -> Done {
        let times = count(arguments)?;
        self.debugger.reverse(how, times).map_err(message)?;
        // Even if the program had ended.
        self.is_running = true;
        self.wait()
    }

    fn reverse_finish(&mut self, _: &str) -> Done {
        let level = self.level.frame;
        let depth = self.must_be_stopped()?.depth;
        if self.is_inlined()? {
            return Err("the call of the frame is inlined: select its caller, or reverse-step".to_owned());
        }
        if level >= depth {
            return Err("the frame is the outermost one: reverse-continue".to_owned());
        }
        self.reverse("", Reverse::Finish { level })
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

    fn detach(&mut self, _: &str) -> Done {
        match self.launcher {
            Some(_) => Err("the debugger has started the program itself: kill ends it".to_owned()),
            None => Ok(Answer::Quit),
        }
    }

    fn info(&mut self, arguments: &str) -> Done {
        let (what, rest) = arguments.split_once(' ').unwrap_or((arguments, ""));
        let is = |name: &str| !what.is_empty() && name.starts_with(what);
        if is("breakpoints") || what == "watchpoints" {
            say(self.list_breakpoints())
        } else if is("locals") {
            self.locals(rest.trim())
        } else if is("stack") || is("operands") {
            self.operands()
        } else if is("globals") {
            self.globals()
        } else if is("functions") {
            say(self.functions(rest.trim()))
        } else if is("frame") {
            self.frame("")
        } else if is("threads") {
            say(self.threads())
        } else {
            Err(format!("info {}", INFO.join("|")))
        }
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
