//! The results of a script, as a report like those of monitors.
//!
//! Variables that exist once are figures. A rule with variables of locations is a table with a row
//! for each location: a column for each variable, the offset in the module, the function, and the
//! source line if the module has any. A map is a separate table. Rows come in the order of their
//! keys, if they are integers, otherwise in descending order of their first number. Histograms have
//! a bar for each bucket.

use std::cmp::Reverse;
use std::collections::HashSet;

use wasm_jit_monitors::{Cell, Program, Report, Table};
use wasm_jit_whamm::lang::{ReportedValue, RuleReport, ScriptReport, SiteReport, Value, histogram};
use wasm_jit_whamm::monitor_module::MonitorError;

/// The name, or with a number if it is used.
pub(super) fn unused(name: &str, is_used: impl Fn(&str) -> bool) -> String {
    let numbered = (2..).map(|number| format!("{name}_{number}"));
    let mut all = std::iter::once(name.to_owned()).chain(numbered);
    all.find(|name| !is_used(name)).expect("there are enough numbers")
}

/// The report of a script, by its name.
pub(super) fn report(name: &str, found: &ScriptReport, program: &Program<'_>) -> Report {
    let mut report = Report::new(name);
    fill(&mut report, found, None, program);
    report
}

/// Adds the results of a script to a report, and its failure.
pub(super) fn fill(
    report: &mut Report,
    found: &ScriptReport,
    failure: Option<&MonitorError>,
    program: &Program<'_>,
) {
    report.hint_all_rows("--monitor-out writes all");
    let mut names = Names::new(["monitor"]);
    for variable in &found.variables {
        if let ReportedValue::Value(value) = &variable.value {
            for (name, cell) in cells(&variable.name, value) {
                report.value(&names.unique(&name), cell);
            }
        }
    }
    if let Some(failure) = failure {
        report.value(&names.unique("failed"), failure.to_string());
    }
    for variable in &found.variables {
        if let ReportedValue::Map(entries) = &variable.value {
            add(report, names.unique(&variable.name), None, rows(entries));
        }
    }
    for rule in &found.rules {
        by_site(report, &mut names, rule, program);
    }
}

/// Names that are taken: of figures and tables, or of columns.
struct Names(HashSet<String>);

impl Names {
    fn new<const N: usize>(taken: [&str; N]) -> Self {
        Self(taken.map(str::to_owned).into())
    }

    /// The name, or with a number if it is taken.
    fn unique(&mut self, name: &str) -> String {
        let unique = unused(name, |name| self.0.contains(name));
        self.0.insert(unique.clone());
        unique
    }
}

/// A row: cells with the names of their columns.
type Row = Vec<(String, Cell)>;

/// A value, or the fields of a tuple: `name.0`, `name.1`.
fn cells(name: &str, value: &Value) -> Row {
    let cell = match value {
        Value::Int(value) => Cell::Int(*value),
        Value::Float(value) => Cell::Float(*value, 6),
        Value::Bool(value) => Cell::Bool(*value),
        Value::Text(text) => text.as_str().into(),
        Value::Tuple(fields) => {
            let fields = fields.iter().enumerate();
            return fields.flat_map(|(index, field)| cells(&format!("{name}.{index}"), field)).collect();
        }
        Value::Bucket(start, end) => Cell::Range(*start, *end),
        // Only scripts for native programs have stacks, and there are no other values yet.
        _ => Cell::None,
    };
    vec![(name.to_owned(), cell)]
}

fn entry(key: &Value, value: &Value) -> Row {
    let mut row = cells("key", key);
    row.extend(cells("value", value));
    row
}

/// Rows of a table.
#[derive(Default)]
struct Rows {
    rows: Vec<Row>,
    /// Whether these are rows of histograms, which are in order.
    is_ordered: bool,
}

