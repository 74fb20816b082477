//! Functions of other objects to which an object refers.
//!
//! A function that is declared in a header can be inlined in one object and defined in another,
//! such as the functions of C++ strings. Its probes get the address of the definition. The other
//! object need not be instrumented, but the loader has stored the address in a pointer of the
//! object that uses it, by a relocation with the function's name.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};

use object::read::elf::ElfFile64;
use object::{Object as _, ObjectSymbol, ObjectSymbolTable, RelocationTarget};

use super::elf::{self, Elf, View};
use crate::loaded::LoadedObject;

/// The names of these functions, by address.
#[derive(Debug, Default)]
pub(super) struct Imports(BTreeMap<usize, CString>);

impl Imports {
    /// Reads the relocations of a loaded object, and the pointers that the loader has stored for
    /// them; none if its file has changed.
    ///
    /// # Safety
    /// The object must stay loaded during the call.
    pub(super) unsafe fn read(loaded: &LoadedObject, view: &View) -> Self {
        match elf::open(&loaded.path) {
            Ok((now, cache)) if now == view.file => ElfFile64::parse(&cache)
                // SAFETY: the caller's obligation.
                .map_or_else(|_| Self::default(), |elf: Elf<'_>| unsafe { Self::of(&elf, loaded, view) }),
            _ => Self::default(),
        }
    }

    /// # Safety
    /// As [`Imports::read`].
    unsafe fn of(elf: &Elf<'_>, loaded: &LoadedObject, view: &View) -> Self {
        let Some(symbols) = elf.dynamic_symbol_table() else { return Self::default() };
        let imported = elf.dynamic_relocations().into_iter().flatten().filter_map(|(address, relocation)| {
            let RelocationTarget::Symbol(index) = relocation.target() else { return None };
            let symbol = symbols.symbol_by_index(index).ok().filter(ObjectSymbol::is_undefined)?;
            let pointer = loaded.bias.wrapping_add(address as usize);
            let end = pointer.checked_add(size_of::<usize>())?;
            // The program may have changed any other pointer.
            if !view.constants.iter().any(|memory| memory.start <= pointer && end <= memory.end) {
                return None;
            }
            // SAFETY: a pointer of the object, which is loaded, by the caller's obligation.
            let function = unsafe { std::ptr::with_exposed_provenance::<usize>(pointer).read_unaligned() };
            // A function that has not been called yet has a pointer to the object itself.
            let is_elsewhere = function != 0 && !loaded.range.contains(&function);
            Some((function, CString::new(symbol.name_bytes().ok()?).ok()?)).filter(|_| is_elsewhere)
        });
        Self(imported.collect())
    }

    /// The name of the function at this address.
    pub(super) fn name(&self, address: usize) -> Option<&CStr> {
        self.0.get(&address).map(CString::as_c_str)
    }
}
