//! Writing the report file.
//!
//! Readers never see half a report, and no process writes over the report of another one of the same run:
//!
//! 1. The report is written to a temporary file in the directory of the report.
//! 2. Its name is claimed with a link, which fails if the name is taken.
//! 3. A file that has the name already and is older than this process is left from an earlier run: it is replaced by a
//!    rename. Between the look at its age and the rename the directory is locked (`flock`), since two processes that
//!    see the same old file would replace each other's report. Who does not get the lock leaves the old file alone.
//! 4. A file that is not older is the report of another process of this run. The next name is tried: with the process
//!    id before the extension, then with 1, 2, … after the process id.
//!
//! A forked child starts with the name that has its process id, unless the template has `%p`. A process that writes
//! twice replaces what it wrote.
//!
//! Tried and rejected: to move the old file aside instead of the lock. If it turns out to be young it has to be moved
//! back, and by then its name may be taken.

mod template;

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, Flock, FlockArg, RenameFlags, renameat2};

use crate::error::Error;
use crate::report::{Format, Report};

pub use template::{check_template, expand};

/// How many names are tried before the report is given up.
const NAMES: u32 = 10_000;
/// How long to wait for another process that is about to choose its name: 1 ms, so often.
const LOCK_ATTEMPTS: u32 = 100;

/// The process that writes a report.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Its id.
    pub pid: u32,
    /// The executable it runs.
    pub executable: PathBuf,
    /// When it started. Files that were changed before are from an earlier run and may be replaced.
    pub started: SystemTime,
    /// Whether it was forked by a profiled process and writes a report of its own.
    pub is_fork_child: bool,
}

/// Writes the report to the file that `template` names and returns its path.
///
/// `previous` is what an earlier call in the same process returned; that file is replaced. Pass none for the first
/// report, and for the first one of a forked child. Waits at most 100 ms for other processes.
///
/// # Errors
/// [`Error::TemplateSequence`] if the template has an unknown sequence, [`Error::WriteReport`] if the system refuses:
/// the directory is missing or closed to us, the disk is full. No file is left behind then.
pub fn write_report(
    report: &Report,
    template: &str,
    format: Format,
    identity: &Identity,
    previous: Option<&Path>,
) -> Result<PathBuf, Error> {
    let wanted = match previous {
        Some(path) => path.to_owned(),
        None => PathBuf::from(expand(template, identity)?),
    };
    let save = || {
        let temporary = Temporary::write(&wanted, identity.pid, format.render(report).as_bytes())?;
        if previous.is_some() {
            temporary.replace(&wanted)?;
            return Ok(wanted.clone());
        }
        let names = names(&wanted, template::names_the_process(template), identity);
        claim(temporary, names, identity.started)
    };
    save().map_err(|source| Error::WriteReport { path: wanted.clone(), source })
}

/// The names to try, in order.
fn names(wanted: &Path, names_the_process: bool, identity: &Identity) -> impl Iterator<Item = PathBuf> {
    let with_pid = if names_the_process { wanted.to_owned() } else { insert(wanted, identity.pid) };
    let first = if identity.is_fork_child { with_pid.clone() } else { wanted.to_owned() };
    let second = (first != with_pid).then(|| with_pid.clone());
    let further = (1..NAMES).map(move |number| insert(&with_pid, number));
    [first].into_iter().chain(second).chain(further)
}

/// `number` before the extension.
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

