//! A report as text: a heading, figures, and tables with aligned columns.

use std::fmt::Write;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table as Aligned};
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

pub(crate) fn print(report: &Report, length: Length) -> String {
    let mut out = format!("{}\n", report.monitor);
    let width = report.values().iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    for (name, value) in report.values() {
        let _ = writeln!(out, "  {name:width$}  {}", field(value));
    }
    let rows = match length {
        Length::Complete => usize::MAX,
        Length::Short => report.rows.unwrap_or(ROWS),
    };
    for part in report.parts() {
        match part {
            Part::Text(text) => _ = write!(out, "\n{text}"),
            Part::Table(table) if table.is_shown => {
                let hint = report.all_rows.unwrap_or("option rows=N");
                print_table(table, rows, hint, &mut out);
            }
            Part::Table(_) => {}
        }
    }
    if length == Length::Short {
        for (name, _) in report.files() {
            let _ =
                writeln!(out, "\n  {}.{name}: written to a directory only (--monitor-out)", report.monitor);
        }
    }
    out
}

fn print_table(table: &Table, rows: usize, hint: &str, out: &mut String) {
    let mut aligned = Aligned::new();
    aligned.load_style(NOTHING).set_header(&table.columns);
    for row in table.rows.iter().take(rows) {
        aligned.add_row(row.iter().map(|cell| shortened(field(cell))));
    }
    for (at, column) in aligned.column_iter_mut().enumerate() {
        let is_number = |row: &Vec<Cell>| !matches!(row[at], Cell::Text(_) | Cell::Bar(..) | Cell::None);
        let alignment =
            if table.rows.iter().any(is_number) { CellAlignment::Right } else { CellAlignment::Left };
        column.set_cell_alignment(alignment);
    }
    let _ = writeln!(out, "\n{}", table.name);
    for line in aligned.lines() {
        let _ = writeln!(out, " {}", line.trim_end());
    }
    let left_out = table.rows.len().saturating_sub(rows);
    if left_out > 0 {
        let rows = if left_out == 1 { "row" } else { "rows" };
        let _ = writeln!(out, "  and {left_out} more {rows} ({hint})");
    }
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

    #[test]
    fn texts_do_not_act_on_the_terminal() {
        let mut report = Report::new("m");
        report.value("a", "x\n\u{1b}[31m\u{202e}");
        report.value("b", "\"é\"");
        report.value("c", Cell::Bool(true));
        let text = print(&report, Length::Short);
        assert_eq!(text, "m\n  a  x\\n\\u{1b}[31m\\u{202e}\n  b  \"é\"\n  c  true\n");
        let json = crate::report::json::print(&report);
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
        assert!(crate::report::json::print(&report).contains(&"é".repeat(4000)));
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
