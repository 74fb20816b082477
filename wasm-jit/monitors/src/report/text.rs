//! A report as text: a heading, figures, and tables with aligned columns.

use std::io::{self, Write};

use unicode_width::UnicodeWidthStr;
use wasm_jit::printable;

use super::{Cell, Part, Report, Table};

/// The number of rows of a table that are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    /// All rows.
    Complete,
    /// As many rows as the report states.
    Short,
}

/// The number of rows that a short table shows.
const ROWS: usize = 20;

/// The number of characters of a cell that are shown. A `br_table` may have thousands, and every
/// row would be as long. JSON and CSV have them whole.
const LONGEST: usize = 100;

pub(crate) fn write(report: &Report, length: Length, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}", report.monitor)?;
    let width = report.values().iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    for (name, value) in report.values() {
        writeln!(out, "  {name:width$}  {}", field(value))?;
    }
    let rows = match length {
        Length::Complete => usize::MAX,
        Length::Short => report.rows.unwrap_or(ROWS),
    };
    for part in report.parts() {
        match part {
            Part::Text(text) => write!(out, "\n{text}")?,
            Part::Table(table) if table.is_shown => {
                let hint = report.all_rows.unwrap_or("option rows=N");
                write_table(table, rows, hint, out)?;
            }
            Part::Table(_) => {}
        }
    }
    if length == Length::Short {
        for name in report.file_names() {
            writeln!(out, "\n  {}.{name}: written to a directory only (--monitor-out)", report.monitor)?;
        }
    }
    Ok(())
}

#[cfg(test)]
pub(crate) fn print(report: &Report, length: Length) -> String {
    let mut printed = Vec::new();
    write(report, length, &mut printed).unwrap();
    String::from_utf8(printed).unwrap()
}

/// Columns of numbers are aligned to the right.
fn write_table(table: &Table, rows: usize, hint: &str, out: &mut dyn Write) -> io::Result<()> {
    let shown = || table.rows.iter().take(rows);
    let text = |cell: &Cell| shortened(field(cell));
    // A table may have millions of rows, whose texts are made twice rather than kept.
    let mut columns: Vec<_> = table.columns.iter().map(|name| Column::of(name)).collect();
    for row in shown() {
        columns.iter_mut().zip(row).for_each(|(column, cell)| column.add(&text(cell)));
    }
    for (at, column) in columns.iter_mut().enumerate() {
        let is_number = |row: &Vec<Cell>| !matches!(row[at], Cell::Text(_) | Cell::Bar(..) | Cell::None);
        column.is_number = table.rows.iter().any(is_number);
    }
    writeln!(out, "\n{}", table.name)?;
    write_row(&columns, table.columns.iter().cloned(), out)?;
    shown().try_for_each(|row| write_row(&columns, row.iter().map(text), out))?;
    let left_out = table.rows.len().saturating_sub(rows);
    if left_out > 0 {
        let rows = if left_out == 1 { "row" } else { "rows" };
        writeln!(out, "  and {left_out} more {rows} ({hint})")?;
    }
    Ok(())
}

struct Column {
    width: usize,
    is_number: bool,
}

impl Column {
    fn of(name: &str) -> Self {
        Self { width: name.width(), is_number: false }
    }

    fn add(&mut self, text: &str) {
        self.width = self.width.max(text.width());
    }
}

fn write_row(columns: &[Column], texts: impl Iterator<Item = String>, out: &mut dyn Write) -> io::Result<()> {
    let mut line = String::new();
    for (Column { width, is_number }, text) in columns.iter().zip(texts) {
        let padding = " ".repeat(width - text.width());
        let (before, after) = if *is_number { (&*padding, "") } else { ("", &*padding) };
        line += &format!("  {before}{text}{after}");
    }
    writeln!(out, "{}", line.trim_end())
}

