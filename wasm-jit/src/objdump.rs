//! WebAssembly and machine code side by side: each instruction's text, and beneath it the machine code that it became.
//!
//! The text is wasmprinter's, whose lines come with their offsets in the binary module. The code of an instruction is known from
//! compiling the function once more. Addresses are offsets from the start of the module's code, and what a call reaches
//! is given by name, so the output does not depend on where the code lies.

use std::collections::HashMap;
use std::io::{self, Write};
use std::ops::Range;

use iced_x86::{
    Decoder, DecoderOptions, Formatter, Instruction, NasmFormatter, SymbolResolver, SymbolResult,
};
use wasmprinter::Print;

use crate::code::CodeImage;
use crate::code::sections::Sections;

/// Bytes of machine code in a line.
const BYTES: usize = 10;

/// Writes the functions for which `wanted` says so, by index and name in the name section.
///
/// # Errors
/// Those of `out`.
pub(crate) fn write(
    image: &CodeImage,
    wanted: impl Fn(u32, Option<&str>) -> bool,
    out: &mut dyn Write,
) -> io::Result<()> {
    let sections = Sections::of(&image.bytes);
    let mut functions: Vec<u32> = image.indices().collect();
    functions.retain(|index| wanted(*index, sections.function_names.get(index).copied()));
    let names: HashMap<u64, String> =
        image.indices().map(|index| (entry(image, index), name(&sections, index))).collect();
    let mut listing = Listing {
        image,
        functions: functions.into_iter().rev().collect(),
        current: None,
        disassembler: Disassembler { formatter: formatter(names), code: image.memory().code() },
        line: String::new(),
        offset: None,
        sections: &sections,
        out,
    };
    let printed = wasmprinter::Config::new().print(&image.bytes, &mut listing);
    listing.finish_line()?;
    listing.finish_function()?;
    printed.map_err(io::Error::other)
}

fn entry(image: &CodeImage, index: u32) -> u64 {
    image.function(index).entry.into()
}

fn name(sections: &Sections<'_>, index: u32) -> String {
    sections.function_name(index).unwrap_or_else(|| format!("function {index}"))
}

fn formatter(names: HashMap<u64, String>) -> NasmFormatter {
    let mut formatter = NasmFormatter::with_options(Some(Box::new(Names(names))), None);
    let options = formatter.options_mut();
    options.set_space_after_operand_separator(true);
    options.set_hex_prefix("0x");
    options.set_hex_suffix("");
    options.set_uppercase_hex(false);
    options.set_branch_leading_zeros(false);
    options.set_show_branch_size(false);
    formatter
}

/// The functions' names, by the offsets of their entries.
struct Names(HashMap<u64, String>);

impl SymbolResolver for Names {
    fn symbol(
        &mut self,
        _: &Instruction,
        _: u32,
        _: Option<u32>,
        address: u64,
        _: u32,
    ) -> Option<SymbolResult<'_>> {
        self.0.get(&address).map(|name| SymbolResult::with_str(address, name))
    }
}

struct Disassembler {
    formatter: NasmFormatter,
    code: Vec<u8>,
}

impl Disassembler {
    fn write(&mut self, range: Range<u32>, out: &mut dyn Write) -> io::Result<()> {
        let code = &self.code[range.start as usize..range.end as usize];
        let mut text = String::new();
        for instruction in Decoder::with_ip(64, code, range.start.into(), DecoderOptions::NONE) {
            text.clear();
            self.formatter.format(&instruction, &mut text);
            let start = instruction.ip() as usize;
            let bytes = &self.code[start..start + instruction.len()];
            let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x} ")).collect::<String>();
            let (first, rest) = bytes.split_at(bytes.len().min(BYTES));
            writeln!(out, "{start:12x}: {:<width$}{text}", hex(first), width = 3 * BYTES)?;
            if !rest.is_empty() {
                writeln!(out, "{:14}{}", "", hex(rest).trim_end())?;
            }
        }
        Ok(())
    }
}

/// What is printed of a module, as its text comes.
struct Listing<'a> {
    image: &'a CodeImage,
    /// Still to come, the next one last.
    functions: Vec<u32>,
    current: Option<Current>,
    disassembler: Disassembler,
    /// The line of text that has begun, and the offset in the module of what it tells.
    line: String,
    offset: Option<u64>,
    sections: &'a Sections<'a>,
    out: &'a mut dyn Write,
}

/// The function whose text comes.
struct Current {
    wasm: Range<u64>,
    /// The code of the instruction at an offset in the module that was not written yet.
    code: HashMap<u64, Vec<Range<u32>>>,
}

impl Print for Listing<'_> {
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

    /// Names and DWARF are no text of a function.
    fn print_custom_section(&mut self, _: &str, _: u64, _: &[u8]) -> io::Result<bool> {
        Ok(true)
    }
}

impl Listing<'_> {
    /// Writes the line if it is of a wanted function, with the code that it became.
    fn finish_line(&mut self) -> io::Result<()> {
        let line = std::mem::take(&mut self.line);
        let Some(offset) = self.offset.take() else {
            // Goes on from the line before.
            return match &self.current {
                Some(_) if !line.trim().is_empty() => writeln!(self.out, "{line}"),
                _ => Ok(()),
            };
        };
        if self.current.as_ref().is_some_and(|current| !current.wasm.contains(&offset)) {
            self.finish_function()?;
        }
        if self.current.is_none() {
            let next = |index: &u32| u64::from(self.image.function(*index).wasm_start) <= offset;
            let Some(index) = self.functions.pop_if(|index| next(index)) else { return Ok(()) };
            self.begin_function(index)?;
        }
        writeln!(self.out, "{line}")?;
        let code = self.current.as_mut().and_then(|current| current.code.remove(&offset));
        for range in code.unwrap_or_default() {
            self.disassembler.write(range, self.out)?;
        }
        Ok(())
    }

    fn begin_function(&mut self, index: u32) -> io::Result<()> {
        let function = *self.image.function(index);
        let positions = self.image.positions(index);
        let starts = positions.iter().map(|position| function.entry + position.code);
        let ends = starts.clone().skip(1).chain([function.end]);
        let mut code: HashMap<u64, Vec<Range<u32>>> = HashMap::new();
        for ((position, start), end) in positions.iter().zip(starts.clone()).zip(ends) {
            if start < end {
                code.entry(position.wasm.into()).or_default().push(start..end);
            }
        }
        let wasm = u64::from(function.wasm_start)..u64::from(function.wasm_end);
        writeln!(
            self.out,
            "\n{}: {} bytes of WebAssembly at {:#x}, {} bytes of code at {:#x}",
            name(self.sections, index),
            wasm.end - wasm.start,
            wasm.start,
            function.end - function.entry,
            function.entry,
        )?;
        self.current = Some(Current { wasm, code });
        let behind_prologue = starts.clone().next().unwrap_or(function.end);
        self.disassembler.write(function.entry..behind_prologue, self.out)
    }

    /// Writes the code that belongs to no line.
    fn finish_function(&mut self) -> io::Result<()> {
        let Some(current) = self.current.take() else { return Ok(()) };
        let mut rest: Vec<Range<u32>> = current.code.into_values().flatten().collect();
        rest.sort_unstable_by_key(|range| range.start);
        for range in rest {
            self.disassembler.write(range, self.out)?;
        }
        Ok(())
    }
}
