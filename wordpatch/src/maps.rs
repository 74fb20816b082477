//! What is mapped in this process, as the kernel tells it: `/proc/thread-self/maps`. `/proc/self` means the main thread, which
//! knows of nothing any more once it has ended, while others live on.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) range: Range<usize>,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    pub(crate) executable: bool,
    pub(crate) shared: bool,
}

/// A file of this process in `/proc`.
pub(crate) fn open(name: &str) -> io::Result<File> {
    // Kernels before 3.17 have only the second.
    File::open(format!("/proc/thread-self/{name}")).or_else(|_| File::open(format!("/proc/self/{name}")))
}

/// The kernel's table of mappings, ascending, a line for each: `START-END ACCESS OFFSET DEVICE INODE PATH`.
pub(crate) fn table() -> io::Result<String> {
    let mut table = Vec::new();
    open("maps")?.read_to_end(&mut table)?;
    Ok(String::from_utf8_lossy(&table).into_owned())
}

/// All mappings, ascending.
pub(crate) fn mappings() -> io::Result<Vec<Mapping>> {
    Ok(table()?.lines().filter_map(mapping).collect())
}

/// The mapping that holds this address.
pub(crate) fn mapping_at(address: usize) -> Option<Mapping> {
    mappings().ok()?.into_iter().find(|mapping| mapping.range.contains(&address))
}

/// A line: `start-end rwxp offset device inode path`.
fn mapping(line: &str) -> Option<Mapping> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let number = |digits: &str| usize::from_str_radix(digits, 16).ok();
    let [readable, writable, executable, shared]: [u8; 4] = fields.next()?.as_bytes().try_into().ok()?;
    Some(Mapping {
        range: number(start)?..number(end)?,
        readable: readable == b'r',
        writable: writable == b'w',
        executable: executable == b'x',
        shared: shared == b's',
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_mapping() {
        let line = "7f0a1000-7f0a3000 r-xp 00001000 fe:01 1234   /lib/a b.so";
        let expected = Mapping {
            range: 0x7f0a_1000..0x7f0a_3000,
            readable: true,
            writable: false,
            executable: true,
            shared: false,
        };
        assert_eq!(mapping(line), Some(expected));
        assert!(mapping("1000-2000 -w-s 0 0:0 0").is_some_and(|mapping| mapping.shared && mapping.writable));
        assert_eq!(mapping("nothing"), None);
    }

    #[test]
    fn this_code_is_mapped_executable() {
        let own = mapping_at(mappings as *const () as usize).expect("own code is mapped");
        assert!(own.executable && own.readable && !own.writable && !own.shared);
        assert_eq!(mapping_at(0), None);
    }
}
