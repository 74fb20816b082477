//! Names of generated code for gdb, through its JIT interface (the gdb manual, "JIT Compilation
//! Interface").
//!
//! gdb reads a list of object files from a variable of the process whenever the process calls an
//! empty function; it finds both by their names. Each image gets an object file in memory, with a
//! symbol for each function and trampoline, and no code: gdb reads that from the process. No unwind
//! information is needed: gdb analyzes the prologue that every function has, and follows `rbp`.
//! It must find PUSH at the address of a symbol, so the prefixes before it get a symbol of their
//! own, `FUNCTION@entry`.
//!
//! Code is shared memory that is not writable where it is executed, so gdb cannot insert software
//! breakpoints: `hbreak`, which uses hardware breakpoints, works.
//!
//! Both symbols are hidden: they are for the linker and for gdb, and are not exported by libraries
//! that contain this one.

use std::arch::global_asm;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use object::Endianness;
use object::elf;
use object::write::elf::{FileHeader, SectionHeader, Sym, Writer};

use wasm_jit_codegen::ENTRY_PREFIX;

use super::CodeImage;
use super::sections::Sections;

global_asm!(
    ".pushsection .data.__jit_debug_descriptor, \"aw\", @progbits",
    ".globl __jit_debug_descriptor",
    ".hidden __jit_debug_descriptor",
    ".type __jit_debug_descriptor, @object",
    ".size __jit_debug_descriptor, 24",
    ".balign 8",
    "__jit_debug_descriptor:",
    ".long 1", // version
    ".long 0", // action
    ".quad 0", // the entry that it concerns
    ".quad 0", // the first entry
    ".popsection",
    ".pushsection .text.__jit_debug_register_code, \"ax\", @progbits",
    ".globl __jit_debug_register_code",
    ".hidden __jit_debug_register_code",
    ".type __jit_debug_register_code, @function",
    "__jit_debug_register_code:",
    "ret",
    ".size __jit_debug_register_code, . - __jit_debug_register_code",
    ".popsection",
);

unsafe extern "C" {
    #[link_name = "__jit_debug_descriptor"]
    static mut DESCRIPTOR: Descriptor;
    #[link_name = "__jit_debug_register_code"]
    fn register_code();
}

const REGISTER: u32 = 1;
const UNREGISTER: u32 = 2;

#[repr(C)]
struct Descriptor {
    version: u32,
    action: u32,
    relevant: *mut Entry,
    first: *mut Entry,
}

#[repr(C)]
struct Entry {
    next: *mut Entry,
    previous: *mut Entry,
    file: *const u8,
    length: u64,
}

/// Held while the list is changed.
static LIST: Mutex<()> = Mutex::new(());

/// Registers a module's functions with gdb, until it is dropped.
#[derive(Debug)]
#[must_use = "gdb forgets the module when it is dropped"]
pub struct GdbRegistration {
    entry: NonNull<Entry>,
    /// The object file that gdb reads.
    _file: Vec<u8>,
    _image: Arc<CodeImage>,
}

// SAFETY: the entry is reached through the list only, under its lock.
unsafe impl Send for GdbRegistration {}
// SAFETY: as above.
unsafe impl Sync for GdbRegistration {}

/// Registers the functions of an image with gdb. Allocates an object file of some 60 bytes for each
/// of them.
pub(crate) fn register(image: Arc<CodeImage>) -> GdbRegistration {
    let file = object_file(&image);
    let entry = Entry {
        next: std::ptr::null_mut(),
        previous: std::ptr::null_mut(),
        file: file.as_ptr(),
        length: file.len() as u64,
    };
    let entry = NonNull::from(Box::leak(Box::new(entry)));
    let _list = LIST.lock().unwrap_or_else(|e| e.into_inner());
    // SAFETY: list and entries are accessed under the lock only; gdb reads them while the process
    // is stopped.
    unsafe {
        let first = DESCRIPTOR.first;
        (*entry.as_ptr()).next = first;
        if !first.is_null() {
            (*first).previous = entry.as_ptr();
        }
        DESCRIPTOR.first = entry.as_ptr();
        DESCRIPTOR.relevant = entry.as_ptr();
        DESCRIPTOR.action = REGISTER;
        register_code();
    }
    GdbRegistration { entry, _file: file, _image: image }
}

