//! Selection of functions: the options `only` and `skip`.
//!
//! A filter is evaluated once for each function, when its probes are discovered, and again when the
//! [settings](crate::settings) change. The probes of excluded functions are off.
//!
//! Demangling the names of a program with 50,000 functions takes half a second. Most names cannot
//! match, which the linker's names show: they contain the words of the demangled ones, except for
//! those that the demangler adds.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::ffi::CStr;
use std::fmt;

use wildmatch::WildMatch;

use crate::binary::symbol::{demangle, of_source, short, without_parameters};
use crate::error::Error;
use crate::report::FunctionReport;

/// The functions that the user selected.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Filter {
    /// If there are any, only functions that match one of these patterns are measured.
    pub only: Patterns,
    /// Functions that match one of these patterns are not measured, even if `only` includes them.
    pub skip: Patterns,
}

impl Filter {
    /// Whether a function is to be measured. `file` returns the path of its source file, and is
    /// called at most once, only if needed; a function without a known file matches no `file:`
    /// pattern.
    #[must_use]
    pub fn wants(&self, name: &CStr, object: &CStr, file: impl FnOnce() -> Option<String>) -> bool {
        if self.is_empty() {
            return true;
        }
        let mut function = LazyFunction::new(name, object, file);
        (self.only.0.is_empty() || self.only.match_any(&mut function)) && !self.skip.match_any(&mut function)
    }

    /// Whether there is a `file:` pattern.
    #[must_use]
    pub fn asks_for_files(&self) -> bool {
        self.only.ask_for_files() || self.skip.ask_for_files()
    }

    /// Whether the filter selects all functions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.only.0.is_empty() && self.skip.0.is_empty()
    }
}

/// Comma-separated patterns, as in an option.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Patterns(Vec<Pattern>);

impl Patterns {
    /// Parses `PATTERN[,PATTERN]...`.
    ///
    /// # Errors
    /// [`Error::BadValue`] for an empty pattern, and for one with another prefix; `key` is the
    /// option's name in the error.
    pub fn parse(key: &'static str, text: &str) -> Result<Patterns, Error> {
        let pattern = |text: &str| {
            let (part, glob) = if let Some(glob) = text.strip_prefix("object:") {
                (Part::Object, glob)
            } else if let Some(glob) = text.strip_prefix("file:") {
                (Part::File, glob)
            } else {
                (Part::Name, text)
            };
            let misspelt = part == Part::Name && has_other_prefix(text);
            (!glob.is_empty() && !misspelt).then(|| Pattern::new(part, glob))
        };
        let parsed: Option<Vec<Pattern>> = text.split(',').map(pattern).collect();
        parsed.map(Patterns).ok_or_else(|| Error::BadValue {
            key,
            value: text.to_owned(),
            allowed: "patterns separated by commas: NAME, object:NAME or file:NAME, with * and ?".to_owned(),
        })
    }

    /// Whether there is a `file:` pattern.
    #[must_use]
    pub fn ask_for_files(&self) -> bool {
        self.0.iter().any(|pattern| pattern.part == Part::File)
    }

    /// Adds the patterns of `more`.
    pub fn extend(&mut self, more: Patterns) {
        self.0.extend(more.0);
    }

    /// Whether there are no patterns.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a pattern matches a function of a report. The function's file is taken from its
    /// location.
    #[must_use]
    pub fn match_report(&self, function: &FunctionReport) -> bool {
        let file =
            || function.location.as_ref().and_then(|location| Some(location.rsplit_once(':')?.0.to_owned()));
        self.match_any(&mut LazyFunction {
            name: Name::Report(&function.name),
            object: function.object.as_str().into(),
            ask: Some(file),
            file: None,
        })
    }

    fn match_any<F: FnOnce() -> Option<String>>(&self, function: &mut LazyFunction<'_, F>) -> bool {
        self.0.iter().any(|pattern| pattern.matches(function))
    }
}

