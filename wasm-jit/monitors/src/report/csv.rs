//! A report as comma-separated values: its figures as a table `MONITOR`, and `MONITOR.TABLE` for
//! each table.

use std::io::{self, Write};

use super::{Cell, Report, Table, key};

/// A table of comma-separated values.
pub(crate) struct Csv<'a> {
    pub(crate) name: String,
    rows: Rows<'a>,
}

enum Rows<'a> {
    Figures(&'a [(String, Cell)]),
    Of(&'a Table),
}

/// The tables of a report.
pub(crate) fn of(report: &Report) -> impl Iterator<Item = Csv<'_>> {
    let figures = Some(report.values()).filter(|values| !values.is_empty());
    let figures = figures.map(|values| Csv { name: report.monitor.clone(), rows: Rows::Figures(values) });
    let tables = report.tables().map(|table| {
        let name = format!("{}.{}", report.monitor, key(&table.name));
        Csv { name, rows: Rows::Of(table) }
    });
    figures.into_iter().chain(tables)
}

impl Csv<'_> {
    pub(crate) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut writer = csv::Writer::from_writer(out);
        match &self.rows {
            Rows::Figures(values) => {
                writer.write_record(["name", "value"])?;
                for (name, value) in *values {
                    writer.write_record([&*key(name), &field(value)])?;
                }
            }
            Rows::Of(table) => {
                writer.write_record(table.columns.iter().map(|name| key(name).into_owned()))?;
                for row in &table.rows {
                    writer.write_record(row.iter().map(field))?;
                }
            }
        }
        writer.flush()
    }
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