impl Drop for GdbRegistration {
    fn drop(&mut self) {
        let _list = LIST.lock().unwrap_or_else(|e| e.into_inner());
        // SAFETY: as in `register`; the entry is in the list, and nothing else refers to it after
        // it is removed.
        unsafe {
            let Entry { next, previous, .. } = *self.entry.as_ptr();
            match previous.as_mut() {
                Some(previous) => previous.next = next,
                None => DESCRIPTOR.first = next,
            }
            if let Some(next) = next.as_mut() {
                next.previous = previous;
            }
            DESCRIPTOR.relevant = self.entry.as_ptr();
            DESCRIPTOR.action = UNREGISTER;
            register_code();
            drop(Box::from_raw(self.entry.as_ptr()));
        }
    }
}

/// An ELF file with the image's code as a section without contents, and a symbol for each function
/// and trampoline.
fn object_file(image: &CodeImage) -> Vec<u8> {
    let sections = Sections::of(&image.bytes);
    let module = sections.module_name.unwrap_or("wasm");
    let name = |index| match sections.function_name(index) {
        Some(name) => format!("{module}!{name}"),
        None => format!("{module}!function[{index}]"),
    };
    let code = image.memory().code();
    let functions = image.indices().flat_map(|index| {
        let function = image.function(index);
        let prefixes =
            code[function.entry as usize..].iter().take_while(|byte| **byte == ENTRY_PREFIX).count();
        let push = function.entry + prefixes as u32;
        let entry = (prefixes > 0).then(|| (name(index) + "@entry", function.entry..push));
        entry.into_iter().chain([(name(index), push..function.end)])
    });
    // By their symbols, gdb unwinds from here to the host's frames.
    let trampolines =
        image.trampolines().into_iter().map(|(what, place)| (format!("{module}!trampoline[{what}]"), place));
    let places: Vec<_> = functions
        .chain(trampolines)
        .map(|(name, place)| (name.replace('\0', " ").into_bytes(), place))
        .collect();
    let mut file = Vec::new();
    let mut writer = Writer::new(Endianness::Little, true, &mut file);

    // All parts are reserved first, then written in the same order.
    writer.reserve_null_section_index();
    let text_name = writer.add_section_name(b".text");
    let text = writer.reserve_section_index();
    writer.reserve_symtab_section_index();
    writer.reserve_strtab_section_index();
    writer.reserve_shstrtab_section_index();
    writer.reserve_null_symbol_index();
    let mut symbols = Vec::with_capacity(places.len());
    for (name, _) in &places {
        symbols.push(writer.add_string(name));
        writer.reserve_symbol_index(Some(text));
    }
    writer.reserve_file_header();
    writer.reserve_symtab();
    writer.reserve_strtab().expect("the names were given above");
    writer.reserve_shstrtab().expect("the names were given above");
    writer.reserve_section_headers();

    let header = FileHeader {
        os_abi: elf::ELFOSABI_NONE,
        abi_version: 0,
        e_type: elf::ET_EXEC,
        e_machine: elf::EM_X86_64,
        e_entry: 0,
        e_flags: elf::FileFlags(0),
    };
    writer.write_file_header(&header).expect("an ordinary header");
    writer.write_null_symbol();
    for ((_, place), name) in places.iter().zip(&symbols) {
        writer.write_symbol(&Sym {
            section: Some(text.0),
            st_name: writer.string_offset(Some(*name)),
            st_info: elf::SymbolInfo::new(elf::STB_GLOBAL, elf::STT_FUNC),
            st_other: elf::SymbolOther(0),
            st_shndx: elf::SHN_UNDEF,
            st_value: image.at(place.start) as u64,
            st_size: u64::from(place.end - place.start),
        });
    }
    writer.write_strtab();
    writer.write_shstrtab();
    writer.write_null_section_header();
    writer.write_section_header(&SectionHeader {
        sh_name: writer.section_name_offset(Some(text_name)),
        sh_type: elf::SHT_NOBITS,
        sh_flags: elf::SHF_ALLOC | elf::SHF_EXECINSTR,
        sh_addr: image.memory().address() as u64,
        sh_offset: 0,
        sh_size: image.memory().pages().len() as u64,
        sh_link: 0,
        sh_info: 0,
        sh_addralign: 16,
        sh_entsize: 0,
    });
    writer.write_symtab_section_header(1);
    writer.write_strtab_section_header();
    writer.write_shstrtab_section_header();
    file
}

