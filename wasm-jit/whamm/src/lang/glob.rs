//! Patterns of match rules: `*`, `?`, sets such as `[ab]` or `[!ab]`, and alternatives with `|`.

/// Whether a name matches a pattern; an empty pattern matches every name.
pub(super) fn matches(pattern: &str, name: &str) -> bool {
    pattern.is_empty()
        || pattern.split('|').any(|alternative| matches_one(alternative.as_bytes(), name.as_bytes()))
}

/// Goes back to the last `*` only, so that time is proportional to the product of the lengths.
fn matches_one(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut from) = (0, 0);
    let mut retry = None;
    loop {
        if from == name.len() && at == pattern.len() {
            return true;
        }
        if pattern.get(at) == Some(&b'*') {
            retry = Some((at, from + 1));
            at += 1;
            continue;
        }
        let step = name.get(from).and_then(|byte| element(&pattern[at..], *byte));
        match (step, retry) {
            (Some(length), _) => {
                at += length;
                from += 1;
            }
            (None, Some((star, next))) if next <= name.len() => {
                retry = Some((star, next + 1));
                at = star + 1;
                from = next;
            }
            _ => return false,
        }
    }
}

/// The length of the pattern's first element, if it matches a byte.
fn element(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern.first()? {
        b'?' => Some(1),
        b'[' => {
            let length = pattern.iter().position(|byte| *byte == b']')?;
            let set = &pattern[1..length];
            let (set, expected) = match set.first() {
                Some(b'!' | b'^') => (&set[1..], false),
                _ => (set, true),
            };
            (contains(set, byte) == expected).then_some(length + 1)
        }
        same => (*same == byte).then_some(1),
    }
}

/// Whether a set such as `ab` or `a-z` contains a byte.
fn contains(mut set: &[u8], byte: u8) -> bool {
    loop {
        match set {
            [from, b'-', to, rest @ ..] => {
                if (*from..=*to).contains(&byte) {
                    return true;
                }
                set = rest;
            }
            [one, rest @ ..] => {
                if *one == byte {
                    return true;
                }
                set = rest;
            }
            [] => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        #[track_caller]
        fn check(pattern: &str, name: &str, expected: bool) {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
        check("call", "call", true);
        check("call", "call_ref", false);
        check("", "anything", true);
        check("*if", "br_if", true);
        check("*if", "if", true);
        check("*if", "if_", false);
        check("*load*|*store*", "i64.store32", true);
        check("*load*|*store*", "i64.add", false);
        check("i?2.add", "i32.add", true);
        check("[if]32.add", "f32.add", true);
        check("[!if]32.add", "f32.add", false);
        check("i[0-5]2.add", "i32.add", true);
        check("[", "a", false);
        check("a*b*c", "axxbxxbc", true);
        check("a*b*c", "axxbxxbcd", false);
        check(&"*a".repeat(1000), &"a".repeat(999), false);
    }
}
