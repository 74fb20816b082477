//! The mappings of this process, read from `/proc/thread-self/maps`. `/proc/self` is that of the
//! main thread, which is empty after this thread has ended, even if others are still running.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;

/// The identity of a mapped file: device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId {
    device: (u32, u32),
    inode: u64,
}

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) range: Range<usize>,
    /// The offset of the mapping's start in the file.
    pub(crate) offset: usize,
    /// None for anonymous memory.
    pub(crate) file: Option<FileId>,
    /// Whether that file is a memory file of this crate.
    pub(crate) is_ours: bool,
    /// Whether it is the main thread's stack.
    pub(crate) is_stack: bool,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    pub(crate) executable: bool,
    pub(crate) shared: bool,
}

/// A file of this process in `/proc`.
pub(crate) fn open(name: &str) -> io::Result<File> {
    // Kernels before 3.17 have only `/proc/self`.
    File::open(format!("/proc/thread-self/{name}")).or_else(|_| File::open(format!("/proc/self/{name}")))
}

/// The kernel's table of mappings, ascending, a line for each:
/// `START-END ACCESS OFFSET DEVICE INODE PATH`.
pub(crate) fn table() -> io::Result<String> {
    let mut table = Vec::new();
    open("maps")?.read_to_end(&mut table)?;
    Ok(String::from_utf8_lossy(&table).into_owned())
}

/// All mappings, ascending.
pub(crate) fn mappings() -> io::Result<Vec<Mapping>> {
    Ok(table()?.lines().filter_map(mapping).collect())
}

/// The mapping that contains this address.
pub(crate) fn mapping_at(address: usize) -> Option<Mapping> {
    mappings().ok()?.into_iter().find(|mapping| mapping.range.contains(&address))
}

/// The files that are mapped at these addresses; `None` if the mappings cannot be read.
/// Async-signal-safe: does not allocate.
pub(crate) fn files_at<const N: usize>(addresses: [usize; N]) -> Option<[Option<FileId>; N]> {
    let mut files = [None; N];
    read_lines(open_quietly()?, |line| {
        let Some(mapping) = std::str::from_utf8(line).ok().and_then(mapping) else { return };
        for (file, _) in files.iter_mut().zip(addresses).filter(|(_, at)| mapping.range.contains(at)) {
            *file = mapping.file;
        }
    })
    .ok()?;
    Some(files)
}

/// As [`open`]`("maps")`, without allocation.
fn open_quietly() -> Option<File> {
    File::open("/proc/thread-self/maps").or_else(|_| File::open("/proc/self/maps")).ok()
}

/// Calls `act` with each line, without the line break. A line that is longer than the buffer is
/// truncated.
fn read_lines(mut from: impl Read, mut act: impl FnMut(&[u8])) -> io::Result<()> {
    let mut buffer = [0; LINES];
    let (mut filled, mut is_rest) = (0, false);
    loop {
        let read = match from.read(&mut buffer[filled..]) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        filled += read;
        let mut start = 0;
        while let Some(length) = buffer[start..filled].iter().position(|byte| *byte == b'\n') {
            if !std::mem::take(&mut is_rest) {
                act(&buffer[start..start + length]);
            }
            start += length + 1;
        }
        if start == 0 && filled == buffer.len() {
            if !std::mem::replace(&mut is_rest, true) {
                act(&buffer);
            }
            start = filled;
        }
        buffer.copy_within(start..filled, 0);
        filled -= start;
        if read == 0 {
            return Ok(());
        }
    }
}

/// Length of the buffer of [`read_lines`]: small enough for the stack of a signal handler.
const LINES: usize = if cfg!(test) { 96 } else { 1024 };