/// Whether a pattern begins like `lib:`: no function name has a single colon.
fn has_other_prefix(pattern: &str) -> bool {
    pattern.split_once(':').is_some_and(|(prefix, rest)| {
        !rest.starts_with(':') && prefix.chars().all(|char| char.is_ascii_alphanumeric())
    })
}

impl fmt::Display for Patterns {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Pattern { part, glob, word: _ }) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let part = match part {
                Part::Name => "",
                Part::Object => "object:",
                Part::File => "file:",
            };
            write!(formatter, "{comma}{part}{glob}")?;
        }
        Ok(())
    }
}

#[derive(Debug, Clone, PartialEq)]
struct Pattern {
    part: Part,
    /// `*` matches any text, `?` any character, everything else itself.
    glob: WildMatch,
    /// A word, or a part of one, that the linker's name contains if the demangled one matches.
    word: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Name,
    Object,
    File,
}

/// What demanglers write that is not in the linker's names, and the names that these abbreviate.
const OF_DEMANGLER: &str = "\
    void wchar_t bool char signed unsigned short int long __int128 float double __float128 half bfloat \
    decimal32 decimal64 decimal128 decimal char32_t char16_t char8_t auto decltype nullptr_t _Float \
    std allocator basic_string string basic_istream istream basic_ostream ostream basic_iostream iostream \
    vtt char_traits __vector __attribute__ _Complex _Imaginary complex imaginary const volatile restrict \
    __restrict __restrict__ VTT vtable for construction vtable typeinfo name fn guard variable reference \
    temporary virtual thunk non covariant return TLS init function wrapper transaction clone transactional \
    java resource Class anonymous namespace lambda unnamed type literal default arg parm operator new \
    delete co_await sizeof alignof typeid throw static_cast const_cast dynamic_cast reinterpret_cast noexcept \
    true false this template parameter object typename struct union enum class requires enable_if global \
    constructors destructors keyed to block invoke initializer hidden alias pointer offset override abi \
    closure shim impl dyn mut extern unsafe where str usize isize as";

impl Pattern {
    fn new(part: Part, glob: &str) -> Self {
        // A wildcard, a digit or punctuation ends a word.
        let words = glob.split(|char: char| !char.is_ascii_alphabetic() && char != '_');
        let is_characteristic = |word: &&str| word.len() >= 3 && !OF_DEMANGLER.contains(word);
        let word = words.filter(is_characteristic).max_by_key(|word| word.len()).map(str::to_owned);
        Self { part, glob: WildMatch::new(glob), word }
    }

    fn matches<F: FnOnce() -> Option<String>>(&self, function: &mut LazyFunction<'_, F>) -> bool {
        match self.part {
            Part::Name => self.matches_name(&function.name),
            Part::Object => matches_path(&self.glob, &function.object),
            Part::File => function.file().is_some_and(|file| matches_path(&self.glob, file)),
        }
    }

    /// Whether the pattern matches a function's name, which may be mangled, mangled without what
    /// the compiler has appended, demangled, or demangled without parameters; in reports, demangled
    /// or as shown in tables.
    fn matches_name(&self, name: &Name<'_>) -> bool {
        let any = |names: [&str; 2]| names.iter().any(|name| self.glob.matches(name));
        match name {
            Name::Linker { mangled, demangled } => {
                any([mangled, of_source(mangled)])
                    || self.word.as_ref().is_none_or(|word| mangled.contains(word)) && {
                        let demangled = demangled.get_or_init(|| demangle(mangled));
                        any([demangled, without_parameters(demangled)])
                    }
            }
            Name::Report(demangled) => {
                any([demangled, without_parameters(demangled)]) || self.glob.matches(&short(demangled))
            }
        }
    }
}

