//! The path of the calibration file. Only this module reads the environment.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The environment variable with the path of the file. `none` stands for no file.
pub const ENVIRONMENT: &str = "FASTINST_CALIBRATION";

/// The path of the file for all users of the machine.
pub const SYSTEM_PATH: &str = "/etc/fastinst/calibration.toml";

const NAME: &str = "fastinst/calibration.toml";

/// The possible paths of calibration files. The first one that exists is used:
///
/// 1. `FASTINST_CALIBRATION`; if it is set, there are no other candidates;
/// 2. `$XDG_CONFIG_HOME/fastinst/calibration.toml`, by default
///    `~/.config/fastinst/calibration.toml`;
/// 3. `/etc/fastinst/calibration.toml`.
///
/// In a process with more privileges than its user, only the last path is returned.
pub fn candidates() -> Vec<PathBuf> {
    // SAFETY: getauxval reads a value that the kernel has given to the process.
    let has_more_rights = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if has_more_rights { vec![SYSTEM_PATH.into()] } else { places(|name| std::env::var_os(name)) }
}

/// The path for a new file: the first candidate. `None` if the environment disables the file.
pub fn default_path() -> Option<PathBuf> {
    candidates().into_iter().next()
}

fn places(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let path = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    match path(ENVIRONMENT) {
        Some(named) if named == Path::new("none") => return Vec::new(),
        Some(named) => return vec![named],
        None => {}
    }
    // By the XDG specification, relative paths are ignored.
    let absolute = |path: &PathBuf| path.is_absolute();
    let config = path("XDG_CONFIG_HOME")
        .filter(absolute)
        .or_else(|| path("HOME").filter(absolute).map(|home| home.join(".config")));
    config.map(|folder| folder.join(NAME)).into_iter().chain([SYSTEM_PATH.into()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(environment: &[(&str, &str)], expected: &[&str]) {
        let found = places(|name| {
            environment.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
        });
        assert_eq!(found, expected.iter().map(PathBuf::from).collect::<Vec<_>>());
    }

    #[test]
    fn candidates_are_those_of_the_environment_the_user_and_the_system() {
        let home = ("HOME", "/home/me");
        check(&[], &[SYSTEM_PATH]);
        check(&[home], &["/home/me/.config/fastinst/calibration.toml", SYSTEM_PATH]);
        check(&[home, ("XDG_CONFIG_HOME", "/c")], &["/c/fastinst/calibration.toml", SYSTEM_PATH]);
        check(
            &[home, ("XDG_CONFIG_HOME", "c")],
            &["/home/me/.config/fastinst/calibration.toml", SYSTEM_PATH],
        );
        check(&[home, (ENVIRONMENT, "mine.toml")], &["mine.toml"]);
        check(&[home, (ENVIRONMENT, "")], &["/home/me/.config/fastinst/calibration.toml", SYSTEM_PATH]);
        check(&[home, (ENVIRONMENT, "none")], &[]);
    }
}
