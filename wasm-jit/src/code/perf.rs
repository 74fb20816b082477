//! Names of generated code for `perf`: a line for each function, as `perf report` reads them from
//! `/tmp/perf-PID.map`.

use std::io::{self, Write};

use super::CodeImage;
use super::sections::printable;
use super::symbols::{Names, Symbol};

/// Writes the module's functions and trampolines, and the versions of probed functions. Maps of
/// several modules of a process are appended to the same file.
///
/// # Errors
/// Those of `out`.
pub(crate) fn write_map(image: &CodeImage, out: &mut dyn Write) -> io::Result<()> {
    let names = Names::of(image);
    let trampolines = Symbol {
        name: names.of_code("trampolines"),
        range: image.at(image.functions_end) as usize..image.memory.pages().end,
        frame: None,
    };
    let versions = image.versions().flat_map(|version| {
        let stubs = names.stubs(&version);
        names.version(&version).into_iter().chain(stubs)
    });
    for Symbol { name, range, .. } in names.originals(image).chain([trampolines]).chain(versions) {
        writeln!(out, "{:x} {:x} {}", range.start, range.len(), printable(&name))?;
    }
    Ok(())
}
