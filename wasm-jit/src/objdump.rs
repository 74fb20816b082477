//! WebAssembly and machine code side by side: each instruction in text form, followed by its
//! machine code.
//!
//! The text is wasmprinter's, whose lines have their offsets in the binary module. The code of an
//! instruction is determined by compiling the function again. Addresses are offsets from the start
//! of the module's code, and call targets are given by name, so the output does not depend on the
//! address of the code.
//!
//! A function that was probed can be listed as its last version: then offsets are from the start of
//! the version, sites are marked, and the code of an instruction is followed by the stub of its
//! site and, if some of its active probes call functions, by the stub of these probes.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::io::{self, Write};
use std::ops::Range;
use std::rc::Rc;

use iced_x86::{
    Decoder, DecoderOptions, Formatter, Instruction, Mnemonic, NasmFormatter, OpKind, SymbolResolver,
    SymbolResult,
};
use wasm_jit_codegen::Position;
use wasmprinter::Print;

use crate::code::CodeImage;
use crate::code::probed::{Listed, ListedSite};
use crate::code::sections::{Sections, printable};
use crate::vmctx::{INTERRUPT_CHECK, TrapCode};

/// How the line of a branch hint begins, which precedes its instruction.
const HINT: &str = "(@metadata.code.branch_hint";

/// Bytes of machine code in a line.
const BYTES: usize = 10;

/// Which code of a function is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// The original in its current state.
    Original,
    /// The original, as it was compiled.
    Compiled,
    /// The version that was made last, where there is one.
    LastVersion,
}

/// Writes the functions for which `wanted` returns true, given index and name in the name section.
///
/// # Errors
/// Any error that `out` returns.
pub(crate) fn write(
    image: &CodeImage,
    code: Code,
    wanted: impl Fn(u32, Option<&str>) -> bool,
    out: &mut dyn Write,
) -> io::Result<()> {
    write_to(image, code, wanted, Margin { out, figure: None, text: String::new(), is_written: false })
}

/// As [`write`], with a figure before each instruction that has one, and before its machine code.
/// `figure` gets an offset in the module.
///
/// # Errors
/// Any error that `out` returns.
pub(crate) fn write_with_figures(
    image: &CodeImage,
    wanted: impl Fn(u32, Option<&str>) -> bool,
    figure: &dyn Fn(u64) -> Option<u64>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let margin = Margin { out, figure: Some(figure), text: String::new(), is_written: false };
    write_to(image, Code::Compiled, wanted, margin)
}

fn write_to(
    image: &CodeImage,
    code: Code,
    wanted: impl Fn(u32, Option<&str>) -> bool,
    out: Margin<'_>,
) -> io::Result<()> {
    let sections = Sections::of(&image.bytes);
    let mut functions: Vec<u32> = image.indices().collect();
    functions.retain(|index| wanted(*index, sections.function_names.get(index).copied()));
    let by_address = image.indices().flat_map(|index| {
        let code = image.compiled(index).map(|function| image.at(function.entry));
        let entries = code.into_iter().chain([image.first_entry(index)]).map(|entry| entry as usize);
        entries.chain(image.version_entries(index)).map(move |entry| (entry as u64, index))
    });
    let by_address = by_address.map(|(entry, index)| (entry, name(&sections, index))).collect();
    let base = Rc::new(Cell::new(0));
    let names = Names { by_address, base: base.clone() };
    let mut listing = Listing {
        image,
        listed: code,
        functions: functions.into_iter().rev().collect(),
        current: None,
        originals: match code {
            Code::Compiled => image.code_without_versions(),
            Code::Original | Code::LastVersion => image.code(),
        },
        disassembler: Disassembler {
            formatter: formatter(names),
            code: Vec::new(),
            base,
            sites: HashSet::new(),
        },
        line: String::new(),
        offset: None,
        sections: &sections,
        out,
    };
    let printed = wasmprinter::Config::new().print(&image.bytes, &mut listing);
    listing.finish_line()?;
    listing.finish_function()?;
    // Returns an error of `out` unchanged.
    printed.map_err(|error| error.downcast::<io::Error>().unwrap_or_else(io::Error::other))
}

