//! Writes the report file.
//!
//! Readers never see an incomplete report, no process overwrites the report of another one of the
//! same run, and reports of earlier runs are replaced:
//!
//! 1. The report is written to a temporary file in the directory of the report.
//! 2. Its name is claimed with a link, which fails if the name is taken.
//! 3. An existing file with that name is inspected. Every report contains the [`RunId`] of its run,
//!    JSON as a field near the beginning and the table in its last line. A report of another run
//!    that was written before this run began is replaced by a rename. Between the inspection and
//!    the rename the directory is locked (`flock`), because two processes that see the same old
//!    file would replace each other's report. A process that does not get the lock does not replace
//!    the old file.
//! 4. Any other file is the report of another process of this run or of a concurrent run. The next
//!    name is tried: with the process id before the extension, then with 1, 2, … after the process
//!    id.
//!
//! A forked child starts with the name that contains its process id, unless the template has `%p`.
//! A process that writes twice replaces its own report, under the lock, if the file is still as the
//! process has written it ([`OwnFile`]). Otherwise it belongs to a later run, or other processes
//! have added theirs, and the process looks for another name.
//!
//! If the processes of a run share one report ([`Target::merge`]), each reads the file with that
//! name, adds its own report, and replaces the file, all under the lock. It waits for the lock as
//! long as the file changes from time to time, because then other processes add theirs. If it
//! cannot add its report, it writes a separate file that says why ([`Written::Apart`]).
//!
//! If the name is that of a symbolic link, the file to which it leads is written; the link stays.
//!
//! A device, a FIFO or a socket with that name is opened, and gets the report as it is. Its reader
//! may block the write for any time, so the caller decides when to write ([`Stream`]).
//!
//! Times of files are compared only with the beginning of the run, which is recorded in nanoseconds
//! when the first process starts, and only for files of other runs; a report's time is set when it
//! is written. Rejected: the process's start time from /proc, which is rounded to clock ticks, so
//! that a report written by the previous run 10 ms earlier counted as one of this run; the kernel's
//! own time stamp of a file, which is that of the last tick; moving the old file aside instead of
//! locking: if it turns out to be recent it must be moved back, and by then its name may be taken.

mod merging;
mod stream;
mod template;
mod temporary;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::error::Error;
use crate::options::RunId;
use crate::processor_time;
use crate::report::text::{self, View};
use crate::report::{Format, Report, json};

pub(crate) use merging::merged_by_others;
use merging::{LOCK_ATTEMPTS_TO_MERGE, add_to};
use stream::is_special;
pub(crate) use stream::is_writing;
pub use stream::{Stream, forget_in_child};
pub use template::{check_template, expand};
pub use temporary::OwnFile;
use temporary::Temporary;

/// Maximum number of names to try.
const NAMES: u32 = 10_000;
/// Maximum time to wait for another process that is choosing its name: this many times 1 ms.
const LOCK_ATTEMPTS: u32 = 100;
/// The number of bytes at the beginning and at the end of a report that are searched for the run.
const SEARCHED: u64 = 4096;

/// The destination of a report.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    /// The name of the file, with sequences for [`expand`].
    pub template: &'a str,
    /// The format of the report.
    pub format: Format,
    /// Whether the processes of a run share one report. Only with [`Format::Json`].
    pub merge: bool,
}

/// The identity of the process that writes a report.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The process id.
    pub pid: u32,
    /// The path of the executable.
    pub executable: PathBuf,
    /// The run to which the process belongs.
    pub run: RunId,
    /// Whether the process was forked by a profiled process and writes its own report.
    pub is_fork_child: bool,
}

/// The result of [`write_report`] and [`write_text`].
#[derive(Debug)]
pub enum Written {
    /// The report is in this file.
    File(OwnFile),
    /// The report could not be merged, and is in a file of its own; a line that says so.
    Apart(OwnFile, String),
    /// The report is to be written to this stream.
    Stream(Stream),
}

impl Written {
    /// Writes the report if it goes to a stream, as [`Stream::write`] does. Returns its path.
    ///
    /// # Errors
    /// As [`Stream::write`].
    pub fn finish(self) -> Result<PathBuf, Error> {
        match self {
            Written::File(file) | Written::Apart(file, _) => Ok(file.path),
            Written::Stream(stream) => {
                let path = stream.path.clone();
                stream.write().map(|()| path)
            }
        }
    }
}

