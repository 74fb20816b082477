//! Demangling of function names.

use std::fmt;

/// Maximum length in bytes: longer names are not demangled, nor are names that would become longer
/// than this.
const MAX_LENGTH: usize = 64 * 1024;

/// The readable form of a symbol's name: C++ (Itanium) and Rust (legacy and v0) names are
/// demangled, others are returned unchanged.
///
/// A suffix added by the linker or disassembler is dropped first: `@plt`, or a version as in
/// `memcpy@@GLIBC_2.14`. The hash of a Rust name is dropped, too. Works on any text in bounded time
/// and memory: a name of more than 64 KiB, or one whose readable form would be longer than that, is
/// returned unchanged.
pub fn demangle(name: &str) -> String {
    if name.len() > MAX_LENGTH {
        return name.to_owned();
    }
    let name = without_suffix(name);
    rust(name).or_else(|| cpp(name)).unwrap_or_else(|| name.to_owned())
}

/// A demangled name without return type, parameters and anything after them: `void f<int>(int)`
/// becomes `f<int>`, `(anonymous namespace)::f(int) const` becomes `(anonymous namespace)::f`.
/// Names of other languages are returned unchanged.
#[must_use]
pub fn without_parameters(name: &str) -> &str {
    Signature::of(name).path
}

/// A demangled name for tables: without return type and parameters, template arguments as `<…>`.
/// Clones made by the compiler are marked: `f [clone .part.0]`. Scopes whose names are reserved for
/// the implementation, such as `std::__cxx11`, are omitted.
#[must_use]
pub fn short(name: &str) -> String {
    let Signature { path, clone } = Signature::of(name);
    let mut text = String::new();
    let mut skipped_to = 0;
    scan(path, |at, depth, bracket| {
        if bracket == b'<' && depth == 0 && at > 0 && !path[..at].ends_with("::") {
            text.push_str(&path[skipped_to..at]);
            text.push_str("<…>");
            skipped_to = path.len();
        } else if bracket == b'>' && depth == 0 && skipped_to == path.len() {
            skipped_to = at + 1;
        }
    });
    text.push_str(&path[skipped_to..]);
    without_reserved_scopes(&text) + clone
}

/// A name without the scopes that begin with two underscores: inline namespaces of the standard
/// libraries.
fn without_reserved_scopes(name: &str) -> String {
    if !name.contains("::__") {
        return name.to_owned();
    }
    let ends = scopes(name);
    let starts = [0].into_iter().chain(ends.iter().copied());
    let mut text = String::with_capacity(name.len());
    for (start, end) in starts.zip(ends.iter().copied().chain([name.len()])) {
        let part = &name[start..end];
        if end == name.len() || start == 0 || !part.starts_with("__") {
            text.push_str(part);
        }
    }
    text
}

/// The positions in a demangled name at which its inner scopes, and at last the name of the
/// function itself, begin.
#[must_use]
pub(crate) fn scopes(name: &str) -> Vec<usize> {
    let mut starts = Vec::new();
    scan(name, |at, depth, byte| {
        if byte == b':' && depth == 0 && name[..at].ends_with(':') && at + 1 < name.len() {
            starts.push(at + 1);
        }
    });
    starts
}

/// The parts of a demangled name that tables show.
struct Signature<'a> {
    /// Scopes, name, template arguments.
    path: &'a str,
    /// ` [clone .part.0]`, or empty.
    clone: &'a str,
}

