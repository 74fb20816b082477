//! Parts of functions that the compiler has split off.
//!
//! With partial inlining, gcc inlines the first part of a function into its callers, and makes the
//! rest a function of its own, whose symbol is `f.part.0`. The entry probe of a call is then in the
//! caller, and passes the caller's return address; the exit probe is in the part, and passes the
//! part's return address. Therefore pairing treats such exits differently.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::binary::debug_file::{DebugFile, ReadError};

/// The size of a symbol in the file.
const SYMBOL: usize = 24;

/// The part of a symbol's name that gcc adds to that of the function.
const MARK: &[u8] = b".part.";

/// Looks up parts of functions in objects, and caches their addresses.
#[derive(Debug, Default)]
pub struct Parts {
    of_objects: HashMap<PathBuf, Vec<Range<u64>>>,
}

impl Parts {
    /// Whether the code at an address, relative to the lowest one of the object, belongs to a part.
    /// The first call for an object reads its symbols, or those in the separate file with its
    /// debugging information. An object without symbols has no parts that are known.
    pub fn contain(&mut self, object: &Path, address: u64) -> bool {
        if !self.of_objects.contains_key(object) {
            self.of_objects.insert(object.to_owned(), read(object).unwrap_or_default());
        }
        self.of_objects[object].iter().any(|part| part.contains(&address))
    }
}

fn read(path: &Path) -> Result<Vec<Range<u64>>, ReadError> {
    let mut file = DebugFile::open(path)?;
    let mut symbols = file.section(".symtab")?;
    let names = if symbols.data.is_empty() {
        symbols = file.debug_section(".symtab")?;
        file.debug_section(".strtab")?
    } else {
        file.section(".strtab")?
    };
    let lowest = file.lowest();
    let part = |symbol: &[u8; SYMBOL]| {
        let number = |at: usize| u64::from_le_bytes(symbol[at..at + 8].try_into().expect("8 bytes"));
        let name = names.data.get(number(0) as u32 as usize..)?;
        let name = name.split(|byte| *byte == 0).next()?;
        let start = number(8).checked_sub(lowest)?;
        let is_part = name.windows(MARK.len()).any(|part| part == MARK);
        is_part.then(|| start..start.saturating_add(number(16)))
    };
    Ok(symbols.data.as_chunks().0.iter().filter_map(part).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_that_cannot_be_read_has_no_parts() {
        assert!(!Parts::default().contain(Path::new("/nonexistent"), 0));
        assert!(!Parts::default().contain(Path::new("/proc/self/maps"), 0));
    }
}