/// The name of a function.
enum Name<'a> {
    /// The linker's name, and the demangled one, once it is needed.
    Linker { mangled: Cow<'a, str>, demangled: OnceCell<String> },
    /// The name in a report, where the linker's name is not known.
    Report(&'a str),
}

/// A function, whose properties are looked up lazily, once.
struct LazyFunction<'a, F> {
    name: Name<'a>,
    object: Cow<'a, str>,
    ask: Option<F>,
    file: Option<String>,
}

impl<'a, F: FnOnce() -> Option<String>> LazyFunction<'a, F> {
    fn new(name: &'a CStr, object: &'a CStr, ask: F) -> Self {
        let name = Name::Linker { mangled: name.to_string_lossy(), demangled: OnceCell::new() };
        Self { name, object: object.to_string_lossy(), ask: Some(ask), file: None }
    }

    fn file(&mut self) -> Option<&str> {
        if let Some(ask) = self.ask.take() {
            self.file = ask();
        }
        self.file.as_deref()
    }
}

/// Whether a pattern matches a path: a pattern without a slash matches the last component; one with
/// a slash matches the complete path or a part after any of its slashes.
fn matches_path(glob: &WildMatch, path: &str) -> bool {
    if !glob.pattern_chars().contains(&'/') {
        return glob.matches(path.rsplit('/').next().unwrap_or(path));
    }
    let after_slashes = path.match_indices('/').map(|(at, _)| &path[at + 1..]);
    [path].into_iter().chain(after_slashes).any(|part| glob.matches(part))
}

#[cfg(test)]
mod tests {
    use object::{Object as _, ObjectSymbol as _};

    use super::*;

    #[test]
    fn globs() {
        #[track_caller]
        fn check(glob: &str, yes: &[&str], no: &[&str]) {
            yes.iter().for_each(|text| assert!(WildMatch::new(glob).matches(text), "{glob} {text}"));
            no.iter().for_each(|text| assert!(!WildMatch::new(glob).matches(text), "{glob} {text}"));
        }
        check("abc", &["abc"], &["", "ab", "abcd", "xabc"]);
        check("*", &["", "abc", "ä"], &[]);
        check("a?c", &["abc", "aäc"], &["ac", "abbc"]);
        check("a*", &["a", "abc"], &["", "ba"]);
        check("*c", &["c", "abc", "cc"], &["cb"]);
        check("a*b*c", &["abc", "aXbXc", "abbcbc"], &["ac", "acb"]);
        check("*aab", &["aaaab"], &["aaaa"]);
        check("operator[]", &["operator[]"], &["operator"]);
        check("", &[""], &["a"]);
        let long = "a".repeat(5000);
        check(&format!("{}b", "a*".repeat(50)), &[], &[&long]);
    }

    fn filter(only: &str, skip: &str) -> Filter {
        let parse = |text: &str| match text {
            "" => Patterns::default(),
            _ => Patterns::parse("only", text).unwrap(),
        };
        Filter { only: parse(only), skip: parse(skip) }
    }

    #[track_caller]
    fn check(only: &str, skip: &str, name: &CStr, expected: bool) {
        let file = || Some("/src/zlib/deflate.c".to_owned());
        assert_eq!(
            filter(only, skip).wants(name, c"/opt/lib/libz.so.1", file),
            expected,
            "{only} {skip} {name:?}"
        );
    }

    #[test]
    fn names_match_mangled_demangled_and_without_parameters() {
        const PUSH: &CStr = c"_ZNSt6vectorIiSaIiEE9push_backERKi";
        check("", "", c"main", true);
        check("main", "", c"main", true);
        check("main", "", c"mainly", false);
        check("main*,other", "", c"mainly", true);
        check("std::vector<*>::push_back", "", PUSH, true);
        check("std::vector<*>::push_back(int const&)", "", PUSH, true);
        check("_ZNSt6vector*", "", PUSH, true);
        check("push_back", "", PUSH, false);
        check("", "*push_back*", PUSH, false);
        check("main", "*push_back*", PUSH, false);
        check("std::*", "*::push_back", PUSH, false);
    }

