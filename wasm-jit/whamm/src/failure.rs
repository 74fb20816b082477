//! Rules of scripts that have failed.

/// A rule that was ended because it failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{rule}: {reason}")]
pub(crate) struct RuleFailure {
    /// The rule, with its line in the script.
    pub(crate) rule: String,
    pub(crate) reason: &'static str,
}

/// The reason for a rule's failure; the numbers are those of `runtime.wat`.
pub(crate) fn reason(number: u32) -> &'static str {
    match number {
        0 => "the script has no memory left for its maps",
        1 => "an integer was divided by zero",
        2 => "the quotient of two integers is out of range",
        3 => "the rule has taken more than 2^24 steps",
        5 => "bytes outside of a library's memory were read or written",
        _ => "calls of the script's functions are nested too deeply",
    }
}