impl<'a> Signature<'a> {
    fn of(name: &'a str) -> Signature<'a> {
        let clone = if name.ends_with(']') { name.find(" [clone ") } else { None };
        let (whole, clone) = clone.map_or((name, ""), |at| name.split_at(at));
        // The parameters are the last outermost parentheses that are not a scope, such as
        // `(anonymous namespace)::`.
        let (mut opened, mut parameters) = (0, None);
        scan(whole, |at, depth, bracket| match bracket {
            b'(' if depth == 0 => opened = at,
            b')' if depth == 0 && opened > 0 && !whole[at + 1..].starts_with("::") => {
                parameters = Some(opened)
            }
            _ => {}
        });
        let Some(parameters) = parameters else { return Signature { path: whole, clone } };
        // The demangled name of a template has the return type: everything up to the last outermost
        // space.
        let before = &whole[..parameters];
        let mut start = 0;
        scan(before, |at, depth, byte| {
            if byte == b' ' && depth == 0 && !is_word(before, at, "operator") {
                start = at + 1;
            }
        });
        Signature { path: &before[start..], clone }
    }
}

/// Calls `visit` with position, depth and byte of every bracket, space and colon, in order;
/// brackets have the depth of their surroundings. Brackets of an operator's name are skipped.
fn scan(name: &str, mut visit: impl FnMut(usize, usize, u8)) {
    const OPERATORS: [&str; 13] =
        ["()", "[]", "->*", "->", "<=>", "<<=", ">>=", "<<", ">>", "<=", ">=", "<", ">"];
    let bytes = name.as_bytes();
    let (mut at, mut depth) = (0, 0_usize);
    while at < bytes.len() {
        // Few names are operators, and most bytes are looked at several times.
        if at >= 8
            && bytes[at - 1] == b'r'
            && is_word(name, at, "operator")
            && let Some(operator) = OPERATORS.iter().find(|operator| name[at..].starts_with(**operator))
        {
            // `operator< <int>` has a space before its template arguments.
            at += operator.len() + usize::from(name[at + operator.len()..].starts_with(' '));
            continue;
        }
        match bytes[at] {
            bracket @ (b'(' | b'<' | b'[' | b'{') => {
                visit(at, depth, bracket);
                depth += 1;
            }
            bracket @ (b')' | b'>' | b']' | b'}') => {
                depth = depth.saturating_sub(1);
                visit(at, depth, bracket);
            }
            byte @ (b' ' | b':') => visit(at, depth, byte),
            _ => {}
        }
        at += 1;
    }
}

/// Whether a complete word precedes a position.
fn is_word(name: &str, at: usize, word: &str) -> bool {
    name.is_char_boundary(at)
        && name[..at]
            .strip_suffix(word)
            .is_some_and(|before| !before.ends_with(|last: char| last.is_alphanumeric() || last == '_'))
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

/// A symbol without what compilers append to those of copies and parts of functions, and linkers to
/// those of local functions: `f.constprop.0` is `f`.
#[must_use]
pub(crate) fn of_source(symbol: &str) -> &str {
    const APPENDED: [&str; 6] = [".lto_priv.", ".llvm.", ".constprop.", ".isra.", ".part.", ".cold"];
    let ends = APPENDED.iter().filter_map(|appended| symbol.find(appended));
    ends.min().map_or(symbol, |end| &symbol[..end])
}

/// A legacy Rust name is also a C++ name; its hash, which the short form omits, distinguishes the
/// two.
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

/// Only names with the prefix of mangled ones: the parser also accepts bare types, and would read
/// `f` as `float`.
fn cpp(name: &str) -> Option<String> {
    if !name.starts_with("_Z") && !name.starts_with("_GLOBAL_") {
        return None;
    }
    let symbol = cpp_demangle::Symbol::new(name).ok()?;
    bounded(|text| symbol.structured_demangle(text, &cpp_demangle::DemangleOptions::new()))
}

/// The output of `write`, or `None` if that fails or is longer than [`MAX_LENGTH`]: a few bytes of
/// a mangled name can expand to gigabytes.
fn bounded(write: impl FnOnce(&mut Bounded) -> fmt::Result) -> Option<String> {
    let mut text = Bounded(String::new());
    write(&mut text).ok()?;
    Some(text.0)
}

struct Bounded(String);

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > MAX_LENGTH {
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
        // C: unchanged, even if the name would be a C++ type.
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
    fn names_in_tables_are_short() {
        #[track_caller]
        fn check(name: &str, path: &str, shown: &str) {
            assert_eq!((without_parameters(name), short(name).as_str()), (path, shown));
        }
        check("main", "main", "main");
        check("compress.part.0", "compress.part.0", "compress.part.0");
        check("Tree::insert(int)", "Tree::insert", "Tree::insert");
        check("f() [clone .part.0]", "f", "f [clone .part.0]");
        check("A::get(std::pair<int, long>) const", "A::get", "A::get");
        check("(anonymous namespace)::f(int)", "(anonymous namespace)::f", "(anonymous namespace)::f");
        check("a::(anonymous namespace)::f()", "a::(anonymous namespace)::f", "a::(anonymous namespace)::f");
        check("void f<int (*)(char)>(int (*)(char))", "f<int (*)(char)>", "f<…>");
        check(
            "std::vector<int, std::allocator<int> >::push_back(int const&)",
            "std::vector<int, std::allocator<int> >::push_back",
            "std::vector<…>::push_back",
        );
        check("A<B<int>>::C<int>::f<D>()", "A<B<int>>::C<int>::f<D>", "A<…>::C<…>::f<…>");
        check(
            "std::__cxx11::basic_string<char>::size() const",
            "std::__cxx11::basic_string<char>::size",
            "std::basic_string<…>::size",
        );
        check(
            "__gnu_cxx::__ops::__iter_less_iter()",
            "__gnu_cxx::__ops::__iter_less_iter",
            "__gnu_cxx::__iter_less_iter",
        );
        check("A<std::__1::B>::f()", "A<std::__1::B>::f", "A<…>::f");
        check("bool operator< <int>(A<int> const&, A<int> const&)", "operator< <int>", "operator< <…>");
        check("A::operator()(int) const", "A::operator()", "A::operator()");
        check("A<int>::operator->*(B)", "A<int>::operator->*", "A<…>::operator->*");
        check("A::operator bool() const", "A::operator bool", "A::operator bool");
        check("operator new(unsigned long)", "operator new", "operator new");
        check("cooperator<int>()", "cooperator<int>", "cooperator<…>");
        check(
            "f(int)::{lambda(int)#1}::operator()(int) const",
            "f(int)::{lambda(int)#1}::operator()",
            "f(int)::{lambda(int)#1}::operator()",
        );
        check(
            "<alloc::Vec<T> as core::Drop>::drop",
            "<alloc::Vec<T> as core::Drop>::drop",
            "<alloc::Vec<T> as core::Drop>::drop",
        );
        check("core::ptr::drop_in_place", "core::ptr::drop_in_place", "core::ptr::drop_in_place");
        check("", "", "");
        check("((<<>>", "((<<>>", "((<<>>");
    }

    #[test]
    fn long_names_and_names_that_explode_stay_as_they_are() {
        let long = format!("_Z{}{}v", MAX_LENGTH, "a".repeat(MAX_LENGTH));
        assert_eq!(demangle(&long), long);
        // Every level is a pair of the previous one: 2 to the power of 40 ints.
        let mut bomb = String::from("_Z1f1aIiiE");
        for level in 0..40 {
            let previous = if level == 0 { "S0_".to_owned() } else { format!("S{}_", base36(level)) };
            bomb.push_str(&format!("S_I{previous}{previous}E"));
        }
        assert!(demangle(&bomb).len() <= MAX_LENGTH);
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
            let _ = short(&demangle(&String::from_utf8(name).unwrap()));
        }
    }
}