/// Without the middle of what is too long: names often differ at their ends only.
fn shortened(mut text: String) -> String {
    let half = LONGEST / 2;
    let characters = text.chars().count();
    let at = |text: &str, number: usize| text.char_indices().nth(number).map(|(at, _)| at);
    if characters > LONGEST
        && let (Some(start), Some(end)) = (at(&text, half), at(&text, characters - half))
    {
        text.replace_range(start..end, "…");
    }
    text
}

fn field(cell: &Cell) -> String {
    match cell {
        Cell::None => String::new(),
        Cell::Int(value) => value.to_string(),
        Cell::Hex(value) => format!("{value:#x}"),
        Cell::Float(value, places) => format!("{value:.places$}"),
        Cell::Range(start, end) => format!("[{start}, {end})"),
        Cell::Bar(value, bar) => format!("{bar} {:.1}%", value * 100.0),
        Cell::Share(value) => format!("{:.1}%", value * 100.0),
        Cell::Bool(value) => value.to_string(),
        Cell::Text(text) => printable(text).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipe_in_tests::Pipe;

    #[test]
    fn texts_do_not_act_on_the_terminal() {
        let mut report = Report::new("m");
        report.value("a", "x\n\u{1b}[31m\u{202e}");
        report.value("b", "\"é\"");
        report.value("c", Cell::Bool(true));
        let text = print(&report, Length::Short);
        assert_eq!(text, "m\n  a  x\\n\\u{1b}[31m\\u{202e}\n  b  \"é\"\n  c  true\n");
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(
            json,
            "{\"monitor\":\"m\",\"a\":\"x\\n\\u001b[31m\u{202e}\",\"b\":\"\\\"é\\\"\",\"c\":true}"
        );
    }

    #[test]
    fn one_long_cell_does_not_make_all_rows_long() {
        let mut table = Table::new("t", ["text", "n"]);
        table.row([Cell::Text("é".repeat(4000).into()), Cell::Int(1)]);
        (0..1000).for_each(|n| table.row([Cell::Text("short".into()), Cell::Int(n)]));
        let mut report = Report::new("m");
        report.table(table);
        let text = print(&report, Length::Complete);
        let longest = text.lines().map(|line| line.chars().count()).max();
        assert!(longest.is_some_and(|longest| longest < 120), "{longest:?}");
        assert!(text.contains("é…é"), "{text}");
        assert!(serde_json::to_string(&report).unwrap().contains(&"é".repeat(4000)));
    }

    #[test]
    fn tables_are_written_by_row() {
        let mut table = Table::new("t", ["n", "text"]);
        (0..100).for_each(|n| table.row([Cell::Int(n), "text".into()]));
        let mut report = Report::new("m");
        report.table(table);
        write(&report, Length::Complete, &mut Pipe(usize::MAX)).unwrap();
    }

    #[test]
    fn columns_are_aligned_as_they_are_shown() {
        let mut table = Table::new("t", ["n", "text", "long name"]);
        table.row([Cell::Int(1), "漢字".into(), Cell::None]);
        table.row([Cell::Int(100), "é".into(), Cell::Int(7)]);
        let mut report = Report::new("m");
        report.table(table);
        let expected = "m\n\nt\n    n  text  long name\n    1  漢字\n  100  é             7\n";
        assert_eq!(print(&report, Length::Complete), expected);
    }

    #[test]
    fn rows_that_are_left_out_are_counted() {
        let mut table = Table::new("t", ["n"]);
        (0..4).for_each(|n| table.row([Cell::Int(n)]));
        let mut report = Report::new("m");
        report.table(table);
        for (rows, expected) in
            [(4, ""), (3, "  and 1 more row (option rows=N)\n"), (2, "  and 2 more rows (option rows=N)\n")]
        {
            report.rows = Some(rows);
            let text = print(&report, Length::Short);
            assert!(text.ends_with(expected) && text.contains("more") != expected.is_empty(), "{text}");
        }
    }
}
