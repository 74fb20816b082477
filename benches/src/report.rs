//! The report of a benchmark: the machine, and tables. Text and JSON are generated from one struct.

use std::fmt;

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::distribution::Distribution;
use crate::host::Host;

/// One field of a row.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Cell {
    /// Text.
    Text(String),
    /// A count.
    Count(u64),
    /// A measured number.
    Number(f64),
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<u64> for Cell {
    fn from(count: u64) -> Self {
        Self::Count(count)
    }
}

impl From<usize> for Cell {
    fn from(count: usize) -> Self {
        Self::Count(count as u64)
    }
}

impl From<f64> for Cell {
    /// Rounds: measurements have no more than four significant digits.
    fn from(number: f64) -> Self {
        Self::Number((number * 1000.0).round() / 1000.0)
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Text(text) => return f.pad(text),
            Self::Count(count) => count.to_string(),
            Self::Number(number) if number.abs() < 10.0 => format!("{number:.2}"),
            Self::Number(number) if number.abs() < 1000.0 => format!("{number:.1}"),
            Self::Number(number) => format!("{number:.0}"),
        };
        let width = f.width().unwrap_or(0);
        write!(f, "{text:>width$}")
    }
}

/// The columns that [`cells`] fills.
pub const DISTRIBUTION: [&str; 5] = ["n", "mean", "p10", "median", "p90"];

/// A distribution as cells of a row.
pub fn cells(distribution: &Distribution) -> [Cell; 5] {
    let Distribution { count, mean, p10, median, p90 } = *distribution;
    [count.into(), mean.into(), p10.into(), median.into(), p90.into()]
}

/// Rows that are to be compared with each other.
#[derive(Clone, Debug)]
pub struct Table {
    title: String,
    note: String,
    columns: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// An empty table. `note` describes the measurement, and the unit of the numbers.
    pub fn new(title: &str, note: impl Into<String>, columns: &[&'static str]) -> Self {
        Self { title: title.into(), note: note.into(), columns: columns.to_vec(), rows: Vec::new() }
    }

    /// An empty table with a name and a distribution in each row.
    pub fn of_distributions(title: &str, note: impl Into<String>) -> Self {
        Self::new(title, note, &[&["what"][..], &DISTRIBUTION].concat())
    }

    /// Appends a row.
    ///
    /// # Panics
    /// If the number of cells is not that of the columns.
    pub fn push(&mut self, row: Vec<Cell>) {
        assert_eq!(row.len(), self.columns.len(), "a cell for each column of {}", self.title);
        self.rows.push(row);
    }

    /// Appends a row of a table [`of_distributions`](Self::of_distributions).
    pub fn push_distribution(&mut self, what: &str, values: Vec<f64>) {
        let distribution = Distribution::of(values);
        self.push([Cell::from(what)].into_iter().chain(cells(&distribution)).collect());
    }

    fn json(&self) -> Value {
        let row = |row: &Vec<Cell>| -> Map<String, Value> {
            self.columns.iter().zip(row).map(|(column, cell)| (column.to_string(), json!(cell))).collect()
        };
        json!({"title": self.title, "note": self.note, "rows": self.rows.iter().map(row).collect::<Vec<_>>()})
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cells = |column: usize| self.rows.iter().map(move |row| row[column].to_string().chars().count());
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|column| cells(column).chain([self.columns[column].len()]).max().unwrap_or(0))
            .collect();
        writeln!(f, "\n{}\n{}", self.title, wrapped(&self.note))?;
        for (column, width) in self.columns.iter().zip(&widths) {
            let numeric = self.rows.first().is_some_and(|row| {
                let index = self.columns.iter().position(|other| other == column);
                index.is_some_and(|index| !matches!(row[index], Cell::Text(_)))
            });
            if numeric { write!(f, "  {column:>width$}")? } else { write!(f, "  {column:<width$}")? }
        }
        writeln!(f)?;
        for row in &self.rows {
            for (cell, width) in row.iter().zip(&widths) {
                write!(f, "  {cell:width$}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// The text in lines of at most 120 characters, or one word.
fn wrapped(text: &str) -> String {
    const WIDTH: usize = 120;
    let mut lines = String::new();
    let mut width = 0;
    for word in text.split(' ') {
        let length = word.chars().count();
        if width > 0 && width + 1 + length > WIDTH {
            lines.push('\n');
            width = 0;
        } else if width > 0 {
            lines.push(' ');
            width += 1;
        }
        lines.push_str(word);
        width += length;
    }
    lines
}

/// All results of one run of a benchmark.
#[derive(Clone, Debug)]
pub struct Report {
    question: String,
    host: Host,
    tables: Vec<Table>,
}

impl Report {
    /// A report without tables, of the current machine.
    pub fn new(question: &str) -> Self {
        Self { question: question.into(), host: Host::now(), tables: Vec::new() }
    }

    /// The machine.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Appends a table.
    pub fn push(&mut self, table: Table) {
        self.tables.push(table);
    }

    /// The report as JSON.
    ///
    /// # Panics
    /// Never: all keys are strings.
    pub fn json(&self) -> String {
        let tables: Vec<_> = self.tables.iter().map(Table::json).collect();
        let report = json!({"question": self.question, "host": self.host, "tables": tables});
        serde_json::to_string_pretty(&report).expect("string keys")
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n\n{}", self.question, self.host)?;
        self.tables.iter().try_for_each(|table| write!(f, "{table}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_between_words() {
        let word = "a".repeat(59);
        let text = [word.as_str(); 4].join(" ");
        assert_eq!(wrapped(&text), format!("{word} {word}\n{word} {word}"));
    }

    #[test]
    fn text_and_json_agree() {
        let mut table = Table::new("title", "note", &["what", "n", "ticks"]);
        table.push(vec!["first".into(), 12_u64.into(), 6.54321.into()]);
        table.push(vec!["2nd".into(), 3_u64.into(), 1234.5.into()]);
        let expected = "\ntitle\nnote\n  what    n  ticks\n  first  12   6.54\n  2nd     3   1234\n";
        assert_eq!(table.to_string(), expected);
        assert_eq!(table.json()["rows"][0], json!({"what": "first", "n": 12, "ticks": 6.543}));
    }
}
