//! The calibration file.
//!
//! ```text
//! # Calibration of instruction fetch on one machine; made by tmax-probe. Not to be edited.
//! checksum = "0c4e1d22"        CRC-32 of the text after this line
//! version = 2
//! ...
//! ```

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::host::Host;
use crate::fetch_model::{FetchModel, FetchWindow, Source, TMax, WaitPolicy};

/// The version that is written, and the only one that is accepted. Version 1 counted tears instead
/// of trials that tore, and could claim a window that was too large.
pub const VERSION: u32 = 2;

/// The largest T_max that is accepted, in ticks. Larger values are measurement errors.
const MAX_T_MAX: u32 = 10_000_000;

/// The maximum length of a file, in bytes.
const MAX_LENGTH: u64 = 64 << 10;

const TITLE: &str =
    "# Calibration of instruction fetch on one machine; made by tmax-probe. Not to be edited.\n";

/// The reason why a calibration file is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The file cannot be read.
    #[error("{source}")]
    Unreadable {
        /// The system call's error.
        source: io::Error,
    },

    /// Somebody else can change the file, or has made it: code would be patched as they want.
    #[error("{reason}")]
    Untrusted {
        /// What is wrong with its owner or its permissions.
        reason: &'static str,
    },

    /// The file has no checksum line, or the checksum does not match.
    #[error("it was cut off or changed after it was made")]
    Altered,

    /// The file was written by another version of `tmax-probe`.
    #[error("it has version {found}; only version {VERSION} is supported")]
    Version {
        /// The version of the file.
        found: u32,
    },

    /// The file is intact, but its contents are not a valid calibration.
    #[error("{reason}")]
    Invalid {
        /// The problem with the contents.
        reason: String,
    },

    /// The calibration was made on another machine.
    #[error("it was made on another machine ({what} {found:?} there, {here:?} here)")]
    OtherHost {
        /// The key in which the two machines differ.
        what: &'static str,
        /// The value in the calibration.
        found: String,
        /// The value on this machine.
        here: String,
    },
}

/// The calibration of a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// The version of the format: [`VERSION`].
    pub version: u32,
    /// The name and version of the program that made the calibration.
    pub made_by: String,
    /// The time at which the calibration was made, in seconds since 1970.
    pub made_unix_s: u64,
    /// The machine on which the calibration was made.
    pub host: Host,
    /// The properties of instruction fetch that patches may rely on.
    pub model: Model,
    /// The measurements that support the model.
    pub evidence: Evidence,
}

/// The properties of instruction fetch that patches may rely on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// The largest aligned block inside which a store is atomic for instruction fetch: 8, 16, 32 or
    /// 64 bytes.
    pub window_bytes: usize,
    /// The bound on the execution of stale bytes, in TSC ticks, with its safety margin. Absent if
    /// it could not be measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub t_max_ticks: Option<u32>,
    /// The wait policy whose worst case is cheaper.
    pub wait: WaitPolicy,
}

/// The measurements that a calibration is based on. The unit is the trial, a stress test of about
/// 50 ms in its own process. Because tears are clustered, trials that tore are counted, not tears.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// The confidence level of the bounds below, from 0 to 1.
    pub confidence: f64,
    /// The number of trials of stores that do not cross a window boundary, for the kind of address
    /// with the fewest trials. None tore.
    pub trials_inside_window: u64,
    /// The upper confidence bound of the fraction of such trials that tear.
    pub torn_inside_at_most: f64,
    /// The lower confidence bound of the fraction of otherwise equal trials that tear at the
    /// window's boundary. 0 if the window is the one that the vendors guarantee, which needs no
    /// evidence.
    pub torn_at_border_at_least: f64,
    /// The shortest wait, in ticks, such that no trial with this wait or a longer one tore.
    pub clean_wait_ticks: u32,
    /// T_max divided by `clean_wait_ticks`.
    pub safety_factor: f64,
    /// The number of trials of the protocol with that wait or a longer one. None tore.
    pub trials_at_clean_waits: u64,
    /// The upper confidence bound of the fraction of such trials that tear.
    pub torn_at_clean_waits_at_most: f64,
}

impl Evidence {
    /// Whether the evidence supports a larger window than the vendors guarantee: stores inside the
    /// window tear significantly less often than stores across its boundary.
    fn supports_window(&self) -> bool {
        self.trials_inside_window > 0 && self.torn_inside_at_most < self.torn_at_border_at_least
    }