#[cfg(test)]
mod tests {
    use object::{Object, ObjectSymbol};

    use super::super::tests::{compile, image};
    use super::*;

    #[test]
    fn the_object_file_has_the_functions_of_the_image() {
        let image = image(&[10, 5000, 70]);
        let registration = register(image.clone());
        let file = object::File::parse(&*registration._file).unwrap();
        let found: Vec<_> = file
            .symbols()
            .map(|symbol| (symbol.name().unwrap().to_owned(), symbol.address(), symbol.size()))
            .collect();
        let expected: Vec<_> = (2..)
            .zip([10, 5000, 70])
            .map(|(index, length)| (format!("wasm!function[{index}]"), image.entry(index) as u64, length))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn trampolines_have_symbols() {
        let text = "(module $m (func) (func) (func (param i32)))";
        let image = compile(wat::parse_str(text).unwrap(), 1).unwrap();
        let file = object_file(&image);
        let file = object::File::parse(&*file).unwrap();
        let names: Vec<_> = file.symbols().skip(6).map(|symbol| symbol.name().unwrap().to_owned()).collect();
        let of_functions: Vec<_> = file.symbols().take(2).map(|symbol| symbol.name().unwrap()).collect();
        assert_eq!(of_functions, ["m!function[0]@entry", "m!function[0]"]);
        assert_eq!(names, ["enter", "leave", "enter", "leave"].map(|what| format!("m!trampoline[{what}]")));
        let ends: Vec<_> = file.symbols().map(|symbol| symbol.address() + symbol.size()).collect();
        assert!(ends.is_sorted() && ends.last() == Some(&(image.memory().pages().end as u64)), "{ends:x?}");
    }

    #[test]
    fn the_list_holds_what_is_registered() {
        /// The addresses of the files in the list, each with that of its predecessor.
        fn list() -> Vec<(*const u8, Option<*const u8>)> {
            let _list = LIST.lock().unwrap();
            let mut found = Vec::new();
            // SAFETY: under the lock.
            unsafe {
                let mut next = DESCRIPTOR.first;
                while let Some(entry) = next.as_ref() {
                    found.push((entry.file, entry.previous.as_ref().map(|entry| entry.file)));
                    next = entry.next;
                }
            }
            found
        }
        let registrations: Vec<_> = (10..14).map(|length| register(image(&[length]))).collect();
        let mut files: Vec<_> = registrations.iter().map(|one| one._file.as_ptr()).collect();
        let check = |files: &[*const u8]| {
            let list = list();
            let known: Vec<_> =
                list.iter().map(|(file, _)| *file).filter(|file| files.contains(file)).collect();
            assert_eq!(known, files.iter().rev().copied().collect::<Vec<_>>());
            for (number, (_, previous)) in list.iter().enumerate() {
                assert_eq!(*previous, number.checked_sub(1).map(|before| list[before].0));
            }
        };
        check(&files);
        for (number, registration) in registrations.into_iter().enumerate() {
            drop(registration);
            files.remove(0);
            check(&files);
            assert_eq!(files.len(), 3 - number);
        }
    }
}