    #[test]
    fn words_of_demangled_names_are_in_the_linkers_names() {
        let executable = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let executable = object::File::parse(&*executable).unwrap();
        let mut names: Vec<String> =
            executable.symbols().filter_map(|symbol| Some(symbol.name().ok()?.to_owned())).collect();
        names.retain(|name| name.starts_with("_ZN") || name.starts_with("_R"));
        assert!(names.len() > 1000, "{}", names.len());
        names.extend(
            [
                "_ZNSt6vectorIiSaIiEE9push_backERKi",
                "_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEC1EPKcRKS3_",
                "_ZN12_GLOBAL__N_14initEv",
                "_ZZN3app3runEvENKUlRKSsE_clES1_",
                "_ZN4Tree8IteratorppEv",
                "_ZTv0_n24_NSiD0Ev",
                "_ZlsRSoRK5Point",
                "_ZNKSt8functionIFvDnPVKwEEcvbEv",
                "_Z4castILb1EEDTstT_Ev",
            ]
            .map(str::to_owned),
        );
        for name in names {
            let demangled = demangle(&name);
            for word in demangled.split(|char: char| !char.is_ascii_alphabetic() && char != '_') {
                let pattern = Pattern::new(Part::Name, word);
                assert!(
                    pattern.word.is_none_or(|word| name.contains(&word)),
                    "{word} of {demangled}, {name}"
                );
            }
        }
    }

    #[test]
    fn copies_of_a_function_have_its_name() {
        for copy in [
            c"hash.lto_priv.0",
            c"hash.llvm.12345",
            c"hash.constprop.0",
            c"hash.isra.0.part.1",
            c"hash.part.0.cold",
            c"_Z4hashi.constprop.0",
        ] {
            check("hash", "", copy, true);
            check("", "hash", copy, false);
        }
        check("hash.lto_priv.0", "", c"hash.lto_priv.0", true);
        check("hash", "", c"hash.partial.0", false);
    }

    #[test]
    fn objects_and_files_match_by_their_last_components() {
        check("object:libz.so*", "", c"f", true);
        check("object:libz", "", c"f", false);
        check("object:lib/libz.so.1", "", c"f", true);
        check("object:/opt/*", "", c"f", true);
        check("object:opt*", "", c"f", false);
        check("file:deflate.c", "", c"f", true);
        check("file:zlib/*", "", c"f", true);
        check("file:lib/*", "", c"f", false);
        check("file:zlib", "", c"f", false);
        check("f", "file:*.c", c"f", false);
        check("g,file:*.c", "object:libm*", c"f", true);
    }

    #[test]
    fn a_file_is_asked_for_once_and_only_if_it_matters() {
        let by_file = filter("file:a.c,file:b.c", "file:c.c");
        let mut asked = 0;
        let file = || {
            asked += 1;
            Some("/b.c".to_owned())
        };
        assert!(by_file.wants(c"f", c"/bin/app", file));
        assert_eq!(asked, 1);
        assert!(!by_file.wants(c"f", c"/bin/app", || None), "a function without a file");
        assert!(filter("f,file:a.c", "").wants(c"f", c"/bin/app", || unreachable!()));
    }

    #[test]
    fn patterns_are_written_as_they_were_read() {
        for (text, ask_for_files) in [("a", false), ("a*,object:l?b,file:src/*.c", true)] {
            let patterns = Patterns::parse("only", text).unwrap();
            assert_eq!((patterns.to_string(), patterns.ask_for_files()), (text.to_owned(), ask_for_files));
        }
        assert!(Patterns::parse("only", "a::b(c::d),::e").is_ok());
        for text in ["", "a,", "object:", "a,file:,b", "lib:a", "a,source:b.c", ":a"] {
            let error = Patterns::parse("skip", text).unwrap_err().to_string();
            assert!(error.starts_with(&format!("skip={text}: expected patterns")), "{error}");
        }
    }
}
