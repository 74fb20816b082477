//! The arguments and results of WASI preview 1, in human-readable form.

use std::fmt::Write;

/// Reads the program's memory; returns false if the address is outside of it.
pub(super) type Read<'a> = &'a mut dyn FnMut(u64, &mut [u8]) -> bool;

/// The meaning of a parameter, or of two successive ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// A number.
    Number,
    /// An address of data that is not shown.
    Address,
    /// A text: address and length.
    Text,
    /// Text that is read after the call.
    TextAfter,
    /// A buffer whose contents are not shown: address and length.
    Buffer,
    /// Buffers that the call writes out: address and count.
    Written,
    /// Buffers into which the call reads: address and count. Shown after the call, up to the number
    /// of bytes that the call stores at the next parameter's address.
    Read,
    /// The address at which the call stores a 32-bit or 64-bit number.
    Number32After,
    Number64After,
    /// The address at which the call stores the description of a preopened directory: its kind, and
    /// the length of its name.
    PrestatAfter,
    /// The address at which the call stores a file's state.
    FilestatAfter,
    /// The address at which the call stores a descriptor's state.
    FdstatAfter,
    /// One of these names, given by its index.
    Name(&'static [&'static str]),
    /// A set of these names, given by bits.
    Flags(&'static [&'static str]),
    /// Bits, in hexadecimal.
    Bits,
}

use Meaning::{
    Address, Bits, Buffer, FdstatAfter, FilestatAfter, Flags, Name, Number, Number32After, Number64After,
    PrestatAfter, Read as ReadInto, Text, TextAfter, Written,
};

const CLOCK: Meaning = Name(&["REALTIME", "MONOTONIC", "PROCESS_CPUTIME_ID", "THREAD_CPUTIME_ID"]);
const WHENCE: Meaning = Name(&["SET", "CUR", "END"]);
const ADVICE: Meaning = Name(&["NORMAL", "SEQUENTIAL", "RANDOM", "WILLNEED", "DONTNEED", "NOREUSE"]);
const LOOKUP: Meaning = Flags(&["SYMLINK_FOLLOW"]);
const OFLAGS: Meaning = Flags(&["CREAT", "DIRECTORY", "EXCL", "TRUNC"]);
const FDFLAGS: Meaning = Flags(&["APPEND", "DSYNC", "NONBLOCK", "RSYNC", "SYNC"]);
const FSTFLAGS: Meaning = Flags(&["ATIM", "ATIM_NOW", "MTIM", "MTIM_NOW"]);
const SHUTDOWN: Meaning = Flags(&["RD", "WR"]);
const RECEIVE: Meaning = Flags(&["PEEK", "WAITALL"]);
const FILETYPES: [&str; 8] = [
    "UNKNOWN",
    "BLOCK_DEVICE",
    "CHARACTER_DEVICE",
    "DIRECTORY",
    "REGULAR_FILE",
    "SOCKET_DGRAM",
    "SOCKET_STREAM",
    "SYMBOLIC_LINK",
];

