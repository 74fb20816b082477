//! `fastinst info`: describes a binary, and what can be measured in it.
//!
//! Everything is read from the file; nothing is executed. Whether a library would be preloaded is
//! decided by the same code as for `fastinst record` ([`profiler::binary::elf_check`]).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use goblin::elf::sym::STT_FUNC;
use goblin::elf::{Elf, header, section_header};
use profiler::binary::elf_check::{self, Kind};
use profiler::error::Error;
use serde::Serialize;

use crate::Failure;

const EXAMPLES: &str = "\
Examples:
  fastinst info ./app
  fastinst info /usr/lib/libz.so --json | jq .profiler";

const EXIT_CODES: &str = "\
Exit codes:
  0  printed
  1  the file cannot be read, or is not an ELF file
  2  wrong usage";

/// Describe a binary, and what can be measured in it
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES, after_help = EXIT_CODES, help_template = crate::TEMPLATE)]
pub(crate) struct Info {
    /// An executable, a shared library or an object file
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The functions that gcc and clang call at entries and exits with -finstrument-functions.
const ENTER: &str = "__cyg_profile_func_enter";
const EXIT: &str = "__cyg_profile_func_exit";
/// The functions that code compiled with -pg or -mfentry calls at entries.
const ENTRY_HOOKS: [&str; 3] = ["mcount", "_mcount", "__fentry__"];

/// The section of a symbol that is defined elsewhere.
const UNDEFINED: usize = section_header::SHN_UNDEF as usize;

/// The type and the name of a note that describes a USDT probe: `<sys/sdt.h>`.
const USDT: (u32, &str) = (3, "stapsdt");
/// In such a note, three addresses precede provider, name and arguments.
const USDT_ADDRESSES: usize = 24;

#[derive(Debug, PartialEq, Serialize)]
struct Binary {
    file: String,
    kind: &'static str,
    machine: &'static str,
    bits: u8,
    interpreter: Option<String>,
    soname: Option<String>,
    /// Required libraries, in the order in which they are searched for symbols.
    libraries: Vec<String>,
    /// Directories that are searched first.
    search_path: Vec<String>,
    /// Required symbol versions, by library.
    versions: BTreeMap<String, Vec<String>>,
    build_id: Option<String>,
    symbols: Symbols,
    debug: Debug,
    instrumentation: Instrumentation,
    probes: Probes,
    profiler: Verdict,
}

#[derive(Debug, PartialEq, Serialize)]
struct Symbols {
    /// The number of functions in the symbol table, which `strip` removes.
    functions: usize,
    /// The number of exported functions.
    exported: usize,
}

#[derive(Debug, PartialEq, Serialize)]
struct Debug {
    dwarf: bool,
    compressed: bool,
    /// The path of the file with separate debug information.
    separate: Option<String>,
}

#[derive(Debug, PartialEq, Serialize)]
struct Instrumentation {
    entries: bool,
    exits: bool,
    /// Whether the file defines one of the instrumentation functions itself.
    defined_here: bool,
}

/// Instrumentation other than `-finstrument-functions`.
#[derive(Debug, PartialEq, Serialize)]
struct Probes {
    /// Number of locations by `PROVIDER:NAME`.
    usdt: BTreeMap<String, usize>,
    /// Number of locations made by `-fpatchable-function-entry`.
    patchable_entries: u64,
    /// Whether clang's XRay has instrumented it.
    xray: bool,
    /// The function that entries call if compiled with -pg or -mfentry.
    entry_hook: Option<String>,
}

#[derive(Debug, PartialEq, Serialize)]
struct Verdict {
    /// Whether functions of this file are measured when it is recorded, or when a recorded program
    /// loads it.
    measured: bool,
    /// The reasons, and limitations of the report.
    remarks: Vec<String>,
}

pub(crate) fn run(arguments: &Info) -> Result<(), Failure> {
    let binary = read(&arguments.file).map_err(|message| Failure { code: 1, message })?;
    let text = if arguments.json {
        serde_json::to_string_pretty(&binary).expect("a value without maps by other keys than strings") + "\n"
    } else {
        render(&binary)
    };
    crate::print(text.as_bytes())
}

fn read(path: &Path) -> Result<Binary, String> {
    let shown = path.display();
    let bytes = fs::read(path).map_err(|error| format!("cannot read {shown}: {error}"))?;
    if !bytes.starts_with(header::ELFMAG) {
        let what = if bytes.starts_with(b"#!") {
            "a script; name the program that runs it"
        } else {
            "not an ELF file"
        };
        return Err(format!("{shown} is {what}"));
    }
    let elf = Elf::parse(&bytes).map_err(|error| format!("{shown} is damaged: {error}"))?;
    let checked = elf_check::inspect(path).map_err(|error| error.to_string())?;
    Ok(binary(path, &elf, &bytes, &checked))
}

fn binary(path: &Path, elf: &Elf<'_>, bytes: &[u8], checked: &elf_check::Program) -> Binary {
    let strings = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let mut binary = Binary {
        file: path.display().to_string(),
        kind: kind(elf),
        machine: header::machine_to_str(elf.header.e_machine),
        bits: if elf.is_64 { 64 } else { 32 },
        interpreter: elf.interpreter.map(str::to_owned),
        soname: elf.soname.map(str::to_owned),
        libraries: strings(&elf.libraries),
        search_path: strings(if elf.runpaths.is_empty() { &elf.rpaths } else { &elf.runpaths }),
        versions: versions(elf),
        build_id: build_id(elf, bytes),
        symbols: symbols(elf),
        debug: debug(elf, bytes),
        instrumentation: instrumentation(elf),
        probes: probes(elf, bytes),
        profiler: Verdict { measured: false, remarks: Vec::new() },
    };
    binary.profiler = verdict(path, &binary, checked, !elf.section_headers.is_empty());
    binary
}

fn kind(elf: &Elf<'_>) -> &'static str {
    match elf.header.e_type {
        header::ET_EXEC => "executable",
        // Some libraries can be executed, too: the C library prints its version.
        header::ET_DYN if elf.soname.is_some() => "shared library",
        header::ET_DYN if elf.interpreter.is_some() => "position-independent executable",
        header::ET_DYN if is_static_pie(elf) => "static position-independent executable",
        header::ET_DYN => "shared library",
        header::ET_REL => "object file",
        header::ET_CORE => "core file",
        _ => "ELF file of another kind",
    }
}

/// Whether it has the linker's flag for executables, which libraries do not have.
fn is_static_pie(elf: &Elf<'_>) -> bool {
    const DF_1_PIE: u64 = 0x0800_0000;
    elf.dynamic.as_ref().is_some_and(|dynamic| dynamic.info.flags_1 & DF_1_PIE != 0)
}

fn versions(elf: &Elf<'_>) -> BTreeMap<String, Vec<String>> {
    let name = |at: usize| elf.dynstrtab.get_at(at).map(str::to_owned);
    let Some(needed) = &elf.verneed else { return BTreeMap::new() };
    let of_library = needed.iter().filter_map(|library| {
        let mut versions: Vec<String> = library.iter().filter_map(|version| name(version.vna_name)).collect();
        versions.sort_by_key(|version| numbers(version));
        Some((name(library.vn_file)?, versions))
    });
    of_library.collect()
}

/// A version in a form that sorts numerically: `GLIBC_2.4` before `GLIBC_2.34`.
fn numbers(version: &str) -> (String, Vec<u64>) {
    let (name, numbers) = version.rsplit_once('_').unwrap_or((version, ""));
    (name.to_owned(), numbers.split('.').filter_map(|number| number.parse().ok()).collect())
}

fn build_id(elf: &Elf<'_>, bytes: &[u8]) -> Option<String> {
    const NT_GNU_BUILD_ID: u32 = 3;
    let mut notes = elf.iter_note_headers(bytes)?.filter_map(Result::ok);
    let note = notes.find(|note| note.n_type == NT_GNU_BUILD_ID && note.name == "GNU")?;
    Some(note.desc.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn symbols(elf: &Elf<'_>) -> Symbols {
    let is_function =
        |symbol: &goblin::elf::Sym| symbol.st_type() == STT_FUNC && symbol.st_shndx != UNDEFINED;
    Symbols {
        functions: elf.syms.iter().filter(is_function).count(),
        exported: elf.dynsyms.iter().filter(is_function).count(),
    }
}

/// The sections with their names.
fn sections<'a>(elf: &'a Elf<'_>) -> impl Iterator<Item = (&'a str, &'a goblin::elf::SectionHeader)> {
    elf.section_headers.iter().filter_map(|section| Some((elf.shdr_strtab.get_at(section.sh_name)?, section)))
}

fn debug(elf: &Elf<'_>, bytes: &[u8]) -> Debug {
    let mut debug = Debug { dwarf: false, compressed: false, separate: None };
    for (name, section) in sections(elf) {
        match name {
            ".debug_info" | ".zdebug_info" => {
                debug.dwarf = section.sh_type != section_header::SHT_NOBITS;
                let is_flagged = section.sh_flags & u64::from(section_header::SHF_COMPRESSED) != 0;
                debug.compressed = is_flagged || name.starts_with(".z");
            }
            ".gnu_debuglink" => {
                let data = section.file_range().and_then(|range| bytes.get(range)).unwrap_or_default();
                let name = data.split(|byte| *byte == 0).next().unwrap_or_default();
                debug.separate = Some(String::from_utf8_lossy(name).into_owned());
            }
            _ => {}
        }
    }
    debug
}

/// Names of symbols, and whether each is defined elsewhere.
fn names<'a>(elf: &'a Elf<'_>) -> impl Iterator<Item = (&'a str, bool)> {
    let dynamic = elf.dynsyms.iter().map(|symbol| (elf.dynstrtab.get_at(symbol.st_name), symbol));
    let all = dynamic.chain(elf.syms.iter().map(|symbol| (elf.strtab.get_at(symbol.st_name), symbol)));
    all.filter_map(|(name, symbol)| {
        // The static symbol table has the version in the name: `mcount@GLIBC_2.2.5`.
        let name = name?.split('@').next()?;
        Some((name, symbol.st_shndx == UNDEFINED))
    })
}

fn instrumentation(elf: &Elf<'_>) -> Instrumentation {
    let mut found = Instrumentation { entries: false, exits: false, defined_here: false };
    for (name, is_elsewhere) in names(elf) {
        if name == ENTER || name == EXIT {
            found.entries |= name == ENTER;
            found.exits |= name == EXIT;
            found.defined_here |= !is_elsewhere;
        }
    }
    found
}

fn probes(elf: &Elf<'_>, bytes: &[u8]) -> Probes {
    let hook = names(elf).find(|(name, is_elsewhere)| *is_elsewhere && ENTRY_HOOKS.contains(name));
    let address = if elf.is_64 { 8 } else { 4 };
    let mut found = Probes {
        usdt: BTreeMap::new(),
        patchable_entries: 0,
        xray: false,
        entry_hook: hook.map(|(name, _)| name.to_owned()),
    };
    for (name, section) in sections(elf) {
        match name {
            "__patchable_function_entries" => found.patchable_entries += section.sh_size / address,
            "xray_instr_map" => found.xray = true,
            _ => {}
        }
    }
    for note in
        elf.iter_note_sections(bytes, Some(".note.stapsdt")).into_iter().flatten().filter_map(Result::ok)
    {
        if (note.n_type, note.name) == USDT
            && let Some(texts) = note.desc.get(USDT_ADDRESSES..)
        {
            let mut texts = texts.split(|byte| *byte == 0).map(String::from_utf8_lossy);
            let (provider, name) = (texts.next().unwrap_or_default(), texts.next().unwrap_or_default());
            *found.usdt.entry(format!("{provider}:{name}")).or_default() += 1;
        }
    }
    found
}

fn verdict(path: &Path, binary: &Binary, checked: &elf_check::Program, has_sections: bool) -> Verdict {
    let mut remarks = Vec::new();
    let Instrumentation { entries, exits, defined_here } = binary.instrumentation;
    let is_instrumented = (entries || exits) && !defined_here;
    let path = || path.to_owned();
    let is_executable = binary.kind.ends_with("executable");
    let refusal = match &checked.kind {
        Kind::ForeignElf { bits, machine } => {
            Some(Error::ForeignProgram { path: path(), bits: *bits, machine: *machine })
        }
        Kind::Elf { dynamic: false, .. } if is_executable => Some(Error::StaticProgram { path: path() }),
        Kind::Elf { .. } if is_executable && checked.setuid_or_capabilities => {
            Some(Error::PrivilegedProgram { path: path() })
        }
        _ if is_executable && defined_here => Some(Error::OwnInstrumentation),
        _ => None,
    };
    let measured = is_instrumented && refusal.is_none() && has_sections && binary.kind != "core file";
    remarks.push(match (refusal, measured, binary.kind) {
        (Some(refusal), ..) => refusal.to_string(),
        (None, true, "shared library") => {
            "its functions are measured in every program that is recorded".to_owned()
        }
        (None, true, "object file") => "its functions are measured in what it is linked into".to_owned(),
        (None, true, _) => "its functions are measured by `fastinst record`".to_owned(),
        (None, false, _) if defined_here => "it defines the instrumentation functions for others".to_owned(),
        (None, false, _) if is_instrumented && !has_sections => {
            "it has no section headers, by which its instrumentation is found: do not remove them".to_owned()
        }
        (None, false, _) if is_instrumented => format!("a {} is not executed", binary.kind),
        (None, false, _) => {
            "no function of it calls the instrumentation; compile it with -finstrument-functions, \
             or measure its libraries only"
                .to_owned()
        }
    });
    if measured && binary.kind != "object file" {
        let Symbols { functions, exported } = binary.symbols;
        if functions == 0 {
            remarks.push(match exported {
                0 => "it has no symbols, so functions are named by their addresses".to_owned(),
                _ => "it is stripped, so only exported functions have names".to_owned(),
            });
        }
        match (&binary.debug.separate, binary.debug.dwarf) {
            (_, true) => {}
            (Some(file), false) => {
                remarks.push(format!("file and line are in {file}, where that is installed"))
            }
            (None, false) => remarks
                .push("it has no debug information, so no file and line; compile it with -g".to_owned()),
        }
        if !(entries && exits) {
            remarks
                .push("only entries or only exits are instrumented: calls are counted, not timed".to_owned());
        }
    }
    Verdict { measured, remarks }
}

fn render(binary: &Binary) -> String {
    let Binary { file, kind, machine, bits, .. } = binary;
    let mut text = format!("{file}: {kind}, {machine}, {bits} bits\n");
    let mut line = |name: &str, value: String| {
        if !value.is_empty() {
            // Strings of a binary are untrusted: control characters are replaced.
            let value: String = value.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
            text.push_str(&format!("{name:<18} {value}\n"));
        }
    };
    let optional = |text: &Option<String>| text.clone().unwrap_or_default();
    line("interpreter", optional(&binary.interpreter));
    line("name", optional(&binary.soname));
    line("libraries", binary.libraries.join(", "));
    line("search path", binary.search_path.join(":"));
    let newest =
        |(library, versions): (&String, &Vec<String>)| Some(format!("{library}: {}", versions.last()?));
    line("newest versions", binary.versions.iter().filter_map(newest).collect::<Vec<_>>().join(", "));
    line("build id", optional(&binary.build_id));
    let Symbols { functions, exported } = binary.symbols;
    line("symbols", format!("{functions} functions, {exported} exported ones"));
    line(
        "debug information",
        match (&binary.debug, &binary.debug.separate) {
            (Debug { dwarf: true, compressed: true, .. }, _) => "DWARF, compressed".to_owned(),
            (Debug { dwarf: true, .. }, _) => "DWARF".to_owned(),
            (_, Some(separate)) => format!("in {separate}"),
            _ => "none".to_owned(),
        },
    );
    let Instrumentation { entries, exits, defined_here } = binary.instrumentation;
    let places = match (defined_here, entries, exits) {
        (true, ..) => "defines the instrumentation functions",
        (_, true, true) => "entries and exits",
        (_, true, false) => "entries",
        (_, false, true) => "exits",
        (_, false, false) => "none",
    };
    line("instrumentation", places.to_owned());
    line("other probes", other_probes(&binary.probes));
    for (number, remark) in binary.profiler.remarks.iter().enumerate() {
        line(if number == 0 { "profiler" } else { "" }, remark.clone());
    }
    text
}

fn other_probes(probes: &Probes) -> String {
    let mut all: Vec<String> = probes
        .usdt
        .iter()
        .map(|(name, places)| if *places == 1 { name.clone() } else { format!("{name} ({places})") })
        .collect();
    if probes.patchable_entries > 0 {
        all.push(format!("{} patchable entries", probes.patchable_entries));
    }
    if probes.xray {
        all.push("XRay".to_owned());
    }
    all.extend(probes.entry_hook.as_ref().map(|hook| format!("calls of {hook} at entries")));
    all.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn this() -> PathBuf {
        std::env::current_exe().expect("a test has an executable")
    }

    #[test]
    fn a_program_of_rust_is_described() {
        let found = read(&this()).expect("it is an ELF file");
        assert_eq!(
            (found.kind, found.machine, found.bits),
            ("position-independent executable", "X86_64", 64)
        );
        assert!(found.libraries.iter().any(|name| name.starts_with("libc.so")), "{found:?}");
        let of_libc = found.versions.get("libc.so.6").expect("versions of libc");
        assert!(of_libc.iter().all(|version| version.starts_with("GLIBC_")), "{of_libc:?}");
        assert!(found.symbols.functions > 100 && found.debug.dwarf, "{found:?}");
        assert!(!found.profiler.measured && !found.instrumentation.entries);
        let text = render(&found);
        assert!(text.contains("profiler           no function of it calls the instrumentation"), "{text}");
    }

    #[test]
    fn versions_are_sorted_by_number() {
        let mut versions = ["GLIBC_2.34", "GLIBC_2.4", "GLIBC_2.2.5", "GCC_3.0"];
        versions.sort_by_key(|version| numbers(version));
        assert_eq!(versions, ["GCC_3.0", "GLIBC_2.2.5", "GLIBC_2.4", "GLIBC_2.34"]);
    }

    #[test]
    fn other_files_are_rejected_in_one_line() {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let check = |content: &[u8], expected: &str| {
            let path = folder.path().join("file");
            fs::write(&path, content).expect("a file can be written");
            let message = read(&path).expect_err("it is no binary");
            assert!(message.ends_with(expected) && message.lines().count() == 1, "{message}");
        };
        check(b"", "is not an ELF file");
        check(b"text", "is not an ELF file");
        check(b"#!/bin/sh\n", "is a script; name the program that runs it");
        assert!(read(folder.path()).expect_err("a folder").contains("cannot read"));
        assert!(read(&folder.path().join("none")).expect_err("no file").contains("cannot read"));
    }

    /// Any file is described or refused without a panic.
    #[test]
    fn damaged_binaries_are_survived() {
        let bytes = fs::read(this()).expect("a test can be read");
        let checked = elf_check::inspect(&this()).expect("it is there");
        let describe = |bytes: &[u8]| {
            Elf::parse(bytes).ok().map(|elf| render(&binary(Path::new("file"), &elf, bytes, &checked)))
        };
        assert!(describe(&bytes).is_some());
        for length in (0..1024).step_by(7).chain((1..40).map(|part| bytes.len() / 40 * part)) {
            let _ = describe(&bytes[..length]);
        }
        let sections = Elf::parse(&bytes).expect("an ELF file").header.e_shoff as usize;
        for at in (16..1000).chain(sections..sections + 1000).step_by(3).filter(|at| *at < bytes.len()) {
            let mut damaged = bytes.clone();
            damaged[at] = !damaged[at];
            let _ = describe(&damaged);
        }
    }

    #[test]
    fn control_characters_of_a_binary_stay_in_it() {
        let mut found = read(&this()).expect("it is an ELF file");
        found.soname = Some("a\u{1b}[31mb".to_owned());
        assert!(render(&found).contains("a?[31mb"));
    }
}