/// Lines with figures before them, if there are any.
struct Margin<'a> {
    out: &'a mut dyn Write,
    figure: Option<&'a dyn Fn(u64) -> Option<u64>>,
    /// The text before each line; empty without figures.
    text: String,
    /// Whether the text has been written for the current line.
    is_written: bool,
}

/// The width of a figure and the space after it.
const MARGIN: usize = 16;

impl Margin<'_> {
    /// The lines that follow belong to this instruction, or to none.
    fn begin(&mut self, offset: Option<u64>) {
        let Some(figure) = self.figure else { return };
        self.text = match offset.and_then(figure) {
            Some(figure) => format!("{figure:>width$} ", width = MARGIN - 1),
            None => " ".repeat(MARGIN),
        };
    }
}

impl Write for Margin<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes).map(|()| bytes.len())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            if !self.is_written && part != b"\n" {
                self.out.write_all(self.text.as_bytes())?;
            }
            self.out.write_all(part)?;
            self.is_written = !part.ends_with(b"\n");
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// A name that fits on one line and contains no control characters, whatever the module's name is.
fn name(sections: &Sections<'_>, index: u32) -> String {
    match sections.function_name(index) {
        Some(name) => printable(&name).into_owned(),
        None => format!("function {index}"),
    }
}

fn formatter(names: Names) -> NasmFormatter {
    let mut formatter = NasmFormatter::with_options(Some(Box::new(names)), None);
    let options = formatter.options_mut();
    options.set_space_after_operand_separator(true);
    options.set_hex_prefix("0x");
    options.set_hex_suffix("");
    options.set_uppercase_hex(false);
    options.set_branch_leading_zeros(false);
    options.set_show_branch_size(false);
    formatter
}

/// The functions' names, by the addresses of their entry points.
struct Names {
    by_address: HashMap<u64, String>,
    /// The address that offsets are from.
    base: Rc<Cell<u64>>,
}

impl SymbolResolver for Names {
    fn symbol(
        &mut self,
        instruction: &Instruction,
        operand: u32,
        _: Option<u32>,
        address: u64,
        _: u32,
    ) -> Option<SymbolResult<'_>> {
        // Displacements from registers are also looked up.
        if instruction.op_kind(operand) != OpKind::NearBranch64 {
            return None;
        }
        let name = self.by_address.get(&self.base.get().wrapping_add(address));
        name.map(|name| SymbolResult::with_str(address, name))
    }
}

struct Disassembler {
    formatter: NasmFormatter,
    /// The original code of all functions, or a version of one.
    code: Vec<u8>,
    /// The address at which the code is executed.
    base: Rc<Cell<u64>>,
    /// The offsets of the sites in the code.
    sites: HashSet<u32>,
}

impl Disassembler {
    fn write(&mut self, range: Range<u32>, out: &mut dyn Write) -> io::Result<()> {
        let all = std::mem::take(&mut self.code);
        let code = &all[range.start as usize..range.end as usize];
        let written = self.write_code(range.start.into(), code, out);
        self.code = all;
        written
    }

    /// Writes code that begins at this offset.
    fn write_code(&mut self, offset: u64, code: &[u8], out: &mut dyn Write) -> io::Result<()> {
        let mut decoder = Decoder::with_ip(64, code, offset, DecoderOptions::NONE);
        let mut text = String::new();
        while decoder.can_decode() {
            let start = decoder.position();
            let instruction = decoder.decode();
            text.clear();
            self.formatter.format(&instruction, &mut text);
            // The byte after UD2 has the reason.
            if instruction.mnemonic() == Mnemonic::Ud2
                && let Some(reason) = code.get(decoder.position()).and_then(|code| reason(*code))
            {
                text += &format!(" ; {reason}");
                let after = decoder.position() + 1;
                decoder.set_position(after).expect("inside the code");
                decoder.set_ip(offset.wrapping_add(after as u64));
            }
            let bytes = &code[start..decoder.position()];
            let address = offset.wrapping_add(start as u64);
            if self.sites.contains(&(address as u32)) {
                text += " ; site";
            }
            let (first, rest) = bytes.split_at(bytes.len().min(BYTES));
            writeln!(out, "{address:12x}: {:<width$}{text}", hex(first), width = 3 * BYTES)?;
            if !rest.is_empty() {
                writeln!(out, "{:14}{}", "", hex(rest).trim_end())?;
            }
        }
        Ok(())
    }

