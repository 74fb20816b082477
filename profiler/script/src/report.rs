//! The report of a script: its variables, with the names of functions.
//!
//! Variables that exist once are reported as values. Variables of places are reported as one table
//! for each rule, with a row for each function; a map is a separate table. The rows of a table are
//! in ascending order of the key if that is an integer, otherwise in descending order of the first
//! number. Histograms have a bar for each bucket in text, and its share in other formats.

use std::cmp::Reverse;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table as TextTable};
use serde_json::{Map, json};
use wasm_jit::printable;
use wasm_jit_whamm::lang::{ReportedValue, RuleReport, ScriptReport, ThreadsReport, Value, histogram};

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
    values: Row,
    tables: Vec<Table>,
    /// Notes on missing events and failures.
    pub(crate) notes: Vec<String>,
}

#[derive(Debug)]
struct Table {
    name: String,
    /// The rule to which its variables belong.
    rule: Option<String>,
    columns: Vec<String>,
    rows: Vec<Vec<Cell>>,
}

/// A field of a table.
#[derive(Clone, Debug)]
enum Cell {
    Value(Value),
    /// A call stack: the names of its functions, separated by semicolons.
    Stack(String),
    /// A bucket's share of its histogram, and its bar.
    Bar(f64, String),
}

/// A row: its fields, with the names of their columns.
type Row = Vec<(String, Cell)>;

/// The names of functions and stacks, by number.
pub(crate) struct Names<'n, 'a> {
    pub(crate) of_function: &'n dyn Fn(u32) -> Name<'a>,
    pub(crate) of_stack: &'n dyn Fn(u32) -> String,
}

impl Names<'_, '_> {
    /// A value, or the fields of a tuple, with the names of the columns.
    fn columns(&self, name: &str, value: &Value) -> Row {
        match value {
            Value::Tuple(fields) => {
                let fields = fields.iter().enumerate();
                fields.flat_map(|(index, field)| self.columns(&format!("{name}.{index}"), field)).collect()
            }
            Value::Stack(number) => vec![(name.to_owned(), Cell::Stack((self.of_stack)(*number)))],
            value => vec![(name.to_owned(), Cell::Value(value.clone()))],
        }
    }

    /// The columns of an entry of a map.
    fn entry(&self, key: &Value, value: &Value) -> Row {
        [self.columns("key", key), self.columns("value", value)].concat()
    }

    /// The rows of a map; for a histogram, in its order.
    fn entries(&self, entries: &[(Value, Value)]) -> Entries {
        match histogram(entries) {
            Some(bars) => {
                let row = |bar: wasm_jit_whamm::lang::Bar<'_>| {
                    let mut row = self.entry(bar.key, bar.count);
                    row.push(("share".to_owned(), Cell::Bar(bar.share, bar.text)));
                    row
                };
                Entries { rows: bars.into_iter().map(row).collect(), is_ordered: true }
            }
            None => {
                let rows = entries.iter().map(|(key, value)| self.entry(key, value));
                Entries { rows: rows.collect(), is_ordered: false }
            }
        }
    }

    fn place(&self, function: u32) -> Row {
        let Name { function, object } = (self.of_function)(function);
        let text = |text: &str| Cell::Value(Value::Text(text.to_owned()));
        vec![("function".to_owned(), text(function)), ("object".to_owned(), text(object))]
    }
}

/// The rows of one or several maps.
#[derive(Debug, Default)]
struct Entries {
    rows: Vec<Row>,
    is_ordered: bool,
}

