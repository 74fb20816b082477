//! [`Report`]: what a monitor has observed, whatever the format in which it is written.

pub(crate) mod csv;
pub(crate) mod json;
pub(crate) mod text;

use std::sync::Arc;

/// The observations of a monitor.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    pub(crate) monitor: String,
    /// Number of rows of a table to show.
    pub(crate) rows: Option<usize>,
    /// The way to get all rows, if it is not the option `rows`.
    pub(crate) all_rows: Option<&'static str>,
    values: Vec<(String, Cell)>,
    parts: Vec<Part>,
    /// `None` if they are not written.
    files: Option<Vec<(String, Vec<u8>)>>,
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
    /// Whether it is in the text, too.
    pub(crate) is_shown: bool,
}

/// A figure or a text.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Cell {
    /// Nothing.
    None,
    /// A count, or another integer.
    Int(i128),
    /// An offset or address.
    Hex(u64),
    /// A number with this many decimal places in text.
    Float(f64, usize),
    /// A share: 0.5 is printed as `50.0%` in text.
    Share(f64),
    /// A range of integers, from the first one to that after the last: `[4, 8)` in text, otherwise
    /// the first one.
    Range(u64, i128),
    /// A share, in text with a bar before it.
    Bar(f64, Arc<str>),
    /// A boolean: in JSON as such.
    Bool(bool),
    /// A text. In text for people, control characters are escaped; other formats have it as it is.
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

impl Report {
    /// An empty report of a monitor with this name.
    pub fn new(monitor: &str) -> Self {
        Self { monitor: monitor.to_owned(), files: Some(Vec::new()), ..Self::default() }
    }

    /// The report without its files.
    pub(crate) fn without_files(self) -> Self {
        Self { files: None, ..self }
    }

    /// Says how to get all rows of its tables, if the monitor does not have the option `rows`.
    pub fn hint_all_rows(&mut self, hint: &'static str) {
        self.all_rows = Some(hint);
    }

    /// The monitor's name.
    pub fn monitor(&self) -> &str {
        &self.monitor
    }

    /// Adds a figure with a name.
    pub fn value(&mut self, name: &str, value: impl Into<Cell>) {
        self.values.push((name.to_owned(), value.into()));
    }

    /// Adds a table.
    pub fn table(&mut self, table: Table) {
        self.parts.push(Part::Table(table));
    }

    /// Adds a text, for people only.
    pub fn text(&mut self, text: impl Into<String>) {
        self.parts.push(Part::Text(text.into()));
    }

    /// Whether the report has files. They are left out if the output is not a directory.
    pub fn has_files(&self) -> bool {
        self.files.is_some()
    }

    /// Adds a file, if the report [has files](Self::has_files): else `contents` is not called. The
    /// monitor's name is put in front of its name.
    pub fn file<T: Into<Vec<u8>>>(&mut self, name: &str, contents: impl FnOnce() -> T) {
        if let Some(files) = &mut self.files {
            files.push((name.to_owned(), contents().into()));
        }
    }

    /// The integer of this name.
    pub fn get(&self, name: &str) -> Option<u64> {
        let found = self.values.iter().find(|(known, _)| known == name);
        match found?.1 {
            Cell::Int(value) => value.try_into().ok(),
            _ => None,
        }
    }

    /// The figures, by name.
    pub fn values(&self) -> &[(String, Cell)] {
        &self.values
    }

    /// The table of this name.
    pub fn get_table(&self, name: &str) -> Option<&Table> {
        self.tables().find(|table| table.name == name)
    }

    /// The tables.
    pub fn tables(&self) -> impl Iterator<Item = &Table> {
        self.parts.iter().filter_map(|part| match part {
            Part::Table(table) => Some(table),
            Part::Text(_) => None,
        })
    }

    /// The files, by name.
    pub fn files(&self) -> &[(String, Vec<u8>)] {
        self.files.as_deref().unwrap_or_default()
    }

    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }
}

impl Table {
    /// A table without rows.
    pub fn new<'a>(name: &str, columns: impl IntoIterator<Item = &'a str>) -> Self {
        let columns = columns.into_iter().map(str::to_owned).collect();
        Self { name: name.to_owned(), columns, rows: Vec::new(), is_shown: true }
    }

    /// Hides the table in text: for figures that a text of the report shows in another form.
    #[must_use]
    pub fn hidden(self) -> Self {
        Self { is_shown: false, ..self }
    }

    /// Adds a row: a cell for each column.
    ///
    /// # Panics
    /// If there are more or fewer.
    pub fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        let cells: Vec<Cell> = cells.into_iter().collect();
        assert_eq!(cells.len(), self.columns.len(), "the cells of a row of {}", self.name);
        self.rows.push(cells);
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The names of its columns.
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// Its rows.
    pub fn rows(&self) -> &[Vec<Cell>] {
        &self.rows
    }

    /// The cells of the column of this name.
    pub fn column(&self, name: &str) -> impl Iterator<Item = &Cell> {
        let at = self.columns.iter().position(|column| column == name);
        self.rows.iter().filter_map(move |row| row.get(at?))
    }
}