    /// Writes the stubs of the site above them.
    fn write_stubs(&mut self, stubs: &Stubs, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "        stub:")?;
        self.write(stubs.own.clone(), out)?;
        let Some((offset, code)) = &stubs.list else { return Ok(()) };
        writeln!(out, "        stub of active probes:")?;
        self.write_code(*offset, code, out)
    }

    fn write_data(&self, range: Range<u32>, out: &mut dyn Write) -> io::Result<()> {
        for start in range.clone().step_by(8) {
            let bytes = &self.code[start as usize..range.end.min(start + 8) as usize];
            writeln!(out, "{start:12x}: {:<width$}data", hex(bytes), width = 3 * BYTES)?;
        }
        Ok(())
    }
}

/// Why UD2 is executed, by the byte after it.
fn reason(code: u8) -> Option<String> {
    match TrapCode::ALL.get(usize::from(code)) {
        Some(trap) => Some(format!("{trap:?}")),
        None => (code == INTERRUPT_CHECK).then(|| "an interrupt is requested".to_owned()),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x} ")).collect()
}

/// The listing of a module, written while its text is produced.
struct Listing<'a, 'o> {
    image: &'a CodeImage,
    listed: Code,
    originals: Vec<u8>,
    /// Functions still to be listed, the next one last.
    functions: Vec<u32>,
    current: Option<Current>,
    disassembler: Disassembler,
    /// The current line of text, and its offset in the module.
    line: String,
    offset: Option<u64>,
    sections: &'a Sections<'a>,
    out: Margin<'o>,
}

/// The code of a function. Offsets are from the disassembler's base.
struct Shown {
    entry: u32,
    end: u32,
    /// The positions, in code order.
    positions: Vec<Position>,
    /// As in [`Current`].
    stubs: HashMap<u64, Stubs>,
}

/// The stubs of a site.
struct Stubs {
    /// The stub for counters, if it is not empty.
    own: Range<u32>,
    /// As in [`ListedSite`].
    list: Option<(u64, Vec<u8>)>,
}

/// The function being listed.
struct Current {
    wasm: Range<u64>,
    /// The offset of the first instruction, and the code before it.
    prologue: Option<(u64, Range<u32>)>,
    /// The code of instructions that is not yet written, by their offsets in the module.
    code: HashMap<u64, Vec<Range<u32>>>,
    /// The stubs of sites, by the offsets of their instructions; for the entry and the exit, by the
    /// start and the end of the body.
    stubs: HashMap<u64, Stubs>,
}

impl Print for Listing<'_, '_> {
    fn write_str(&mut self, text: &str) -> io::Result<()> {
        self.line.push_str(text);
        Ok(())
    }

    fn newline(&mut self) -> io::Result<()> {
        self.finish_line()
    }

    fn start_line(&mut self, offset: Option<u64>) {
        self.offset = offset;
    }

    /// Names and DWARF are not part of any function.
    fn print_custom_section(&mut self, _: &str, _: u64, _: &[u8]) -> io::Result<bool> {
        Ok(true)
    }
}

