//! [`Output`]: destinations of reports.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex};

use crate::lock::lock;
use crate::replaced::{replace, temporary};
use crate::report::files::Files;
use crate::report::{csv, json, text};
use crate::{Error, Report};

/// The format of reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// Human-readable tables.
    #[default]
    Text,
    /// An object for each monitor.
    Json,
    /// A header and rows for each table.
    Csv,
}

impl Format {
    /// Renders reports in this format. In [`Format::Text`], tables are cut to the number of rows
    /// that their options state.
    pub fn print(self, reports: &[Report]) -> String {
        let mut printed = Vec::new();
        for (at, report) in reports.iter().enumerate() {
            let separator = if at == 0 { "" } else { self.separator() };
            printed.extend_from_slice(separator.as_bytes());
            self.write(report, &mut printed).expect("memory can be written to");
        }
        String::from_utf8(printed).expect("reports are texts")
    }

    fn write(self, report: &Report, out: &mut dyn Write) -> io::Result<()> {
        match self {
            Self::Text => text::write(report, text::Length::Short, out),
            Self::Json => json::write(report, out),
            Self::Csv => csv::of(report).try_for_each(|table| {
                writeln!(out, "# {}", table.name)?;
                table.write(out)?;
                writeln!(out)
            }),
        }
    }

    /// The text between two reports.
    fn separator(self) -> &'static str {
        if self == Self::Text { "\n" } else { "" }
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            "csv" => Ok(Self::Csv),
            _ => Err("expected text, json or csv".to_owned()),
        }
    }
}

/// A destination for reports.
#[derive(Clone, Debug)]
pub struct Output {
    to: Destination,
    lost: Lost,
}

/// Errors of streams that were not reported yet.
type Lost = Arc<Mutex<Vec<Error>>>;

#[derive(Clone, Debug)]
enum Destination {
    Nowhere,
    StandardError(Format),
    Directory(PathBuf),
}

/// A stream to which a monitor writes while the program runs. When lines are lost, the next
/// [`Session::write`](crate::Session::write) says so.
pub type Stream = Box<dyn Write + Send>;

/// The destination of a stream, whose first error is noted.
struct Noted<W> {
    to: W,
    path: PathBuf,
    /// `None` once there was an error.
    lost: Option<Lost>,
}

impl<W: Write> Noted<W> {
    fn note<R>(&mut self, done: io::Result<R>) -> io::Result<R> {
        if let Err(error) = &done
            && error.kind() != io::ErrorKind::Interrupted
            && let Some(lost) = self.lost.take()
        {
            let source = match error.raw_os_error() {
                Some(code) => io::Error::from_raw_os_error(code),
                None => error.kind().into(),
            };
            let path = self.path.clone();
            lock(&lost).push(Error::Lost { path, source });
        }
        done
    }
}

impl<W: Write> Write for Noted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let done = self.to.write(bytes);
        self.note(done)
    }

    fn flush(&mut self) -> io::Result<()> {
        let done = self.to.flush();
        self.note(done)
    }
}

impl Output {
    /// Writes reports nowhere: the program asks for them itself.
    pub fn none() -> Self {
        Self::to(Destination::Nowhere)
    }

    /// Writes reports to standard error. Files that belong to reports, such as images, are left
    /// out.
    pub fn standard_error(format: Format) -> Self {
        Self::to(Destination::StandardError(format))
    }