/// Writes the report to the file that `target` names and returns its path, or opens the stream that
/// `target` names.
///
/// `previous` is the result of an earlier call in the same process; that file is replaced, unless
/// others have written to it. Pass `None` for the first report, and for the first one of a forked
/// child. Waits at most 100 ms for other processes; to merge, 5 s after one of them has merged its
/// report.
///
/// # Errors
/// [`Error::TemplateSequence`] if the template has an unknown sequence, [`Error::WriteReport`] if
/// the system refuses: the directory is missing or not accessible, or the disk is full. No file
/// remains in that case.
pub fn write_report(
    report: &Report,
    target: Target<'_>,
    identity: &Identity,
    previous: Option<&OwnFile>,
) -> Result<Written, Error> {
    let Target { template, format, merge } = target;
    let write =
        |report: &Report| write(&in_file(report, format, &identity.run), template, identity, previous);
    // What was merged once cannot be removed from the file.
    if !merge || previous.is_some() {
        return write(report);
    }
    let shared = resolved(PathBuf::from(expand(template, identity)?));
    if is_special(&shared) {
        return write(report);
    }
    let added = add_to(&shared, report, identity, LOCK_ATTEMPTS_TO_MERGE);
    match added.map_err(|source| Error::WriteReport { path: shared.clone(), source })? {
        Ok(file) => Ok(Written::File(file)),
        Err(obstacle) => {
            let mut apart = report.clone();
            apart.notes.push(format!("not added to {}: {obstacle}", shared.display()));
            Ok(match write(&apart)? {
                Written::File(file) => {
                    let line = format!(
                        "the report in {} was not added to {}: {obstacle}",
                        file.path.display(),
                        shared.display()
                    );
                    Written::Apart(file, line)
                }
                other => other,
            })
        }
    }
}

/// A report in the form of a file, including its run, and the processor time for that.
fn in_file(report: &Report, format: Format, run: &RunId) -> String {
    let took = time_to_write(report);
    match format {
        Format::Json => json::to_string_of_run(report, &run.to_string(), took),
        Format::Text => format!("{}run {run}\n", text::render_in(report, &View::default(), took)),
    }
}

/// Begins to measure how long it takes this thread to write a report. The result is called when
/// that is done, and returns [`report_ns`](crate::report::Cost::report_ns).
pub(crate) fn time_to_write(report: &Report) -> impl FnOnce() -> u64 + use<> {
    let (before, begin) = (report.cost.report_ns, processor_time::of_thread());
    move || before + (processor_time::of_thread() - begin) as u64
}

/// Writes another kind of text in the same way. `previous` is as in [`write_report`].
///
/// # Errors
/// As [`write_report`].
pub fn write_text(
    text: &str,
    template: &str,
    identity: &Identity,
    previous: Option<&OwnFile>,
) -> Result<Written, Error> {
    write(text, template, identity, previous)
}

/// Writes a text to its own file, or claims a name for it.
fn write(
    text: &str,
    template: &str,
    identity: &Identity,
    previous: Option<&OwnFile>,
) -> Result<Written, Error> {
    let wanted = resolved(PathBuf::from(expand(template, identity)?));
    let place = previous.map_or(&wanted, |previous| &previous.path);
    let save = || {
        if is_special(&wanted) {
            return Stream::open(&wanted, text.to_owned()).map(Written::Stream);
        }
        let mut temporary = Temporary::write(place, identity.pid, text.as_bytes())?;
        if let Some(previous) = previous {
            let lock = lock(directory_of(place), LOCK_ATTEMPTS);
            if previous.is_unchanged() {
                return temporary.replace(place).map(Written::File);
            }
            drop(lock);
            temporary = Temporary::write(&wanted, identity.pid, text.as_bytes())?;
        }
        let names = names(&wanted, template::names_the_process(template), identity);
        claim(temporary, names, &identity.run).map(Written::File)
    };
    save().map_err(|source| Error::WriteReport { path: place.clone(), source })
}

/// The file to which a symbolic link leads; it need not exist.
fn resolved(mut path: PathBuf) -> PathBuf {
    // As many links as the kernel follows.
    for _ in 0..40 {
        let Ok(target) = fs::read_link(&path) else { break };
        path = directory_of(&path).join(target);
    }
    path
}