impl Listing<'_, '_> {
    /// Writes the line if it belongs to a wanted function, followed by its code.
    fn finish_line(&mut self) -> io::Result<()> {
        let line = std::mem::take(&mut self.line);
        // The offset of a branch hint is that in its section.
        let is_hint = line.trim_start().starts_with(HINT);
        let Some(offset) = self.offset.take().filter(|_| !is_hint) else {
            // Continues the previous line.
            return match &self.current {
                Some(_) if !line.trim().is_empty() => writeln!(self.out, "{line}"),
                _ => Ok(()),
            };
        };
        if self.current.as_ref().is_some_and(|current| !current.wasm.contains(&offset)) {
            self.finish_function()?;
        }
        if self.current.is_none() {
            let next = |index: &u32| u64::from(self.image.body_range(*index).start) <= offset;
            let Some(index) = self.functions.pop_if(|index| next(index)) else { return Ok(()) };
            self.begin_function(index)?;
        }
        let Some(current) = &mut self.current else { return Ok(()) };
        if let Some((_, prologue)) = current.prologue.take_if(|(first, _)| *first <= offset) {
            self.disassembler.write(prologue, &mut self.out)?;
            if let Some(stubs) = current.stubs.remove(&current.wasm.start) {
                self.disassembler.write_stubs(&stubs, &mut self.out)?;
            }
        }
        self.out.begin(Some(offset));
        writeln!(self.out, "{line}")?;
        for range in current.code.remove(&offset).unwrap_or_default() {
            self.disassembler.write(range, &mut self.out)?;
        }
        if offset != current.wasm.start
            && let Some(stubs) = current.stubs.remove(&offset)
        {
            self.disassembler.write_stubs(&stubs, &mut self.out)?;
        }
        // After the last `end`, of one byte, that of the exit.
        if offset + 1 == current.wasm.end
            && let Some(stubs) = current.stubs.remove(&current.wasm.end)
        {
            self.disassembler.write_stubs(&stubs, &mut self.out)?;
        }
        Ok(())
    }

    /// The code of a function that is listed.
    fn code_of(&mut self, index: u32) -> io::Result<Shown> {
        let version = match self.listed {
            Code::Original | Code::Compiled => None,
            Code::LastVersion => self.image.last_version(index).map_err(io::Error::other)?,
        };
        let disassembler = &mut self.disassembler;
        if let Some(Listed { base, code, entry, end, positions, sites }) = version {
            disassembler.code = code;
            disassembler.base.set(base as u64);
            disassembler.sites = sites.iter().map(|site| site.code).collect();
            let stubs = sites
                .into_iter()
                .map(|ListedSite { wasm, stub, list, .. }| (u64::from(wasm), Stubs { own: stub, list }));
            return Ok(Shown { entry, end, positions, stubs: stubs.collect() });
        }
        let function = *self.image.function(index);
        let mut positions = self.image.positions(index).map_err(io::Error::other)?;
        positions.iter_mut().for_each(|position| position.code += function.entry);
        let base = self.image.memory().address() as u64;
        if disassembler.base.replace(base) != base {
            disassembler.code.clone_from(&self.originals);
            disassembler.sites.clear();
        }
        Ok(Shown { entry: function.entry, end: function.end, positions, stubs: HashMap::new() })
    }

    fn begin_function(&mut self, index: u32) -> io::Result<()> {
        let Range { start, end } = self.image.body_range(index);
        let wasm = u64::from(start)..u64::from(end);
        self.out.begin(None);
        write!(
            self.out,
            "\n{}: {} bytes of WebAssembly at {:#x}, ",
            name(self.sections, index),
            wasm.end - wasm.start,
            wasm.start,
        )?;
        if self.image.compiled(index).is_none() {
            return writeln!(self.out, "not compiled yet");
        }
        let Shown { entry, end, positions, stubs } = self.code_of(index)?;
        let starts = positions.iter().map(|position| position.code);
        let ends = starts.clone().skip(1).chain([end]);
        let mut code: HashMap<u64, Vec<Range<u32>>> = HashMap::new();
        for ((position, start), end) in positions.iter().zip(starts.clone()).zip(ends) {
            if start < end {
                code.entry(position.wasm.into()).or_default().push(start..end);
            }
        }
        write!(self.out, "{} bytes of code", end - entry)?;
        match stubs.len() {
            0 => writeln!(self.out, " at {entry:#x}")?,
            1 => writeln!(self.out, " with one site")?,
            sites => writeln!(self.out, " with {sites} sites")?,
        }
        let first = positions.first().map_or(wasm.start, |position| position.wasm.into());
        let behind_prologue = starts.clone().next().unwrap_or(end);
        let prologue = Some((first, entry..behind_prologue));
        self.current = Some(Current { wasm, prologue, code, stubs });
        Ok(())
    }

