//! Where the report goes.
//!
//! Without a file it goes to the standard error stream of the start; files are written as the
//! profiler writes them ([`profiler::output`]).

use profiler::output::{Identity, write_text};
use profiler::session;
use wasm_jit_whamm::lang::ScriptReport;

use crate::observer::Observer;
use crate::report::{Name, Report};
use crate::ring;

/// Writes the report of these values.
pub(crate) fn write(observer: &mut Observer, values: &ScriptReport) {
    let report = report(observer, values);
    let text = report.print(observer.options.format);
    let Some(template) = observer.options.output.clone() else {
        session::print(&text);
        return;
    };
    // The first process of the run gets the name that the user has chosen, whenever it ends.
    let is_first = observer.identity.pid == observer.options.run.pid;
    let is_fork_child = observer.identity.is_fork_child || !is_first;
    let identity = Identity { is_fork_child, ..observer.identity.clone() };
    match write_text(&text, &template, &identity, observer.written.as_deref()) {
        Ok(path) => observer.written = Some(path),
        Err(error) => {
            session::say(&error.to_string());
            session::print(&text);
        }
    }
}

fn report(observer: &Observer, values: &ScriptReport) -> Report {
    let functions = &observer.functions;
    let objects: Vec<_> = functions.iter().map(|function| function.object.to_string_lossy()).collect();
    let name = |number: u32| match functions.get(number as usize) {
        Some(function) => Name { function: &function.name, object: &objects[number as usize] },
        None => Name { function: "", object: "" },
    };
    let mut report = Report::new(values, &name);
    report.script = observer.options.script.display().to_string();
    report.executable = observer.identity.executable.display().to_string();
    report.pid = observer.identity.pid;
    report.notes = notes(observer);
    report
}

/// What the values do not contain.
fn notes(observer: &Observer) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(reason) = &observer.failure {
        notes.push(format!("the script has failed, and has observed nothing since: {reason}"));
    }
    let lost = ring::lost();
    if lost > 0 {
        notes.push(format!("{lost} events are missing: there was no room for them"));
    }
    let unpaired: u64 = observer.unpaired.values().sum();
    if unpaired > 0 {
        let functions: Vec<_> = observer
            .unpaired
            .keys()
            .map(|number| observer.functions[*number as usize].name.as_str())
            .collect();
        notes.push(format!(
            "{unpaired} ends of calls have no beginning, and were not given to rules with `duration` or \
             `depth`: {}",
            some_of(&functions)
        ));
    }
    let early: Vec<_> =
        observer.functions.iter().filter(|function| function.is_matched() && function.early > 0).collect();
    if !early.is_empty() {
        let calls: u64 = early.iter().map(|function| function.early).sum();
        let functions: Vec<_> = early.iter().map(|function| function.name.as_str()).collect();
        notes.push(format!(
            "{calls} calls are missing, which were made before the probes were ready: {}",
            some_of(&functions)
        ));
    }
    if observer.unassigned > 0 {
        notes.push(format!(
            "{} calls, of functions that are not known, were made before the probes were ready",
            observer.unassigned
        ));
    }
    if !observer.interrupted.is_empty() {
        let name = |number: &u32| observer.functions[*number as usize].name.as_str();
        let functions: Vec<_> = observer.interrupted.iter().map(name).collect();
        notes.push(format!(
            "an unknown number of calls is missing, which were made before the probes were ready: {}",
            some_of(&functions)
        ));
    }
    if observer.has_unknown_interrupted {
        notes.push(
            "an unknown number of calls, of functions that are not known, were made before the probes were ready"
                .to_owned(),
        );
    }
    if observer.ends > 1 {
        notes.push(format!(
            "the rules of `native:end` were executed {} times, because the program has tried to exec",
            observer.ends
        ));
    }
    if observer.refused > 0 {
        notes.push(format!("{} probes could not be switched on", observer.refused));
    }
    if !observer.functions.iter().any(crate::observer::Function::is_matched) {
        notes.push(match observer.functions.len() {
            0 => "no function of this process is compiled with -finstrument-functions".to_owned(),
            count => format!("the rules match none of the {count} instrumented functions"),
        });
    }
    notes
}

/// A few names.
fn some_of(names: &[&str]) -> String {
    const SHOWN: usize = 5;
    let shown = names.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN { format!("{shown}, and {} more", names.len() - SHOWN) } else { shown }
}
