//! A report as a JSON object: the monitor's name, its figures, and each table as a list of objects.
//! Keys are words in lower case, joined by `_`; those of quantities end in their units.

use std::io::{self, Write};

use serde::ser::{Serialize, SerializeMap, Serializer};

use super::{Cell, Report, Table, key};

/// Writes a report as one line.
pub(crate) fn write(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, report)?;
    writeln!(out)
}

impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("monitor", &self.monitor)?;
        for (name, value) in self.values() {
            map.serialize_entry(&key(name), value)?;
        }
        for table in self.tables() {
            map.serialize_entry(&key(&table.name), table)?;
        }
        map.end()
    }
}

impl Serialize for Table {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.rows.iter().map(|cells| Row { columns: &self.columns, cells }))
    }
}

struct Row<'a> {
    columns: &'a [String],
    cells: &'a [Cell],
}

impl Serialize for Row<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.columns.iter().map(|name| key(name)).zip(self.cells))
    }
}

/// Shares and offsets are numbers.
impl Serialize for Cell {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None => serializer.serialize_none(),
            // All that are in a report come from 64 bits, or are sums of a few of them.
            Self::Int(value) => match u64::try_from(*value) {
                Ok(value) => serializer.serialize_u64(value),
                Err(_) => match i64::try_from(*value) {
                    Ok(value) => serializer.serialize_i64(value),
                    Err(_) => serializer.serialize_f64(*value as f64),
                },
            },
            Self::Hex(value) | Self::Range(value, _) => serializer.serialize_u64(*value),
            Self::Float(value, _) | Self::Share(value) | Self::Bar(value, _) => {
                serializer.serialize_f64(*value)
            }
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Text(text) => serializer.serialize_str(text),
        }
    }
}