    /// Writes the code that does not belong to a line: jump tables and constants, and code of
    /// instructions that are not printed.
    fn finish_function(&mut self) -> io::Result<()> {
        let Some(current) = self.current.take() else { return Ok(()) };
        self.out.begin(None);
        let is_data = |wasm: u64| wasm == u64::from(Position::DATA);
        let ranges = |(wasm, ranges): (u64, Vec<Range<u32>>)| {
            ranges.into_iter().map(move |range| (range, is_data(wasm)))
        };
        let mut rest: Vec<(Range<u32>, bool)> = current.code.into_iter().flat_map(ranges).collect();
        rest.sort_unstable_by_key(|(range, _)| range.start);
        for (range, is_data) in rest {
            match is_data {
                true => self.disassembler.write_data(range, &mut self.out)?,
                false => self.disassembler.write(range, &mut self.out)?,
            }
        }
        let mut stubs: Vec<Stubs> = current.stubs.into_values().collect();
        stubs.sort_unstable_by_key(|stubs| stubs.own.start);
        stubs.iter().try_for_each(|stubs| self.disassembler.write_stubs(stubs, &mut self.out))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};

    use super::{Code, CodeImage};
    use crate::code::tests::{call_at, compile, compile_with, count_at};
    use crate::engine::Config;

