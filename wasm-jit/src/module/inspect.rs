//! What a compiled module consists of.

use super::Module;
use crate::code::gdb::{self, GdbRegistration};

impl Module {
    /// How many functions it has, besides those that it imports.
    pub fn defined_functions(&self) -> usize {
        self.code().indices().len()
    }

    /// Tells gdb the names of the functions, by its JIT interface. Costs some 60 bytes for each of them.
    pub fn show_to_gdb(&self) -> GdbRegistration {
        gdb::register(self.code().clone())
    }
}
