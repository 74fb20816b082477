//! The functions of the program that rules call in place of instructions: `alt_call_by_name` and
//! `alt_call_by_id`.
//!
//! The name of a function is the one by which scripts know it (`target_fn_name`): that of the
//! import, or that in the name section. If no function has the name, exports are searched.

use std::collections::HashMap;

use wasm_jit::Module;

use super::RewriteError;
use crate::lang::Alternative;

/// The alternatives by number: as in the script, and the index in the program, if it has such a
/// function.
#[derive(Debug)]
pub(super) struct Alternatives(Vec<(Alternative, Option<u32>)>);

impl Alternatives {
    /// Finds the functions. `exported` are the functions that the program exports.
    pub(super) fn of(wanted: Vec<Alternative>, program: &Module, exported: &HashMap<String, u32>) -> Self {
        let mut names = exported.clone();
        if wanted.iter().any(|wanted| matches!(wanted, Alternative::Named(_))) {
            let functions: Vec<_> = program.functions().collect();
            // The first one of several with the same name.
            for function in functions.into_iter().rev() {
                let imported = function.import().map(|import| import.name().to_owned());
                let name = imported.or_else(|| function.name().map(str::to_owned));
                if let Some(name) = name.filter(|name| !name.is_empty()) {
                    names.insert(name, function.index());
                }
            }
        }
        let index = |wanted: &Alternative| match wanted {
            Alternative::Named(name) => names.get(name).copied(),
            Alternative::Numbered(index) => program.function(*index).map(|_| *index),
        };
        Self(wanted.into_iter().map(|wanted| (wanted.clone(), index(&wanted))).collect())
    }

    /// The index of a function in the program.
    pub(super) fn function(&self, number: u32) -> Result<u32, RewriteError> {
        let missing = || RewriteError::Alternative { alternative: self.text(number) };
        self.0.get(number as usize).and_then(|(_, index)| *index).ok_or_else(missing)
    }

    /// The alternative as in the script.
    pub(super) fn text(&self, number: u32) -> String {
        self.0.get(number as usize).map_or_else(String::new, |(wanted, _)| wanted.to_string())
    }
}