    const MODULE: &str = r#"(module
        (memory 1)
        (func $fib (param $n i32) (result i32)
            (local $x f64) (local $unused i64)
            (local.set $x (f64.const 2))
            (if (result i32) (i32.lt_s (local.get $n) (i32.const 2))
                (then (local.get $n))
                (else (i32.add
                    (call $fib (i32.sub (local.get $n) (i32.const 1)))
                    (call $fib (i32.sub (local.get $n) (i32.const 2)))))))
        (func (param i32 i32) (result i32)
            (i32.div_s (local.get 0) (i32.load offset=8 (local.get 1))))
        (func (param f64) (result f64) (f64.mul (local.get 0) (f64.const 3.14159)))
        (func $traps (param i32)
            (block $out
                (loop $again
                    (br_table $again $out $again $out (local.get 0))))
            unreachable))"#;

    fn listing(wanted: impl Fn(u32, Option<&str>) -> bool) -> String {
        let image = compile(wat::parse_str(MODULE).unwrap(), 1).unwrap();
        listing_of(&image, Code::Original, wanted)
    }

    fn listing_of(image: &CodeImage, code: Code, wanted: impl Fn(u32, Option<&str>) -> bool) -> String {
        let mut out = Vec::new();
        super::write(image, code, wanted, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    /// The address that the site in a line jumps to.
    fn jump_of_site(line: &str) -> &str {
        line.split("jmp 0x").nth(1).and_then(|rest| rest.strip_suffix(" ; site")).unwrap()
    }

    #[test]
    fn a_name_stays_in_its_line() {
        let module = r#"(module (func $"a\n\1b[31m" (call 0)))"#;
        let image = compile(wat::parse_str(module).unwrap(), 1).unwrap();
        let text = listing_of(&image, Code::Original, |_, _| true);
        assert!(text.starts_with("\na\\n\\u{1b}[31m: 4 bytes"), "{text}");
        assert!(text.lines().any(|line| line.ends_with(r"call a\n\u{1b}[31m")), "{text}");
        assert!(!text.contains('\x1b'), "{text}");
    }

    /// Accepts this many bytes, then fails.
    struct Pipe(usize);

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::BrokenPipe)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_broken_pipe_is_reported_wherever_it_breaks() {
        let image = compile(wat::parse_str(MODULE).unwrap(), 1).unwrap();
        let mut whole = Vec::new();
        super::write(&image, Code::Original, |_, _| true, &mut whole).unwrap();
        for taken in 0..whole.len() {
            let error = super::write(&image, Code::Original, |_, _| true, &mut Pipe(taken)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::BrokenPipe, "after {taken} bytes");
        }
    }

    /// The bytes in a line of machine code, with the address of the first one if there is one.
    fn bytes_in(line: &str) -> Option<(Option<usize>, usize)> {
        let fields: Vec<&str> = line.get(14..)?.split_whitespace().collect();
        let count =
            fields.iter().take_while(|field| field.len() == 2 && u8::from_str_radix(field, 16).is_ok());
        match line[..14].trim() {
            "" => Some((None, fields.len())),
            address => {
                let address = usize::from_str_radix(address.strip_suffix(':')?, 16).ok()?;
                Some((Some(address), count.count().min(super::BYTES)))
            }
        }
    }

    /// The number of times that each byte of the code is shown. The first two lines name the
    /// function.
    fn times_shown(listing: &str, entry: u32, end: u32) -> Vec<u32> {
        let mut shown = vec![0; (end - entry) as usize];
        let mut next = 0;
        for line in listing.lines().skip(2) {
            let Some((address, count)) = bytes_in(line) else { continue };
            next = address.unwrap_or(next);
            for byte in next..next + count {
                shown[byte - entry as usize] += 1;
            }
            next += count;
        }
        shown
    }

    #[test]
    fn every_byte_of_code_is_shown_once() {
        let image = compile(wat::parse_str(MODULE).unwrap(), 1).unwrap();
        for index in image.indices() {
            let function = image.function(index);
            let listing = listing(|wanted, _| wanted == index);
            let shown = times_shown(&listing, function.entry, function.end);
            assert!(shown.iter().all(|times| *times == 1), "function {index}: {shown:?}");
        }
    }

    #[test]
    fn every_byte_of_a_version_is_shown_once() {
        check_versions(u32::MAX);
        // No counter is a site.
        check_versions(0);
    }

    fn check_versions(counter_stubs: u32) {
        let mut config = Config::new();
        config.counter_stubs(counter_stubs);
        let image = compile_with(&config, wat::parse_str(MODULE).unwrap(), 1).unwrap();
        for index in image.indices() {
            let function = image.function(index);
            let all: Vec<_> = (function.wasm_start..function.wasm_end).map(count_at).collect();
            let made = image.make_probes(index, &all).unwrap();
            let text = listing_of(&image, Code::LastVersion, |wanted, _| wanted == index);
            let version = image.last_version(index).unwrap().unwrap();
            let shown = times_shown(&text, version.entry, version.code.len() as u32);
            assert!(shown.iter().all(|times| *times == 1), "function {index}: {shown:?}\n{text}");
            let sites = made.iter().filter(|made| made.is_ok()).count();
            assert!(sites > 3);
            let sites = if counter_stubs == 0 { 0 } else { sites };
            assert_eq!(text.matches(" ; site\n").count(), sites, "{text}");
            assert_eq!(text.matches("\n        stub:\n").count(), sites, "{text}");
        }
    }

    #[test]
    fn counters_on_half_of_a_short_function_are_in_its_code() {
        let sites = |counters: usize| {
            let module = "(module (func (param i32) (result i32)
                local.get 0  i32.const 3  i32.mul  i32.const 5  i32.add))";
            let compiled = || compile(wat::parse_str(module).unwrap(), 1).unwrap();
            let image = compiled();
            let function = image.function(0);
            let all: Vec<_> = (function.wasm_start..function.wasm_end).map(count_at).collect();
            let is_made = compiled().make_probes(0, &all).unwrap();
            let places = all.iter().zip(&is_made).filter(|(_, made)| made.is_ok());
            // The probes of instructions, which follow that of the entry.
            let probes: Vec<_> = places.map(|(place, _)| place.clone()).skip(1).take(counters).collect();
            let made = image.make_probes(0, &probes).unwrap();
            assert!(made.iter().all(Result::is_ok), "{made:?}");
            listing_of(&image, Code::LastVersion, |_, _| true).matches(" ; site\n").count()
        };
        assert_eq!([1, 2, 3].map(sites), [1, 2, 0]);
    }

    #[test]
    fn a_site_that_is_on_jumps_to_its_stub() {
        let image = compile(wat::parse_str(MODULE).unwrap(), 1).unwrap();
        let listing = || listing_of(&image, Code::LastVersion, |wanted, _| wanted == 0);
        let entry = image.function(0).wasm_start;
        let probe = image.make_probes(0, &[count_at(entry)]).unwrap()[0].unwrap();
        let off = listing();
        assert!(off.contains(" bytes of code with one site\n") && off.contains("call fib"), "{off}");
        image.activate_probe(probe).unwrap();
        let lines = listing();
        let lines: Vec<&str> = lines.lines().collect();
        let site = lines.iter().position(|line| line.ends_with(" ; site")).unwrap();
        let target = jump_of_site(lines[site]);
        assert_eq!(lines[site + 1], "        stub:");
        assert!(lines[site + 2].trim().starts_with(&format!("{target}:")), "{lines:#?}");
        assert!(lines[site + 3].contains("add qword"), "{lines:#?}");
    }

    /// The stub of a list follows that of its site, while the site jumps to it.
    #[test]
    fn a_site_with_active_functions_has_the_stub_of_its_list() {
        let image = compile(wat::parse_str(MODULE).unwrap(), 1).unwrap();
        let listing = || listing_of(&image, Code::LastVersion, |wanted, _| wanted == 0);
        let entry = image.function(0).wasm_start;
        let probe = image.make_probes(0, &[call_at(entry)]).unwrap()[0].unwrap();
        const TITLE: &str = "        stub of active probes:";
        assert!(!listing().contains(TITLE));
        image.activate_probe(probe).unwrap();
        let on = listing();
        let lines: Vec<&str> = on.lines().collect();
        let site = lines.iter().find(|line| line.ends_with(" ; site")).unwrap();
        let target = jump_of_site(site);
        let title = lines.iter().position(|line| *line == TITLE).unwrap();
        assert!(lines[title + 1].trim().starts_with(&format!("{target}:")), "{on}");
        let stub =
            || lines[title + 1..].iter().take_while(|line| line.starts_with("    ") && line.contains(':'));
        assert!(stub().any(|line| line.ends_with("call rax")), "{on}");
        let check = stub().position(|line| line.ends_with("ud2 ; an interrupt is requested")).unwrap();
        assert!(stub().nth(check + 1).unwrap().contains(" jmp "), "{on}");
        image.deactivate_probe(probe, false).unwrap();
        assert!(!listing().contains(TITLE));
    }

    #[test]
    fn code_follows_its_instruction() {
        let text = listing(|_, name| name == Some("fib"));
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let at = |wanted: &str| {
            lines.iter().position(|line| line.contains(wanted)).unwrap_or_else(|| panic!("{wanted}: {text}"))
        };
        assert!(lines[at("call $fib")..].iter().take(4).any(|line| line.ends_with("call fib")), "{text}");
        assert!(at("(func $fib") < at("push rbp"), "{text}");
        assert!(at("push rbp") < at("f64.const"), "{text}");
        assert!(text.contains("ud2 ; StackOverflow"), "{text}");
        let text = listing(|_, name| name == Some("traps"));
        assert!(text.trim_end().ends_with(" data"), "the jump table: {text}");
        assert!(!text.contains("i32.div_s"), "of another function: {text}");
    }
}