/// The functions, with their parameters.
const FUNCTIONS: &[(&str, &[(&str, Meaning)])] = &[
    ("args_get", &[("argv", Address), ("buf", Address)]),
    ("args_sizes_get", &[("argc", Number32After), ("size", Number32After)]),
    ("clock_res_get", &[("clock", CLOCK), ("resolution", Number64After)]),
    ("clock_time_get", &[("clock", CLOCK), ("precision", Number), ("time", Number64After)]),
    ("environ_get", &[("environ", Address), ("buf", Address)]),
    ("environ_sizes_get", &[("count", Number32After), ("size", Number32After)]),
    ("fd_advise", &[("fd", Number), ("offset", Number), ("len", Number), ("advice", ADVICE)]),
    ("fd_allocate", &[("fd", Number), ("offset", Number), ("len", Number)]),
    ("fd_close", &[("fd", Number)]),
    ("fd_datasync", &[("fd", Number)]),
    ("fd_fdstat_get", &[("fd", Number), ("stat", FdstatAfter)]),
    ("fd_fdstat_set_flags", &[("fd", Number), ("flags", FDFLAGS)]),
    ("fd_fdstat_set_rights", &[("fd", Number), ("rights", Bits), ("inheriting", Bits)]),
    ("fd_filestat_get", &[("fd", Number), ("stat", FilestatAfter)]),
    ("fd_filestat_set_size", &[("fd", Number), ("size", Number)]),
    ("fd_filestat_set_times", &[("fd", Number), ("atim", Number), ("mtim", Number), ("flags", FSTFLAGS)]),
    ("fd_pread", &[("fd", Number), ("iovs", ReadInto), ("offset", Number), ("nread", Number32After)]),
    ("fd_prestat_dir_name", &[("fd", Number), ("path", TextAfter)]),
    ("fd_prestat_get", &[("fd", Number), ("prestat", PrestatAfter)]),
    ("fd_pwrite", &[("fd", Number), ("iovs", Written), ("offset", Number), ("nwritten", Number32After)]),
    ("fd_read", &[("fd", Number), ("iovs", ReadInto), ("nread", Number32After)]),
    ("fd_readdir", &[("fd", Number), ("buf", Buffer), ("cookie", Number), ("used", Number32After)]),
    ("fd_renumber", &[("fd", Number), ("to", Number)]),
    ("fd_seek", &[("fd", Number), ("offset", Number), ("whence", WHENCE), ("position", Number64After)]),
    ("fd_sync", &[("fd", Number)]),
    ("fd_tell", &[("fd", Number), ("position", Number64After)]),
    ("fd_write", &[("fd", Number), ("iovs", Written), ("nwritten", Number32After)]),
    ("path_create_directory", &[("fd", Number), ("path", Text)]),
    ("path_filestat_get", &[("fd", Number), ("lookup", LOOKUP), ("path", Text), ("stat", FilestatAfter)]),
    (
        "path_filestat_set_times",
        &[
            ("fd", Number),
            ("lookup", LOOKUP),
            ("path", Text),
            ("atim", Number),
            ("mtim", Number),
            ("flags", FSTFLAGS),
        ],
    ),
    (
        "path_link",
        &[("fd", Number), ("lookup", LOOKUP), ("path", Text), ("new_fd", Number), ("new_path", Text)],
    ),
    (
        "path_open",
        &[
            ("fd", Number),
            ("lookup", LOOKUP),
            ("path", Text),
            ("oflags", OFLAGS),
            ("rights", Bits),
            ("inheriting", Bits),
            ("fdflags", FDFLAGS),
            ("opened", Number32After),
        ],
    ),
    ("path_readlink", &[("fd", Number), ("path", Text), ("buf", Buffer), ("used", Number32After)]),
    ("path_remove_directory", &[("fd", Number), ("path", Text)]),
    ("path_rename", &[("fd", Number), ("path", Text), ("new_fd", Number), ("new_path", Text)]),
    ("path_symlink", &[("contents", Text), ("fd", Number), ("path", Text)]),
    ("path_unlink_file", &[("fd", Number), ("path", Text)]),
    ("poll_oneoff", &[("in", Address), ("out", Address), ("count", Number), ("events", Number32After)]),
    ("proc_exit", &[("code", Number)]),
    ("proc_raise", &[("signal", Number)]),
    ("random_get", &[("buf", Buffer)]),
    ("sched_yield", &[]),
    ("sock_accept", &[("fd", Number), ("flags", FDFLAGS), ("accepted", Number32After)]),
    (
        "sock_recv",
        &[
            ("fd", Number),
            ("iovs", ReadInto),
            ("flags", RECEIVE),
            ("nread", Number32After),
            ("flags", Number32After),
        ],
    ),
    ("sock_send", &[("fd", Number), ("iovs", Written), ("flags", Number), ("nwritten", Number32After)]),
    ("sock_shutdown", &[("fd", Number), ("how", SHUTDOWN)]),
];

