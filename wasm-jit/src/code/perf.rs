//! Names of generated code for `perf`: a line for each function, as `perf report` reads them from
//! `/tmp/perf-PID.map`.

use std::io::{self, Write};

use super::CodeImage;
use super::sections::{Sections, printable};

/// Writes the module's functions and trampolines. Maps of several modules of a process are appended
/// to the same file.
///
/// # Errors
/// Those of `out`.
pub(crate) fn write_map(image: &CodeImage, out: &mut dyn Write) -> io::Result<()> {
    let sections = Sections::of(&image.bytes);
    let module = printable(sections.module_name.unwrap_or("wasm"));
    for index in image.indices() {
        let function = image.function(index);
        let (start, length) = (image.at(function.entry) as usize, function.end - function.entry);
        match sections.function_name(index) {
            Some(name) => writeln!(out, "{start:x} {length:x} {module}!{}", printable(&name))?,
            None => writeln!(out, "{start:x} {length:x} {module}!function[{index}]")?,
        }
    }
    let (start, end) = (image.at(image.functions_end) as usize, image.memory.pages().end);
    writeln!(out, "{start:x} {:x} {module}!trampolines", end - start)
}
