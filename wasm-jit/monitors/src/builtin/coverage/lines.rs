//! Coverage by line: of source files if the module has DWARF, otherwise of the module's text.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

use wasm_jit::printable;

use super::Snapshot;
use super::function::{Covered, Function};
use crate::builtin::listing::{self, LineNumbers};
use crate::{Cell, Program, Report, Table};

/// The file with the module's text.
pub(super) const LISTING: &str = "listing.wat";

/// Larger source files are not read.
const MAX_SOURCE_SIZE: u64 = 16 << 20;

/// The lines of a module.
pub(super) struct Lines {
    /// Indexed by file name.
    pub(super) files: BTreeMap<String, Lined>,
    /// The lines of the module's text, if there is no DWARF.
    numbers: Option<LineNumbers>,
}

/// The text of the module, with 1 before each instruction that is covered, and 0 before each one
/// that is not.
pub(super) fn write_listing(snapshot: &Snapshot<'_>, out: &mut dyn Write) -> io::Result<()> {
    // Of the function whose lines are being written.
    let current: RefCell<(Option<u32>, BTreeMap<u32, bool>)> = RefCell::default();
    let is_covered = |function: u32, offset: u32| {
        let (of, instructions) = &mut *current.borrow_mut();
        if of.replace(function) != Some(function) {
            instructions.clear();
            snapshot.visit(function, |function, covered| {
                let all = function.offsets.iter().zip(&covered.instructions);
                instructions.extend(all.filter_map(|(offset, covered)| Some((*offset, (*covered)?))));
            });
        }
        instructions.get(&offset).copied().map(u64::from)
    };
    listing::write_annotated(snapshot.module, is_covered, out)
}

/// The lines of a file.
#[derive(Default)]
pub(super) struct Lined {
    /// The lines with instructions, and whether one of them was executed.
    pub(super) lines: BTreeMap<u32, bool>,
    /// The branches of the lines that have some.
    pub(super) branches: BTreeMap<u32, Branches>,
    /// The functions that begin in the file: the line, the name, and whether it was executed.
    pub(super) functions: Vec<(u32, String, bool)>,
}

/// The branches of a line: for each, whether it was executed, and which outcomes have occurred.
pub(super) type Branches = Vec<(bool, Vec<bool>)>;

/// The number of outcomes that have occurred, and of all.
pub(super) fn outcomes(branches: &[(bool, Vec<bool>)]) -> [usize; 2] {
    let outcomes = branches.iter().flat_map(|(_, outcomes)| outcomes);
    [outcomes.clone().filter(|seen| **seen).count(), outcomes.count()]
}

impl Lined {
    /// The number of covered lines, and of all.
    pub(super) fn covered(&self) -> [usize; 2] {
        [self.lines.values().filter(|is_covered| **is_covered).count(), self.lines.len()]
    }

    /// The number of outcomes that have occurred, and of all.
    pub(super) fn outcomes(&self) -> [usize; 2] {
        sum(self.branches.values().map(|branches| outcomes(branches)))
    }
}

fn sum(parts: impl Iterator<Item = [usize; 2]>) -> [usize; 2] {
    parts.fold([0, 0], |sum, part| [sum[0] + part[0], sum[1] + part[1]])
}

impl Lines {
    pub(super) fn new(program: &Program<'_>) -> Self {
        let has_dwarf = program.symbols.has_lines();
        let numbers = (!has_dwarf).then(|| LineNumbers::of(program.module));
        Self { files: BTreeMap::new(), numbers }
    }

    /// The file and line of an instruction.
    fn place(&self, program: &Program<'_>, function: u32, offset: u32) -> Option<(String, u32)> {
        let Some(numbers) = &self.numbers else {
            let found = program.symbols.lookup(function, offset);
            let symbol = found.first()?;
            return Some((symbol.file()?.to_owned(), symbol.line()?));
        };
        Some((format!("coverage.{LISTING}"), numbers.get(program.module, function, offset)?))
    }

    /// Adds the lines of a function.
    pub(super) fn add(&mut self, program: &Program<'_>, function: &Function, covered: &Covered) {
        let mut branches = covered.branches.iter().peekable();
        let mut is_first = true;
        for (index, is_covered) in covered.instructions.iter().enumerate() {
            let branch = branches.next_if(|(branch, _)| *branch == index);
            let Some(is_covered) = *is_covered else { continue };
            let place = self.place(program, function.index, function.offsets[index]);
            let Some((file, number)) = place else { continue };
            let file = self.files.entry(file).or_default();
            if std::mem::take(&mut is_first) {
                let is_executed = covered.figures.instructions[0] > 0;
                let name = printable(&program.function_name(function.index)).into_owned();
                file.functions.push((number, name, is_executed));
            }
            *file.lines.entry(number).or_default() |= is_covered;
            if let Some((_, outcomes)) = branch {
                let outcomes = outcomes.iter().map(|(_, seen)| *seen).collect();
                file.branches.entry(number).or_default().push((is_covered, outcomes));
            }
        }
    }

    /// The number of covered lines, and of all.
    pub(super) fn covered(&self) -> [usize; 2] {
        sum(self.files.values().map(Lined::covered))
    }

    /// The number of outcomes that have occurred, and of all.
    pub(super) fn outcomes(&self) -> [usize; 2] {
        sum(self.files.values().map(Lined::outcomes))
    }

    pub(super) fn report(&self, report: &mut Report) {
        if self.numbers.is_some() {
            return;
        }
        let [covered, all] = self.covered().map(|count| count as u64);
        super::add_part(report, "lines", [covered, all]);
        let mut table = Table::new("files", ["share", "lines", "executed", "file"]);
        let mut rows: Vec<_> = self.files.iter().map(|(name, file)| (file.covered(), name)).collect();
        rows.sort_by_key(|([covered, all], name)| (*covered == 0, std::cmp::Reverse(all - covered), *name));
        for ([covered, all], name) in rows {
            let share = Cell::share(covered as u64, all as u64);
            table.row([share, all.into(), covered.into(), name.as_str().into()]);
        }
        report.table(table);
        report.file("source.txt", |out| self.write_source(out));
    }

    /// The source files that can be read: each line with its number, and with 1 if it is covered,
    /// or 0 if it is not.
    fn write_source(&self, out: &mut dyn Write) -> io::Result<()> {
        for (name, file) in &self.files {
            let is_readable = |path: &Path| {
                path.metadata().is_ok_and(|found| found.is_file() && found.len() <= MAX_SOURCE_SIZE)
            };
            let source = Some(Path::new(name)).filter(|path| is_readable(path)).map(fs::read);
            let Some(Ok(source)) = source else {
                writeln!(out, "{name}: cannot be read\n")?;
                continue;
            };
            writeln!(out, "{name}:")?;
            for (number, text) in (1..).zip(String::from_utf8_lossy(&source).lines()) {
                match file.lines.get(&number) {
                    Some(covered) => writeln!(out, "{:>3} {number:>6}  {text}", u8::from(*covered))?,
                    None => writeln!(out, "{:3} {number:>6}  {text}", "")?,
                }
            }
            writeln!(out)?;
        }
        Ok(())
    }
}
