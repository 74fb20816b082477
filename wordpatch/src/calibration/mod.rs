//! The calibration file, which contains what `tmax-probe` has measured on this machine.
//!
//! 1. `location`: the first candidate path at which a file exists is used.
//! 2. `file`: only root and the user can change the file, which is TOML with a version and a
//!    checksum; a truncated or edited file is refused.
//! 3. `host`: it must have been made on the same processor, microcode, hypervisor and kernel.
//!
//! If the file is refused, the vendors' guarantees stay in force, and [`status`] has the reason:
//! this crate prints nothing. They also stay in force if there is no file, which is not an error.
//!
//! The file is read once per process, when the fetch model is first used
//! ([`crate::FetchModel::in_force`]). The migration of a virtual machine to another processor is
//! not detected afterwards.

mod file;
mod host;
mod location;

use std::path::PathBuf;
use std::sync::OnceLock;

pub use file::{Calibration, Evidence, Model, Refusal, VERSION};
pub use host::Host;
pub use location::{ENVIRONMENT, SYSTEM_PATH, candidates, default_path};

use crate::{FetchModel, WaitPolicy, tsc};

/// The status of the calibration file.
#[derive(Debug)]
pub enum Status {
    /// There is no file, or the environment disables it.
    Absent,
    /// The file is in use.
    Loaded {
        /// The path of the file.
        path: PathBuf,
        /// The contents of the file.
        calibration: Box<Calibration>,
    },
    /// The file is refused; the vendors' guarantees are in use.
    Refused {
        /// The path of the file.
        path: PathBuf,
        /// The reason for the refusal.
        why: Refusal,
    },
}

/// The status of the calibration file. The first call reads the file; later calls only load.
pub fn status() -> &'static Status {
    static STATUS: OnceLock<Status> = OnceLock::new();
    STATUS.get_or_init(|| look_in(candidates()))
}

/// Reads the first candidate that exists.
fn look_in(candidates: Vec<PathBuf>) -> Status {
    let Some(path) = candidates.into_iter().find(|path| file::exists(path)) else { return Status::Absent };
    let believed = Calibration::read(&path).and_then(|calibration| {
        calibration.check_host(&Host::here())?;
        Ok(calibration)
    });
    match believed {
        Ok(calibration) => Status::Loaded { path, calibration: Box::new(calibration) },
        Err(why) => Status::Refused { path, why },
    }
}

impl Status {
    /// The fetch model to be used.
    pub(crate) fn fetch_model(&self) -> FetchModel {
        match self {
            Self::Loaded { calibration, .. } => with_clock(calibration.fetch_model(), tsc::is_reliable()),
            Self::Absent | Self::Refused { .. } => FetchModel::VENDOR_GUARANTEE,
        }
    }

    /// A message for the user, in one line, if the file or its T_max is not used.
    pub fn warning(&self) -> Option<String> {
        match self {
            Self::Absent => None,
            Self::Loaded { path, calibration } => {
                let is_used = calibration.model.t_max_ticks.is_none() || tsc::is_reliable();
                (!is_used).then(|| {
                    format!(
                        "the T_max of the calibration {} is not used: the kernel does not use the time-stamp counter as its clock, so it may differ between processors",
                        path.display()
                    )
                })
            }
            Self::Refused { path, why } => Some(format!(
                "the calibration {} is not used: {why}; run tmax-probe again (until then, patches rely on the vendor's guarantees only)",
                path.display()
            )),
        }
    }
}

/// The model without T_max, if the counter that measures it is not reliable.
fn with_clock(model: FetchModel, is_reliable: bool) -> FetchModel {
    if is_reliable { model } else { FetchModel { t_max: None, wait: WaitPolicy::Membarrier, ..model } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
        path
    }

    #[test]
    fn the_first_file_that_exists_is_used() {
        let folder = tempfile::tempdir().unwrap();
        let good = file::tests::sample(Host::here());
        let missing = folder.path().join("missing");
        let first = write(folder.path(), "first", &good.to_text());
        let bad = write(folder.path(), "bad", "nonsense");
        assert!(matches!(look_in(vec![]), Status::Absent));
        assert!(matches!(look_in(vec![missing.clone()]), Status::Absent));
        let Status::Loaded { path, calibration } = look_in(vec![missing, first.clone(), bad.clone()]) else {
            panic!("not loaded")
        };
        assert_eq!((path, *calibration), (first.clone(), good));
        let refused = look_in(vec![bad, first]);
        assert_eq!(refused.fetch_model(), FetchModel::VENDOR_GUARANTEE);
        assert!(refused.warning().is_some_and(|line| !line.contains('\n')));
    }

    #[test]
    fn t_max_needs_a_reliable_counter() {
        let model = file::tests::sample(Host::here()).fetch_model();
        assert!(model.t_max.is_some() && model.wait == WaitPolicy::TMax);
        assert_eq!(with_clock(model, true), model);
        let without = FetchModel { t_max: None, wait: WaitPolicy::Membarrier, ..model };
        assert_eq!(with_clock(model, false), without);
    }

    #[test]
    fn a_calibration_of_another_host_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut other = file::tests::sample(Host::here());
        other.host.cpu_stepping += 1;
        let path = write(folder.path(), "other", &other.to_text());
        let status = look_in(vec![path]);
        assert!(
            matches!(&status, Status::Refused { why: Refusal::OtherHost { what: "cpu_stepping", .. }, .. }),
            "{status:?}"
        );
    }

    #[test]
    fn a_folder_a_fifo_and_an_endless_file_are_refused_without_reading() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for path in [folder.path(), &fifo, Path::new("/dev/zero")] {
            let status = look_in(vec![path.to_owned()]);
            assert!(matches!(&status, Status::Refused { why: Refusal::Unreadable { .. }, .. }), "{status:?}");
        }
    }
}