    /// Whether the evidence supports a T_max of `ticks`: it is longer than a wait with which trials
    /// were made, by the safety factor.
    fn supports_t_max(&self, ticks: u32) -> bool {
        // T_max was rounded.
        let at_least = f64::from(self.clean_wait_ticks) * self.safety_factor - 1.0;
        self.clean_wait_ticks > 0
            && self.trials_at_clean_waits > 0
            && self.safety_factor >= 1.0
            && ticks >= self.clean_wait_ticks
            && f64::from(ticks) >= at_least
    }
}

/// Whether there is a file at `path`. A path without permission counts as absent.
pub(super) fn exists(path: &Path) -> bool {
    fs::metadata(path).is_ok()
}

impl Calibration {
    /// Reads a file and checks everything except the host.
    ///
    /// # Errors
    /// Any [`Refusal`] except [`Refusal::OtherHost`].
    pub fn read(path: &Path) -> Result<Self, Refusal> {
        let unreadable = |source| Refusal::Unreadable { source };
        // Before it is opened, because opening a device may have an effect; and afterwards, because
        // there may be another file.
        check_file(&fs::metadata(path).map_err(unreadable)?)?;
        let mut text = String::new();
        // Opening a FIFO does not block.
        let file =
            OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(unreadable)?;
        check_file(&file.metadata().map_err(unreadable)?)?;
        file.take(MAX_LENGTH).read_to_string(&mut text).map_err(unreadable)?;
        Self::from_text(&text)
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// [`Refusal::Altered`], [`Refusal::Version`], [`Refusal::Invalid`].
    pub fn from_text(text: &str) -> Result<Self, Refusal> {
        let (checksum, body) =
            text.strip_prefix(TITLE).and_then(|rest| rest.split_once('\n')).ok_or(Refusal::Altered)?;
        if checksum != checksum_line(body) {
            return Err(Refusal::Altered);
        }
        let invalid = |error: toml::de::Error| Refusal::Invalid { reason: error.message().to_owned() };
        // The version is checked first: other versions may have other keys.
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let Versioned { version } = toml::from_str(body).map_err(invalid)?;
        if version != VERSION {
            return Err(Refusal::Version { found: version });
        }
        let calibration: Self = toml::from_str(body).map_err(invalid)?;
        calibration.check_model()?;
        Ok(calibration)
    }

    /// The text of the calibration file.
    pub fn to_text(&self) -> String {
        let body = toml::to_string(self).expect("numbers and text in named tables");
        format!("{TITLE}{}\n{body}", checksum_line(&body))
    }

    /// Writes a file atomically, and creates its directory if necessary.
    ///
    /// # Errors
    /// The error of the failed system call.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        let (mut file, new) = create_in(folder)?;
        let written = file.write_all(self.to_text().as_bytes()).and_then(|()| {
            file.sync_all()?;
            fs::rename(&new, path)
        });
        if written.is_err() {
            let _ = fs::remove_file(&new);
        }
        written
    }

    fn check_model(&self) -> Result<(), Refusal> {
        let Model { window_bytes, t_max_ticks, wait } = self.model;
        let invalid = |reason| Err(Refusal::Invalid { reason });
        if FetchWindow::from_bytes(window_bytes).is_none() {
            return invalid(format!("a fetch window of {window_bytes} bytes is not supported"));
        }
        let guaranteed = FetchModel::VENDOR_GUARANTEE.window.bytes();
        if window_bytes > guaranteed && !self.evidence.supports_window() {
            return invalid(format!("its evidence does not support a fetch window of {window_bytes} bytes"));
        }
        match (t_max_ticks, wait) {
            (Some(ticks), _) if ticks > MAX_T_MAX => {
                invalid(format!("a T_max of {ticks} ticks is larger than {MAX_T_MAX}"))
            }
            (Some(ticks), _) if !self.evidence.supports_t_max(ticks) => {
                invalid(format!("its evidence does not support a T_max of {ticks} ticks"))
            }
            (None, WaitPolicy::TMax | WaitPolicy::Both) => {
                invalid("the wait policy requires a T_max, which is not given".into())
            }
            _ => Ok(()),
        }
    }

    /// Checks that the calibration was made on `host`.
    ///
    /// # Errors
    /// [`Refusal::OtherHost`].
    pub fn check_host(&self, host: &Host) -> Result<(), Refusal> {
        match self.host.difference(host) {
            None => Ok(()),
            Some((what, found, here)) => Err(Refusal::OtherHost { what, found, here }),
        }
    }

