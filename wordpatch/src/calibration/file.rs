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

/// The version that is written, and the only one that is read. Version 1 counted tears instead of
/// trials that tore, and could claim a window that was too large: its files are refused.
pub const VERSION: u32 = 2;

/// No T_max beyond this is believed, in ticks: it would be no bound but a mistake.
const MAX_T_MAX: u32 = 10_000_000;

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
    /// The largest aligned block inside which a store is atomic for instruction fetch: 8, 16, 32 or
    /// 64 bytes.
    pub window_bytes: usize,
    /// The bound on staleness, in TSC ticks, with its safety margin. Absent when it could not be
    /// measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub t_max_ticks: Option<u32>,
    /// The way to wait that is cheaper in its worse situation.
    pub wait: WaitPolicy,
}

/// What a calibration is based on. Its unit is the trial, a stress of some 50 ms in a process of
/// its own, because tears come in clusters: what counts is whether a trial tore, not how often.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// Level of the bounds below, 0 to 1.
    pub confidence: f64,
    /// Trials of stores that cross no window border, of the kind of place with the fewest. None
    /// tore.
    pub trials_inside_window: u64,
    /// With this confidence, no larger share of such trials tears.
    pub torn_inside_at_most: f64,
    /// With this confidence, no smaller share of equal trials tears at the window's own border. 0
    /// where the window is what the vendors promise, which needs no evidence.
    pub torn_at_border_at_least: f64,
    /// The smallest wait with no torn trial at it or above, in ticks.
    pub clean_wait_ticks: u32,
    /// T_max divided by that.
    pub safety_factor: f64,
    /// Trials of the protocol with that wait or more. None tore.
    pub trials_at_clean_waits: u64,
    /// With this confidence, no larger share of such trials tears.
    pub torn_at_clean_waits_at_most: f64,
}

impl Evidence {
    /// Whether it supports a window that is larger than what the vendors promise: places inside the
    /// window tear surely more rarely than its border does.
    fn supports_window(&self) -> bool {
        self.trials_inside_window > 0 && self.torn_inside_at_most < self.torn_at_border_at_least
    }
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

    /// Writes a file, and its folder if it is missing: whoever reads it finds the old one or the
    /// new one, whole.
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
        let promised = FetchModel::VENDOR_GUARANTEE.window.bytes();
        if window_bytes > promised && !self.evidence.supports_window() {
            return invalid(format!("its evidence does not support a fetch window of {window_bytes} bytes"));
        }
        match (t_max_ticks, wait) {
            (Some(ticks), _) if ticks > MAX_T_MAX => {
                invalid(format!("a T_max of {ticks} ticks is beyond {MAX_T_MAX}"))
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
        check(&with_body(|body| body.replace("version = 2", "version = 1")), "version 1");
        check(&with_body(|_| "version = 2\n".into()), "missing field");
        check(&with_body(|_| "version = \"x\"\n".into()), "invalid type");
        check(&with_body(|body| body.replace("window_bytes = 32", "window_bytes = 24")), "24 bytes");
        check(&with_body(|body| body.replace("= 1600", "= 4000000000")), "beyond");
        check(&with_body(|body| body.replace("t_max_ticks = 1600\n", "")), "not given");
    }

    #[test]
    fn a_window_beyond_the_vendors_promise_needs_evidence() {
        let with = |window: usize, trials: u64, inside: f64, border: f64| {
            let mut calibration = sample(Host::here());
            calibration.model.window_bytes = window;
            calibration.evidence.trials_inside_window = trials;
            calibration.evidence.torn_inside_at_most = inside;
            calibration.evidence.torn_at_border_at_least = border;
            Calibration::from_text(&calibration.to_text()).map_err(|refusal| refusal.to_string())
        };
        assert!(with(32, 120, 0.038, 0.16).is_ok());
        // Nothing tore anywhere: the run was blind.
        for blind in [with(64, 120, 0.038, 0.0), with(16, 0, 1.0, 0.5), with(32, 120, 0.2, 0.1)] {
            let refusal = blind.expect_err("evidence that supports nothing");
            assert!(refusal.contains("does not support"), "{refusal}");
        }
        assert!(with(8, 0, 1.0, 0.0).is_ok(), "the vendors' promise needs none");
    }
}
