//! The command `x`: shows memory.

use std::fmt::Write;

use wasm_jit_debug::{Error, Scope};

/// What to show, as after `x/`: the number, format and size of the units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Format {
    pub count: u64,
    /// `x` hexadecimal, `d` signed, `u` unsigned, `f` float, `c` character, `s` string.
    pub format: char,
    /// The size of a unit in bytes.
    pub size: usize,
}

/// The maximum number of units that are shown.
const MAX_COUNT: u64 = 100_000;
/// The maximum number of bytes of a string that are shown.
const MAX_STRING: usize = 1000;

impl Format {
    /// Reads `8xw`: a count, a format, and a size `b`, `h`, `w` or `g`, all of which may be left
    /// out.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (count, letters) = text.split_at(digits);
        let count = if count.is_empty() { 1 } else { count.parse().ok()? };
        let (mut format, mut size) = (None, None);
        for letter in letters.chars() {
            match letter {
                'x' | 'd' | 'u' | 'f' | 'c' | 's' if format.is_none() => format = Some(letter),
                'b' | 'h' | 'w' | 'g' if size.is_none() => {
                    size = Some(match letter {
                        'b' => 1,
                        'h' => 2,
                        'w' => 4,
                        _ => 8,
                    });
                }
                _ => return None,
            }
        }
        let format = format.unwrap_or('x');
        let usual = match format {
            'c' | 's' => 1,
            'f' => 8,
            _ => 4,
        };
        let size = size.unwrap_or(usual);
        let is_float = format != 'f' || size >= 4;
        (is_float && count <= MAX_COUNT).then_some(Self { count, format, size })
    }

    /// Shows a memory from an address; returns the address after it.
    pub(super) fn show(self, scope: &Scope<'_, '_>, memory: u32, start: u64) -> Result<(String, u64), Error> {
        let prefix = if memory == 0 { String::new() } else { format!("{memory}:") };
        let mut text = String::new();
        let mut at = start;
        if self.format == 's' {
            for _ in 0..self.count {
                let (string, length) = string(scope, memory, at)?;
                let _ = writeln!(text, "{prefix}{at:#x}:\t{:?}", String::from_utf8_lossy(&string));
                at += length;
            }
            return Ok((text, at));
        }
        let per_line = 16 / self.size as u64;
        for number in 0..self.count {
            let mut bytes = [0; 8];
            scope.read_memory(memory, at, &mut bytes[..self.size])?;
            if number % per_line == 0 {
                let _ = write!(text, "{}{prefix}{at:#x}:", if number == 0 { "" } else { "\n" });
            }
            let _ = write!(text, "\t{}", self.unit(u64::from_le_bytes(bytes)));
            at += self.size as u64;
        }
        text.push('\n');
        Ok((text, at))
    }

    fn unit(self, bits: u64) -> String {
        let unused = 64 - 8 * self.size as u32;
        match self.format {
            'd' => ((bits << unused).cast_signed() >> unused).to_string(),
            'u' => bits.to_string(),
            'f' if self.size == 4 => format!("{:?}", f32::from_bits(bits as u32)),
            'f' => format!("{:?}", f64::from_bits(bits)),
            'c' => format!("{:?}", char::from(bits as u8)),
            _ => format!("{bits:#0width$x}", width = 2 + 2 * self.size),
        }
    }
}

/// The bytes up to a zero, or some of them, and the length of what was read, with the zero.
fn string(scope: &Scope<'_, '_>, memory: u32, start: u64) -> Result<(Vec<u8>, u64), Error> {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while bytes.len() < MAX_STRING {
        let length = bytes.len() as u64;
        scope.read_memory(memory, start + length, &mut byte)?;
        if byte[0] == 0 {
            return Ok((bytes, length + 1));
        }
        bytes.push(byte[0]);
    }
    Ok((bytes, MAX_STRING as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_have_a_count_a_letter_and_a_size() {
        #[track_caller]
        fn check(text: &str, expected: Option<(u64, char, usize)>) {
            let expected = expected.map(|(count, format, size)| Format { count, format, size });
            assert_eq!(Format::parse(text), expected, "{text}");
        }
        check("", Some((1, 'x', 4)));
        check("8xb", Some((8, 'x', 1)));
        check("3dg", Some((3, 'd', 8)));
        check("s", Some((1, 's', 1)));
        check("2f", Some((2, 'f', 8)));
        check("fh", None);
        check("xx", None);
        check("9999999", None);
        check("4q", None);
    }
}
