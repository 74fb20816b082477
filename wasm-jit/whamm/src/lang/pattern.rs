//! Patterns of match rules: those of the crate `glob`, which Whamm itself uses, and alternatives
//! with `|`.
//!
//! The patterns of function names elsewhere are those of the crate `wildmatch`, where brackets have
//! no meaning: names such as `operator[]` contain them.

/// The alternatives of one part of a rule. An empty list matches every name.
#[derive(Debug, Default)]
pub(super) struct Pattern(Vec<glob::Pattern>);

impl Pattern {
    /// Parses alternatives: `*` matches any text, `?` any character, `[ab]` and `[a-z]` one of a
    /// set, `[!ab]` one that is not in the set.
    ///
    /// # Errors
    /// A set is not closed, or there are three `*` in a row, or two that are not the complete
    /// pattern.
    pub(super) fn parse(text: &str) -> Result<Self, glob::PatternError> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        text.split('|').map(glob::Pattern::new).collect::<Result<_, _>>().map(Self)
    }

    /// Whether an alternative matches a complete name.
    pub(super) fn matches(&self, name: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|alternative| alternative.matches(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        #[track_caller]
        fn check(pattern: &str, name: &str, expected: bool) {
            assert_eq!(Pattern::parse(pattern).unwrap().matches(name), expected, "{pattern} {name}");
        }
        check("call", "call", true);
        check("call", "call_ref", false);
        check("Call", "call", false);
        check("", "anything", true);
        check("*if", "br_if", true);
        check("*if", "if", true);
        check("*if", "if_", false);
        check("**", "br_if", true);
        check("*load*|*store*", "i64.store32", true);
        check("*load*|*store*", "i64.add", false);
        check("i?2.add", "i32.add", true);
        check("[if]32.add", "f32.add", true);
        check("[!if]32.add", "f32.add", false);
        check("i[0-5]2.add", "i32.add", true);
        check("a*b*c", "axxbxxbc", true);
        check("a*b*c", "axxbxxbcd", false);
        check(&"*a".repeat(1000), &"a".repeat(999), false);
        check(&"*a".repeat(100_000), "i32.add", false);
    }

    #[test]
    fn malformed_patterns_are_refused() {
        for pattern in ["[", "i32.[ab", "[]", "call|[!", "***", "a**b"] {
            assert!(Pattern::parse(pattern).is_err(), "{pattern}");
        }
    }
}
