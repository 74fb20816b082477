//! `libfastinst.so`, and processes that run under it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::host;

/// Builds the library, and returns its path.
///
/// # Panics
/// When the build fails; cargo's own messages are on standard error.
pub fn library() -> PathBuf {
    host::ensure_built().join("libfastinst.so")
}

/// The environment of a process.
#[derive(Clone, Copy, Debug)]
pub enum Under<'a> {
    /// A process without the library.
    Nothing,
    /// A process with the library, and these `FASTINST_OPTIONS`.
    Library(&'a Path, &'a str),
}

/// A command whose environment has no variables of the library except those of `under`.
pub fn command(program: &Path, arguments: &[impl AsRef<OsStr>], under: Under<'_>) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).env_remove("LD_PRELOAD").env_remove("FASTINST_OPTIONS");
    if let Under::Library(library, options) = under {
        command.env("LD_PRELOAD", library).env("FASTINST_OPTIONS", options);
    }
    command
}
