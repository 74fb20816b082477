//! What the files of a program contain: names, source lines, parts of functions, and how they were
//! built.

pub(crate) mod debug_file;
pub mod elf_check;
pub mod locations;
pub mod parts;
pub mod symbol;