impl Entries {
    /// Adds the rows of another map. The bars of histograms are kept only if all maps are
    /// histograms: the rows of a table have the same columns.
    fn extend(&mut self, mut more: Entries) {
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

impl Table {
    fn new(name: &str, rule: Option<&str>, entries: Entries) -> Self {
        let Entries { mut rows, is_ordered } = entries;
        let integer = |cell: &Cell| match cell {
            Cell::Value(Value::Int(value)) => Some(*value),
            _ => None,
        };
        let sort_key = |row: &Row| {
            let key = row.iter().find(|(name, _)| name == "key").and_then(|(_, value)| integer(value));
            let mut others = row.iter().filter(|(name, _)| !name.starts_with("key"));
            (key, Reverse(others.find_map(|(_, value)| integer(value))))
        };
        if !is_ordered {
            rows.sort_by_key(sort_key);
        }
        let columns = match rows.first() {
            Some(row) => row.iter().map(|(name, _)| name.clone()).collect(),
            None => vec!["key".to_owned(), "value".to_owned()],
        };
        let cells = |row: Row| row.into_iter().map(|(_, value)| value).collect();
        let rows = rows.into_iter().map(cells).collect();
        Self { name: name.to_owned(), rule: rule.map(str::to_owned), columns, rows }
    }
}

impl Report {
    pub(crate) fn new(found: Option<&ScriptReport>, names: &Names<'_, '_>) -> Self {
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
                ReportedValue::Value(value) => report.values.extend(names.columns(&variable.name, value)),
                ReportedValue::Map(entries) => {
                    report.tables.push(Table::new(&variable.name, rule, names.entries(entries)));
                }
            }
        }
        found.rules.iter().for_each(|rule| report.by_function(rule, names));
        report.by_thread(&found.threads, names);
        report
    }

    /// Adds the variables of threads.
    fn by_thread(&mut self, found: &ThreadsReport, names: &Names<'_, '_>) {
        let sites = found.threads.iter().map(|thread| {
            let number = Cell::Value(Value::Int(thread.thread.into()));
            (vec![("thread".to_owned(), number)], &thread.values)
        });
        self.by_place("by_thread", None, &found.variables, sites, names);
    }

    /// Adds the variables of a rule's places.
    fn by_function(&mut self, rule: &RuleReport, names: &Names<'_, '_>) {
        let sites = rule.sites.iter().map(|site| (names.place(site.function), &site.values));
        self.by_place("by_function", Some(&rule.rule), &rule.variables, sites, names);
    }

    /// Adds variables that exist for each place: one table for those that are values, with this
    /// name, and one for each map.
    fn by_place<'v>(
        &mut self,
        name: &str,
        rule: Option<&str>,
        variables: &[String],
        places: impl Iterator<Item = (Row, &'v Vec<ReportedValue>)>,
        names: &Names<'_, '_>,
    ) {
        let mut values = Vec::new();
        let mut maps: Vec<Entries> = variables.iter().map(|_| Entries::default()).collect();
        for (place, of_place) in places {
            let mut row = Vec::new();
            for (number, (name, value)) in variables.iter().zip(of_place).enumerate() {
                match value {
                    ReportedValue::Value(value) => row.extend(names.columns(name, value)),
                    ReportedValue::Map(entries) => {
                        let mut entries = names.entries(entries);
                        entries.rows.iter_mut().for_each(|row| row.extend(place.clone()));
                        maps[number].extend(entries);
                    }
                }
            }
            if !row.is_empty() {
                values.push([row, place].concat());
            }
        }
        if !values.is_empty() {
            self.tables.push(Table::new(name, rule, Entries { rows: values, is_ordered: false }));
        }
        for (name, map) in variables.iter().zip(maps).filter(|(_, map)| !map.rows.is_empty()) {
            self.tables.push(Table::new(name, rule, map));
        }
    }

    pub(crate) fn print(&self, format: ScriptFormat) -> String {
        match format {
            ScriptFormat::Text => self.text(),
            ScriptFormat::Json => self.json(),
            ScriptFormat::Csv => self.csv(),
            ScriptFormat::Folded => self.folded(),
        }
    }

    fn text(&self) -> String {
        let (script, executable) = (printable(&self.script), printable(&self.executable));
        let mut text = format!("{script}: {executable}, process {}\n", self.pid);
        let width = self.values.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        for (name, value) in &self.values {
            text += &format!("  {name:width$}  {}\n", for_people(value));
        }
        for table in &self.tables {
            let rule = table.rule.as_ref().map_or(String::new(), |rule| format!(" ({rule})"));
            text += &format!("\n{}{rule}\n", table.name);
            let mut aligned = TextTable::new();
            aligned.load_style(NOTHING).set_header(&table.columns);
            for row in &table.rows {
                aligned.add_row(row.iter().map(for_people));
            }
            let first = table.rows.first();
            for (number, column) in aligned.column_iter_mut().enumerate() {
                let is_text = first.is_none_or(|row| row[number].is_text());
                column.set_padding((if number == 0 { 2 } else { 1 }, 1));
                column.set_cell_alignment(if is_text { CellAlignment::Left } else { CellAlignment::Right });
            }
            for line in aligned.lines() {
                text += line.trim_end();
                text.push('\n');
            }
        }
        for note in &self.notes {
            text += &format!("\nnote: {}\n", printable(note));
        }
        text
    }