/// The names of error codes, by number.
const ERRORS: [&str; 77] = [
    "SUCCESS",
    "2BIG",
    "ACCES",
    "ADDRINUSE",
    "ADDRNOTAVAIL",
    "AFNOSUPPORT",
    "AGAIN",
    "ALREADY",
    "BADF",
    "BADMSG",
    "BUSY",
    "CANCELED",
    "CHILD",
    "CONNABORTED",
    "CONNREFUSED",
    "CONNRESET",
    "DEADLK",
    "DESTADDRREQ",
    "DOM",
    "DQUOT",
    "EXIST",
    "FAULT",
    "FBIG",
    "HOSTUNREACH",
    "IDRM",
    "ILSEQ",
    "INPROGRESS",
    "INTR",
    "INVAL",
    "IO",
    "ISCONN",
    "ISDIR",
    "LOOP",
    "MFILE",
    "MLINK",
    "MSGSIZE",
    "MULTIHOP",
    "NAMETOOLONG",
    "NETDOWN",
    "NETRESET",
    "NETUNREACH",
    "NFILE",
    "NOBUFS",
    "NODEV",
    "NOENT",
    "NOEXEC",
    "NOLCK",
    "NOLINK",
    "NOMEM",
    "NOMSG",
    "NOPROTOOPT",
    "NOSPC",
    "NOSYS",
    "NOTCONN",
    "NOTDIR",
    "NOTEMPTY",
    "NOTRECOVERABLE",
    "NOTSOCK",
    "NOTSUP",
    "NOTTY",
    "NXIO",
    "OVERFLOW",
    "OWNERDEAD",
    "PERM",
    "PIPE",
    "PROTO",
    "PROTONOSUPPORT",
    "PROTOTYPE",
    "RANGE",
    "ROFS",
    "SPIPE",
    "SRCH",
    "STALE",
    "TIMEDOUT",
    "TXTBSY",
    "XDEV",
    "NOTCAPABLE",
];

/// The name of an error code.
pub(super) fn error(code: u64) -> &'static str {
    usize::try_from(code).ok().and_then(|code| ERRORS.get(code)).copied().unwrap_or("?")
}

/// Maximum number of bytes of a text or buffer that are shown.
const SHOWN: usize = 64;
/// Maximum number of buffers of a list that are shown.
const BUFFERS: u64 = 16;

/// A WASI function, by its parameters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Function(&'static [(&'static str, Meaning)]);

/// A call that has begun.
#[derive(Debug, Default)]
pub(super) struct Begun(Vec<Argument>);

#[derive(Debug)]
enum Argument {
    Known(String),
    /// The argument is read when the call has returned.
    After {
        name: &'static str,
        what: Meaning,
        values: [u64; 2],
    },
}

impl Function {
    /// The function of this name, if it exists and has this number of parameters.
    pub(super) fn named(module: &str, name: &str, parameters: usize) -> Option<Self> {
        let is_wasi = ["wasi_snapshot_preview1", "wasi_unstable"].contains(&module);
        let (_, arguments) = FUNCTIONS.iter().find(|(known, _)| is_wasi && *known == name)?;
        let expected: usize = arguments.iter().map(|(_, what)| what.parameters()).sum();
        (expected == parameters).then_some(Self(arguments))
    }

    /// Reads the arguments. Signed numbers are extended to 64 bits.
    pub(super) fn begin(self, values: &[i64], read: Read<'_>) -> Begun {
        let mut values = values.iter().copied();
        let arguments = self.0.iter().map(|(name, what)| {
            let first = values.next().unwrap_or(0);
            let second = if what.parameters() == 2 { values.next().unwrap_or(0) } else { 0 };
            let values = [u64::from(first as u32), u64::from(second as u32)];
            let shown = match *what {
                Number => first.to_string(),
                Bits => format!("{first:#x}"),
                Address => format!("{:#x}", values[0]),
                Buffer => format!("{:#x}[{}]", values[0], values[1]),
                Text => text(values[0], values[1], read),
                Written => buffers(values, None, read),
                Name(names) => {
                    names.get(values[0] as usize).map_or_else(|| first.to_string(), |name| (*name).to_owned())
                }
                Flags(names) => flags(values[0], names),
                _ => return Argument::After { name, what: *what, values },
            };
            Argument::Known(format!("{name}={shown}"))
        });
        Begun(arguments.collect())
    }
}

impl Begun {
    /// The arguments, including those that the call has stored if it has succeeded.
    pub(super) fn end(&self, has_succeeded: bool, read: Read<'_>) -> String {
        let arguments: Vec<String> =
            (0..self.0.len()).map(|at| self.argument(at, has_succeeded, read)).collect();
        arguments.join(", ")
    }