/// The state of a file name.
#[derive(Debug, PartialEq, Eq)]
enum State {
    /// The name is free.
    Free,
    /// The file is a report of this run.
    OfThisRun,
    /// The file belongs to an earlier run.
    LeftOver,
    /// The file belongs to a concurrent run.
    Taken,
}

fn state_of(path: &Path, run: &RunId) -> io::Result<State> {
    let written = match fs::symlink_metadata(path).and_then(|found| found.modified()) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(State::Free),
        written => written?,
    };
    Ok(match names_run(path, run) {
        Ok(true) => State::OfThisRun,
        _ if written < run.started => State::LeftOver,
        _ => State::Taken,
    })
}

/// Whether a file contains a run's id near its beginning or its end.
fn names_run(path: &Path, run: &RunId) -> io::Result<bool> {
    let mut file = File::open(path)?;
    let mut bytes = Vec::new();
    Read::by_ref(&mut file).take(SEARCHED).read_to_end(&mut bytes)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(SEARCHED)))?;
    file.take(SEARCHED).read_to_end(&mut bytes)?;
    let run = run.to_string();
    Ok(bytes.windows(run.len()).any(|part| part == run.as_bytes()))
}

/// The names to try, in order.
fn names(wanted: &Path, names_the_process: bool, identity: &Identity) -> impl Iterator<Item = PathBuf> {
    let with_pid = if names_the_process { wanted.to_owned() } else { insert(wanted, identity.pid) };
    let first = if identity.is_fork_child { with_pid.clone() } else { wanted.to_owned() };
    let second = (first != with_pid).then(|| with_pid.clone());
    let further = (1..NAMES).map(move |number| insert(&with_pid, number));
    [first].into_iter().chain(second).chain(further)
}

/// Inserts `number` before the extension.
fn insert(path: &Path, number: u32) -> PathBuf {
    match path.extension() {
        Some(extension) => {
            let mut tail = OsString::from(format!("{number}."));
            tail.push(extension);
            path.with_extension(tail)
        }
        None => path.with_extension(number.to_string()),
    }
}

