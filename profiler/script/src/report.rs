//! The report of a script: its variables, with the names of functions.
//!
//! Variables that exist once are values. Variables of places are a table by rule, with a row for
//! each function; a map is a table of its own. Rows of a table are in ascending order of the key,
//! if that is an integer, otherwise in descending order of the first number.

use std::cmp::Reverse;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table as TextTable};
use serde_json::{Map, json};
use wasm_jit_whamm::lang::{ReportedValue, RuleReport, ScriptReport, Value};

use profiler::script::ScriptFormat;

/// A function in the report.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name<'a> {
    pub(crate) function: &'a str,
    pub(crate) object: &'a str,
}

/// The report of a process.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) script: String,
    pub(crate) executable: String,
    pub(crate) pid: u32,
    values: Vec<(String, Value)>,
    tables: Vec<Table>,
    /// Notes on missing events.
    pub(crate) notes: Vec<String>,
}

#[derive(Debug)]
struct Table {
    name: String,
    /// The rule that its variables belong to.
    rule: Option<String>,
    columns: Vec<String>,
    rows: Vec<Vec<Value>>,
}

/// A value, or the fields of a tuple, with the names of their columns.
fn columns(name: &str, value: &Value) -> Vec<(String, Value)> {
    match value {
        Value::Tuple(fields) => {
            let fields = fields.iter().enumerate();
            fields.flat_map(|(index, field)| columns(&format!("{name}.{index}"), field)).collect()
        }
        value => vec![(name.to_owned(), value.clone())],
    }
}

/// The columns of an entry of a map.
fn entry(key: &Value, value: &Value) -> Vec<(String, Value)> {
    [columns("key", key), columns("value", value)].concat()
}

fn place(name: Name<'_>) -> Vec<(String, Value)> {
    let text = |text: &str| Value::Text(text.to_owned());
    vec![("function".to_owned(), text(name.function)), ("object".to_owned(), text(name.object))]
}

impl Table {
    fn new(name: &str, rule: Option<&str>, mut rows: Vec<Vec<(String, Value)>>) -> Self {
        let integer = |value: &Value| match value {
            Value::Int(value) => Some(*value),
            _ => None,
        };
        rows.sort_by_key(|row| {
            let key = row.iter().find(|(name, _)| name == "key").and_then(|(_, value)| integer(value));
            let mut others = row.iter().filter(|(name, _)| !name.starts_with("key"));
            (key, Reverse(others.find_map(|(_, value)| integer(value))))
        });
        let columns = match rows.first() {
            Some(row) => row.iter().map(|(name, _)| name.clone()).collect(),
            None => vec!["key".to_owned(), "value".to_owned()],
        };
        let cells = |row: Vec<(String, Value)>| row.into_iter().map(|(_, value)| value).collect();
        let rows = rows.into_iter().map(cells).collect();
        Self { name: name.to_owned(), rule: rule.map(str::to_owned), columns, rows }
    }
}

