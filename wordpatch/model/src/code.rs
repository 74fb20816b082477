//! Bytes of code as a value that can be copied, compared and hashed without allocation.

use std::fmt;
use std::ops::Deref;

/// The maximum length of an x86 instruction, in bytes.
pub const MAX_CODE: usize = 15;

/// Up to [`MAX_CODE`] bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Code {
    length: u8,
    bytes: [u8; MAX_CODE],
}

impl Code {
    /// Copies these bytes.
    ///
    /// # Panics
    /// If there are more than [`MAX_CODE`].
    pub fn new(slice: &[u8]) -> Self {
        let mut bytes = [0; MAX_CODE];
        bytes[..slice.len()].copy_from_slice(slice);
        Self { length: slice.len() as u8, bytes }
    }

    /// `length` zero bytes.
    pub(crate) fn zeros(length: usize) -> Self {
        Self::new(&[0; MAX_CODE][..length])
    }

    /// These bytes, followed by those of `rest`.
    pub(crate) fn followed_by(&self, rest: &[u8]) -> Self {
        Self::new(&[self, rest].concat())
    }
}

impl Deref for Code {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.iter().enumerate() {
            let space = if i > 0 { " " } else { "" };
            write!(f, "{space}{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{self}]")
    }
}
