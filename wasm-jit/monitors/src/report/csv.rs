//! A report as comma-separated values: its figures as a table `MONITOR`, and `MONITOR.TABLE` for
//! each table.

use super::{Cell, Report, key};

/// The tables, with their names.
pub(crate) fn print(report: &Report) -> Vec<(String, String)> {
    let mut printed = Vec::new();
    if !report.values().is_empty() {
        let rows = report.values().iter().map(|(name, value)| [key(name).into_owned(), field(value)]);
        printed.push((report.monitor.clone(), table(&["name", "value"], rows)));
    }
    for found in report.tables() {
        let rows = found.rows.iter().map(|row| row.iter().map(field));
        let columns: Vec<_> = found.columns.iter().map(|name| key(name).into_owned()).collect();
        printed.push((format!("{}.{}", report.monitor, key(&found.name)), table(&columns, rows)));
    }
    printed
}

fn table<C: AsRef<[u8]>, R: IntoIterator<Item = String>>(
    columns: &[C],
    rows: impl Iterator<Item = R>,
) -> String {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let header = writer.write_record(columns);
    let rows = rows.into_iter().map(|row| writer.write_record(row)).fold(header, Result::and);
    rows.expect("rows have equal lengths, and memory is there");
    let bytes = writer.into_inner().expect("memory is there");
    String::from_utf8(bytes).expect("fields are texts")
}

fn field(cell: &Cell) -> String {
    match cell {
        Cell::None => String::new(),
        Cell::Int(value) => value.to_string(),
        Cell::Hex(value) => format!("{value:#x}"),
        Cell::Range(start, _) => start.to_string(),
        Cell::Float(value, _) | Cell::Share(value) | Cell::Bar(value, _) => value.to_string(),
        Cell::Bool(value) => value.to_string(),
        Cell::Text(text) => text.to_string(),
    }
}
