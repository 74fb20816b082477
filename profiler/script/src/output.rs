//! Where the report goes.
//!
//! Without a file it goes to the standard error stream of the start. A file gets its complete
//! report at once, by a rename. The first process of the run gets the name that the user has
//! chosen, all others the same with the process id before the extension, unless the name contains
//! it. A file that another process of the run has written is not replaced; a number makes the name
//! different.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use profiler::output::expand;
use profiler::session;
use wasm_jit_whamm::lang::ScriptReport;

use crate::observer::Observer;
use crate::report::{Name, Report};
use crate::ring;

/// Number of names that are tried.
const NAMES: u32 = 10_000;

/// Writes the report of these values.
pub(crate) fn write(observer: &mut Observer, values: &ScriptReport) {
    let report = report(observer, values);
    let text = report.print(observer.options.format);
    let Some(template) = observer.options.output.clone() else {
        session::print(&text);
        return;
    };
    let written = expand(&template, &observer.identity).map_err(|error| error.to_string()).and_then(|name| {
        save(observer, &template, Path::new(&name), &text).map_err(|error| format!("{name}: {error}"))
    });
    match written {
        Ok(path) => observer.written = Some(path),
        Err(error) => {
            session::say(&format!("the report cannot be written to {error}"));
            session::print(&text);
        }
    }
}

/// Writes the file, and returns its name.
fn save(observer: &Observer, template: &str, wanted: &Path, text: &str) -> io::Result<PathBuf> {
    let pid = observer.identity.pid;
    let temporary = wanted.with_extension(format!("{pid}.new"));
    fs::write(&temporary, text)?;
    let place = || {
        if let Some(path) = &observer.written {
            return fs::rename(&temporary, path).map(|()| path.clone());
        }
        let is_first = pid == observer.options.run.pid && !observer.identity.is_fork_child;
        let names_process = template.replace("%%", "").contains("%p");
        let own =
            if is_first || names_process { wanted.to_owned() } else { numbered(wanted, &pid.to_string()) };
        let others = (1..NAMES).map(|number| numbered(wanted, &format!("{pid}.{number}")));
        for name in std::iter::once(own).chain(others) {
            if claim(observer, &temporary, &name)? {
                return Ok(name);
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    };
    let placed = place();
    if placed.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    placed
}

/// The name with a text before its extension.
fn numbered(name: &Path, text: &str) -> PathBuf {
    match name.extension() {
        Some(extension) => name.with_extension(format!("{text}.{}", extension.to_string_lossy())),
        None => name.with_extension(text),
    }
}

/// Gives the file a name, if that is free or belongs to an earlier run.
fn claim(observer: &Observer, temporary: &Path, name: &Path) -> io::Result<bool> {
    match fs::hard_link(temporary, name) {
        Ok(()) => fs::remove_file(temporary).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let is_older = fs::metadata(name)?.modified()? < observer.options.run.started;
            if is_older {
                fs::rename(temporary, name)?;
            }
            Ok(is_older)
        }
        Err(error) => Err(error),
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
