//! Names and sizes of an object's functions, from its symbols.
//!
//! They are read once, when the first probe of the object needs them, and use twelve bytes per
//! function: names stay in the file, whose string table is mapped. Those of a library that may be
//! unloaded are copied, because its file may then be truncated or overwritten. If two symbols have
//! the same address, a global one takes precedence over a local one; otherwise the first one is
//! used.

use std::ffi::CStr;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr;

use object::read::elf::{ElfFile64, SectionHeader as _, Sym as _};
use object::{ReadCache, elf as constants};

use super::elf::{self, Elf, FileId};
use crate::loaded::LoadedObject;

/// A function. Its address is relative to the object's lowest address.
#[derive(Clone, Copy, Debug)]
struct Function {
    start: u32,
    size: u32,
    name: u32,
}

/// The functions of one object, ascending.
#[derive(Debug, Default)]
pub(super) struct Names {
    base: usize,
    functions: Box<[Function]>,
    /// The string table of the file, or a copy of the names, each terminated by NUL. The metadata
    /// of probes refer to them, so it is never unmapped or freed. Empty if the names are not
    /// needed.
    text: &'static [u8],
    is_copied: bool,
}

type Symbol = constants::Sym64<object::Endianness>;

/// A symbol that is being considered.
struct Candidate {
    function: Function,
    is_local: bool,
}

impl Names {
    /// Reads the names of a loaded object; none if its file has changed.
    pub(super) fn read(loaded: &LoadedObject, file: FileId) -> Self {
        let with_strings = match elf::open(&loaded.path) {
            Ok((now, cache)) if now == file => Self::of_file(&cache, loaded),
            _ => None,
        };
        // The file is closed: there may be few descriptors.
        let named = with_strings.and_then(|(functions, strings)| {
            let strings = Strings::map(&loaded.path, file, &strings)?;
            let names = Self::of_functions(functions, loaded);
            Some(if loaded.stays {
                Self { text: strings.leak(), ..names }
            } else {
                names.with_copies(&strings)
            })
        });
        named.unwrap_or_default()
    }

    fn of_file(cache: &ReadCache<File>, loaded: &LoadedObject) -> Option<(Box<[Function]>, Range<u64>)> {
        let elf: Elf<'_> = ElfFile64::parse(cache).ok()?;
        functions(&elf, loaded)
    }

    /// The functions of an object whose file is open, without their names.
    pub(super) fn of(elf: &Elf<'_>, loaded: &LoadedObject) -> Self {
        functions(elf, loaded)
            .map_or_else(Self::default, |(functions, _)| Self::of_functions(functions, loaded))
    }

    fn of_functions(functions: Box<[Function]>, loaded: &LoadedObject) -> Self {
        Self { base: loaded.range.start, functions, text: &[], is_copied: false }
    }

    /// With copies of the names, which stay when the object is unloaded.
    fn with_copies(mut self, strings: &Strings) -> Self {
        let mut text = Vec::new();
        for function in &mut self.functions {
            let name = strings.bytes().get(function.name as usize..);
            let name = name.and_then(|rest| CStr::from_bytes_until_nul(rest).ok()).unwrap_or_default();
            function.name = text.len() as u32;
            text.extend_from_slice(name.to_bytes_with_nul());
        }
        Self { text: Vec::leak(text), is_copied: true, ..self }
    }

    /// The name of the function that starts at this address in memory.
    pub(super) fn name(&self, address: usize) -> Option<&'static CStr> {
        let start = u32::try_from(address.checked_sub(self.base)?).ok()?;
        let at = self.functions.binary_search_by_key(&start, |function| function.start).ok()?;
        CStr::from_bytes_until_nul(self.text.get(self.functions[at].name as usize..)?).ok()
    }

    /// The functions with a size that start in `range`, except those that overlap their
    /// predecessor.
    pub(super) fn functions_in(&self, range: &Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let offset = |address: usize| address.saturating_sub(self.base).try_into().unwrap_or(u32::MAX);
        let (first, last): (u32, u32) = (offset(range.start), offset(range.end));
        let at = self.functions.partition_point(|function| function.start < first);
        let mut end_of_last = 0;
        self.functions[at..].iter().take_while(move |function| function.start < last).filter_map(
            move |function| {
                let start = self.base + function.start as usize;
                let is_own = function.size > 0 && start >= end_of_last;
                is_own.then(|| {
                    end_of_last = start + function.size as usize;
                    start..end_of_last
                })
            },
        )
    }

    /// The memory of the functions and of copied names, in bytes.
    pub(super) fn memory(&self) -> usize {
        size_of_val(&*self.functions) + if self.is_copied { self.text.len() } else { 0 }
    }
}

/// The functions of an object whose file is open, and the place of their names in it. The dynamic
/// symbols are used only if there is no other symbol table, which would include them.
fn functions(elf: &Elf<'_>, loaded: &LoadedObject) -> Option<(Box<[Function]>, Range<u64>)> {
    let from = |table| from_table(elf, loaded, table).filter(|(functions, _)| !functions.is_empty());
    from(constants::SHT_SYMTAB).or_else(|| from(constants::SHT_DYNSYM))
}