impl Report {
    pub(crate) fn new<'a>(found: Option<&ScriptReport>, name: &dyn Fn(u32) -> Name<'a>) -> Self {
        let mut report = Self {
            script: String::new(),
            executable: String::new(),
            pid: 0,
            values: Vec::new(),
            tables: Vec::new(),
            notes: Vec::new(),
        };
        let Some(found) = found else { return report };
        for variable in &found.variables {
            let rule = variable.rule.as_deref();
            match &variable.value {
                ReportedValue::Value(value) => report.values.extend(columns(&variable.name, value)),
                ReportedValue::Map(entries) => {
                    let rows = entries.iter().map(|(key, value)| entry(key, value)).collect();
                    report.tables.push(Table::new(&variable.name, rule, rows));
                }
            }
        }
        found.rules.iter().for_each(|rule| report.by_function(rule, name));
        report
    }

    /// The variables of a rule's places.
    fn by_function<'a>(&mut self, rule: &RuleReport, name: &dyn Fn(u32) -> Name<'a>) {
        let mut values = Vec::new();
        let mut maps = vec![Vec::new(); rule.variables.len()];
        for site in &rule.sites {
            let place = place(name(site.function));
            let mut row = Vec::new();
            for (number, (name, value)) in rule.variables.iter().zip(&site.values).enumerate() {
                match value {
                    ReportedValue::Value(value) => row.extend(columns(name, value)),
                    ReportedValue::Map(entries) => maps[number].extend(
                        entries.iter().map(|(key, value)| [entry(key, value), place.clone()].concat()),
                    ),
                }
            }
            if !row.is_empty() {
                values.push([row, place].concat());
            }
        }
        if !values.is_empty() {
            self.tables.push(Table::new("by_function", Some(&rule.rule), values));
        }
        for (name, rows) in rule.variables.iter().zip(maps).filter(|(_, rows)| !rows.is_empty()) {
            self.tables.push(Table::new(name, Some(&rule.rule), rows));
        }
    }

    pub(crate) fn print(&self, format: ScriptFormat) -> String {
        match format {
            ScriptFormat::Text => self.text(),
            ScriptFormat::Json => self.json(),
            ScriptFormat::Csv => self.csv(),
        }
    }

    fn text(&self) -> String {
        let mut text = format!("{}: {}, process {}\n", self.script, self.executable, self.pid);
        let width = self.values.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        for (name, value) in &self.values {
            text += &format!("  {name:width$}  {}\n", plain(value));
        }
        for table in &self.tables {
            let rule = table.rule.as_ref().map_or(String::new(), |rule| format!(" ({rule})"));
            text += &format!("\n{}{rule}\n", table.name);
            let mut aligned = TextTable::new();
            aligned.load_style(NOTHING).set_header(&table.columns);
            for row in &table.rows {
                aligned.add_row(row.iter().map(plain));
            }
            let first = table.rows.first();
            for (number, column) in aligned.column_iter_mut().enumerate() {
                let is_text = first.is_none_or(|row| matches!(row[number], Value::Text(_) | Value::Bool(_)));
                column.set_padding((if number == 0 { 2 } else { 1 }, 1));
                column.set_cell_alignment(if is_text { CellAlignment::Left } else { CellAlignment::Right });
            }
            for line in aligned.lines() {
                text += line.trim_end();
                text.push('\n');
            }
        }
        for note in &self.notes {
            text += &format!("\nnote: {note}\n");
        }
        text
    }

    fn json(&self) -> String {
        let values: Map<String, serde_json::Value> =
            self.values.iter().map(|(name, value)| (name.clone(), in_json(value))).collect();
        let tables = self.tables.iter().map(|table| {
            let rows: Vec<Vec<_>> = table.rows.iter().map(|row| row.iter().map(in_json).collect()).collect();
            json!({ "name": table.name, "rule": table.rule, "columns": table.columns, "rows": rows })
        });
        let report = json!({
            "script": self.script,
            "executable": self.executable,
            "pid": self.pid,
            "values": values,
            "tables": tables.collect::<Vec<_>>(),
            "notes": self.notes,
        });
        format!("{report:#}\n")
    }

    /// Tables after each other: a line `# NAME`, the columns, the rows. Values are a table, too,
    /// and so are notes.
    fn csv(&self) -> String {
        let mut parts = Vec::new();
        let values = self.values.iter().map(|(name, value)| vec![name.clone(), plain(value)]);
        if !self.values.is_empty() {
            parts.push(("values".to_owned(), vec!["name".to_owned(), "value".to_owned()], values.collect()));
        }
        for table in &self.tables {
            let rows: Vec<Vec<String>> =
                table.rows.iter().map(|row| row.iter().map(plain).collect()).collect();
            parts.push((table.name.clone(), table.columns.clone(), rows));
        }
        if !self.notes.is_empty() {
            let notes = self.notes.iter().map(|note| vec![note.clone()]).collect();
            parts.push(("notes".to_owned(), vec!["note".to_owned()], notes));
        }
        let print = |(name, columns, rows): &(String, Vec<String>, Vec<Vec<String>>)| {
            let mut writer = csv::Writer::from_writer(Vec::new());
            for row in std::iter::once(columns).chain(rows) {
                writer.write_record(row).expect("rows are as long as the header");
            }
            let table = writer.into_inner().expect("memory can be written");
            format!("# {name}\n{}", String::from_utf8_lossy(&table))
        };
        parts.iter().map(print).collect::<Vec<_>>().join("\n")
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::Int(value) => value.to_string(),
        Value::Float(value) => value.to_string(),
        Value::Bool(value) => value.to_string(),
        Value::Text(text) => text.clone(),
        Value::Tuple(fields) => fields.iter().map(plain).collect::<Vec<_>>().join(" "),
        _ => String::new(),
    }
}

fn in_json(value: &Value) -> serde_json::Value {
    match value {
        Value::Int(value) => match (i64::try_from(*value), u64::try_from(*value)) {
            (Ok(value), _) => value.into(),
            (_, Ok(value)) => value.into(),
            _ => value.to_string().into(),
        },
        Value::Float(value) => (*value).into(),
        Value::Bool(value) => (*value).into(),
        value => plain(value).into(),
    }
}
