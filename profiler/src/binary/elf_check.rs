//! Inspects a program before it is started: would it run a preloaded library?
//!
//! Only the headers and the dynamic symbols are read, and no file causes a panic. If the kind of a
//! file cannot be determined, it is [`Kind::Other`], and the kernel decides.

use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use object::elf::{self, FileHeader64};
use object::read::elf::{Dyn, FileHeader, ProgramHeader, Sym};
use object::{LittleEndian, ReadCache, ReadRef};

use crate::error::Error;

/// The number of bytes in which the kernel looks for a script's first line.
const FIRST_LINE: usize = 256;
/// The functions that code compiled with -finstrument-functions calls.
const INSTRUMENTATION: [&[u8]; 2] = [b"__cyg_profile_func_enter", b"__cyg_profile_func_exit"];

/// Prefixes of the names of the address sanitizer's library: gcc's and clang's.
const ADDRESS_SANITIZERS: [&[u8]; 3] = [b"libasan.so", b"libclang_rt.asan", b"libhwasan.so"];

/// The properties of a file to be executed or preloaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The kind of the file.
    pub kind: Kind,
    /// Whether executing it may raise privileges (set-user-ID, set-group-ID or file capabilities),
    /// so that the loader ignores `LD_PRELOAD`. True for every such file, even if the kernel would
    /// not actually raise anything.
    pub setuid_or_capabilities: bool,
}

/// The kind of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// An ELF file for 64-bit x86-64.
    Elf {
        /// Whether the file requests a loader. Neither a static executable nor a shared library
        /// does.
        dynamic: bool,
        /// Whether the file is a shared object: a library or a position-independent executable.
        shared: bool,
        /// Whether the file calls instrumentation functions that another object must define. Also
        /// true if it has no section headers, so that nobody knows.
        instrumented: bool,
    },
    /// An ELF file for another machine.
    ForeignElf {
        /// The word size: 32 or 64.
        bits: u8,
        /// `e_machine` of the header: 3 is 32-bit x86, 183 is aarch64.
        machine: u16,
    },
    /// A text file that starts with `#!`.
    Script {
        /// The program that executes the script.
        interpreter: PathBuf,
    },
    /// Something else, or a file that may not be read.
    Other,
}

/// Inspects the file at a path.
///
/// # Errors
/// [`Error::InspectProgram`] if the file does not exist or cannot be read for any reason but
/// permissions. A file that may be executed but not read is not an error.
pub fn inspect(path: &Path) -> Result<Program, Error> {
    let error = |source| Error::InspectProgram { path: path.to_owned(), source };
    let metadata = fs::metadata(path).map_err(error)?;
    let set_id = metadata.mode() & (libc::S_ISUID | libc::S_ISGID) != 0;
    let kind = if metadata.is_file() { kind_of_file(path).map_err(error)? } else { Kind::Other };
    Ok(Program { kind, setuid_or_capabilities: metadata.is_file() && (set_id || has_capabilities(path)) })
}

fn kind_of_file(path: &Path) -> std::io::Result<Kind> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => return Ok(Kind::Other),
        opened => opened?,
    };
    let mut start = Vec::new();
    file.by_ref().take(FIRST_LINE as u64).read_to_end(&mut start)?;
    if let Some(line) = start.strip_prefix(b"#!") {
        return Ok(script(line));
    }
    Ok(elf(&start, &ReadCache::new(file)).unwrap_or(Kind::Other))
}

fn script(line: &[u8]) -> Kind {
    let line = line.split(|byte| matches!(byte, b'\n' | b'\0')).next().unwrap_or_default();
    match line.split(|byte| matches!(byte, b' ' | b'\t')).find(|word| !word.is_empty()) {
        Some(interpreter) => Kind::Script { interpreter: PathBuf::from(OsStr::from_bytes(interpreter)) },
        None => Kind::Other,
    }
}

