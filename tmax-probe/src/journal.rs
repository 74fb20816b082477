//! A run that can be resumed after an interrupt: each trial is recorded when it ends.
//!
//! The first line identifies the program and the machine; each other line is a trial. A run that
//! finds the journal of the same program and machine takes trials from there instead of running
//! them. A truncated last line is dropped.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use wordpatch::calibration::Host;

use crate::error::Error;
use crate::trial::{Machine, Spec, Trial};

#[derive(PartialEq, Serialize, Deserialize)]
struct Header {
    made_by: String,
    host: Host,
}

/// A machine whose trials are recorded.
pub(crate) struct Journal<'a> {
    machine: &'a mut dyn Machine,
    path: PathBuf,
    file: BufWriter<File>,
    /// Trials of an earlier run that were not used yet, in reverse order.
    kept: HashMap<Spec, Vec<Trial>>,
}

impl<'a> Journal<'a> {
    /// Opens the journal at `path`, or creates it. `made_by` is the program with its version.
    ///
    /// # Errors
    /// [`Error::File`].
    pub(crate) fn open(path: &Path, made_by: &str, machine: &'a mut dyn Machine) -> Result<Self, Error> {
        let failed = |source| Error::File { path: path.to_owned(), source };
        let header = Header { made_by: made_by.to_owned(), host: Host::here() };
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        let trials = read(&fs::read_to_string(path).unwrap_or_default(), &header);
        // Rewritten without a truncated line or another machine's trials, and renamed atomically.
        let new = path.with_extension("new");
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(&new).map_err(failed)?;
        let mut journal =
            Self { machine, path: path.to_owned(), file: BufWriter::new(file), kept: HashMap::new() };
        journal.line(&header)?;
        for trial in &trials {
            journal.line(trial)?;
        }
        fs::rename(&new, path).map_err(failed)?;
        for trial in trials.into_iter().rev() {
            journal.kept.entry(trial.spec).or_default().push(trial);
        }
        Ok(journal)
    }

    /// The number of trials of an earlier run.
    pub(crate) fn kept(&self) -> usize {
        self.kept.values().map(Vec::len).sum()
    }

    /// Removes the journal, because the run is complete.
    ///
    /// # Errors
    /// [`Error::File`].
    pub(crate) fn remove(self) -> Result<(), Error> {
        fs::remove_file(&self.path).map_err(|source| Error::File { path: self.path.clone(), source })
    }

    fn line(&mut self, value: &impl Serialize) -> Result<(), Error> {
        let text = serde_json::to_string(value).expect("numbers and text") + "\n";
        let written = self.file.write_all(text.as_bytes()).and_then(|()| self.file.flush());
        written.map_err(|source| Error::File { path: self.path.clone(), source })
    }
}

/// The trials in a journal with this header.
fn read(text: &str, header: &Header) -> Vec<Trial> {
    let mut lines = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    let ours = lines.next().and_then(|line| serde_json::from_str::<Header>(line).ok());
    if ours.as_ref() != Some(header) {
        return Vec::new();
    }
    lines.map_while(|line| serde_json::from_str(line).ok()).collect()
}

impl Machine for Journal<'_> {
    fn run(&mut self, spec: &Spec) -> Result<Trial, Error> {
        if let Some(trial) = self.kept.get_mut(spec).and_then(Vec::pop) {
            return Ok(trial);
        }
        let trial = self.machine.run(spec)?;
        self.line(&trial)?;
        Ok(trial)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{self, Depth};

    /// Counts the trials that are actually run, and fails after some of them.
    struct Flaky {
        left: u64,
        asked: u64,
    }

    impl Machine for Flaky {
        fn run(&mut self, spec: &Spec) -> Result<Trial, Error> {
            self.left = self.left.checked_sub(1).ok_or(Error::Interrupted)?;
            self.asked += 1;
            Ok(Trial { toggles: self.asked, ..Trial::nothing(spec) })
        }
    }

    #[test]
    fn an_interrupted_run_is_resumed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state/journal");
        // The paper's grid has each spec five times.
        let specs = &plan::coarse(Depth::Full, 64)[..2_499];
        let mut machine = Flaky { left: 1_000, asked: 0 };
        let mut journal = Journal::open(&path, "one", &mut machine).unwrap();
        let first: Vec<_> = specs.iter().map_while(|spec| journal.run(spec).ok()).collect();
        assert_eq!(first.len(), 1_000);
        drop(journal);
        // The process was killed in the middle of a line.
        let cut = fs::read_to_string(&path).unwrap() + "{\"spec\":{";
        fs::write(&path, cut).unwrap();

        machine.left = u64::MAX;
        let mut journal = Journal::open(&path, "one", &mut machine).unwrap();
        assert_eq!(journal.kept(), 1_000);
        let all: Vec<_> = specs.iter().map(|spec| journal.run(spec).unwrap()).collect();
        assert_eq!(all[..1_000], first[..]);
        drop(journal);
        assert_eq!(machine.asked, specs.len() as u64, "no trial is made twice");

        let journal = Journal::open(&path, "another version", &mut machine).unwrap();
        assert_eq!(journal.kept(), 0);
        journal.remove().unwrap();
        assert!(!path.exists());
    }
}
