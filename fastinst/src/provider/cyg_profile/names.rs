//! Names and sizes of an object's functions, from its symbols.
//!
//! They are read once, when the first probe of the object needs them, and use twelve bytes per
//! function in addition to the name. If two symbols have the same address, a global one takes
//! precedence over a local one; otherwise the first one is used.

use std::ffi::CStr;
use std::fs::File;
use std::ops::Range;

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
    /// The names, each terminated by NUL. The metadata of probes refer to them, so they are never
    /// freed.
    text: &'static [u8],
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
        match elf::open(&loaded.path) {
            Ok((now, cache)) if now == file => Self::of_file(&cache, loaded).unwrap_or_default(),
            _ => Self::default(),
        }
    }

    fn of_file(cache: &ReadCache<File>, loaded: &LoadedObject) -> Option<Self> {
        let elf: Elf<'_> = ElfFile64::parse(cache).ok()?;
        Some(Self::of(&elf, loaded))
    }

    /// The names of an object whose file is open. The dynamic symbols are used only if there is no
    /// other symbol table, which would include them.
    pub(super) fn of(elf: &Elf<'_>, loaded: &LoadedObject) -> Self {
        let from = |table| Self::from_table(elf, loaded, table).filter(|names| !names.functions.is_empty());
        from(constants::SHT_SYMTAB).or_else(|| from(constants::SHT_DYNSYM)).unwrap_or_default()
    }

    fn from_table(elf: &Elf<'_>, loaded: &LoadedObject, table: constants::SectionType) -> Option<Self> {
        let (endian, data, sections) = (elf.endian(), elf.data(), elf.elf_section_table());
        let symbols = sections.symbols(endian, data, table).ok()?;
        let strings = sections.section(symbols.string_section()).ok()?.data(endian, data).ok()?;
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
        let name_at = |offset: u32| {
            let rest = strings.get(offset as usize..)?;
            CStr::from_bytes_until_nul(rest).ok().map(CStr::to_bytes_with_nul)
        };
        let names = || found.iter().map(|candidate| name_at(candidate.function.name).unwrap_or(b"\0"));
        let mut text = Vec::with_capacity(names().map(<[u8]>::len).sum());
        let mut functions = Vec::with_capacity(found.len());
        for (candidate, name) in found.iter().zip(names()) {
            functions.push(Function { name: text.len() as u32, ..candidate.function });
            text.extend_from_slice(name);
        }
        Some(Self {
            base: loaded.range.start,
            functions: functions.into_boxed_slice(),
            text: Box::leak(text.into_boxed_slice()),
        })
    }

    /// The name of the function that starts at this address in memory.
    pub(super) fn name(&self, address: usize) -> Option<&'static CStr> {
        let start = u32::try_from(address.checked_sub(self.base)?).ok()?;
        let at = self.functions.binary_search_by_key(&start, |function| function.start).ok()?;
        CStr::from_bytes_until_nul(&self.text[self.functions[at].name as usize..]).ok()
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

    /// The memory of the names, in bytes.
    pub(super) fn memory(&self) -> usize {
        size_of_val(&*self.functions) + self.text.len()
    }
}