    /// Writes reports into a directory, which is created: `NAME.txt`, `NAME.json`, a
    /// `NAME.TABLE.csv` for each table, and `NAME.FILE` for each file. Each file is either complete
    /// or missing.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn directory(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref().to_owned();
        match fs::create_dir_all(&path) {
            Ok(()) => Ok(Self::to(Destination::Directory(path))),
            Err(source) => Err(Error::Write { path, source }),
        }
    }

    fn to(to: Destination) -> Self {
        Self { to, lost: Lost::default() }
    }

    /// Opens a stream; its file, if it is one, is among the new ones.
    pub(crate) fn stream(&self, name: &str, new: &NewFiles) -> Result<Stream, Error> {
        let lost = Some(self.lost.clone());
        match &self.to {
            Destination::Nowhere => Ok(Box::new(io::sink())),
            Destination::StandardError(_) => {
                Ok(Box::new(Noted { to: io::stderr(), path: STANDARD_ERROR.into(), lost }))
            }
            Destination::Directory(directory) => {
                let path = directory.join(name);
                match new.create(&path) {
                    Ok(to) => Ok(Box::new(BufWriter::new(Noted { to, path, lost }))),
                    Err(source) => Err(Error::Write { path, source }),
                }
            }
        }
    }

    /// The errors of streams since the last call.
    pub(crate) fn lost(&self) -> Vec<Error> {
        std::mem::take(&mut *lock(&self.lost))
    }

    /// The format of reports, if streams go to the same place.
    pub(crate) fn stream_format(&self) -> Option<Format> {
        match self.to {
            Destination::StandardError(format) => Some(format),
            Destination::Nowhere | Destination::Directory(_) => None,
        }
    }

    /// Whether reports are written at all.
    pub(crate) fn is_written(&self) -> bool {
        !matches!(self.to, Destination::Nowhere)
    }

    /// What becomes of the files of reports that are written here.
    pub(crate) fn files(&self) -> Files {
        match &self.to {
            Destination::Nowhere | Destination::StandardError(_) => Files::LeftOut,
            Destination::Directory(directory) => Files::Written(directory.clone(), Vec::new()),
        }
    }

    /// Writes reports. Existing files are replaced.
    ///
    /// # Errors
    /// [`Error::Write`], [`Error::Files`], or [`Error::Several`] about several reports; the others
    /// are written.
    pub fn write(&self, reports: &[Report]) -> Result<(), Error> {
        let written =
            reports.iter().enumerate().map(|(at, report)| self.write_one(report, Vec::new(), at == 0));
        Error::all(written.filter_map(Result::err).collect())
    }

    /// Writes a report, some files of which could not be [written](Self::files); in a stream, as
    /// the first or a further report.
    pub(crate) fn write_one(&self, report: &Report, failed: Vec<Error>, is_first: bool) -> Result<(), Error> {
        match &self.to {
            Destination::Nowhere => Ok(()),
            Destination::StandardError(format) => to_standard_error(report, *format, is_first),
            Destination::Directory(directory) => to_directory(report, failed, directory),
        }
    }
}

/// The name of standard error in messages.
const STANDARD_ERROR: &str = "standard error";

fn to_standard_error(report: &Report, format: Format, is_first: bool) -> Result<(), Error> {
    let separator = if is_first { "" } else { format.separator() };
    let text = format!("{separator}{}", format.print(std::slice::from_ref(report)));
    let written = io::stderr().lock().write_all(text.as_bytes());
    written.map_err(|source| Error::Write { path: STANDARD_ERROR.into(), source })
}

fn to_directory(report: &Report, failed: Vec<Error>, directory: &Path) -> Result<(), Error> {
    let name = &report.monitor;
    let path = |file: String| directory.join(file);
    let mut written = vec![
        replace(&path(format!("{name}.txt")), |out| text::write(report, text::Length::Complete, out)),
        replace(&path(format!("{name}.json")), |out| json::write(report, out)),
    ];
    for table in csv::of(report) {
        written.push(replace(&path(format!("{}.csv", table.name)), |out| table.write(out)));
    }
    for (file, contents) in report.files() {
        written.push(replace(&path(format!("{name}.{file}")), |out| out.write_all(contents)));
    }
    let mut failed = written.into_iter().filter_map(Result::err).chain(failed);
    let Some(first) = failed.next() else { return Ok(()) };
    match failed.count() {
        0 => Err(first),
        others => Err(Error::Files { first: Box::new(first), others }),
    }
}

/// The files of a monitor that starts, for its streams. They have temporary names until it has
/// started: if it does not start, those of the monitor that it would have replaced are still there.
/// Nor does the latter write into them, whenever its threads write what they have buffered.
#[derive(Debug, Default)]
pub(crate) struct NewFiles(RefCell<Vec<PathBuf>>);

impl NewFiles {
    fn create(&self, path: &Path) -> io::Result<File> {
        // What is written to a device, or to another process, is not replaced.
        if fs::metadata(path).is_ok_and(|known| !known.is_file() && !known.is_dir()) {
            return File::create(path);
        }
        let file = File::create(temporary(path))?;
        self.0.borrow_mut().push(path.to_owned());
        Ok(file)
    }

    /// Gives the files their names.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub(crate) fn keep(&self) -> Result<(), Error> {
        let mut files = self.0.borrow_mut();
        while let Some(path) = files.last() {
            fs::rename(temporary(path), path)
                .map_err(|source| Error::Write { path: path.clone(), source })?;
            files.pop();
        }
        Ok(())
    }
}

impl Drop for NewFiles {
    fn drop(&mut self) {
        for path in self.0.get_mut() {
            // If it cannot be removed, nothing more can be done.
            let _ = fs::remove_file(temporary(path));
        }
    }
}
