//! `/proc/self/task/ID/stat` (proc_pid_stat(5)).

/// The text for a thread of this process, by its kernel id.
pub(crate) fn read(thread: u32) -> std::io::Result<String> {
    std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"))
}

/// The fields of a text from the third one, the state, on. The second field, the name, may contain
/// anything.
pub(crate) fn fields(text: &str) -> Option<impl Iterator<Item = &str>> {
    let (_, fields) = text.rsplit_once(')')?;
    Some(fields.split_ascii_whitespace())
}