/// Inspects the start of a file; `None` if it is not an ELF file, or its headers are damaged.
fn elf<'data>(start: &[u8], data: impl ReadRef<'data>) -> Option<Kind> {
    let [class, order, ..] = *start.strip_prefix(&elf::ELFMAG)? else {
        return None;
    };
    let bits = match elf::FileClass(class) {
        elf::ELFCLASS32 => 32,
        elf::ELFCLASS64 => 64,
        _ => return None,
    };
    let machine = [*start.get(18)?, *start.get(19)?];
    let little_endian = elf::DataEncoding(order) == elf::ELFDATA2LSB;
    let machine = if little_endian { u16::from_le_bytes(machine) } else { u16::from_be_bytes(machine) };
    if (bits, machine, little_endian) != (64, elf::EM_X86_64.0, true) {
        return Some(Kind::ForeignElf { bits, machine });
    }
    let header = FileHeader64::<LittleEndian>::parse(data).ok()?;
    let segments = header.program_headers(LittleEndian, data).ok()?;
    Some(Kind::Elf {
        dynamic: segments.iter().any(|segment| segment.p_type(LittleEndian) == elf::PT_INTERP),
        shared: header.e_type(LittleEndian) == elf::ET_DYN,
        instrumented: calls_instrumentation(header, data).unwrap_or(true),
    })
}

fn calls_instrumentation<'data, R: ReadRef<'data>>(
    header: &FileHeader64<LittleEndian>,
    data: R,
) -> object::Result<bool> {
    let sections = header.sections(LittleEndian, data)?;
    if sections.is_empty() {
        return Ok(true);
    }
    let symbols = sections.symbols(LittleEndian, data, elf::SHT_DYNSYM)?;
    Ok(symbols.iter().any(|symbol| {
        symbol.st_shndx(LittleEndian) == elf::SHN_UNDEF
            && symbol.name(LittleEndian, symbols.strings()).is_ok_and(|name| INSTRUMENTATION.contains(&name))
    }))
}

/// The file name of the address sanitizer's library, if an executable needs it: it must be loaded
/// first.
pub fn needed_sanitizer(path: &Path) -> Option<OsString> {
    let data = ReadCache::new(File::open(path).ok()?);
    let header = FileHeader64::<LittleEndian>::parse(&data).ok()?;
    let sections = header.sections(LittleEndian, &data).ok()?;
    let (entries, strings) = sections.dynamic(LittleEndian, &data).ok()??;
    let strings = sections.strings(LittleEndian, &data, strings).ok()?;
    let needed = entries.iter().filter(|entry| entry.tag(LittleEndian) == elf::DT_NEEDED);
    let mut names = needed.filter_map(|entry| entry.string(LittleEndian, strings).ok());
    let is_sanitizer = |name: &&[u8]| ADDRESS_SANITIZERS.iter().any(|start| name.starts_with(start));
    names.find(is_sanitizer).map(|name| OsStr::from_bytes(name).to_owned())
}

