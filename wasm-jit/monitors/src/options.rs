//! [`Request`]: a monitor's name with options, as on a command line.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use wildmatch::WildMatch;

use crate::Error;

/// An option of a monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionInfo {
    /// The option's name.
    pub name: &'static str,
    /// The placeholder of the option's value, such as `N` or `GLOB`; empty for an option without a
    /// value.
    pub value: &'static str,
    /// The help text: one sentence without a full stop.
    pub help: &'static str,
    /// Whether the option may be given more than once.
    pub is_repeated: bool,
}

impl OptionInfo {
    /// An option without a value.
    pub const fn flag(name: &'static str, help: &'static str) -> Self {
        Self::with_value(name, "", help)
    }

    /// An option that may be given once.
    pub const fn with_value(name: &'static str, value: &'static str, help: &'static str) -> Self {
        Self { name, value, help, is_repeated: false }
    }

    /// An option that may be given more than once.
    pub const fn repeated(name: &'static str, value: &'static str, help: &'static str) -> Self {
        Self { name, value, help, is_repeated: true }
    }
}

/// Options that all monitors have.
pub(crate) const COMMON: &[OptionInfo] = &[
    OptionInfo::repeated(
        "function",
        "GLOB",
        "observes only functions whose name or index matches; may be repeated",
    ),
    OptionInfo::with_value(
        "rows",
        "N",
        "shows at most this many rows of each table on a terminal [default: 20]",
    ),
];

/// The options of a request: keys with values, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options(Vec<(String, String)>);

impl Options {
    /// The last value of an option.
    pub fn get(&self, option: &str) -> Option<&str> {
        let found = self.0.iter().rev().find(|(key, _)| key == option);
        found.map(|(_, value)| value.as_str())
    }

    /// All values of an option.
    pub fn all<'a>(&'a self, option: &'a str) -> impl DoubleEndedIterator<Item = &'a str> {
        self.0.iter().filter(move |(key, _)| key == option).map(|(_, value)| value.as_str())
    }

    /// Whether an option without a value is given.
    pub fn flag(&self, option: &str) -> bool {
        self.get(option).is_some()
    }

    /// The last value of an option as a number or another type.
    ///
    /// # Errors
    /// [`Error::Value`], whose message says what is `expected`, such as "a number of bytes".
    pub fn parse<T: FromStr>(&self, option: &str, expected: &str) -> Result<Option<T>, Error> {
        let parse = |value: &str| {
            value.parse().map_err(|_| Error::Value {
                option: option.to_owned(),
                value: value.to_owned(),
                expected: expected.to_owned(),
            })
        };
        self.get(option).map(parse).transpose()
    }

    /// The values of an option as globs: `*` matches any text, `?` any character. `None` if the
    /// option is not given.
    pub fn globs(&self, option: &str) -> Option<Vec<WildMatch>> {
        let globs: Vec<_> = self.all(option).map(WildMatch::new).collect();
        (!globs.is_empty()).then_some(globs)
    }

    /// # Errors
    /// [`Error::UnknownOption`] if there are any.
    pub(crate) fn check_none(&self, monitor: &str) -> Result<(), Error> {
        match self.0.first() {
            None => Ok(()),
            Some((option, _)) => Err(Error::UnknownOption {
                monitor: monitor.to_owned(),
                option: option.clone(),
                known: "none".to_owned(),
            }),
        }
    }

    /// # Errors
    /// [`Error::UnknownOption`] if there is an option that is not in `known`, [`Error::Form`] if
    /// one is given more often than allowed, or has a value although it takes none.
    pub(crate) fn check(&self, monitor: &str, known: &[OptionInfo]) -> Result<(), Error> {
        let all = || COMMON.iter().chain(known);
        for (at, (key, value)) in self.0.iter().enumerate() {
            let Some(option) = all().find(|option| option.name == key) else {
                return Err(Error::UnknownOption {
                    monitor: monitor.to_owned(),
                    option: key.clone(),
                    known: all().map(|option| option.name).collect::<Vec<_>>().join(", "),
                });
            };
            let wrong = |reason| Err(Error::Form { option: key.clone(), reason });
            if option.value.is_empty() && !value.is_empty() {
                return wrong("takes no value");
            }
            if !option.is_repeated && self.0[..at].iter().any(|(earlier, _)| earlier == key) {
                return wrong("is there twice");
            }
        }
        Ok(())
    }
}

/// As in a request, with the braces.
impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = self.0.iter().map(|(key, value)| match value.is_empty() {
            true => key.clone(),
            false => format!("{key}={value}"),
        });
        write!(f, "{{{}}}", options.collect::<Vec<_>>().join(","))
    }
}

/// A monitor's name, with options: `NAME` or `NAME{key=value,...}`. An option without a value
/// consists of its key only. A name that contains a dot or a slash is the name of a file, and may
/// contain any characters except braces and line feeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The monitor's name.
    pub name: String,
    /// The monitor's options.
    pub options: Options,
}

impl Request {
    /// Reads a list: `NAME[{options}][,NAME[{options}]]...`. The name of an existing file, without
    /// options, is no list, even if it has commas; existing libraries may follow it, each after a
    /// plus sign.
    ///
    /// # Errors
    /// [`Error::Syntax`], and as [`Request::check_all`].
    pub fn list(text: &str) -> Result<Vec<Self>, Error> {
        if let Ok(request) = text.parse::<Self>()
            && text.contains(',')
            && request.options == Options::default()
            && text.split('+').all(|file| Path::new(file).exists())
        {
            return Ok(vec![request]);
        }
        let mut depth = 0;
        let separates = |c: char| {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            c == ',' && depth == 0
        };
        let all: Vec<Self> = text.split(separates).map(str::parse).collect::<Result<_, _>>()?;
        Self::check_all(&all)?;
        Ok(all)
    }

