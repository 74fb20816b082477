//! [`JsString`].

use std::fmt;

use wasm_jit::{ExternRef, Val};

/// The maximum length of a string that a program makes, in code units: that of V8.
pub const MAX_LENGTH: usize = (1 << 29) - 24;

/// The error of a call whose result would be longer than [`MAX_LENGTH`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a string would be longer than {MAX_LENGTH} code units")]
pub struct StringTooLong;

/// A string of JavaScript: any sequence of UTF-16 code units. Strings are ordered by these.
///
/// As an [`ExternRef`] it is a value for programs; [`JsString::from_extern`] is the way back.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JsString(Box<[u16]>);

impl JsString {
    /// The string that a program refers to, or `None` if it is another value.
    pub fn from_extern(value: &ExternRef) -> Option<&Self> {
        value.data().downcast_ref()
    }

    /// The code units.
    pub fn units(&self) -> &[u16] {
        &self.0
    }

    /// The memory of a string of this length, in bytes: the units, and roughly what is around them.
    pub(crate) fn memory(length: usize) -> u64 {
        const AROUND: u64 = 64;
        AROUND + (length * size_of::<u16>()) as u64
    }
}

impl From<Vec<u16>> for JsString {
    fn from(units: Vec<u16>) -> Self {
        Self(units.into())
    }
}

impl From<&[u16]> for JsString {
    fn from(units: &[u16]) -> Self {
        Self(units.into())
    }
}

impl From<&str> for JsString {
    fn from(text: &str) -> Self {
        Self(text.encode_utf16().collect())
    }
}

impl From<JsString> for ExternRef {
    fn from(string: JsString) -> Self {
        let bytes = JsString::memory(string.0.len());
        Self::with_size(string, bytes)
    }
}

impl From<JsString> for Val {
    fn from(string: JsString) -> Self {
        ExternRef::from(string).into()
    }
}

/// The text; U+FFFD stands for each surrogate without a partner.
impl fmt::Display for JsString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&String::from_utf16_lossy(&self.0))
    }
}

impl fmt::Debug for JsString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&String::from_utf16_lossy(&self.0), f)
    }
}