    /// The maps with a stack in their key, in the format of tools that draw flame graphs. Other
    /// parts of the key are the outermost frames.
    fn folded(&self) -> String {
        let mut text = String::new();
        for table in &self.tables {
            let keys = table.columns.iter().take_while(|name| *name == "key" || name.starts_with("key."));
            let keys = keys.count();
            for row in &table.rows {
                let (key, rest) = row.split_at(keys);
                let Some(Cell::Value(Value::Int(count))) = rest.first() else { continue };
                let stack = key.iter().find_map(|cell| match cell {
                    Cell::Stack(stack) => Some(stack.clone()),
                    _ => None,
                });
                let Some(stack) = stack else { continue };
                let others = key.iter().filter(|cell| !matches!(cell, Cell::Stack(_)));
                let mut frames: Vec<_> = others.map(|cell| plain(cell).replace(';', ":")).collect();
                frames.push(stack);
                // A line for each stack: the format has no escapes of its own.
                text += &format!("{} {count}\n", printable(&frames.join(";")));
            }
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

    /// Tables one after the other: a line `# NAME`, the columns, the rows. Values and notes are
    /// also tables.
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

impl Cell {
    /// Whether the field is left-aligned.
    fn is_text(&self) -> bool {
        match self {
            Self::Value(value) => matches!(value, Value::Text(_) | Value::Bool(_)),
            Self::Stack(_) | Self::Bar(..) => true,
        }
    }
}

/// The text of a field in a human-readable table, in which names do not act on the terminal.
fn for_people(cell: &Cell) -> String {
    match cell {
        Cell::Value(Value::Bucket(start, end)) => format!("[{start}, {end})"),
        Cell::Bar(share, bar) => format!("{bar} {:.1}%", share * 100.0),
        other => printable(&plain(other)).into_owned(),
    }
}

fn plain(cell: &Cell) -> String {
    match cell {
        Cell::Value(Value::Int(value)) => value.to_string(),
        Cell::Value(Value::Float(value)) => value.to_string(),
        Cell::Value(Value::Bool(value)) => value.to_string(),
        Cell::Value(Value::Bucket(start, _)) => start.to_string(),
        Cell::Value(Value::Text(text)) | Cell::Stack(text) => text.clone(),
        Cell::Bar(share, _) => share.to_string(),
        // The fields of tuples are separate cells, and so are stacks.
        Cell::Value(_) => String::new(),
    }
}

fn in_json(cell: &Cell) -> serde_json::Value {
    match cell {
        Cell::Value(Value::Int(value)) => match (i64::try_from(*value), u64::try_from(*value)) {
            (Ok(value), _) => value.into(),
            (_, Ok(value)) => value.into(),
            _ => value.to_string().into(),
        },
        Cell::Value(Value::Float(value)) | Cell::Bar(value, _) => (*value).into(),
        Cell::Value(Value::Bool(value)) => (*value).into(),
        Cell::Value(Value::Bucket(start, _)) => (*start).into(),
        other => plain(other).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "f\u{1b}[31m,\n\u{202e}\"";

    /// A report in which all strings have characters that act on terminals.
    fn report() -> Report {
        let text = |text: &str| Cell::Value(Value::Text(text.to_owned()));
        let stack = Cell::Stack(NAME.to_owned());
        let row = vec![("key".to_owned(), stack), ("value".to_owned(), Cell::Value(Value::Int(1)))];
        let place = vec![("function".to_owned(), text(NAME)), ("object".to_owned(), text(NAME))];
        let table =
            |name: &str, row: Row| Table::new(name, None, Entries { rows: vec![row], is_ordered: true });
        Report {
            script: NAME.to_owned(),
            executable: NAME.to_owned(),
            pid: 1,
            values: vec![("last".to_owned(), text(NAME))],
            tables: vec![table("stacks", row), table("by_function", place)],
            notes: vec![format!("a call to {NAME}")],
        }
    }

    #[test]
    fn names_do_not_act_on_the_terminal() {
        let escaped = r#"f\u{1b}[31m,\n\u{202e}\""#;
        let text = report().print(ScriptFormat::Text);
        assert_eq!(text.matches(escaped).count(), 7, "{text}");
        let acts = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
        assert!(!text.contains(acts) && text.lines().count() == 12, "{text}");
        assert_eq!(report().print(ScriptFormat::Folded), format!("{escaped} 1\n"));
    }

    #[test]
    fn other_parts_of_a_key_are_the_outermost_frames() {
        let key = |parts: &[Value]| Value::Tuple(parts.to_vec());
        let names = Names {
            of_function: &|_| Name { function: "", object: "" },
            of_stack: &|number| format!("main;f{number}"),
        };
        let folded = |entries: &[(Value, Value)]| {
            let table = Table::new("samples", None, names.entries(entries));
            Report { tables: vec![table], ..report() }.print(ScriptFormat::Folded)
        };
        let text = |text: &str| Value::Text(text.to_owned());
        let by_name = [(key(&[text("a;b"), Value::Stack(1)]), Value::Int(7))];
        assert_eq!(folded(&by_name), "a:b;main;f1 7\n");
        let by_thread = [(key(&[Value::Stack(2), Value::Int(33)]), Value::Int(8))];
        assert_eq!(folded(&by_thread), "33;main;f2 8\n");
        assert_eq!(folded(&[(Value::Stack(3), Value::Int(9))]), "main;f3 9\n");
        assert_eq!(folded(&[(text("no stack"), Value::Int(9))]), "");
    }

    /// A count that is negative in one place is not one of a histogram.
    #[test]
    fn all_rows_of_a_table_have_its_columns() {
        let names = Names {
            of_function: &|number| Name { function: ["f", "g", "h", "i"][number as usize], object: "o" },
            of_stack: &|_| String::new(),
        };
        let map = |counts: &[i128]| {
            let entry = |(number, count): (usize, &i128)| {
                (Value::Bucket(1 << number, 2 << number), Value::Int(*count))
            };
            vec![ReportedValue::Map(counts.iter().enumerate().map(entry).collect())]
        };
        let table = |counts: [&[i128]; 4]| {
            let maps = counts.map(map);
            let places = maps.iter().zip(0..).map(|(map, number)| (names.place(number), map));
            let mut report = Report { tables: Vec::new(), notes: Vec::new(), values: Vec::new(), ..report() };
            report.by_place("by_function", None, &["sizes".to_owned()], places, &names);
            report.print(ScriptFormat::Text);
            report.print(ScriptFormat::Json);
            report.print(ScriptFormat::Csv)
        };
        let with_shares = table([&[1, 3], &[2], &[], &[5]]);
        assert!(
            with_shares.contains("key,value,share,function,object\n1,1,0.25,f,o\n2,3,0.75,f,o\n1,2,1,g,o\n")
        );
        for counts in
            [[&[1, 3][..], &[-2], &[], &[5]], [&[-2], &[], &[1, 3], &[5]], [&[1], &[5], &[1, 3], &[-2]]]
        {
            let csv = table(counts);
            assert!(csv.starts_with("# sizes\nkey,value,function,object\n"), "{csv}");
            assert_eq!(
                csv.lines().count(),
                2 + counts.iter().map(|of_place| of_place.len()).sum::<usize>(),
                "{csv}"
            );
        }
    }

    #[test]
    fn other_formats_have_names_unchanged() {
        let json: serde_json::Value = serde_json::from_str(&report().print(ScriptFormat::Json)).unwrap();
        assert_eq!(json["values"]["last"], NAME);
        assert_eq!(json["tables"][1]["rows"][0], json!([NAME, NAME]));
        assert_eq!(json["notes"][0], format!("a call to {NAME}"));
        let quoted = format!("\"{}\"", NAME.replace('"', "\"\""));
        let csv = report().print(ScriptFormat::Csv);
        assert!(csv.contains(&format!("# by_function\nfunction,object\n{quoted},{quoted}\n")), "{csv}");
    }
}
