//! [`Files`]: what becomes of the files of a report.

use std::io::{self, Write};
use std::path::PathBuf;

use crate::Error;
use crate::replaced::replace;

/// What becomes of the files of a report.
#[derive(Debug, Default)]
pub(crate) enum Files {
    /// They are left out.
    #[default]
    LeftOut,
    /// Only their names are kept.
    Named(Vec<String>),
    /// They are kept in memory.
    Kept(Vec<(String, Vec<u8>)>),
    /// Each is written when it is added, since a listing may be larger than the memory: the
    /// directory, and the errors.
    Written(PathBuf, Vec<Error>),
}

impl Files {
    /// Adds a file of the monitor with this name.
    pub(super) fn add(
        &mut self,
        monitor: &str,
        name: &str,
        contents: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) {
        match self {
            Self::LeftOut => {}
            Self::Named(names) => names.push(name.to_owned()),
            Self::Kept(files) => {
                let mut bytes = Vec::new();
                contents(&mut bytes).expect("memory can be written to");
                files.push((name.to_owned(), bytes));
            }
            Self::Written(directory, errors) => {
                errors.extend(replace(&directory.join(format!("{monitor}.{name}")), contents).err());
            }
        }
    }

    /// The names of the files that are not written.
    pub(super) fn names(&self) -> Vec<&str> {
        match self {
            Self::LeftOut | Self::Written(..) => Vec::new(),
            Self::Named(names) => names.iter().map(String::as_str).collect(),
            Self::Kept(files) => files.iter().map(|(name, _)| name.as_str()).collect(),
        }
    }
}
