//! Source files and lines of functions, from the DWARF sections of their objects.
//!
//! An object is read when one of its functions is looked up for the first time, and only its
//! sections with line information. If it cannot be read, there are no locations: an object without
//! debugging information or with more than 512 MiB of it, compressed sections, a file that no
//! longer exists.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use addr2line::Context;
use gimli::{Dwarf, EndianArcSlice, LittleEndian, SectionId};
use object::read::ReadCache;
use object::read::elf::ElfFile64;
use object::{CompressionFormat, Object, ObjectSection, ObjectSegment};

use crate::report::FunctionReport;

/// Maximum size of debugging information that is read of one object, in bytes.
const MAX_DEBUG_BYTES: u64 = 512 << 20;

type Section = EndianArcSlice<LittleEndian>;

/// The lines of one object.
struct Lines {
    context: Context<Section>,
    /// The lowest load address according to its program headers.
    lowest: u64,
}

/// The objects that were looked up.
#[derive(Default)]
pub struct Locations {
    objects: HashMap<PathBuf, Option<Lines>>,
}

/// Sets the location of functions that have the same name.
pub fn disambiguate(functions: &mut [FunctionReport], locations: &mut Locations) {
    let mut by_name: HashMap<String, Vec<usize>> = HashMap::new();
    for (index, function) in functions.iter().enumerate() {
        by_name.entry(function.name.clone()).or_default().push(index);
    }
    for index in by_name.into_values().filter(|indices| indices.len() > 1).flatten() {
        let function = &mut functions[index];
        if function.location.is_none() {
            let location = locations.of(Path::new(&function.object), function.address);
            function.location = location.map(|location| location.to_string());
        }
    }
}

/// A place in a source file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// Path of the file, as it was given to the compiler.
    pub file: String,
    /// Line in it, from 1.
    pub line: u32,
}

impl fmt::Display for Location {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.file, self.line)
    }
}

impl Locations {
    /// The source location of the code at an address, which is relative to the lowest address of
    /// the object, as [`crate::report::FunctionReport::address`] is. The first call for an object
    /// reads its debug information, which may take seconds for a large one.
    pub fn of(&mut self, object: &Path, address: u64) -> Option<Location> {
        if !self.objects.contains_key(object) {
            self.objects.insert(object.to_owned(), read(object));
        }
        let lines = self.objects.get(object)?.as_ref()?;
        let location = lines.context.find_location(lines.lowest.checked_add(address)?).ok()??;
        Some(Location { file: location.file?.to_owned(), line: location.line? })
    }
}

fn read(path: &Path) -> Option<Lines> {
    let mut file = File::open(path).ok()?;
    let cache = ReadCache::new(file.try_clone().ok()?);
    let elf: ElfFile64<'_, object::LittleEndian, _> = ElfFile64::parse(&cache).ok()?;
    let mut left = MAX_DEBUG_BYTES;
    let mut load = |id: SectionId| -> Option<Vec<u8>> {
        let Some(section) = elf.section_by_name(id.name()) else {
            return Some(Vec::new());
        };
        let range = section.compressed_file_range().ok()?;
        if range.format != CompressionFormat::None {
            return None;
        }
        let (start, size) = (range.offset, range.uncompressed_size);
        left = left.checked_sub(size)?;
        let mut data = vec![0; usize::try_from(size).ok()?];
        file.seek(SeekFrom::Start(start)).ok()?;
        file.read_exact(&mut data).ok()?;
        Some(data)
    };
    // Locations of variables are not needed.
    let is_needed =
        |id| !matches!(id, SectionId::DebugLoc | SectionId::DebugLocLists | SectionId::DebugTypes);
    let dwarf = Dwarf::load(|id| {
        let data = if is_needed(id) { load(id) } else { Some(Vec::new()) };
        data.map(|data| Section::new(Arc::from(data), LittleEndian)).ok_or(())
    });
    // The loader maps whole pages.
    let lowest = elf.segments().map(|segment| segment.address()).min()? & !0xfff;
    Some(Lines { context: Context::from_dwarf(dwarf.ok()?).ok()?, lowest })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;

    /// Compiles two functions, on lines 2 and 4, and returns the object and their addresses.
    fn compiled(folder: &Path, flags: &[&str]) -> (PathBuf, [u64; 2]) {
        let (source, library) = (folder.join("two.c"), folder.join(format!("two{}", flags.concat())));
        fs::write(
            &source,
            "int main(void) { return 0; }\nint one(void) { return 1; }\n\nint two(void) { return 2; }\n",
        )
        .unwrap();
        let mut compiler = Command::new("cc");
        compiler.args(flags).args(["-O1", "-o"]).arg(&library).arg(&source);
        assert!(compiler.status().unwrap().success());
        let data = fs::read(&library).unwrap();
        let elf = object::File::parse(&*data).unwrap();
        let address = |name: &str| {
            use object::ObjectSymbol;
            elf.symbols().find(|symbol| symbol.name() == Ok(name)).unwrap().address()
                - if flags.contains(&"-no-pie") { 0x40_0000 } else { 0 }
        };
        let addresses = [address("one"), address("two")];
        (library, addresses)
    }

    #[test]
    fn functions_are_found_in_their_files() {
        let folder = tempfile::tempdir().unwrap();
        let mut locations = Locations::default();
        let file = folder.path().join("two.c").to_str().unwrap().to_owned();
        for kind in [&["-g", "-shared", "-fPIC"][..], &["-g", "-pie", "-fPIE"], &["-g", "-no-pie"]] {
            let (library, [one, two]) = compiled(folder.path(), kind);
            assert_eq!(
                locations.of(&library, one),
                Some(Location { file: file.clone(), line: 2 }),
                "{kind:?}"
            );
            assert_eq!(
                locations.of(&library, two),
                Some(Location { file: file.clone(), line: 4 }),
                "{kind:?}"
            );
            assert_eq!(locations.of(&library, u64::MAX), None);
        }
    }

    #[test]
    fn unreadable_files_have_no_locations() {
        let folder = tempfile::tempdir().unwrap();
        let mut locations = Locations::default();
        let (library, [one, _]) = compiled(folder.path(), &["-g0"]);
        assert_eq!(locations.of(&library, one), None);
        assert_eq!(locations.of(&folder.path().join("missing"), one), None);
        assert_eq!(locations.of(&folder.path().join("two.c"), one), None);
        let (library, [one, _]) = compiled(folder.path(), &["-g", "-gz=zlib"]);
        assert_eq!(locations.of(&library, one), None);
        // Damaged debugging information must not cause a panic.
        let (library, [one, _]) = compiled(folder.path(), &["-g"]);
        let whole = fs::read(&library).unwrap();
        let damaged = folder.path().join("damaged.so");
        for seed in 0..500 {
            let mut bytes = whole.clone();
            let position = whole.len() / 500 * seed;
            bytes[position..(position + 16).min(whole.len())].fill(0xff);
            fs::write(&damaged, &bytes).unwrap();
            let _ = Locations::default().of(&damaged, one);
        }
    }
}
