//! Reads commands from the terminal: history, and completion of names.

use std::path::PathBuf;

use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::Validator;
use rustyline::{Config, Context, Editor, Helper};

use super::commands::{Answer, COMMANDS, may_repeat};
use super::say;
use crate::{Failure, folders};

/// The number of lines that are kept.
const HISTORY: usize = 1000;

/// Reads and executes commands until the user quits. The names of functions are completed.
pub(super) fn read(
    functions: Vec<String>,
    mut execute: impl FnMut(&str) -> Result<Answer, String>,
) -> Result<(), Failure> {
    let failed = |error: ReadlineError| Failure::new(error).about("terminal");
    let config = Config::builder().max_history_size(HISTORY).map_err(failed)?.build();
    let mut editor: Editor<Names, FileHistory> = Editor::with_config(config).map_err(failed)?;
    editor.set_helper(Some(Names { functions }));
    let file = history_file();
    if let Some(file) = &file {
        // The first time, there is no history.
        let _ = editor.load_history(file);
    }
    let mut last = String::new();
    loop {
        let line = match editor.readline("(wasm-jit) ") {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(failed(error)),
        };
        // An empty line repeats the last command.
        if !line.trim().is_empty() {
            let _ = editor.add_history_entry(line.as_str());
            last = line;
        }
        match execute(&last) {
            Ok(Answer::Quit) => break,
            Ok(Answer::Text(text)) => say(&text),
            Err(message) => say(&format!("{message}\n")),
        }
        if !may_repeat(&last) {
            last.clear();
        }
    }
    if let Some(file) = &file
        && let Some(directory) = file.parent()
    {
        // Without a home directory, history ends with the session.
        let _ = std::fs::create_dir_all(directory);
        let _ = editor.save_history(file);
    }
    Ok(())
}

/// Where commands of earlier sessions are.
fn history_file() -> Option<PathBuf> {
    Some(folders::state()?.join("debug_history"))
}

/// Completes commands, and names of functions.
struct Names {
    functions: Vec<String>,
}

impl Completer for Names {
    type Candidate = String;

    fn complete(&self, line: &str, at: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        let start = line[..at].rfind(' ').map_or(0, |space| space + 1);
        let word = &line[start..at];
        let names: Vec<String> = match start {
            0 => COMMANDS.iter().map(|command| format!("{} ", command.name)).collect(),
            _ => self.functions.clone(),
        };
        let mut found: Vec<String> = names.into_iter().filter(|name| name.starts_with(word)).collect();
        found.sort();
        found.dedup();
        Ok((start, found))
    }
}

impl Hinter for Names {
    type Hint = String;
}

impl Highlighter for Names {}
impl Validator for Names {}
impl Helper for Names {}
