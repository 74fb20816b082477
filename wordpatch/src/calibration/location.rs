//! Where the calibration file is. The one place where this workspace's libraries read the
//! environment.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The environment variable that names the file. `none` stands for no file.
pub const ENVIRONMENT: &str = "FASTINST_CALIBRATION";

/// The file for every user of the machine.
pub const SYSTEM_PATH: &str = "/etc/fastinst/calibration.toml";

const NAME: &str = "fastinst/calibration.toml";

/// Where a file is looked for, the first that exists decides:
///
/// 1. `FASTINST_CALIBRATION`, and then nowhere else;
/// 2. `$XDG_CONFIG_HOME/fastinst/calibration.toml`, by default
///    `~/.config/fastinst/calibration.toml`;
/// 3. `/etc/fastinst/calibration.toml`.
///
/// A process with more rights than its user looks in the last place only.
pub fn candidates() -> Vec<PathBuf> {
    // SAFETY: getauxval reads what the kernel gave the process.
    let has_more_rights = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if has_more_rights { vec![SYSTEM_PATH.into()] } else { places(|name| std::env::var_os(name)) }
}

/// Where a new file belongs: the first candidate. `None` where the environment says that there
/// shall be no file.
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
    // The XDG specification: a relative path is to be ignored.
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
    fn the_environment_names_one_file_the_user_another_and_the_system_the_last() {
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
