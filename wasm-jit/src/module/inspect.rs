//! What a compiled module consists of.

use super::Module;

impl Module {
    /// How many functions it has, besides those that it imports.
    pub fn defined_functions(&self) -> usize {
        self.code().indices().len()
    }
}
