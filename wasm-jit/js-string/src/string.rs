//! [`JsString`]: a JavaScript string as a host value.

use std::fmt;

use wasm_jit::{ExternRef, Val};

/// The maximum length of a string that a program creates, in code units: the same as in V8.
pub const MAX_LENGTH: usize = (1 << 29) - 24;

/// The error of a call whose result would be longer than [`MAX_LENGTH`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a string would be longer than {MAX_LENGTH} code units")]
pub struct StringTooLong;

/// A JavaScript string: any sequence of UTF-16 code units. Strings are ordered by their code units.
///
/// Converted to an [`ExternRef`], a string is a value for programs; [`JsString::from_extern`]
/// converts it back.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JsString(Box<[u16]>);

impl JsString {
    /// The string that a program refers to, or `None` if it is another value.
    pub fn from_extern(value: &ExternRef) -> Option<&Self> {
        value.data().downcast_ref()
    }

    /// The UTF-16 code units of the string.
    pub fn units(&self) -> &[u16] {
        &self.0
    }

    /// The memory of a string of this length, in bytes: the units, and an estimate of the overhead.
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

/// The text; U+FFFD stands for each unpaired surrogate.
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