    fn argument(&self, at: usize, has_succeeded: bool, read: Read<'_>) -> String {
        let (name, what, values) = match &self.0[at] {
            Argument::Known(text) => return text.clone(),
            Argument::After { name, values, .. } if !has_succeeded => {
                return format!("{name}={:#x}", values[0]);
            }
            Argument::After { name, what, values } => (name, *what, *values),
        };
        let shown = match what {
            Number32After => number(values[0], 4, read).map(|number| (number as u32).to_string()),
            Number64After => number(values[0], 8, read).map(|number| number.to_string()),
            TextAfter => Some(text(values[0], values[1], read)),
            ReadInto => {
                let length = self.0[at..].iter().find_map(|argument| match argument {
                    Argument::After { what: Number32After, values, .. } => number(values[0], 4, read),
                    _ => None,
                });
                Some(buffers(values, length, read))
            }
            PrestatAfter => number(values[0], 8, read).map(|stat| format!("{{DIR, length={}}}", stat >> 32)),
            FdstatAfter => number(values[0], 8, read)
                .map(|stat| format!("{{{}, flags={}}}", filetype(stat), bits(stat >> 16 & 0xffff, FDFLAGS))),
            FilestatAfter => {
                let filetype = number(values[0] + 16, 8, read).map(filetype);
                let size = number(values[0] + 32, 8, read);
                filetype.zip(size).map(|(filetype, size)| format!("{{{filetype}, size={size}}}"))
            }
            _ => None,
        };
        format!("{name}={}", shown.unwrap_or_else(|| format!("{:#x}", values[0])))
    }
}

impl Meaning {
    fn parameters(self) -> usize {
        match self {
            Text | TextAfter | Buffer | Written | ReadInto => 2,
            _ => 1,
        }
    }
}

fn filetype(stat: u64) -> &'static str {
    FILETYPES.get((stat & 0xff) as usize).copied().unwrap_or("?")
}

fn bits(value: u64, what: Meaning) -> String {
    if let Flags(names) = what { flags(value, names) } else { format!("{value:#x}") }
}

fn flags(value: u64, names: &[&str]) -> String {
    let mut set: Vec<String> = names
        .iter()
        .enumerate()
        .filter(|(at, _)| value >> at & 1 != 0)
        .map(|(_, name)| (*name).to_owned())
        .collect();
    let others = value >> names.len() << names.len();
    if others != 0 {
        set.push(format!("{others:#x}"));
    }
    if set.is_empty() { "0".to_owned() } else { set.join("|") }
}

fn number(address: u64, bytes: usize, read: Read<'_>) -> Option<u64> {
    let mut buffer = [0; 8];
    read(address, &mut buffer[..bytes]).then(|| u64::from_le_bytes(buffer))
}

