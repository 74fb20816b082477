//! The calibration file.
//!
//! ```text
//! # Calibration of instruction fetch on one machine; made by tmax-probe. Not to be edited.
//! checksum = "0c4e1d22"        CRC-32 of everything behind this line
//! version = 1
//! ...
//! ```

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::host::Host;
use crate::fetch_model::{FetchModel, FetchWindow, Source, TMax, WaitPolicy};

/// The version that is written, and the only one that is read.
pub const VERSION: u32 = 1;

/// No T_max beyond this is believed, in ticks: it would be no bound but a mistake.
const LONGEST_T_MAX: u32 = 10_000_000;

/// No file is longer.
const MAX_LENGTH: u64 = 64 << 10;

const TITLE: &str =
    "# Calibration of instruction fetch on one machine; made by tmax-probe. Not to be edited.\n";

/// Why a calibration is not believed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// It cannot be read.
    #[error("{source}")]
    Unreadable {
        /// The system call's error.
        source: io::Error,
    },

    /// It has no checksum line, or another checksum than its text.
    #[error("it was cut off or changed after it was made")]
    Altered,

    /// It was written by another version of `tmax-probe`.
    #[error("it has version {found}, and version {VERSION} is understood")]
    Version {
        /// What it says.
        found: u32,
    },

    /// It is whole, but does not say what a calibration says.
    #[error("{reason}")]
    Invalid {
        /// What is wrong.
        reason: String,
    },

    /// It was made on another machine.
    #[error("it was made on another machine ({what} {found:?} there, {here:?} here)")]
    OtherHost {
        /// The key in which the two differ.
        what: &'static str,
        /// The calibration's value.
        found: String,
        /// This machine's value.
        here: String,
    },
}

/// What is known about one machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// [`VERSION`].
    pub version: u32,
    /// The program that made it, with its version.
    pub made_by: String,
    /// Seconds since 1970.
    pub made_unix_s: u64,
    /// The machine.
    pub host: Host,
    /// What is to be relied on.
    pub model: Model,
    /// What that is founded on.
    pub evidence: Evidence,
}

/// What is to be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// The largest aligned block inside which no tear was seen: 8, 16, 32 or 64 bytes.
    pub window_bytes: usize,
    /// The bound on staleness, in TSC ticks, with its safety margin. Absent when it could not be measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub t_max_ticks: Option<u32>,
    /// The cheaper way to wait.
    pub wait: WaitPolicy,
}

/// What a calibration is founded on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// Level of the bound below.
    pub confidence: f64,
    /// Stores that crossed no window border; none of them tore.
    pub toggles_inside_window: u64,
    /// With this confidence, fewer of a million such stores tear.
    pub tears_per_million_below: f64,
    /// The smallest wait with no tear at it or above, in ticks.
    pub clean_wait_ticks: u32,
    /// By how much T_max is larger.
    pub safety_factor: f64,
    /// Patches of straddlers with that wait or more; none of them tore.
    pub toggles_at_clean_waits: u64,
}

/// Whether something is at `path`. What cannot be looked at for lack of rights counts as absent.
pub(super) fn exists(path: &Path) -> bool {
    fs::metadata(path).is_ok()
}