/// Gives the temporary file the first name that is free, or that a file from before `started` has.
fn claim(
    mut temporary: Temporary,
    names: impl Iterator<Item = PathBuf>,
    started: SystemTime,
) -> io::Result<PathBuf> {
    let lock = lock(directory_of(&temporary.path));
    for name in names {
        match temporary.link(&name) {
            Ok(()) => return Ok(name),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        if lock.is_some() && is_older(&name, started) {
            temporary.replace(&name)?;
            return Ok(name);
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

fn is_older(path: &Path, started: SystemTime) -> bool {
    fs::symlink_metadata(path).and_then(|found| found.modified()).is_ok_and(|modified| modified < started)
}

/// The lock under which old files are replaced; none if the file system has none or another process keeps it.
fn lock(directory: &Path) -> Option<Flock<File>> {
    let mut file = File::open(directory).ok()?;
    for _ in 0..LOCK_ATTEMPTS {
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

/// A file that is removed unless it gets its final name.
struct Temporary {
    path: PathBuf,
    renamed: bool,
}

impl Temporary {
    /// A new file with these contents in the directory of `wanted`.
    fn write(wanted: &Path, pid: u32, contents: &[u8]) -> io::Result<Temporary> {
        let directory = directory_of(wanted);
        for number in 0..NAMES {
            let path = directory.join(format!(".fastinst-{pid}-{number}.tmp"));
            let mut file = match OpenOptions::new().write(true).create_new(true).open(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                opened => opened?,
            };
            let temporary = Temporary { path, renamed: false };
            file.write_all(contents)?;
            // By itself the kernel would stamp the file with the last tick, and another process that started within
            // this tick would take the report for one of an earlier run.
            let _ = file.set_modified(SystemTime::now());
            return Ok(temporary);
        }
        Err(ErrorKind::AlreadyExists.into())
    }

    /// Gives the file a name that is free.
    fn link(&mut self, name: &Path) -> io::Result<()> {
        let refused = match fs::hard_link(&self.path, name) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => error,
            done => return done,
        };
        // Some file systems have no hard links.
        match renameat2(AT_FDCWD, &self.path, AT_FDCWD, name, RenameFlags::RENAME_NOREPLACE) {
            Ok(()) => self.renamed = true,
            Err(Errno::EEXIST) => return Err(ErrorKind::AlreadyExists.into()),
            Err(_) => return Err(refused),
        }
        Ok(())
    }

    /// Gives the file a name whether or not another file has it.
    fn replace(mut self, name: &Path) -> io::Result<()> {
        fs::rename(&self.path, name)?;
        self.renamed = true;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.renamed {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;
    use crate::report::Cost;

    fn report(pid: u32) -> Report {
        Report {
            version: Report::VERSION,
            command: vec!["app".to_owned()],
            pid,
            processes: 1,
            duration_ns: 1,
            thread_time_ns: 1,
            probes: 0,
            toggles: 0,
            samples: 0,
            lost_samples: 0,
            cost: Cost::default(),
            notes: Vec::new(),
            functions: Vec::new(),
            arcs: Vec::new(),
        }
    }

    fn process(pid: u32) -> Identity {
        let started = SystemTime::now() - Duration::from_secs(60);
        Identity { pid, executable: PathBuf::from("/bin/app"), started, is_fork_child: false }
    }

    /// Writes process `pid`'s report in `directory` and returns the file name it got.
    #[track_caller]
    fn write(directory: &Path, template: &str, identity: &Identity) -> String {
        let template = format!("{}/{template}", directory.display());
        let path = write_report(&report(identity.pid), &template, Format::Json, identity, None).unwrap();
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
        let first = write_report(&report(1), &template, Format::Text, &process(1), None).unwrap();
        let second = Report { duration_ns: 2, ..report(1) };
        let path = write_report(&second, &template, Format::Text, &process(1), Some(&first)).unwrap();
        assert_eq!(path, first);
        assert_eq!(fs::read_to_string(&path).unwrap(), Format::Text.render(&second));
        assert_eq!(listing(directory.path()), ["r.txt"]);
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
    fn an_old_file_is_left_alone_while_the_lock_is_held() {
        let directory = tempfile::tempdir().unwrap();
        put_old_file(&directory.path().join("r.json"));
        let held = lock(directory.path()).unwrap();
        assert_eq!(write(directory.path(), "r.json", &process(1)), "r.1.json");
        drop(held);
        assert_eq!(write(directory.path(), "r.json", &process(1)), "r.json");
    }

    #[test]
    fn what_the_system_refuses_is_named_and_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("file"), "").unwrap();
        fs::create_dir(directory.path().join("old.json")).unwrap();
        let check = |template: &str, previous: Option<&Path>, reason: &str| {
            let template = format!("{}/{template}", directory.path().display());
            let started = SystemTime::now() + Duration::from_secs(60);
            let identity = Identity { started, ..process(1) };
            let error = write_report(&report(1), &template, Format::Json, &identity, previous).unwrap_err();
            let expected =
                format!("cannot write the report {template}: {reason}; name another file with output=FILE");
            assert_eq!(error.to_string(), expected);
            assert_eq!(listing(directory.path()), ["file", "old.json"]);
        };
        check("missing/r.json", None, "No such file or directory (os error 2)");
        check("file/r.json", None, "Not a directory (os error 20)");
        check("old.json", None, "Is a directory (os error 21)");
        check("old.json", Some(&directory.path().join("old.json")), "Is a directory (os error 21)");
    }
}
