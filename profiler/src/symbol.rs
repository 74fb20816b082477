//! Names of functions as people read them.

use std::fmt;

/// Longer names are left as they are, and so is a name that would become longer than this. In bytes.
const LONGEST: usize = 64 * 1024;

/// The readable form of a symbol's name: C++ (Itanium) and Rust (legacy and v0) names are demangled, others are
/// returned unchanged.
///
/// A suffix that the linker or disassembler put on the name is dropped first: `@plt`, or a version as in
/// `memcpy@@GLIBC_2.14`. The hash of a Rust name is dropped too. Works on any text in bounded time and memory: a name
/// of more than 64 KiB, and one whose readable form would be longer than that, is returned as it is.
pub fn demangle(name: &str) -> String {
    if name.len() > LONGEST {
        return name.to_owned();
    }
    let name = without_suffix(name);
    rust(name).or_else(|| cpp(name)).unwrap_or_else(|| name.to_owned())
}

fn without_suffix(name: &str) -> &str {
    let is_version = |suffix: &str| {
        let version = suffix.strip_prefix('@').unwrap_or(suffix);
        !version.is_empty() && version.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_'))
    };
    match name.split_once('@') {
        Some((base, suffix)) if !base.is_empty() && is_version(suffix) => base,
        _ => name,
    }
}

/// A legacy Rust name is also a C++ name; its hash, which the short form leaves out, tells the two apart.
fn rust(name: &str) -> Option<String> {
    let symbol = rustc_demangle::try_demangle(name).ok()?;
    let short = bounded(|text| fmt::Write::write_fmt(text, format_args!("{symbol:#}")))?;
    if name.starts_with("_ZN")
        && bounded(|text| fmt::Write::write_fmt(text, format_args!("{symbol}")))? == short
    {
        return None;
    }
    Some(short)
}

/// Only names that start as mangled ones do: the parser takes bare types too, and would read `f` as `float`.
fn cpp(name: &str) -> Option<String> {
    if !name.starts_with("_Z") && !name.starts_with("_GLOBAL_") {
        return None;
    }
    let symbol = cpp_demangle::Symbol::new(name).ok()?;
    bounded(|text| symbol.structured_demangle(text, &cpp_demangle::DemangleOptions::new()))
}

/// What `write` writes, or nothing if that fails or is longer than [`LONGEST`]: a few bytes of a mangled name can
/// stand for gigabytes.
fn bounded(write: impl FnOnce(&mut Bounded) -> fmt::Result) -> Option<String> {
    let mut text = Bounded(String::new());
    write(&mut text).ok()?;
    Some(text.0)
}

struct Bounded(String);

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > LONGEST {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_readable() {
        #[track_caller]
        fn check(name: &str, expected: &str) {
            assert_eq!(demangle(name), expected);
        }
        // C: unchanged, also where the name would be a C++ type.
        check("main", "main");
        check("f", "f");
        check("", "");
        check("_init", "_init");
        check("compress.part.0", "compress.part.0");
        check("_Z", "_Z");
        check("_Zebra", "_Zebra");
        // C++.
        check("_Z3foov", "foo()");
        check("_ZN3foo3barEi", "foo::bar(int)");
        check("_ZN3foo3barE", "foo::bar");
        check(
            "_ZNSt6vectorIiSaIiEE9push_backERKi",
            "std::vector<int, std::allocator<int> >::push_back(int const&)",
        );
        check("_ZN5ShapeD1Ev", "Shape::~Shape()");
        check("_ZL6crunchPKcm", "crunch(char const*, unsigned long)");
        check("_Z3foov.part.0", "foo() [clone .part.0]");
        // Rust, legacy and v0.
        check("_ZN4core3ptr13drop_in_place17h0123456789abcdefE", "core::ptr::drop_in_place");
        check("_RNvCs1234_7mycrate3foo", "mycrate::foo");
        // Suffixes.
        check("puts@plt", "puts");
        check("memcpy@@GLIBC_2.14", "memcpy");
        check("memcpy@GLIBC_2.2.5", "memcpy");
        check("_Z3foov@plt", "foo()");
        check("@plt", "@plt");
        check("who@", "who@");
        check("who@home now", "who@home now");
    }

    #[test]
    fn long_names_and_names_that_explode_stay_as_they_are() {
        let long = format!("_Z{}{}v", LONGEST, "a".repeat(LONGEST));
        assert_eq!(demangle(&long), long);
        // Every level is a pair of the one before: 2 to the power of 40 ints.
        let mut bomb = String::from("_Z1f1aIiiE");
        for level in 0..40 {
            let previous = if level == 0 { "S0_".to_owned() } else { format!("S{}_", base36(level)) };
            bomb.push_str(&format!("S_I{previous}{previous}E"));
        }
        assert!(demangle(&bomb).len() <= LONGEST);
    }

    fn base36(number: usize) -> String {
        let digits = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";
        let digit = |value: usize| char::from(digits[value % 36]);
        if number < 36 {
            digit(number).to_string()
        } else {
            format!("{}{}", digit(number / 36), digit(number))
        }
    }

    #[test]
    fn damaged_names_do_no_harm() {
        let names = [
            "_ZNSt6vectorIiSaIiEE9push_backERKi",
            "_ZNKSt3mapISsN3foo3barESt4lessISsEE4findERKSs.constprop.3@plt",
            "_RNvNtCs1234_7mycrate3foo3bar",
            "_ZN4core3ptr13drop_in_place17h0123456789abcdefE",
        ];
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        for round in 0..20_000 {
            let mut name = names[round % names.len()].as_bytes().to_vec();
            for _ in 0..=round % 4 {
                seed ^= seed << 13;
                seed ^= seed >> 7;
                seed ^= seed << 17;
                let position = seed as usize % name.len();
                match seed >> 62 {
                    0 => name.truncate(position.max(1)),
                    1 => name[position] = b"_ZNSIELRTKC019@.$"[(seed >> 32) as usize % 17],
                    2 => name.insert(position, b"_ZNSIELRTKC019@.$"[(seed >> 32) as usize % 17]),
                    _ => drop(name.remove(position)),
                }
                if name.is_empty() {
                    name.push(b'_');
                }
            }
            demangle(&String::from_utf8(name).unwrap());
        }
    }
}