    /// The fetch model on which patches rely.
    pub fn fetch_model(&self) -> FetchModel {
        FetchModel {
            window: FetchWindow::from_bytes(self.model.window_bytes).expect("checked when it was read"),
            t_max: self.model.t_max_ticks.map(TMax),
            wait: self.model.wait,
            source: Source::Calibrated,
        }
    }
}

/// Creates a file in the directory, which only its owner can change. Never follows a link, which
/// somebody else may have put there.
fn create_in(folder: &Path) -> io::Result<(File, PathBuf)> {
    /// Names of files that earlier processes with this id may have left.
    const NAMES: u32 = 100;
    for number in 0..NAMES {
        let new = folder.join(format!(".calibration.{}.{number}", std::process::id()));
        match OpenOptions::new().write(true).create_new(true).mode(0o644).open(&new) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
            opened => return opened.map(|file| (file, new)),
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

/// Refuses anything but a regular file that nobody can change except root and the user for whom
/// this process runs.
fn check_file(file: &Metadata) -> Result<(), Refusal> {
    if !file.is_file() {
        return Err(Refusal::Unreadable { source: io::Error::other("it is not a regular file") });
    }
    // SAFETY: only returns a number.
    let user = unsafe { libc::geteuid() };
    if file.uid() != 0 && file.uid() != user {
        return Err(Refusal::Untrusted { reason: "it belongs to another user" });
    }
    if file.mode() & 0o022 != 0 {
        return Err(Refusal::Untrusted { reason: "other users can change it (chmod go-w prevents that)" });
    }
    Ok(())
}

fn checksum_line(body: &str) -> String {
    format!("checksum = \"{:08x}\"", crc32fast::hash(body.as_bytes()))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::calibration) fn sample(host: Host) -> Calibration {
        Calibration {
            version: VERSION,
            made_by: "tmax-probe 0.0.0".into(),
            made_unix_s: 1_700_000_000,
            host,
            model: Model { window_bytes: 32, t_max_ticks: Some(1600), wait: WaitPolicy::TMax },
            evidence: Evidence {
                confidence: 0.99,
                trials_inside_window: 600,
                torn_inside_at_most: 0.0076,
                torn_at_border_at_least: 0.4,
                clean_wait_ticks: 800,
                safety_factor: 2.0,
                trials_at_clean_waits: 900,
                torn_at_clean_waits_at_most: 0.0051,
            },
        }
    }

    /// The text with a changed body and a correct checksum.
    fn with_body(change: impl Fn(String) -> String) -> String {
        let text = sample(Host::here()).to_text();
        let body = text.splitn(3, '\n').nth(2).expect("a body");
        let body = change(body.to_owned());
        format!("{TITLE}{}\n{body}", checksum_line(&body))
    }

    #[test]
    fn a_written_file_replaces_the_old_one_and_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/calibration.toml");
        for ticks in [None, Some(900)] {
            let mut calibration = sample(Host::here());
            calibration.model.t_max_ticks = ticks;
            calibration.evidence.clean_wait_ticks = 450;
            calibration.model.wait = if ticks.is_some() { WaitPolicy::TMax } else { WaitPolicy::Membarrier };
            calibration.write(&path).unwrap();
            assert_eq!(Calibration::read(&path).unwrap(), calibration);
            assert_eq!(calibration.fetch_model().t_max, ticks.map(TMax));
        }
        let names: Vec<_> = fs::read_dir(path.parent().unwrap()).unwrap().collect();
        assert_eq!(names.len(), 1, "{names:?}");
    }

    #[test]
    fn links_in_the_place_of_the_new_file_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, victim) = (folder.path().join("calibration.toml"), folder.path().join("victim"));
        fs::write(&victim, "mine").unwrap();
        let link = folder.path().join(format!(".calibration.{}.0", std::process::id()));
        std::os::unix::fs::symlink(&victim, &link).unwrap();
        let calibration = sample(Host::here());
        calibration.write(&path).unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "mine");
        assert!(fs::symlink_metadata(&path).unwrap().is_file() && fs::symlink_metadata(&link).is_ok());
        assert_eq!(Calibration::read(&path).unwrap(), calibration);
    }

    #[test]
    fn files_that_others_can_change_are_refused() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("calibration.toml");
        sample(Host::here()).write(&path).unwrap();
        for (mode, is_refused) in
            [(0o644, false), (0o664, true), (0o646, true), (0o666, true), (0o600, false)]
        {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let read = Calibration::read(&path);
            assert_eq!(matches!(read, Err(Refusal::Untrusted { .. })), is_refused, "{mode:o}: {read:?}");
            assert_eq!(read.is_err(), is_refused, "{mode:o}: {read:?}");
        }
        // Only root can give a file away, and is then not its owner.
        if std::os::unix::fs::chown(&path, Some(12_345), None).is_ok() {
            let read = Calibration::read(&path);
            assert!(matches!(read, Err(Refusal::Untrusted { .. })), "{read:?}");
        }
    }

    #[test]
    fn a_folder_that_cannot_be_created_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let blocker = folder.path().join("file");
        fs::write(&blocker, "").unwrap();
        assert!(sample(Host::here()).write(&blocker.join("calibration.toml")).is_err());
    }

    #[test]
    fn a_truncated_or_changed_file_is_refused() {
        let text = sample(Host::here()).to_text();
        for length in 0..text.len() {
            let cut = &text[..length];
            assert!(matches!(Calibration::from_text(cut), Err(Refusal::Altered)), "{cut}");
        }
        for at in 0..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[at] ^= 1;
            let Ok(changed) = String::from_utf8(changed) else { continue };
            assert!(matches!(Calibration::from_text(&changed), Err(Refusal::Altered)), "{changed}");
        }
        let edited = text.replace("1600", "16");
        assert!(matches!(Calibration::from_text(&edited), Err(Refusal::Altered)));
    }

    #[test]
    fn another_version_is_distinguished_from_invalid_contents() {
        let check = |text: &str, expected: &str| {
            let refusal = Calibration::from_text(text).expect_err(expected).to_string();
            assert!(refusal.contains(expected) && !refusal.contains('\n'), "{refusal}");
        };
        assert!(Calibration::from_text(&with_body(|body| body)).is_ok());
        check(&with_body(|body| body.replace("version = 2", "version = 1")), "version 1");
        check(&with_body(|_| "version = 2\n".into()), "missing field");
        check(&with_body(|_| "version = \"x\"\n".into()), "invalid type");
        check(&with_body(|body| body.replace("window_bytes = 32", "window_bytes = 24")), "24 bytes");
        check(&with_body(|body| body.replace("= 1600", "= 4000000000")), "larger than");
        check(&with_body(|body| body.replace("t_max_ticks = 1600\n", "")), "not given");
    }

    #[test]
    fn a_window_larger_than_guaranteed_needs_evidence() {
        let with = |window: usize, trials: u64, inside: f64, border: f64| {
            let mut calibration = sample(Host::here());
            calibration.model.window_bytes = window;
            calibration.evidence.trials_inside_window = trials;
            calibration.evidence.torn_inside_at_most = inside;
            calibration.evidence.torn_at_border_at_least = border;
            Calibration::from_text(&calibration.to_text()).map_err(|refusal| refusal.to_string())
        };
        assert!(with(32, 120, 0.038, 0.16).is_ok());
        // No trial tore anywhere, so the run could not have detected tears.
        for blind in [with(64, 120, 0.038, 0.0), with(16, 0, 1.0, 0.5), with(32, 120, 0.2, 0.1)] {
            let refusal = blind.expect_err("evidence that supports nothing");
            assert!(refusal.contains("does not support"), "{refusal}");
        }
        assert!(with(8, 0, 1.0, 0.0).is_ok(), "the vendors' guarantee needs none");
    }

    #[test]
    fn a_t_max_needs_evidence() {
        let with = |ticks: u32, clean: u32, factor: f64, trials: u64| {
            let mut calibration = sample(Host::here());
            calibration.model.t_max_ticks = Some(ticks);
            calibration.evidence.clean_wait_ticks = clean;
            calibration.evidence.safety_factor = factor;
            calibration.evidence.trials_at_clean_waits = trials;
            Calibration::from_text(&calibration.to_text()).map_err(|refusal| refusal.to_string())
        };
        assert!(with(1_600, 800, 2.0, 900).is_ok() && with(2_000, 800, 2.0, 900).is_ok());
        let unsupported = [
            with(0, 0, 2.0, 0),
            with(0, 0, 2.0, 900),
            with(0, 1, 1.0, 900),
            with(1_600, 0, 2.0, 900),
            with(1_600, 800, 2.0, 0),
            with(1_000, 800, 2.0, 900),
            with(800, 800, 0.5, 900),
        ];
        for refused in unsupported {
            let refusal = refused.expect_err("evidence that supports nothing");
            assert!(refusal.contains("does not support a T_max"), "{refusal}");
        }
    }
}
