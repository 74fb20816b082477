//! Reads commands from the terminal: history, and completion, by the command `complete`.

use std::cell::RefCell;
use std::path::PathBuf;

use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::Validator;
use rustyline::{Config, Context, Editor, Helper};

use super::commands::{Answer, may_repeat, word_start};
use super::say;
use crate::{Failure, folders};

/// The number of lines that are kept.
const HISTORY: usize = 1000;

/// Reads and executes commands until the user quits.
pub(super) fn read(execute: impl FnMut(&str) -> Result<Answer, String>) -> Result<(), Failure> {
    let failed = |error: ReadlineError| Failure::new(error).about("terminal");
    let config = Config::builder().max_history_size(HISTORY).map_err(failed)?.build();
    let execute = RefCell::new(execute);
    let mut editor: Editor<Completions<'_, _>, FileHistory> = Editor::with_config(config).map_err(failed)?;
    editor.set_helper(Some(Completions { execute: &execute }));
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
        let done = (*execute.borrow_mut())(&last);
        match done {
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

/// Completes lines.
struct Completions<'e, E> {
    execute: &'e RefCell<E>,
}

impl<E: FnMut(&str) -> Result<Answer, String>> Completer for Completions<'_, E> {
    type Candidate = String;

    fn complete(&self, line: &str, at: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        let line = &line[..at];
        let start = word_start(line);
        let found = match (*self.execute.borrow_mut())(&format!("complete {line}")) {
            Ok(Answer::Text(text)) => text,
            _ => String::new(),
        };
        let words = found.lines().filter_map(|found| Some(found.strip_prefix(&line[..start])?.to_owned()));
        Ok((start, words.collect()))
    }
}

impl<E> Hinter for Completions<'_, E> {
    type Hint = String;
}

impl<E> Highlighter for Completions<'_, E> {}
impl<E> Validator for Completions<'_, E> {}
impl<E: FnMut(&str) -> Result<Answer, String>> Helper for Completions<'_, E> {}