/// Gives the temporary file the first name that is free, or whose file is older than `run`.
fn claim(mut temporary: Temporary, names: impl Iterator<Item = PathBuf>, run: &RunId) -> io::Result<OwnFile> {
    let lock = lock(directory_of(&temporary.path), LOCK_ATTEMPTS);
    for name in names {
        match temporary.link(&name) {
            Ok(()) => return Ok(OwnFile { path: name, version: temporary.version }),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        if lock.is_some() && matches!(state_of(&name, run), Ok(State::LeftOver)) {
            return temporary.replace(&name);
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

/// The lock under which old files are replaced; `None` if the file system does not support locks or
/// another process holds it.
fn lock(directory: &Path, attempts: u32) -> Option<Flock<File>> {
    let mut file = File::open(directory).ok()?;
    for _ in 0..attempts {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Some(lock),
            Err((back, Errno::EWOULDBLOCK)) => file = back,
            Err(_) => return None,
        }
        thread::sleep(Duration::from_millis(1));
    }
    None
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::time::SystemTime;

    use super::*;

    pub(super) fn report(pid: u32) -> Report {
        Report {
            command: vec!["app".to_owned()],
            started_us: 1,
            duration_ns: 1,
            thread_time_ns: 1,
            ..Report::of_nothing(pid)
        }
    }

    pub(super) fn process(pid: u32) -> Identity {
        in_run(pid, Duration::from_secs(60), 1)
    }

    /// A process of a run that began this long ago with process `first`.
    fn in_run(pid: u32, ago: Duration, first: u32) -> Identity {
        let run = RunId { started: SystemTime::now() - ago, pid: first };
        Identity { pid, executable: PathBuf::from("/bin/app"), run, is_fork_child: false }
    }

    pub(super) fn target(template: &str) -> Target<'_> {
        Target { template, format: Format::of_file_name(template).unwrap(), merge: false }
    }

    fn write_report(
        report: &Report,
        target: Target<'_>,
        identity: &Identity,
        previous: Option<&OwnFile>,
    ) -> Result<PathBuf, Error> {
        super::write_report(report, target, identity, previous)?.finish()
    }

    /// Writes a report to a file.
    #[track_caller]
    fn write_file(
        report: &Report,
        target: Target<'_>,
        identity: &Identity,
        previous: Option<&OwnFile>,
    ) -> OwnFile {
        match super::write_report(report, target, identity, previous) {
            Ok(Written::File(file)) => file,
            other => panic!("{other:?}"),
        }
    }

    /// Writes process `pid`'s report in `directory` and returns its file name.
    #[track_caller]
    fn write(directory: &Path, template: &str, identity: &Identity) -> String {
        let template = format!("{}/{template}", directory.display());
        let path = write_report(&report(identity.pid), target(&template), identity, None).unwrap();
        assert_eq!(crate::report::json::read(&path).unwrap().pid, identity.pid);
        path.file_name().unwrap().to_str().unwrap().to_owned()
    }

    fn listing(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn put_old_file(path: &Path) {
        fs::write(path, "old").unwrap();
        File::options().write(true).open(path).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
    }

    #[test]
    fn a_name_that_is_taken_in_this_run_gets_the_pid_then_numbers() {
        let directory = tempfile::tempdir().unwrap();
        let check = |template: &str, pid: u32, expected: &str| {
            assert_eq!(write(directory.path(), template, &process(pid)), expected);
        };
        check("r.json", 1, "r.json");
        check("r.json", 2, "r.2.json");
        check("r.json", 2, "r.2.1.json");
        check("r.json", 2, "r.2.2.json");
        check("%e.%p.json", 3, "app.3.json");
        check("%e.%p.json", 3, "app.3.1.json");
        assert_eq!(listing(directory.path()).len(), 6, "no temporary file is left");
    }

    #[test]
    fn what_is_not_a_file_is_written_to() {
        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("fifo.json");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let template = fifo.to_str().unwrap();
        let write = || write_report(&report(1), target(template), &process(1), None);
        assert!(matches!(write(), Err(Error::WriteReport { .. })), "nobody reads");
        let path = fifo.clone();
        let reader = std::thread::spawn(move || fs::read_to_string(path).unwrap());
        while write().is_err() {}
        assert_eq!(serde_json::from_str::<serde_json::Value>(&reader.join().unwrap()).unwrap()["pid"], 1);
        assert_eq!(listing(directory.path()), ["fifo.json"]);
        let path = fifo.clone();
        let reader = std::thread::spawn(move || fs::read_to_string(path).unwrap());
        let opened = loop {
            assert!(!crate::session::is_printing());
            if let Ok(opened) = write_text("text", template, &process(1), None) {
                break opened;
            }
        };
        assert!(crate::session::is_printing(), "the process waits for the reader");
        opened.finish().unwrap();
        assert!(!crate::session::is_printing());
        assert_eq!(reader.join().unwrap(), "text");
    }

    #[test]
    fn a_forked_child_has_its_own_name() {
        let directory = tempfile::tempdir().unwrap();
        let check = |template: &str, expected: &str| {
            let child = Identity { is_fork_child: true, ..process(7) };
            assert_eq!(write(directory.path(), template, &child), expected);
        };
        check("r.json", "r.7.json");
        check("r.json", "r.7.1.json");
        check("r.%p.json", "r.7.2.json");
        check("%p.json", "7.json");
    }

    #[test]
    fn a_file_of_an_earlier_run_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        put_old_file(&directory.path().join("r.json"));
        put_old_file(&directory.path().join("r.2.json"));
        assert_eq!(write(directory.path(), "r.json", &process(1)), "r.json");
        assert_eq!(write(directory.path(), "r.json", &process(2)), "r.2.json");
        assert_eq!(listing(directory.path()), ["r.2.json", "r.json"]);
    }

    #[test]
    fn a_second_report_of_the_same_process_replaces_the_first() {
        let directory = tempfile::tempdir().unwrap();
        let template = directory.path().join("r.txt").to_str().unwrap().to_owned();
        let first = write_file(&report(1), target(&template), &process(1), None);
        let second = Report { duration_ns: 2, ..report(1) };
        let path = write_report(&second, target(&template), &process(1), Some(&first)).unwrap();
        assert_eq!(path, first.path());
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().next(), Format::Text.render(&second).lines().next());
        assert_eq!(listing(directory.path()), ["r.txt"]);
    }

    #[test]
    fn the_report_of_a_later_run_is_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        for template in ["r.json", "r.txt"] {
            let path = directory.path().join(template).to_str().unwrap().to_owned();
            let (early, late) = (process(1), in_run(2, Duration::ZERO, 2));
            let snapshot = write_file(&report(1), target(&path), &early, None);
            let late = Identity { run: RunId { started: SystemTime::now(), ..late.run }, ..late };
            write_file(&report(2), target(&path), &late, None);
            let of_later_run = fs::read_to_string(&path).unwrap();
            let last = write_file(&report(1), target(&path), &early, Some(&snapshot));
            assert_eq!(last.path(), directory.path().join(template.replace('.', ".1.")));
            assert_eq!(fs::read_to_string(&path).unwrap(), of_later_run);
            // The file was moved away, as the name is free.
            fs::rename(&path, directory.path().join("moved")).unwrap();
            assert_eq!(write_file(&report(1), target(&path), &early, Some(&snapshot)), snapshot_at(&path));
        }
    }

    fn snapshot_at(path: &str) -> OwnFile {
        OwnFile { path: PathBuf::from(path), version: temporary::version(Path::new(path)).unwrap() }
    }

    #[test]
    fn a_link_leads_to_the_report() {
        let directory = tempfile::tempdir().unwrap();
        let [link, file] = ["link.json", "file.json"].map(|name| directory.path().join(name));
        std::os::unix::fs::symlink("file.json", &link).unwrap();
        let template = link.to_str().unwrap();
        for is_old in [false, true] {
            if is_old {
                put_old_file(&file);
            }
            let written = write_file(&report(1), target(template), &process(1), None);
            assert_eq!(json::read(&file).unwrap().pid, 1);
            write_file(&report(1), target(template), &process(1), Some(&written));
            assert_eq!(listing(directory.path()), ["file.json", "link.json"]);
            assert_eq!(fs::read_link(&link).unwrap(), Path::new("file.json"));
        }
    }

    #[test]
    fn processes_that_see_the_same_old_file_all_keep_their_reports() {
        const PROCESSES: u32 = 8;
        for _ in 0..20 {
            let directory = tempfile::tempdir().unwrap();
            put_old_file(&directory.path().join("r.json"));
            let (start, directory_path) = (&Barrier::new(PROCESSES as usize), directory.path());
            let run = |pid| {
                start.wait();
                write(directory_path, "r.json", &process(pid))
            };
            let mut names: Vec<String> = thread::scope(|scope| {
                let threads: Vec<_> = (1..=PROCESSES).map(|pid| scope.spawn(move || run(pid))).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            names.sort();
            names.dedup();
            assert_eq!(names.len(), PROCESSES as usize);
            assert_eq!(listing(directory.path()), names);
        }
    }

    #[test]
    fn runs_right_after_each_other_leave_the_last_report() {
        let directory = tempfile::tempdir().unwrap();
        for template in ["r.json", "r.txt"] {
            let path = directory.path().join(template).to_str().unwrap().to_owned();
            for pid in 1..=300 {
                // The first process of each run, and a child that ends before it.
                let first = in_run(pid, Duration::ZERO, pid);
                let child = Identity { pid: pid + 1000, is_fork_child: true, ..first.clone() };
                write_report(&report(child.pid), target(&path), &child, None).unwrap();
                let written = write_report(&report(pid), target(&path), &first, None).unwrap();
                assert_eq!(written, Path::new(&path), "run {pid}");
                assert!(fs::read_to_string(&path).unwrap().contains(&first.run.to_string()));
            }
        }
    }

    #[test]
    fn reports_of_this_run_and_of_one_at_the_same_time_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        let check = |template: &str, identity: &Identity, expected: &str| {
            let path = format!("{}/{template}", directory.path().display());
            let written = write_report(&report(identity.pid), target(&path), identity, None).unwrap();
            assert_eq!(written.file_name().unwrap(), expected);
        };
        for template in ["r.json", "r.txt"] {
            let name = |number: u32| template.replace('.', &format!(".{number}."));
            let early = in_run(1, Duration::from_secs(60), 1);
            check(template, &early, template);
            // The clock was set back: still the same run.
            let path = directory.path().join(template);
            File::options().write(true).open(&path).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
            check(template, &Identity { pid: 2, ..early }, &name(2));
            File::options().write(true).open(&path).unwrap().set_modified(SystemTime::now()).unwrap();
            check(template, &in_run(3, Duration::from_secs(30), 3), &name(3));
        }
    }

    #[test]
    fn processes_of_a_run_share_one_report() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("r.json").to_str().unwrap().to_owned();
        let target = Target { merge: true, ..target(&path) };
        put_old_file(Path::new(&path));
        for started in [60, 30, 0] {
            let (run, start) = (process(1).run, &Barrier::new(8));
            let run = &RunId { started: run.started + Duration::from_secs(60 - started), ..run };
            thread::scope(|scope| {
                for pid in 1..=8 {
                    scope.spawn(move || {
                        start.wait();
                        let identity = Identity { run: *run, is_fork_child: pid > 1, ..process(pid) };
                        write_report(&report(pid), target, &identity, None).unwrap()
                    });
                }
            });
            let merged = json::read(Path::new(&path)).unwrap();
            assert_eq!((merged.processes, merged.run), (8, run.to_string()));
            // Its time is that of a report written during the run.
            File::options().write(true).open(&path).unwrap().set_modified(run.started).unwrap();
            assert_eq!(listing(directory.path()), ["r.json"]);
        }
    }

    #[test]
    fn reports_of_different_builds_are_not_merged() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("r.json").to_str().unwrap().to_owned();
        let target = Target { merge: true, ..target(&path) };
        let run = process(1).run;
        for (pid, name) in [(1, "f"), (2, "f"), (3, "g")] {
            let function = format!(
                r#"{{"name": "{name}", "object": "/a", "address": "0x10", "samples": 0, "recursive": false,
                     "calls": {{"value": 3, "low": 3, "high": 3}}}}"#
            );
            let functions = vec![serde_json::from_str(&function).unwrap()];
            let identity = Identity { run, ..process(pid) };
            write_report(&Report { functions, ..report(pid) }, target, &identity, None).unwrap();
        }
        assert_eq!(listing(directory.path()), ["r.3.json", "r.json"]);
        assert_eq!(json::read(Path::new(&path)).unwrap().processes, 2);
    }

    #[test]
    fn a_process_that_was_merged_and_goes_on_has_a_file_of_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("r.json").to_str().unwrap().to_owned();
        let target = Target { merge: true, ..target(&path) };
        let (first, second) = (process(1), Identity { run: process(1).run, ..process(2) });
        let second = Identity { run: first.run, ..second };
        // Alone, it may replace its own report.
        let written = write_file(&report(1), target, &first, None);
        let written = write_file(&report(1), target, &first, Some(&written));
        assert_eq!(written.path(), Path::new(&path));
        let merged = write_file(&report(2), target, &second, None);
        assert_eq!(merged.path(), Path::new(&path));
        let own = write_file(&report(1), target, &first, Some(&written));
        assert_eq!(own.path(), directory.path().join("r.1.json"));
        assert_eq!(write_file(&report(1), target, &first, Some(&own)).path(), own.path());
        assert_eq!(listing(directory.path()), ["r.1.json", "r.json"]);
        assert_eq!(json::read(Path::new(&path)).unwrap().processes, 2);
    }

    #[test]
    fn an_old_file_is_left_alone_while_the_lock_is_held() {
        let directory = tempfile::tempdir().unwrap();
        put_old_file(&directory.path().join("r.json"));
        let held = lock(directory.path(), 1).unwrap();
        assert_eq!(write(directory.path(), "r.json", &process(1)), "r.1.json");
        drop(held);
        assert_eq!(write(directory.path(), "r.json", &process(1)), "r.json");
    }

    #[test]
    fn what_the_system_refuses_is_named_and_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("file"), "").unwrap();
        fs::create_dir(directory.path().join("old.json")).unwrap();
        let check = |template: &str, previous: Option<&OwnFile>, reason: &str| {
            let template = format!("{}/{template}", directory.path().display());
            let run = RunId { started: SystemTime::now() + Duration::from_secs(60), pid: 1 };
            let identity = Identity { run, ..process(1) };
            let error = write_report(&report(1), target(&template), &identity, previous).unwrap_err();
            let expected =
                format!("cannot write the report {template}: {reason}; name another file with output=FILE");
            assert_eq!(error.to_string(), expected);
            assert_eq!(listing(directory.path()), ["file", "old.json"]);
        };
        check("missing/r.json", None, "No such file or directory (os error 2)");
        check("file/r.json", None, "Not a directory (os error 20)");
        check("old.json", None, "Is a directory (os error 21)");
        let previous = snapshot_at(directory.path().join("old.json").to_str().unwrap());
        check("old.json", Some(&previous), "Is a directory (os error 21)");
    }
}