    /// Checks that monitors can be on at the same time: there is one of each name.
    ///
    /// # Errors
    /// [`Error::Twice`].
    pub fn check_all(requests: &[Self]) -> Result<(), Error> {
        for (at, second) in requests.iter().enumerate() {
            let first = requests[..at].iter().find(|first| first.name == second.name);
            if let Some(first) = first.filter(|first| first.options != second.options) {
                return Err(Error::Twice {
                    name: second.name.clone(),
                    first: first.to_string(),
                    second: second.to_string(),
                });
            }
        }
        Ok(())
    }

    /// Whether the name is that of a file, as opposed to a monitor that a session
    /// [knows](crate::Session::known).
    pub fn is_file(&self) -> bool {
        Self::is_file_name(&self.name)
    }

    pub(crate) fn is_file_name(name: &str) -> bool {
        name.contains(['.', '/'])
    }
}

/// As in a list.
impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.options.0.is_empty() {
            true => write!(f, "{}", self.name),
            false => write!(f, "{}{}", self.name, self.options),
        }
    }
}

impl FromStr for Request {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || Error::Syntax { text: text.to_owned() };
        let (name, options) = match text.split_once('{') {
            None => (text, ""),
            Some((name, rest)) => (name, rest.strip_suffix('}').ok_or_else(wrong)?),
        };
        let is_name = |name: &str| {
            !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
        };
        let is_file =
            |name: &str| Self::is_file_name(name) && !name.contains(['{', '}', '\n']) && name.trim() == name;
        if !is_name(name) && !is_file(name) {
            return Err(wrong());
        }
        let options = options.split(',').filter(|option| !option.is_empty()).map(|option| {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            is_name(key).then(|| (key.to_owned(), value.to_owned())).ok_or_else(wrong)
        });
        Ok(Self { name: name.to_owned(), options: Options(options.collect::<Result<_, _>>()?) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_names_with_options() {
        let request: Request = "trace{function=main,function=f*,operands}".parse().unwrap();
        assert_eq!(request.name, "trace");
        assert_eq!(request.options.all("function").collect::<Vec<_>>(), ["main", "f*"]);
        assert!(request.options.flag("operands") && !request.options.flag("rows"));
        assert_eq!(request.options.to_string(), "{function=main,function=f*,operands}");
        assert_eq!("icount".parse::<Request>().unwrap().options, Options::default());
        assert_eq!("icount{}".parse::<Request>().unwrap().options, Options::default());
    }

    #[test]
    fn options_say_whether_they_may_be_repeated() {
        for option in crate::ALL.iter().flat_map(|monitor| monitor.all_options()) {
            assert_eq!(option.help.contains("may be repeated"), option.is_repeated, "{}", option.name);
        }
    }

    #[test]
    fn lists_are_split_between_monitors() {
        let list = Request::list("icount,trace{function=a,operands},hotness{}").unwrap();
        assert_eq!(
            list.iter().map(|request| request.name.as_str()).collect::<Vec<_>>(),
            ["icount", "trace", "hotness"]
        );
        assert_eq!(list[1].options.get("function"), Some("a"));
    }

    #[test]
    fn a_monitor_is_there_once() {
        assert!(Request::list("icount,hotness,icount").is_ok());
        let error = Request::list("cache{level=1k:2:64},icount,cache{level=2k:2:64}").unwrap_err();
        let expected = "the monitor `cache` is requested twice, as `cache{level=1k:2:64}` and as \
                        `cache{level=2k:2:64}`: a program has one monitor of each name; run the program once for \
                        each of them";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn mistakes_are_errors() {
        assert_eq!("./a b.mm".parse::<Request>().unwrap().name, "./a b.mm");
        for text in [
            "./a}", " a.mm", "a.mm\n", "", "a,", ",a", "a{", "a}", "a{b}c", "a{=1}", "a b", "a{b}{c}", "a{}}",
        ] {
            assert!(Request::list(text).is_err(), "{text}");
        }
        let options = "a{rows=many}".parse::<Request>().unwrap().options;
        let error = options.parse::<usize>("rows", "a number").unwrap_err();
        assert_eq!(error.to_string(), "option `rows`: `many` is not a number");
        let flag = OptionInfo::flag("x", "");
        let check = |text: &str| text.parse::<Request>().unwrap().options.check("a", &[flag]);
        assert!(check("a{x,rows=1,function=b,function=c}").is_ok());
        for (text, expected) in [
            ("a{x=1}", "option `x` takes no value"),
            ("a{x=no}", "option `x` takes no value"),
            ("a{x,rows=1,x}", "option `x` is there twice"),
            ("a{rows=1,rows=1}", "option `rows` is there twice"),
        ] {
            assert_eq!(check(text).unwrap_err().to_string(), expected);
        }
        let error = "a{row=1}".parse::<Request>().unwrap().options.check("a", &[]).unwrap_err();
        assert_eq!(error.to_string(), "the monitor `a` has no option `row`; it has: function, rows");
    }
}