fn has_capabilities(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else {
        return false;
    };
    // SAFETY: both names are NUL-terminated strings that outlive the call; with size 0 the system
    // does not write to the buffer and only returns the length of the attribute.
    unsafe { libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), std::ptr::null_mut(), 0) > 0 }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    use super::*;

    /// Compiles `source` with these options of gcc.
    #[track_caller]
    fn compile(directory: &Path, name: &str, options: &[&str], source: &str) -> PathBuf {
        let (input, output) = (directory.join(format!("{name}.c")), directory.join(name));
        fs::write(&input, source).unwrap();
        let status = Command::new("cc").args(options).arg("-o").arg(&output).arg(&input).status().unwrap();
        assert!(status.success());
        output
    }

    #[test]
    fn compiled_programs_are_distinguished() {
        const MAIN: &str = "int main(void) { return 0; }";
        const OWN_HOOKS: &str =
            "__attribute__((no_instrument_function)) void __cyg_profile_func_enter(void *a, void *b) {}
            __attribute__((no_instrument_function)) void __cyg_profile_func_exit(void *a, void *b) {}
            int main(void) { return 0; }";
        let directory = tempfile::tempdir().unwrap();
        let check = |name: &str,
                     options: &[&str],
                     source: &str,
                     dynamic: bool,
                     shared: bool,
                     instrumented: bool| {
            let path = compile(directory.path(), name, options, source);
            let kind = Kind::Elf { dynamic, shared, instrumented };
            assert_eq!(inspect(&path).unwrap(), Program { kind, setuid_or_capabilities: false }, "{name}");
        };
        check("pie", &["-pie", "-fPIE"], MAIN, true, true, false);
        check("fixed", &["-no-pie"], MAIN, true, false, false);
        check("static", &["-static"], MAIN, false, false, false);
        check("instrumented", &["-finstrument-functions"], MAIN, true, true, true);
        check("stripped", &["-finstrument-functions", "-s"], MAIN, true, true, true);
        check("own_hooks", &["-finstrument-functions", "-rdynamic"], OWN_HOOKS, true, true, false);
        check(
            "library",
            &["-shared", "-fPIC", "-finstrument-functions"],
            "int f(void) { return 0; }",
            false,
            true,
            true,
        );
    }

    #[test]
    fn the_sanitizer_is_found_among_what_a_program_needs() {
        let directory = tempfile::tempdir().unwrap();
        let check = |name: &str, options: &[&str], expected: bool| {
            let path = compile(directory.path(), name, options, "int main(void) { return 0; }");
            let found = needed_sanitizer(&path);
            let is_library = |name: &OsString| name.as_bytes().starts_with(b"libasan.so.");
            assert_eq!(found.as_ref().is_some_and(is_library), expected, "{name}: {found:?}");
            assert_eq!(found.is_some(), expected);
        };
        check("shared", &["-fsanitize=address"], true);
        check("linked_in", &["-fsanitize=address", "-static-libasan"], false);
        check("other", &["-lm"], false);
        check("static", &["-static"], false);
    }

    #[test]
    fn first_lines_name_the_interpreter() {
        let directory = tempfile::tempdir().unwrap();
        let check = |text: &[u8], interpreter: Option<&str>| {
            let path = directory.path().join("script");
            fs::write(&path, text).unwrap();
            let expected = match interpreter {
                Some(interpreter) => Kind::Script { interpreter: PathBuf::from(interpreter) },
                None => Kind::Other,
            };
            assert_eq!(inspect(&path).unwrap().kind, expected, "{}", String::from_utf8_lossy(text));
        };
        check(b"#!/bin/sh\nexit 0\n", Some("/bin/sh"));
        check(b"#! \t/usr/bin/env python3", Some("/usr/bin/env"));
        check(b"#!sh", Some("sh"));
        check(b"#!\n/bin/sh", None);
        check(b"#!", None);
        check(b"exit 0\n", None);
        check(b"", None);
    }

    #[test]
    fn other_machines_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let check = |class: u8, order: u8, machine: [u8; 2], expected: Kind| {
            let mut header = vec![0x7f, b'E', b'L', b'F', class, order, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0];
            header.extend(machine);
            let path = directory.path().join("foreign");
            fs::write(&path, header).unwrap();
            assert_eq!(inspect(&path).unwrap().kind, expected);
        };
        check(1, 1, [3, 0], Kind::ForeignElf { bits: 32, machine: 3 });
        check(1, 1, [62, 0], Kind::ForeignElf { bits: 32, machine: 62 });
        check(2, 1, [183, 0], Kind::ForeignElf { bits: 64, machine: 183 });
        check(2, 2, [0, 22], Kind::ForeignElf { bits: 64, machine: 22 });
        check(2, 1, [62, 0], Kind::Other);
        check(3, 1, [62, 0], Kind::Other);
    }

    #[test]
    fn set_id_bits_are_seen() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("program");
        fs::write(&path, "").unwrap();
        for (mode, expected) in [(0o755, false), (0o1755, false), (0o4755, true), (0o2755, true)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(inspect(&path).unwrap().setuid_or_capabilities, expected, "{mode:o}");
        }
    }

    #[test]
    fn only_files_are_programs() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(
            inspect(directory.path()).unwrap(),
            Program { kind: Kind::Other, setuid_or_capabilities: false }
        );
        let error = inspect(&directory.path().join("missing")).unwrap_err();
        assert!(matches!(error, Error::InspectProgram { .. }), "{error}");
    }

    #[test]
    fn damaged_files_do_no_harm() {
        let directory = tempfile::tempdir().unwrap();
        let sound =
            compile(directory.path(), "sound", &["-finstrument-functions"], "int main(void) { return 0; }");
        let sound = fs::read(sound).unwrap();
        let mut seed = 0x2545_f491_4f6c_dd1d_u64;
        let mut random = |below: usize| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed as usize % below
        };
        for round in 0..5_000 {
            let mut damaged = sound.clone();
            if round % 3 == 0 {
                damaged.truncate(random(sound.len()));
            }
            for _ in 0..8 {
                let position = random(if round % 2 == 0 { 64 } else { sound.len() });
                if let Some(byte) = damaged.get_mut(position) {
                    *byte = random(256) as u8;
                }
            }
            elf(&damaged[..damaged.len().min(FIRST_LINE)], damaged.as_slice());
        }
    }
}
