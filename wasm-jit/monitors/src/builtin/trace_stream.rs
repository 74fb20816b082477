//! The streams to which monitors with the options `trace` and `json` write their traces.

use crate::output::Stream;
use crate::{Error, Setup};

/// The stream of a monitor's trace, if its option `trace` is set: a file with the first name, or
/// with the second one if the option `json` is set, which requires `trace`.
pub(super) fn trace_stream(setup: &Setup<'_>, [text, json]: [&str; 2]) -> Result<Option<Stream>, Error> {
    match ["trace", "json"].map(|option| setup.options.flag(option)) {
        [true, _] => setup.stream(if setup.is_json_stream() { json } else { text }).map(Some),
        [false, true] => {
            let reason = "is about the trace: it needs the option `trace`";
            Err(Error::Form { option: "json".to_owned(), reason })
        }
        [false, false] => Ok(None),
    }
}
