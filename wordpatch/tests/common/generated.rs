//! Generated code, and what is mapped where.

use wordpatch::code_memory::{CodeBuffer, CodeMemory};

use super::{A, RET, mov_eax};

pub const PAGE: usize = 4096;

/// `mov eax, A; ret` at `offset`, and what stands behind it.
pub fn generate(offset: usize) -> CodeMemory {
    let mut buffer = CodeBuffer::new(1 << 31).unwrap();
    let code = [vec![0x90; offset], mov_eax(A).to_vec(), vec![RET]].concat();
    assert_eq!(buffer.append(&code, 1), Some(0));
    assert_eq!(buffer.append(&[RET], 64), Some(code.len().next_multiple_of(64)));
    buffer.seal().unwrap()
}

/// Lines of `/proc/self/maps` that are in the range.
pub fn mappings(range: &std::ops::Range<usize>) -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let start = |line: &str| usize::from_str_radix(line.split_once('-')?.0, 16).ok();
    maps.lines().filter(|line| start(line).is_some_and(|at| range.contains(&at))).map(str::to_owned).collect()
}
