//! Source files and lines of functions, from the DWARF sections of their objects.
//!
//! An object is read when one of its functions is looked up for the first time; only its sections
//! with line information are read. There are no locations if it cannot be read: an object without
//! debugging information or with more than 512 MiB of it, or a file that no longer exists.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use addr2line::Context;
use fastinst::internal::mapped;
use gimli::{Dwarf, EndianArcSlice, LittleEndian, SectionId};

use crate::binary::debug_file::{DebugFile, ReadError};
use crate::report::FunctionReport;

type Section = EndianArcSlice<LittleEndian>;

/// The lines of one object.
struct Lines {
    context: Context<Section>,
    /// The lowest load address according to the object's program headers.
    lowest: u64,
}

/// Looks up source locations, and caches the line tables of objects.
#[derive(Default)]
pub struct Locations {
    objects: HashMap<PathBuf, Result<Lines, Unknown>>,
    /// Objects that were changed later than this are not read.
    newest: Option<SystemTime>,
    /// Whether the objects are those of this process, if they are still loaded.
    are_mapped: bool,
}

/// The reason why an object has no locations.
#[derive(Debug, thiserror::Error)]
enum Unknown {
    #[error("its file was changed")]
    Changed,
    #[error("it was compiled without -g, or the information was removed")]
    Nothing,
    #[error(transparent)]
    Unread(#[from] ReadError),
    #[error("its debugging information is damaged: {0}")]
    Damaged(#[from] gimli::Error),
}

/// When a file, or the inode of its path, was last changed: a file that replaces another one may
/// have an older time of modification.
fn changed(path: &Path) -> Option<SystemTime> {
    let found = fs::metadata(path).ok()?;
    let (seconds, nanoseconds) = (found.ctime().try_into().ok()?, found.ctime_nsec().try_into().ok()?);
    Some(found.modified().ok()?.max(SystemTime::UNIX_EPOCH + Duration::new(seconds, nanoseconds)))
}

/// Sets the location of all functions.
pub fn locate(functions: &mut [FunctionReport], locations: &mut Locations) {
    functions.iter_mut().for_each(|function| locate_one(function, locations));
}

fn locate_one(function: &mut FunctionReport, locations: &mut Locations) {
    if function.location.is_none() {
        let location = locations.of(Path::new(&function.object), function.address);
        function.location = location.map(|location| location.to_string());
    }
}

/// Sets the location of functions that have the same name.
pub fn disambiguate(functions: &mut [FunctionReport], locations: &mut Locations) {
    let mut uses: HashMap<&str, u32> = HashMap::with_capacity(functions.len());
    for function in &*functions {
        *uses.entry(&function.name).or_default() += 1;
    }
    let is_ambiguous = |function: &FunctionReport| uses[function.name.as_str()] > 1;
    let ambiguous: Vec<bool> = functions.iter().map(is_ambiguous).collect();
    for (function, is_ambiguous) in functions.iter_mut().zip(ambiguous) {
        if is_ambiguous {
            locate_one(function, locations);
        }
    }
}

/// A location in a source file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// The path of the file, as given to the compiler.
    pub file: String,
    /// The line number, from 1.
    pub line: u32,
}

impl fmt::Display for Location {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.file, self.line)
    }
}

impl Locations {
    /// For objects as they were at a time: those that were changed since have no locations.
    #[must_use]
    pub fn at(time: SystemTime) -> Self {
        Self { newest: Some(time), ..Self::default() }
    }

    /// For the objects of this process, which began to observe them at a time: files that have
    /// replaced those of loaded objects have no locations, nor have those of unloaded objects that
    /// were changed since.
    #[must_use]
    pub(crate) fn of_process(start: SystemTime) -> Self {
        Self { newest: Some(start), are_mapped: true, ..Self::default() }
    }

    /// The source location of the code at an address, which is relative to the lowest address of
    /// the object, like [`crate::report::FunctionReport::address`]. The first call for an object
    /// reads its debugging information, which may take seconds for a large one.
    pub fn of(&mut self, object: &Path, address: u64) -> Option<Location> {
        if !self.objects.contains_key(object) {
            let lines = if self.is_unchanged(object) { read(object) } else { Err(Unknown::Changed) };
            self.objects.insert(object.to_owned(), lines);
        }
        let lines = self.objects.get(object)?.as_ref().ok()?;
        let location = lines.context.find_location(lines.lowest.checked_add(address)?).ok()??;
        Some(Location { file: location.file?.to_owned(), line: location.line? })
    }

    fn is_unchanged(&self, object: &Path) -> bool {
        let is_mapped = if self.are_mapped { mapped::is_mapped(object) } else { None };
        let is_old = || self.newest.is_none_or(|newest| changed(object).is_some_and(|time| time <= newest));
        is_mapped.unwrap_or_else(is_old)
    }

