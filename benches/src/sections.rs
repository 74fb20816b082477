//! Sizes of the parts of a WebAssembly module, without reading the parts: this process's peak
//! memory also counts in that of its children.

use std::fs::File;
use std::io::{BufReader, Read, Result, Seek, SeekFrom};
use std::path::Path;

/// Bytes of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// The size of the complete file, in bytes.
    pub file: u64,
    /// The size of the code section, in bytes.
    pub code: u64,
}

const HEADER: u64 = 8;
const CODE_SECTION: u8 = 10;

/// The sizes of a module in a file.
///
/// # Panics
/// When the file cannot be read, or is not a module.
pub fn size(module: &Path) -> Size {
    let read = File::open(module).and_then(|file| sizes_of(&mut BufReader::new(file)));
    read.unwrap_or_else(|error| panic!("{}: {error}", module.display()))
}

fn sizes_of(module: &mut (impl Read + Seek)) -> Result<Size> {
    let file = module.seek(SeekFrom::End(0))?;
    let mut size = Size { file, code: 0 };
    let mut at = module.seek(SeekFrom::Start(HEADER))?;
    while at < file {
        let [id] = bytes(module)?;
        let length = number(module)?;
        if id == CODE_SECTION {
            size.code = length;
        }
        at = module.seek(SeekFrom::Current(length as i64))?;
    }
    Ok(size)
}

fn bytes<const N: usize>(from: &mut impl Read) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// A LEB128 number of at most 32 bits.
fn number(from: &mut impl Read) -> Result<u64> {
    let mut number = 0;
    for shift in (0..35).step_by(7) {
        let [byte] = bytes(from)?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    Ok(number)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    #[test]
    fn code_section_between_others() {
        let mut module = b"\0asm\x01\0\0\0".to_vec();
        module.extend([1, 2, 0, 0]);
        // 200 takes two bytes.
        module.extend([CODE_SECTION, 0xc8, 0x01]);
        module.extend([0; 200]);
        module.extend([0, 1, 0]);
        let size = sizes_of(&mut Cursor::new(&module)).expect("a whole module");
        assert_eq!(size, Size { file: module.len() as u64, code: 200 });
        module.pop();
        module.pop();
        assert!(sizes_of(&mut Cursor::new(&module)).is_err(), "it ends within a section's head");
    }
}
