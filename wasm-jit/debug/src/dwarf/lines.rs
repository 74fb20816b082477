//! Line tables.

use std::collections::HashMap;
use std::ops::Range;

use gimli::Reader as _;

use super::Units;

/// A range of instructions of one line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub start: u64,
    pub end: u64,
    pub file: usize,
    /// The line number; 0 for none.
    pub line: u32,
    pub is_statement: bool,
    pub prologue_end: bool,
}

/// The rows of all units, ordered by offset.
#[derive(Debug, Default)]
pub(super) struct Lines {
    pub rows: Vec<Row>,
    pub files: Vec<String>,
}

impl Lines {
    pub(super) fn of(units: &Units, code_start: u64, code_size: u64) -> Self {
        let mut lines = Self::default();
        let mut files = HashMap::new();
        let mut headers = units.units();
        while let Ok(Some(header)) = headers.next() {
            let Ok(unit) = units.unit(header) else { continue };
            let _ = lines.add(units, &unit, (code_start, code_size), &mut files);
        }
        // A stable sort: of rows with the same range, which are empty, none was added.
        lines.rows.sort_by_key(|row| row.start);
        lines
    }

    fn add(
        &mut self,
        units: &Units,
        unit: &gimli::Unit<super::Reader>,
        (code_start, code_size): (u64, u64),
        files: &mut HashMap<String, usize>,
    ) -> gimli::Result<()> {
        let Some(program) = unit.line_program.clone() else { return Ok(()) };
        let mut known: HashMap<u64, usize> = HashMap::new();
        let mut rows = program.rows();
        let mut last: Option<Row> = None;
        let mut is_first = true;
        // Functions that the linker has dropped are at 0, or beyond the code.
        let mut is_there = true;
        while let Some((header, row)) = rows.next_row()? {
            let address = row.address();
            if std::mem::take(&mut is_first) {
                is_there = address != 0 && address < code_size;
            }
            if let Some(before) = last.take()
                && is_there
                && before.start < code_start + address
            {
                self.rows.push(Row { end: code_start + address, ..before });
            }
            if row.end_sequence() {
                is_first = true;
                continue;
            }
            let number = row.file_index();
            let file = match known.get(&number) {
                Some(file) => *file,
                None => {
                    let name = file_name(units, unit, header, row.file(header));
                    let next = self.files.len();
                    let file = *files.entry(name.clone()).or_insert(next);
                    if file == next {
                        self.files.push(name);
                    }
                    known.insert(number, file);
                    file
                }
            };
            last = Some(Row {
                start: code_start + address,
                end: 0,
                file,
                line: row.line().map_or(0, |line| u32::try_from(line.get()).unwrap_or(0)),
                is_statement: row.is_stmt(),
                prologue_end: row.prologue_end(),
            });
        }
        Ok(())
    }

    /// The row of an instruction.
    pub(super) fn row(&self, offset: u64) -> Option<&Row> {
        let after = self.rows.partition_point(|row| row.start <= offset);
        self.rows.get(after.checked_sub(1)?).filter(|row| offset < row.end)
    }

    pub(super) fn offsets(&self, file: &str, line: u32) -> Vec<u64> {
        let wanted: Vec<bool> = self.files.iter().map(|name| is_file(name, file)).collect();
        let candidates = || {
            let rows = self.rows.iter().filter(|row| row.is_statement && wanted[row.file]);
            rows.filter(|row| row.line >= line)
        };
        let Some(line) = candidates().map(|row| row.line).min() else { return Vec::new() };
        candidates().filter(|row| row.line == line).map(|row| row.start).collect()
    }

    pub(super) fn has_file(&self, file: &str) -> bool {
        self.files.iter().any(|name| is_file(name, file))
    }

    pub(super) fn after_prologue(&self, body: Range<u64>) -> Option<u64> {
        let start = self.rows.partition_point(|row| row.start < body.start);
        let rows = || self.rows[start..].iter().take_while(|row| row.start < body.end);
        let marked = rows().find(|row| row.prologue_end);
        // Like gdb: the second line of the function.
        let first = rows().next()?;
        let second = || rows().find(|row| row.start > first.start && row.line != 0 && row.is_statement);
        marked.or_else(second).map(|row| row.start)
    }
}

/// Whether the components of a path are the last ones of a file's path.
fn is_file(path: &str, wanted: &str) -> bool {
    let rest = path.strip_suffix(wanted);
    rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('/') || wanted.starts_with('/'))
}

/// The path of a file of a unit's line table.
pub(super) fn path_of(units: &Units, unit: &gimli::Unit<super::Reader>, file: u64) -> Option<String> {
    let header = unit.line_program.as_ref()?.header();
    Some(file_name(units, unit, header, Some(header.file(file)?)))
}

fn file_name(
    units: &Units,
    unit: &gimli::Unit<super::Reader>,
    header: &gimli::LineProgramHeader<super::Reader>,
    file: Option<&gimli::FileEntry<super::Reader>>,
) -> String {
    let Some(file) = file else { return String::new() };
    let text = |value: gimli::AttributeValue<super::Reader>| {
        let text = units.attr_string(unit, value).ok()?;
        Some(text.to_string_lossy().ok()?.into_owned())
    };
    let mut name = text(file.path_name()).unwrap_or_default();
    if !name.starts_with('/')
        && let Some(directory) = file.directory(header).and_then(text)
        && !directory.is_empty()
    {
        name = format!("{directory}/{name}");
    }
    if !name.starts_with('/')
        && let Some(directory) =
            unit.comp_dir.as_ref().and_then(|dir| Some(dir.to_string_lossy().ok()?.into_owned()))
    {
        name = format!("{directory}/{name}");
    }
    name
}
