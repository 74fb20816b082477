//! Names of generated code for `perf`: a line for each function, as `perf report` reads them from
//! `/tmp/perf-PID.map`.

use std::io::{self, Write};

use super::CodeImage;
use super::sections::printable;
use super::symbols::{Names, Symbol};

/// Writes the module's functions that have been compiled, entries of those that are compiled when
/// they are first called, trampolines, the versions of probed functions, and stubs. Maps of several
/// modules of a process are appended to the same file.
///
/// # Errors
/// Any error that `out` returns.
pub(crate) fn write_map(image: &CodeImage, out: &mut dyn Write) -> io::Result<()> {
    let names = Names::of(image);
    let trampolines = Symbol {
        name: names.of_code("trampolines"),
        range: image.at(image.functions_end) as usize..image.memory.pages().end,
        frame: None,
    };
    let entries = image.lazy().map(|_| Symbol {
        name: names.of_code("entries"),
        range: image.at(0) as usize..image.at(image.functions_end) as usize,
        frame: None,
    });
    let versions = image.versions().flat_map(|version| {
        let stubs = names.stubs(&version);
        names.version(&version).into_iter().chain(stubs)
    });
    let symbols = names.originals(image).chain(entries).chain([trampolines]).chain(versions);
    for Symbol { name, range, .. } in symbols {
        writeln!(out, "{:x} {:x} {}", range.start, range.len(), printable(&name))?;
    }
    Ok(())
}
