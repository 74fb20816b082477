//! What a compiled module consists of, in numbers.

use super::Module;

impl Module {
    /// How many functions it has, besides those that it imports.
    pub fn defined_functions(&self) -> usize {
        self.code().indices().len()
    }

    /// How many bytes of machine code its functions have.
    pub fn code_size(&self) -> usize {
        self.code().code_length()
    }
}
