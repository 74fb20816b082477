//! Aligned columns of text. The last column is left-aligned and as wide as it needs to be: it holds
//! the names of functions.
//!
//! A report is written before the program ends, and the time that this takes is part of the budget.
//! Libraries for tables spend most of it in allocations.

use std::fmt::Write;

/// Between two columns.
const GAP: &str = "  ";

/// Maximum length of the line under the last header: names are rarely longer.
const RULE: usize = 40;

/// How the cells of a column are aligned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Alignment {
    Left,
    Right,
}

/// A column before the last one.
pub(super) struct Column {
    pub(super) header: &'static str,
    pub(super) alignment: Alignment,
    /// One for each row.
    pub(super) cells: Vec<String>,
}

/// Appends the columns to a text, with their headers, a line under these, and a line for each row.
/// `last` has the header and the cells of the last column.
pub(super) fn write(text: &mut String, columns: &[Column], last: (&str, &[String])) {
    let (last_header, names) = last;
    let widths: Vec<usize> = columns.iter().map(|column| widest(column.header, &column.cells)).collect();
    let line = |text: &mut String, cell: &dyn Fn(&Column) -> &str, name: &str| {
        for (column, width) in columns.iter().zip(&widths) {
            let cell = cell(column);
            let _ = match column.alignment {
                Alignment::Left => write!(text, "{cell:<width$}"),
                Alignment::Right => write!(text, "{cell:>width$}"),
            };
            text.push_str(GAP);
        }
        let _ = writeln!(text, "{name}");
    };
    line(text, &|column| column.header, last_header);
    let rule =
        widths.iter().map(|width| width + GAP.len()).sum::<usize>() + widest(last_header, names).min(RULE);
    let _ = writeln!(text, "{}", "─".repeat(rule));
    for (row, name) in names.iter().enumerate() {
        line(text, &|column| &column.cells[row], name);
    }
}

/// The width of the widest of these.
fn widest(header: &str, cells: &[String]) -> usize {
    cells.iter().map(|cell| width(cell)).max().unwrap_or(0).max(width(header))
}

/// The number of characters.
pub(super) fn width(text: &str) -> usize {
    text.chars().count()
}
