//! Up to eight bytes of an instruction, as a value that can be copied and compared without
//! allocating.

use std::fmt;

/// The maximum length of a patch, in bytes: that of one store.
pub const MAX_PATCH: usize = 8;

/// One to eight bytes of code.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Bytes {
    length: u8,
    bytes: [u8; MAX_PATCH],
}

impl Bytes {
    /// The bytes of `slice`, or `None` if it is empty or longer than [`MAX_PATCH`].
    #[inline]
    pub const fn new(slice: &[u8]) -> Option<Self> {
        if slice.is_empty() || slice.len() > MAX_PATCH {
            return None;
        }
        let mut bytes = [0; MAX_PATCH];
        let mut i = 0;
        while i < slice.len() {
            bytes[i] = slice[i];
            i += 1;
        }
        Some(Self { length: slice.len() as u8, bytes })
    }

    /// The bytes in a word: the first one is the lowest, and those above the last one are zero.
    #[inline]
    pub const fn word(&self) -> u64 {
        u64::from_le_bytes(self.bytes)
    }

    /// The bytes as a slice.
    #[inline]
    pub const fn as_slice(&self) -> &[u8] {
        self.bytes.split_at(self.length as usize).0
    }
}

impl std::ops::Deref for Bytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.iter().enumerate() {
            if i > 0 {
                f.write_str(" ")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{self}]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_to_eight_bytes_are_accepted() {
        assert!(Bytes::new(&[]).is_none());
        assert!(Bytes::new(&[0; 9]).is_none());
        let bytes = Bytes::new(&[0xe8, 1, 2, 3, 4]).unwrap();
        assert_eq!(&*bytes, &[0xe8, 1, 2, 3, 4]);
        assert_eq!(bytes.to_string(), "e8 01 02 03 04");
        assert_eq!(format!("{bytes:?}"), "[e8 01 02 03 04]");
        let all = [1, 2, 3, 4, 5, 6, 7, 8];
        for length in 1..=MAX_PATCH {
            assert_eq!(Bytes::new(&all[..length]).unwrap().as_slice(), &all[..length]);
        }
    }
}