fn from_table(
    elf: &Elf<'_>,
    loaded: &LoadedObject,
    table: constants::SectionType,
) -> Option<(Box<[Function]>, Range<u64>)> {
    let (endian, data, sections) = (elf.endian(), elf.data(), elf.elf_section_table());
    let symbols = sections.symbols(endian, data, table).ok()?;
    let strings = sections.section(symbols.string_section()).ok()?;
    let (start, size) = strings.file_range(endian)?;
    let lowest = loaded.range.start.wrapping_sub(loaded.bias) as u64;
    let is_undefined = |symbol: &Symbol| symbol.st_shndx(endian) == constants::SHN_UNDEF;
    let mut found: Vec<Candidate> = symbols
        .iter()
        .filter(|symbol| {
            // A function of a library has an address in an executable that is not relocated:
            // that of its entry in the procedure linkage table.
            let has_address = !is_undefined(symbol) || symbol.st_value(endian) != 0;
            matches!(symbol.st_type(), constants::STT_FUNC | constants::STT_GNU_IFUNC) && has_address
        })
        .filter_map(|symbol| {
            let function = Function {
                start: symbol.st_value(endian).checked_sub(lowest)?.try_into().ok()?,
                size: match is_undefined(symbol) {
                    true => 0,
                    false => symbol.st_size(endian).try_into().unwrap_or(u32::MAX),
                },
                name: symbol.st_name(endian),
            };
            Some(Candidate { function, is_local: symbol.st_bind() == constants::STB_LOCAL })
        })
        .collect();
    // The sort is stable, so that the first symbol stays first.
    found.sort_by_key(|candidate| (candidate.function.start, candidate.is_local));
    found.dedup_by(|next, first| {
        let is_alias = next.function.start == first.function.start;
        if is_alias {
            first.function.size = first.function.size.max(next.function.size);
        }
        is_alias
    });
    let functions = found.into_iter().map(|candidate| candidate.function).collect();
    Some((functions, start..start.checked_add(size)?))
}

/// A mapped string table.
struct Strings {
    start: *mut libc::c_void,
    length: usize,
    /// Where the string table begins in the mapping.
    offset: usize,
}

impl Strings {
    /// Maps a part of a file; `None` if the file has changed.
    fn map(path: &Path, id: FileId, part: &Range<u64>) -> Option<Self> {
        const PAGE: u64 = 4096;
        let file = File::open(path).ok()?;
        if FileId::of(&file).ok()? != id || part.end > file.metadata().ok()?.len() {
            return None;
        }
        let first = part.start - part.start % PAGE;
        let length = usize::try_from(part.end - first).ok()?;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length,
                libc::PROT_READ,
                libc::MAP_PRIVATE,
                file.as_raw_fd(),
                first as libc::off_t,
            )
        };
        (start != libc::MAP_FAILED).then(|| Self { start, length, offset: (part.start - first) as usize })
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: readable while this value exists. The object is loaded: overwriting or truncating
        // its file breaks its code, which is mapped as well, in every process.
        let bytes = unsafe { std::slice::from_raw_parts(self.start.cast::<u8>(), self.length) };
        &bytes[self.offset..]
    }

    /// The strings of an object that is never unloaded, for as long as the process lives.
    fn leak(self) -> &'static [u8] {
        let strings = ManuallyDrop::new(self);
        // SAFETY: as in `bytes`; not unmapped.
        let bytes = unsafe { std::slice::from_raw_parts(strings.start.cast::<u8>(), strings.length) };
        &bytes[strings.offset..]
    }
}

impl Drop for Strings {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map`, and nothing refers to it any more.
        unsafe { libc::munmap(self.start, self.length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loaded;

    #[unsafe(no_mangle)]
    extern "C" fn fastinst_test_of_mapped_names() {}

    #[test]
    fn names_of_libraries_that_may_be_unloaded_are_not_in_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("library.so");
        let address = fastinst_test_of_mapped_names as *const () as usize;
        let objects = loaded::objects().expect("no fork");
        let own = objects.into_iter().find(|object| object.range.contains(&address)).expect("it is loaded");
        std::fs::copy(&own.path, &copy).unwrap();
        let of_copy = LoadedObject { path: copy.clone(), stays: false, ..own };
        let (file, _) = elf::open(&copy).unwrap();
        let names = Names::read(&of_copy, file);
        assert_eq!(names.memory(), 12 * names.functions.len() + names.text.len());
        // Before, reading it was fatal.
        File::options().write(true).truncate(true).open(&copy).unwrap();
        assert_eq!(names.name(address), Some(c"fastinst_test_of_mapped_names"));
    }

    #[test]
    fn names_are_in_the_mapped_file() {
        let address = fastinst_test_of_mapped_names as *const () as usize;
        let objects = loaded::objects().expect("no fork");
        let own = objects.iter().find(|object| object.range.contains(&address)).expect("it is loaded");
        let (file, _) = elf::open(&own.path).expect("it is readable");
        let names = Names::read(own, file);
        assert_eq!(names.name(address), Some(c"fastinst_test_of_mapped_names"));
        assert_eq!(names.name(address + 1), None);
        assert_eq!(names.memory(), 12 * names.functions.len());
        let (other, _) = elf::open(Path::new("/proc/self/maps")).expect("it is readable");
        assert_eq!(Names::read(own, other).name(address), None, "the file has changed");
    }
}