impl Calibration {
    /// Reads a file and checks everything but the host.
    ///
    /// # Errors
    /// Each [`Refusal`] but [`Refusal::OtherHost`].
    pub fn read(path: &Path) -> Result<Self, Refusal> {
        let unreadable = |source| Refusal::Unreadable { source };
        // Before it is opened: a FIFO would block.
        if !fs::metadata(path).map_err(unreadable)?.is_file() {
            return Err(unreadable(io::Error::other("it is no regular file")));
        }
        let mut text = String::new();
        let file = File::open(path).map_err(unreadable)?;
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
        // The version first: another one may have other keys.
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

    /// The text of a file.
    pub fn to_text(&self) -> String {
        let body = toml::to_string(self).expect("numbers and text in named tables");
        format!("{TITLE}{}\n{body}", checksum_line(&body))
    }

    /// Writes a file, and its folder if it is missing: whoever reads it finds the old one or the new one, whole.
    ///
    /// # Errors
    /// The failed system call.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        let new = folder.join(format!(".calibration.{}", std::process::id()));
        let written = File::create(&new).and_then(|mut file| {
            file.write_all(self.to_text().as_bytes())?;
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
            return invalid(format!("a fetch window of {window_bytes} bytes is not known"));
        }
        match (t_max_ticks, wait) {
            (Some(ticks), _) if ticks > LONGEST_T_MAX => {
                invalid(format!("a T_max of {ticks} ticks is beyond {LONGEST_T_MAX}"))
            }
            (None, WaitPolicy::TMax | WaitPolicy::Both) => {
                invalid("waits are to last T_max, which is not given".into())
            }
            _ => Ok(()),
        }
    }

    /// Whether it was made on `host`.
    ///
    /// # Errors
    /// [`Refusal::OtherHost`].
    pub fn check_host(&self, host: &Host) -> Result<(), Refusal> {
        match self.host.difference(host) {
            None => Ok(()),
            Some((what, found, here)) => Err(Refusal::OtherHost { what, found, here }),
        }
    }

    /// What is to be relied on, for patching.
    pub fn fetch_model(&self) -> FetchModel {
        FetchModel {
            window: FetchWindow::from_bytes(self.model.window_bytes).expect("checked when it was read"),
            t_max: self.model.t_max_ticks.map(TMax),
            wait: self.model.wait,
            source: Source::Calibrated,
        }
    }
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
                confidence: 0.95,
                toggles_inside_window: 400_000_000,
                tears_per_million_below: 0.0075,
                clean_wait_ticks: 800,
                safety_factor: 2.0,
                toggles_at_clean_waits: 3_000_000,
            },
        }
    }

    /// The text with another body, and the checksum right.
    fn with_body(change: impl Fn(String) -> String) -> String {
        let text = sample(Host::here()).to_text();
        let body = text.splitn(3, '\n').nth(2).expect("a body");
        let body = change(body.to_owned());
        format!("{TITLE}{}\n{body}", checksum_line(&body))
    }

    #[test]
    fn what_is_written_is_read_and_replaces_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/calibration.toml");
        for ticks in [None, Some(900)] {
            let mut calibration = sample(Host::here());
            calibration.model.t_max_ticks = ticks;
            calibration.model.wait = if ticks.is_some() { WaitPolicy::TMax } else { WaitPolicy::Membarrier };
            calibration.write(&path).unwrap();
            assert_eq!(Calibration::read(&path).unwrap(), calibration);
            assert_eq!(calibration.fetch_model().t_max, ticks.map(TMax));
        }
        let names: Vec<_> = fs::read_dir(path.parent().unwrap()).unwrap().collect();
        assert_eq!(names.len(), 1, "{names:?}");
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_an_error_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let blocker = folder.path().join("file");
        fs::write(&blocker, "").unwrap();
        assert!(sample(Host::here()).write(&blocker.join("calibration.toml")).is_err());
    }

    #[test]
    fn cut_off_anywhere_or_one_letter_changed_is_refused() {
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
    fn another_version_is_told_from_nonsense() {
        let check = |text: &str, expected: &str| {
            let refusal = Calibration::from_text(text).expect_err(expected).to_string();
            assert!(refusal.contains(expected) && !refusal.contains('\n'), "{refusal}");
        };
        assert!(Calibration::from_text(&with_body(|body| body)).is_ok());
        check(&with_body(|body| body.replace("version = 1", "version = 2")), "version 2");
        check(&with_body(|_| "version = 1\n".into()), "missing field");
        check(&with_body(|_| "version = \"x\"\n".into()), "invalid type");
        check(&with_body(|body| body.replace("window_bytes = 32", "window_bytes = 24")), "24 bytes");
        check(&with_body(|body| body.replace("= 1600", "= 4000000000")), "beyond");
        check(&with_body(|body| body.replace("t_max_ticks = 1600\n", "")), "not given");
    }
}