    /// A note for each object that was looked up and has no locations: `file:` patterns match none
    /// of its functions.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let note = |(object, lines): (&PathBuf, &Result<Lines, Unknown>)| {
            let reason = lines.as_ref().err()?;
            Some(format!(
                "the source files of {} are not known ({reason}): `file:` matches none of its functions",
                object.display()
            ))
        };
        let mut notes: Vec<_> = self.objects.iter().filter_map(note).collect();
        notes.sort();
        notes
    }
}

fn read(path: &Path) -> Result<Lines, Unknown> {
    let mut file = DebugFile::open(path)?;
    // Locations of variables are not needed.
    let is_needed =
        |id| !matches!(id, SectionId::DebugLoc | SectionId::DebugLocLists | SectionId::DebugTypes);
    let mut has_lines = false;
    let dwarf = Dwarf::load(|id| {
        let data = if is_needed(id) { file.debug_section(id.name())?.data } else { Arc::default() };
        has_lines |= id == SectionId::DebugLine && !data.is_empty();
        Ok::<_, ReadError>(Section::new(data, LittleEndian))
    })?;
    if !has_lines {
        return Err(Unknown::Nothing);
    }
    Ok(Lines { context: Context::from_dwarf(dwarf)?, lowest: file.lowest() })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use object::{Object, ObjectSymbol};

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
        let kinds = [
            &["-g", "-shared", "-fPIC"][..],
            &["-g", "-shared", "-fPIC", "-gz=zlib"],
            &["-g", "-pie", "-fPIE"],
            &["-g", "-no-pie"],
        ];
        for kind in kinds {
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
    fn files_that_were_changed_have_no_locations() {
        let folder = tempfile::tempdir().unwrap();
        let (library, [one, _]) = compiled(folder.path(), &["-g", "-shared", "-fPIC"]);
        let changed = changed(&library).unwrap();
        assert!(Locations::at(changed).of(&library, one).is_some());
        assert_eq!(Locations::at(changed - Duration::from_nanos(1)).of(&library, one), None);
        let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        fs::File::options().append(true).open(&library).unwrap().set_modified(old).unwrap();
        let mut locations = Locations::at(old);
        assert_eq!(locations.of(&library, one), None, "it may have replaced another file");
        assert!(matches!(&locations.notes()[..], [note] if note.contains("its file was changed")));
    }

    #[test]
    fn loaded_objects_have_the_locations_of_their_own_files() {
        let folder = tempfile::tempdir().unwrap();
        let (library, [one, _]) = compiled(folder.path(), &["-g", "-shared", "-fPIC"]);
        let of = || Locations::of_process(SystemTime::UNIX_EPOCH).of(&library, one);
        assert_eq!(of(), None, "it may have been changed since the start");
        let path = std::ffi::CString::new(library.to_str().unwrap()).unwrap();
        // SAFETY: a library without constructors.
        assert!(!unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) }.is_null());
        assert!(of().is_some(), "it was built and loaded after the start");
        let copy = folder.path().join("copy");
        fs::copy(&library, &copy).unwrap();
        fs::rename(&copy, &library).unwrap();
        assert_eq!(Locations::of_process(SystemTime::now()).of(&library, one), None, "it was replaced");
    }

    #[test]
    fn the_reason_for_missing_locations_is_noted() {
        let folder = tempfile::tempdir().unwrap();
        let check = |flags: &[&str], reason: &str| {
            let (library, [one, _]) = compiled(folder.path(), flags);
            let mut locations = Locations::default();
            assert_eq!(locations.of(&library, one), None);
            let notes = locations.notes();
            assert!(matches!(&notes[..], [note] if note.contains(reason)), "{notes:?}");
        };
        check(&["-g0", "-shared", "-fPIC"], "it was compiled without -g");
        // Not every linker can compress in this way.
        let (library, [one, _]) = compiled(folder.path(), &["-g", "-shared", "-fPIC"]);
        let compressed = folder.path().join("compressed");
        let mut tool = Command::new("objcopy");
        tool.arg("--compress-debug-sections=zstd").args([&library, &compressed]);
        if tool.status().is_ok_and(|status| status.success()) {
            let mut locations = Locations::default();
            assert_eq!(locations.of(&compressed, one), None);
            assert!(
                locations.notes()[0].contains("is compressed, and not with zlib"),
                "{:?}",
                locations.notes()
            );
        }
        let mut locations = Locations::default();
        assert!(locations.of(&library, one).is_some() && locations.notes().is_empty());
    }

    #[test]
    fn unreadable_files_have_no_locations() {
        let folder = tempfile::tempdir().unwrap();
        let mut locations = Locations::default();
        let (library, [one, _]) = compiled(folder.path(), &["-g0"]);
        assert_eq!(locations.of(&library, one), None);
        assert_eq!(locations.of(&folder.path().join("missing"), one), None);
        assert_eq!(locations.of(&folder.path().join("two.c"), one), None);
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