impl Rows {
    /// Adds the rows of another map. The bars of histograms are kept only if all maps are
    /// histograms: the rows of a table have the same columns.
    fn extend(&mut self, mut more: Rows) {
        if self.rows.is_empty() {
            *self = more;
            return;
        }
        if !more.rows.is_empty() && self.is_ordered != more.is_ordered {
            self.remove_bars();
            more.remove_bars();
        }
        self.rows.extend(more.rows);
    }

    fn remove_bars(&mut self) {
        self.is_ordered = false;
        self.rows.iter_mut().for_each(|row| row.retain(|(_, cell)| !matches!(cell, Cell::Bar(..))));
    }
}

/// The rows of a map.
fn rows(entries: &[(Value, Value)]) -> Rows {
    match histogram(entries) {
        Some(bars) => {
            let row = |bar: wasm_jit_whamm::lang::Bar<'_>| {
                let mut row = entry(bar.key, bar.count);
                row.push(("share".to_owned(), Cell::Bar(bar.share, bar.text.into())));
                row
            };
            Rows { rows: bars.into_iter().map(row).collect(), is_ordered: true }
        }
        None => {
            let rows = entries.iter().map(|(key, value)| entry(key, value)).collect();
            Rows { rows, is_ordered: false }
        }
    }
}

fn place(site: &SiteReport, program: &Program<'_>) -> Row {
    let SiteReport { event, function, offset, .. } = site;
    let column = |name: &str, cell: Cell| (name.to_owned(), cell);
    vec![
        column("offset", program.offset(*function, *offset)),
        column("function", program.name(*function)),
        column("event", event.as_str().into()),
        column("source", program.line(*function, *offset)),
    ]
}

fn by_site(report: &mut Report, names: &mut Names, rule: &RuleReport, program: &Program<'_>) {
    let mut values = Vec::new();
    let mut maps: Vec<Rows> = rule.variables.iter().map(|_| Rows::default()).collect();
    for site in &rule.sites {
        let place = place(site, program);
        let mut row = Row::new();
        for (number, (name, value)) in rule.variables.iter().zip(&site.values).enumerate() {
            match value {
                ReportedValue::Value(value) => row.extend(cells(name, value)),
                ReportedValue::Map(entries) => {
                    let mut rows = rows(entries);
                    rows.rows.iter_mut().for_each(|row| row.extend(place.clone()));
                    maps[number].extend(rows);
                }
            }
        }
        if !row.is_empty() {
            row.extend(place);
            values.push(row);
        }
    }
    if !values.is_empty() {
        let rows = Rows { rows: values, is_ordered: false };
        add(report, names.unique("by_site"), Some(&rule.rule), rows);
    }
    for (name, rows) in rule.variables.iter().zip(maps) {
        if !rows.rows.is_empty() {
            add(report, names.unique(name), Some(&rule.rule), rows);
        }
    }
}

/// Adds a table, under the text of its rule.
fn add(report: &mut Report, name: String, rule: Option<&str>, rows: Rows) {
    let Rows { mut rows, is_ordered } = rows;
    // The value of a map's entry, or else the first variable.
    let number = |row: &Row| {
        let numbers = row.iter().filter(|(name, _)| !name.starts_with("key"));
        numbers.filter_map(|(_, cell)| integer(cell)).next()
    };
    let key = |row: &Row| row.iter().find(|(name, _)| name == "key").and_then(|(_, cell)| integer(cell));
    if !is_ordered {
        rows.sort_by_key(|row| (key(row), Reverse(number(row))));
    }
    let mut columns = Names::new([]);
    let header: Vec<String> = match rows.first() {
        Some(row) => row.iter().map(|(name, _)| columns.unique(name)).collect(),
        None => vec!["key".to_owned(), "value".to_owned()],
    };
    let mut table = Table::new(&name, header.iter().map(String::as_str));
    for row in rows {
        table.row(row.into_iter().map(|(_, cell)| cell));
    }
    if let Some(rule) = rule {
        report.text(format!("{rule}\n"));
    }
    report.table(table);
}

fn integer(cell: &Cell) -> Option<i128> {
    match cell {
        Cell::Int(number) => Some(*number),
        _ => None,
    }
}
