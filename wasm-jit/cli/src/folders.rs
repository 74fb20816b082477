//! The user's directories for this command (XDG base directories).

use std::path::PathBuf;

/// `~/.local/state/wasm-jit`, or below `XDG_STATE_HOME`; `None` without a home directory.
pub(super) fn state() -> Option<PathBuf> {
    of_user("XDG_STATE_HOME", ".local/state")
}

/// `~/.cache/wasm-jit`, or below `XDG_CACHE_HOME`; `None` without a home directory.
pub(super) fn cache() -> Option<PathBuf> {
    of_user("XDG_CACHE_HOME", ".cache")
}

fn of_user(variable: &str, in_home: &str) -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = absolute(variable).or_else(|| Some(absolute("HOME")?.join(in_home)));
    Some(folder?.join("wasm-jit"))
}