/// Parses a line: `start-end rwxp offset device inode path`.
fn mapping(line: &str) -> Option<Mapping> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let number = |digits: &str| usize::from_str_radix(digits, 16).ok();
    let [readable, writable, executable, shared]: [u8; 4] = fields.next()?.as_bytes().try_into().ok()?;
    let offset = number(fields.next()?)?;
    let (major, minor) = fields.next()?.split_once(':')?;
    let device = |digits: &str| u32::from_str_radix(digits, 16).ok();
    let inode = fields.next()?.parse().ok()?;
    let file = FileId { device: (device(major)?, device(minor)?), inode };
    let path = fields.next();
    Some(Mapping {
        range: number(start)?..number(end)?,
        offset,
        // Anonymous memory has the inode 0.
        file: (inode != 0).then_some(file),
        is_ours: path.and_then(|path| path.strip_prefix("/memfd:")) == MEMORY_FILE.to_str().ok(),
        is_stack: path == Some("[stack]"),
        readable: readable == b'r',
        writable: writable == b'w',
        executable: executable == b'x',
        shared: shared == b's',
    })
}

/// Name of the memory files of this crate.
pub(crate) const MEMORY_FILE: &CStr = c"patched-text";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_mapping() {
        let line = "7f0a1000-7f0a3000 r-xp 00001000 fe:01 1234   /lib/a b.so";
        let expected = Mapping {
            range: 0x7f0a_1000..0x7f0a_3000,
            offset: 0x1000,
            file: Some(FileId { device: (0xfe, 1), inode: 1234 }),
            is_ours: false,
            is_stack: false,
            readable: true,
            writable: false,
            executable: true,
            shared: false,
        };
        assert_eq!(mapping(line), Some(expected));
        let line = "1000-2000 -w-s 0 0:0 0";
        assert!(
            mapping(line).is_some_and(|mapping| mapping.shared && mapping.writable && mapping.file.is_none())
        );
        let is_ours = |line| mapping(line).is_some_and(|mapping| mapping.is_ours);
        assert!(is_ours("1000-2000 r-xp 0 00:01 7   /memfd:patched-text (deleted)"));
        assert!(!is_ours("1000-2000 r-xp 0 00:01 7   /memfd:patched-text2 (deleted)"));
        assert!(!is_ours("1000-2000 r-xp 0 00:01 7   /lib/memfd:patched-text"));
        assert_eq!(mapping("nothing"), None);
    }

    #[test]
    fn this_code_is_mapped_executable() {
        let own = mapping_at(mappings as *const () as usize).expect("own code is mapped");
        assert!(own.executable && own.readable && !own.writable && !own.shared);
        assert_eq!(mapping_at(0), None);
    }

    /// Returns a few bytes at a time.
    struct Slowly<'a>(&'a [u8], usize);

    impl Read for Slowly<'_> {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            let length = self.1.min(to.len()).min(self.0.len());
            let (now, later) = self.0.split_at(length);
            to[..length].copy_from_slice(now);
            self.0 = later;
            Ok(length)
        }
    }

    #[test]
    fn lines_of_any_length_are_read_in_pieces_of_any_length() {
        let lines: Vec<Vec<u8>> =
            (0..4 * LINES).map(|length| vec![b'a' + (length % 26) as u8; length]).collect();
        let text: Vec<u8> = lines.iter().flat_map(|line| [line.as_slice(), b"\n"].concat()).collect();
        for piece in [1, 7, LINES - 1, LINES, 3 * LINES] {
            let mut read = Vec::new();
            read_lines(Slowly(&text, piece), |line| read.push(line.to_vec())).unwrap();
            assert_eq!(read.len(), lines.len(), "{piece}");
            for (read, line) in read.iter().zip(&lines) {
                assert_eq!(read, &line[..line.len().min(LINES)], "{piece}");
            }
        }
    }

    #[test]
    fn the_files_at_addresses_are_those_of_their_mappings() {
        let code = mappings as *const () as usize;
        let on_the_stack = 0;
        let [own, again, stack, nothing] =
            files_at([code, code + 1, (&raw const on_the_stack).addr(), 1]).expect("/proc is mounted");
        assert!(own.is_some() && own == mapping_at(code).and_then(|mapping| mapping.file));
        assert_eq!((again, stack, nothing), (own, None, None));
    }
}
