//! Adds a report to the one that the processes of its run share.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::fcntl::Flock;

use super::temporary::{OwnFile, Temporary, version};
use super::{Identity, State, directory_of, in_file, lock, state_of};
use crate::report::{Format, Report, json};

/// Maximum time to wait for the lock since the merged report has last changed: this many times 1
/// ms.
pub(super) const LOCK_ATTEMPTS_TO_MERGE: u32 = 5_000;

/// The reason why a report cannot be added to that of its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    Locked,
    NotOfThisRun,
    OtherBuild,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Obstacle::Locked => "its directory could not be locked; fastinst report FILE... merges them",
            Obstacle::NotOfThisRun => "that file is not a report of this run",
            Obstacle::OtherBuild => "that file is damaged, or has functions of another build",
        })
    }
}

/// Counts the reports that other processes have merged while this one has waited.
static MERGED: AtomicU32 = AtomicU32::new(0);

/// A number that changes as long as this process has a reason to wait for others, which merge their
/// reports before it.
pub(crate) fn merged_by_others() -> u32 {
    MERGED.load(Ordering::Relaxed)
}

/// The lock under which a report is merged into the file at this path; `None` if it is held for
/// this number of attempts in which the file does not change.
fn lock_to_merge(path: &Path, attempts: u32) -> Option<Flock<File>> {
    /// Attempts between two looks at the file.
    const LOOK: u32 = 20;
    let mut seen = version(path).ok();
    let mut left = attempts;
    while left > 0 {
        let some = left.min(LOOK);
        if let Some(lock) = lock(directory_of(path), some) {
            return Some(lock);
        }
        left -= some;
        let found = version(path).ok();
        if found != seen {
            (seen, left) = (found, attempts);
            MERGED.fetch_add(1, Ordering::Relaxed);
        }
    }
    None
}

/// Merges a report into the one that processes of the same run have written, if there is one;
/// otherwise writes it as the first, replacing the report of an earlier run.
pub(super) fn add_to(
    path: &Path,
    report: &Report,
    identity: &Identity,
    attempts: u32,
) -> io::Result<Result<OwnFile, Obstacle>> {
    let Some(_lock) = lock_to_merge(path, attempts) else {
        return Ok(Err(Obstacle::Locked));
    };
    let merged = match state_of(path, &identity.run)? {
        State::Free | State::LeftOver => report.clone(),
        State::Taken => return Ok(Err(Obstacle::NotOfThisRun)),
        State::OfThisRun => match json::read_symbols(path) {
            Ok(mut merged) if merged.conflict(report).is_none() => {
                merged.merge(report.clone());
                merged
            }
            _ => return Ok(Err(Obstacle::OtherBuild)),
        },
    };
    let text = in_file(&merged, Format::Json, &identity.run);
    Temporary::write(path, identity.pid, text.as_bytes())?.exchange(path).map(Ok)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::thread;
    use std::time::{Duration, SystemTime};

    use super::super::tests::{process, report, target};
    use super::super::{Target, Written, write_report};
    use super::*;
    use crate::options::RunId;

    /// Each of many processes that end together waits for all those before it.
    #[test]
    fn a_process_waits_for_the_lock_while_others_merge_their_reports() {
        const ATTEMPTS: u32 = 100;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("r.json");
        let process = process(1);
        let write = |number: u64| {
            let report = Report { toggles: number, ..report(1) };
            let text = in_file(&report, Format::Json, &process.run);
            Temporary::write(&path, 9, text.as_bytes()).unwrap().replace(&path).unwrap();
        };
        write(1);
        let add = || add_to(&path, &report(2), &process, ATTEMPTS).unwrap();
        let held = lock(directory.path(), 1).unwrap();
        assert_eq!(add(), Err(Obstacle::Locked));
        let before = merged_by_others();
        thread::scope(|scope| {
            let waits = scope.spawn(add);
            // Much longer than for one attempt after the other; nobody waits that long without a
            // change.
            for number in 1..=40 {
                thread::sleep(Duration::from_millis(u64::from(ATTEMPTS) / 5));
                write(10_u64.pow(number % 10));
            }
            drop(held);
            assert_eq!(waits.join().unwrap().unwrap().path(), path);
        });
        assert!(merged_by_others() != before);
        assert_eq!(json::read(&path).unwrap().processes, 2);
    }

    #[test]
    fn a_report_that_cannot_be_merged_says_so() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("r.json");
        fs::write(&path, "{}").unwrap();
        let template = path.to_str().unwrap();
        let run = RunId { started: SystemTime::UNIX_EPOCH, pid: 1 };
        let (target, identity) = (Target { merge: true, ..target(template) }, Identity { run, ..process(2) });
        let Ok(Written::Apart(file, line)) = write_report(&report(2), target, &identity, None) else {
            panic!("it is not a report");
        };
        let apart = directory.path().join("r.2.json");
        let reason = "that file is not a report of this run";
        let named = format!("the report in {} was not added to {template}: {reason}", apart.display());
        assert_eq!((file.path(), line), (apart.as_path(), named));
        assert_eq!(json::read(&apart).unwrap().notes, [format!("not added to {template}: {reason}")]);
    }
}
