//! [`Report`]: the observations of a monitor, independent of the output format.

pub(crate) mod csv;
pub(crate) mod files;
pub(crate) mod json;
pub(crate) mod text;

use std::borrow::Cow;
use std::io::{self, Write};
use std::sync::Arc;

use self::files::Files;
use crate::Error;

/// The observations of a monitor.
#[derive(Debug, Default)]
pub struct Report {
    pub(crate) monitor: String,
    /// The number of rows of a table to show.
    pub(crate) rows: Option<usize>,
    /// How the user gets all rows, if not by the option `rows`.
    pub(crate) all_rows: Option<&'static str>,
    values: Vec<(String, Cell)>,
    parts: Vec<Part>,
    files: Files,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Part {
    Table(Table),
    Text(String),
}

/// A table, with a name and named columns.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    pub(crate) name: String,
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<Vec<Cell>>,
    /// Whether the table is also in the text.
    pub(crate) is_shown: bool,
}

/// The name of a figure, table or column in JSON and CSV: `self ns` is `self_ns`. Names that a
/// script gives, of its rules for example, stay what they are.
pub(crate) fn key(name: &str) -> Cow<'_, str> {
    let is_words = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == ' ';
    if name.contains(' ') && name.chars().all(is_words) { name.replace(' ', "_").into() } else { name.into() }
}

/// A figure or a text.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Cell {
    /// An empty cell.
    None,
    /// A count, or another integer.
    Int(i128),
    /// An offset or address.
    Hex(u64),
    /// A number, shown with this many decimal places in text.
    Float(f64, usize),
    /// A share: 0.5 is printed as `50.0%` in text.
    Share(f64),
    /// A range of integers, from the first one to the one after the last: `[4, 8)` in text,
    /// otherwise the first one only.
    Range(u64, i128),
    /// A share, in text with a bar before it.
    Bar(f64, Arc<str>),
    /// A boolean, also in JSON.
    Bool(bool),
    /// A string. On terminals its control characters are escaped; other formats have it unchanged.
    Text(Arc<str>),
}

macro_rules! from_integers {
    ($($ty:ty),*) => {
        $(impl From<$ty> for Cell {
            fn from(value: $ty) -> Self {
                Self::Int(value as i128)
            }
        })*
    };
}

from_integers!(u8, u16, u32, u64, usize, i32, i64);

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl<T: Into<Self>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::None, Into::into)
    }
}

impl Cell {
    /// The ratio of a part to the total; empty if the total is 0.
    pub fn share(part: u64, whole: u64) -> Self {
        if whole == 0 { Self::None } else { Self::Share(part as f64 / whole as f64) }
    }
}

/// Files that are not in memory are not compared.
impl PartialEq for Report {
    fn eq(&self, other: &Self) -> bool {
        self.monitor == other.monitor
            && (self.rows, self.all_rows) == (other.rows, other.all_rows)
            && self.values == other.values
            && self.parts == other.parts
            && self.files() == other.files()
    }
}

impl Report {
    /// An empty report of the monitor with this name.
    pub fn new(monitor: &str) -> Self {
        Self::with_files(monitor, Files::Kept(Vec::new()))
    }

    pub(crate) fn with_files(monitor: &str, files: Files) -> Self {
        Self { monitor: monitor.to_owned(), files, ..Self::default() }
    }

    /// Sets the hint on how to get all rows of the tables, for monitors without the option `rows`.
    pub fn hint_all_rows(&mut self, hint: &'static str) {
        self.all_rows = Some(hint);
    }

    /// The monitor's name.
    pub fn monitor(&self) -> &str {
        &self.monitor
    }

    /// Adds a named figure. No table may have its name, which is a key of the JSON format.
    pub fn value(&mut self, name: &str, value: impl Into<Cell>) {
        self.values.push((name.to_owned(), value.into()));
    }

    /// Adds a table.
    pub fn table(&mut self, table: Table) {
        self.parts.push(Part::Table(table));
    }

    /// Adds a text, which only the human-readable format has.
    pub fn text(&mut self, text: impl Into<String>) {
        self.parts.push(Part::Text(text.into()));
    }

    /// Whether files may be added to the report. They are left out if the output is not a
    /// directory.
    pub fn has_files(&self) -> bool {
        !matches!(self.files, Files::LeftOut)
    }

    /// Adds a file if the report [has files](Self::has_files); `contents` writes it, and is not
    /// called if it is not needed. The file's name gets the monitor's name as a prefix.
    ///
    /// `contents` returns any error of its argument. In a report for a directory, the argument is
    /// the file, so that a large file takes no memory.
    pub fn file(&mut self, name: &str, contents: impl FnOnce(&mut dyn Write) -> io::Result<()>) {
        self.files.add(&self.monitor, name, contents);
    }

    /// The figure of this name, if it is an integer.
    pub fn get(&self, name: &str) -> Option<u64> {
        let found = self.values.iter().find(|(known, _)| known == name);
        match found?.1 {
            Cell::Int(value) => value.try_into().ok(),
            _ => None,
        }
    }

    /// All figures with their names, in the order in which they were added.
    pub fn values(&self) -> &[(String, Cell)] {
        &self.values
    }

    /// The table of this name.
    pub fn get_table(&self, name: &str) -> Option<&Table> {
        self.tables().find(|table| table.name == name)
    }

    /// All tables, in the order in which they were added.
    pub fn tables(&self) -> impl Iterator<Item = &Table> {
        self.parts.iter().filter_map(|part| match part {
            Part::Table(table) => Some(table),
            Part::Text(_) => None,
        })
    }

    /// The contents of all files, with their names.
    pub fn files(&self) -> &[(String, Vec<u8>)] {
        match &self.files {
            Files::Kept(files) => files,
            Files::LeftOut | Files::Named(_) | Files::Written(..) => &[],
        }
    }

    /// The names of the files that are not in a directory.
    pub(crate) fn file_names(&self) -> Vec<&str> {
        self.files.names()
    }

    /// Takes the errors of the files that were written to a directory.
    pub(crate) fn take_errors(&mut self) -> Vec<Error> {
        match &mut self.files {
            Files::Written(_, errors) => std::mem::take(errors),
            Files::LeftOut | Files::Named(_) | Files::Kept(_) => Vec::new(),
        }
    }

    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }
}

impl Table {
    /// A table with these columns and no rows.
    pub fn new<'a>(name: &str, columns: impl IntoIterator<Item = &'a str>) -> Self {
        let columns = columns.into_iter().map(str::to_owned).collect();
        Self { name: name.to_owned(), columns, rows: Vec::new(), is_shown: true }
    }

    /// Hides the table in text, for figures that a text of the report shows in another form.
    #[must_use]
    pub fn hidden(self) -> Self {
        Self { is_shown: false, ..self }
    }

    /// Adds a row: a cell for each column.
    ///
    /// # Panics
    /// If the number of cells differs from the number of columns.
    pub fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        let cells: Vec<Cell> = cells.into_iter().collect();
        assert_eq!(cells.len(), self.columns.len(), "the cells of a row of {}", self.name);
        self.rows.push(cells);
    }

    /// The table's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The names of the columns.
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// The rows; each has one cell per column.
    pub fn rows(&self) -> &[Vec<Cell>] {
        &self.rows
    }

    /// The cells of the column of this name.
    pub fn column(&self, name: &str) -> impl Iterator<Item = &Cell> {
        let at = self.columns.iter().position(|column| column == name);
        self.rows.iter().filter_map(move |row| row.get(at?))
    }
}