/// The beginning of a text, in quotation marks.
fn text(address: u64, length: u64, read: Read<'_>) -> String {
    let mut buffer = [0; SHOWN];
    let shown = &mut buffer[..length.min(SHOWN as u64) as usize];
    if !read(address, shown) {
        return format!("{address:#x}[{length}]");
    }
    let mut out = String::from("\"");
    for chunk in shown.utf8_chunks() {
        for character in chunk.valid().chars() {
            out.extend(character.escape_debug());
        }
        // A character that is cut off at the end is not an error.
        for byte in chunk.invalid() {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out.push('"');
    if length > SHOWN as u64 {
        let _ = write!(out, "...{length}");
    }
    out
}

/// The contents of buffers, up to a total length.
fn buffers([list, count]: [u64; 2], mut length: Option<u64>, read: Read<'_>) -> String {
    let mut shown = Vec::new();
    for at in 0..count.min(BUFFERS) {
        let Some(buffer) = number(list + 8 * at, 8, read) else {
            return format!("{list:#x}[{count}]");
        };
        let (address, size) = (buffer & 0xffff_ffff, buffer >> 32);
        let used = length.map_or(size, |length| size.min(length));
        length = length.map(|length| length - used);
        shown.push(text(address, used, read));
    }
    if count > BUFFERS {
        shown.push(format!("...{count}"));
    }
    format!("[{}]", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call that changes the memory.
    #[track_caller]
    fn check(name: &str, values: &[i64], memory: &mut [u8], change: impl FnOnce(&mut [u8]), expected: &str) {
        fn reader(memory: &[u8]) -> impl FnMut(u64, &mut [u8]) -> bool {
            |address, buffer| {
                let bytes = memory.get(address as usize..).and_then(|bytes| bytes.get(..buffer.len()));
                bytes.map(|bytes| buffer.copy_from_slice(bytes)).is_some()
            }
        }
        let function = Function::named("wasi_snapshot_preview1", name, values.len()).unwrap();
        let begun = function.begin(values, &mut reader(memory));
        change(memory);
        assert_eq!(begun.end(true, &mut reader(memory)), expected);
    }

    fn store(memory: &mut [u8], address: usize, values: &[u32]) {
        for (at, value) in values.iter().enumerate() {
            memory[address + 4 * at..][..4].copy_from_slice(&value.to_le_bytes());
        }
    }

    #[test]
    fn buffers_and_texts_are_read() {
        let mut memory = vec![0; 1000];
        memory[100..106].copy_from_slice(b"hello\n");
        store(&mut memory, 8, &[100, 6, 102, 2]);
        let writes = |memory: &mut [u8]| store(memory, 32, &[8]);
        check("fd_write", &[1, 8, 2, 32], &mut memory, writes, r#"fd=1, iovs=["hello\n", "ll"], nwritten=8"#);
        let reads = |memory: &mut [u8]| {
            memory[100..103].copy_from_slice("é!".as_bytes());
            store(memory, 32, &[3]);
        };
        check("fd_read", &[0, 8, 2, 32], &mut memory, reads, r#"fd=0, iovs=["é!", ""], nread=3"#);
        let nothing = |_: &mut [u8]| {};
        check("fd_write", &[1, 996, 1, 32], &mut memory, nothing, "fd=1, iovs=0x3e4[1], nwritten=3");
        check(
            "path_unlink_file",
            &[3, 103, 2000],
            &mut memory,
            nothing,
            "fd=3, path=\"lo\\n\\0\\0...2000"
                .replace("\\0\\0", &"\\0".repeat(61))
                .replace("...2000", "\"...2000")
                .as_str(),
        );
    }

    #[test]
    fn numbers_have_names() {
        let mut memory = vec![0; 100];
        memory[40..45].copy_from_slice(b"a.txt");
        let open = |memory: &mut [u8]| store(memory, 8, &[5]);
        check(
            "path_open",
            &[3, 1, 40, 5, 9, 0x2000, -1, 4 | 32, 8],
            &mut memory,
            open,
            "fd=3, lookup=SYMLINK_FOLLOW, path=\"a.txt\", oflags=CREAT|TRUNC, rights=0x2000, \
             inheriting=0xffffffffffffffff, fdflags=NONBLOCK|0x20, opened=5",
        );
        check("fd_seek", &[3, -7, 2, 8], &mut memory, |_| {}, "fd=3, offset=-7, whence=END, position=5");
        let stat = |memory: &mut [u8]| store(memory, 0, &[0, 0, 0, 0, 4, 0, 0, 0, 1234, 0]);
        check("fd_filestat_get", &[3, 0], &mut memory, stat, "fd=3, stat={REGULAR_FILE, size=1234}");
        let stat = |memory: &mut [u8]| store(memory, 0, &[2 | 1 << 16]);
        check("fd_fdstat_get", &[1, 0], &mut memory, stat, "fd=1, stat={CHARACTER_DEVICE, flags=APPEND}");
        let stat = |memory: &mut [u8]| store(memory, 0, &[0, 4]);
        check("fd_prestat_get", &[3, 0], &mut memory, stat, "fd=3, prestat={DIR, length=4}");
    }

    #[test]
    fn errors_have_the_names_of_the_interface() {
        let names =
            [(0, "SUCCESS"), (8, "BADF"), (28, "INVAL"), (44, "NOENT"), (63, "PERM"), (76, "NOTCAPABLE")];
        for (code, name) in names {
            assert_eq!(error(code), name);
        }
        assert_eq!(error(77), "?");
    }

    #[test]
    fn functions_have_as_many_parameters_as_the_interface() {
        let counts =
            [("path_open", 9), ("fd_write", 4), ("sock_recv", 6), ("poll_oneoff", 4), ("path_link", 7)];
        for (name, count) in counts {
            assert!(Function::named("wasi_unstable", name, count).is_some(), "{name}");
            assert!(Function::named("wasi_unstable", name, count + 1).is_none(), "{name}");
            assert!(Function::named("env", name, count).is_none(), "{name}");
        }
    }
}
