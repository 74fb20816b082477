//! The destination of a report: standard error or a file.
//!
//! Without a file, it goes to the standard error stream that the process had at its start; files
//! are written as the profiler writes them ([`profiler::output`]). Streams, whose reader may block
//! a write for any time, are written when no lock is held: a fork does not wait for them
//! ([`Unwritten`]).

use profiler::output::{Identity, Stream, Written, write_text};
use profiler::session;
use wasm_jit_whamm::lang::ScriptReport;

use crate::observer::Observer;
use crate::report::{Name, Names, Report};
use crate::running::{Origin, Running};

/// What is to be written after the observer's lock was released.
#[derive(Default)]
pub(crate) struct Unwritten {
    /// The stream of the report, and the report.
    report: Option<(Stream, String)>,
    /// For standard error.
    text: String,
}

impl Unwritten {
    /// Adds a line for the user.
    pub(crate) fn say(&mut self, line: &str) {
        self.text += &format!("fastinst: {line}\n");
    }

    /// Writes everything. Blocks while a reader does not read.
    pub(crate) fn write(mut self) {
        if let Some((stream, report)) = self.report.take()
            && let Err(error) = stream.write()
        {
            self.say(&error.to_string());
            self.text += &report;
        }
        session::print(&self.text);
    }
}

/// Writes the report of the options' script.
pub(crate) fn write(observer: &mut Observer, text: String) -> Unwritten {
    let mut unwritten = Unwritten::default();
    let Some(template) = observer.options.output.clone() else {
        unwritten.text = text;
        return unwritten;
    };
    // The first process of the run gets the name that the user has chosen, no matter when it ends.
    let is_first = observer.identity.pid == observer.options.run.pid;
    let is_fork_child = observer.identity.is_fork_child || !is_first;
    let identity = Identity { is_fork_child, ..observer.identity.clone() };
    match write_text(&text, &template, &identity, observer.written.as_ref()) {
        Ok(Written::File(file) | Written::Apart(file, _)) => observer.written = Some(file),
        Ok(Written::Stream(stream)) => unwritten.report = Some((stream, text)),
        Err(error) => {
            unwritten.say(&error.to_string());
            unwritten.text += &text;
        }
    }
    unwritten
}

/// The report of a script with these values, if they are known.
pub(crate) fn report(observer: &Observer, script: &Running, values: Option<&ScriptReport>) -> Report {
    let functions = &observer.functions;
    let objects: Vec<_> = functions.iter().map(|function| function.object.to_string_lossy()).collect();
    let name = |number: u32| match functions.get(number as usize) {
        Some(function) => Name { function: &function.name, object: &objects[number as usize] },
        None => Name { function: "", object: "" },
    };
    let stack = |number: u32| {
        let stacks = script.stacks.as_ref();
        stacks.map_or(String::new(), |stacks| stacks.folded(number, &|function| name(function).function))
    };
    let mut report = Report::new(values, &Names { of_function: &name, of_stack: &stack });
    report.script = script.name.clone();
    report.executable = observer.identity.executable.display().to_string();
    report.pid = observer.identity.pid;
    report.notes = notes(observer, script);
    report
}

/// Notes on events that are missing in the values, and on a failure of the script.
fn notes(observer: &Observer, script: &Running) -> Vec<String> {
    let mut notes = Vec::new();
    let missed = observer.missed_by(script);
    let names = |numbers: &mut dyn Iterator<Item = &u32>| {
        let names: Vec<_> =
            numbers.map(|number| observer.functions[*number as usize].name.as_str()).collect();
        some_of(&names)
    };
    if let Some(reason) = &script.failure {
        notes.push(format!("the script has failed, and has observed nothing since: {reason}"));
    }
    if let Some(periods) = &script.periods {
        notes.push(match periods.count {
            0 => "the script was off all the time: SIGUSR2 switches it on".to_owned(),
            count => format!(
                "the script was switched on {count} times by SIGUSR2, and was on for {:.3} s in all",
                periods.duration().as_secs_f64()
            ),
        });
    }
    if missed.lost > 0 {
        notes.push(format!("{} events are missing: there was no room for them", missed.lost));
    }
    let unpaired: u64 = script.unpaired.values().sum();
    if unpaired > 0 {
        let why = match (&script.origin, &script.periods) {
            (Origin::Options { .. }, None) => "without a beginning",
            _ => "without a beginning, as those of calls that were made before,",
        };
        let (ends, were) = if unpaired == 1 { ("end of a call", "was") } else { ("ends of calls", "were") };
        notes.push(format!(
            "{unpaired} {ends} {why} {were} not given to rules with `duration`, `depth`, `stack`, arguments or frame variables: {}",
            names(&mut script.unpaired.keys())
        ));
    }
    let without_exit: u64 = script.without_exit.values().sum();
    if without_exit > 0 {
        notes.push(format!(
            "{without_exit} calls have ended without an exit, for example by an exception or `longjmp`, and rules for exits did not get them: {}",
            names(&mut script.without_exit.keys())
        ));
    }
    for (object, reason) in &script.unknown {
        notes.push(format!(
            "rules that ask for arguments or results do not match functions in {object}: {reason}"
        ));
    }
    for (wanted, misfits) in script.misfits.iter().filter(|(_, misfits)| !misfits.is_found) {
        let others = match misfits.count - misfits.reasons.len() as u64 {
            0 => String::new(),
            others => format!("; and {others} more functions do not have it"),
        };
        notes.push(format!(
            "rules that ask for `{wanted}: {}` match no function: {}{others}",
            wanted.ty,
            misfits.reasons.join("; ")
        ));
    }
    for ((function, number), events) in &script.without_value {
        let named = &observer.functions[*function as usize];
        notes.push(format!(
            "{events} events of {} were not given to rules that ask for `{}`: {}",
            named.name,
            named.values[*number as usize].name,
            observer.reason_without(*function, *number)
        ));
    }
    let early: Vec<_> = missed.early.iter().filter(|(number, _)| script.matches(**number)).collect();
    if !early.is_empty() {
        let calls: u64 = early.iter().map(|(_, calls)| **calls).sum();
        notes.push(format!(
            "{calls} calls are missing, which were made before the probes were ready: {}",
            names(&mut early.iter().map(|(number, _)| *number))
        ));
    }
    if missed.unassigned > 0 {
        notes.push(format!(
            "{} calls, of functions that are not known, were made before the probes were ready",
            missed.unassigned
        ));
    }
    if !missed.interrupted.is_empty() {
        notes.push(format!(
            "an unknown number of calls is missing, which were made before the probes were ready: {}",
            names(&mut missed.interrupted.keys())
        ));
    }
    if missed.unassigned_interrupted > 0 {
        notes.push(
            "an unknown number of calls, of functions that are not known, were made before the probes were ready"
                .to_owned(),
        );
    }
    if script.ends > 1 {
        notes.push(format!(
            "the rules of `native:end` were executed {} times, because the program has tried to exec",
            script.ends
        ));
    }
    notes.extend(observer.merged_for(script).iter().map(ToString::to_string));
    let refused = observer.refused_to(script);
    if refused > 0 {
        notes.push(format!("{refused} probes could not be switched on"));
    }
    if script.matched() == 0 {
        notes.push(match observer.functions.len() {
            0 => "no function of this process is compiled with -finstrument-functions".to_owned(),
            count => format!("the rules match none of the {count} instrumented functions"),
        });
    }
    notes
}

/// The first few names, as a text.
fn some_of(names: &[&str]) -> String {
    const SHOWN: usize = 5;
    let shown = names.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN { format!("{shown}, and {} more", names.len() - SHOWN) } else { shown }
}
