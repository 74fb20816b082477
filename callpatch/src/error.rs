//! Errors of call sites.

use wordpatch::Bytes;

/// The reason why a call site was not decoded, toggled or retargeted. The site is unchanged,
/// except after a failed [`retarget`](crate::retarget) or [`activate_call`](crate::activate_call):
/// then it may be inactive, with its old target.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No CALL rel32, JMP rel32, CALL or JMP through a RIP-relative pointer starts at the address.
    #[error(
        "no call that can be toggled at {address:#x}: found {found}; give the address of a CALL, a JMP or a five-byte NOP"
    )]
    NotACall {
        /// The address at which a call was expected.
        address: usize,
        /// The bytes at that address.
        found: Bytes,
    },

    /// A five-byte NOP crosses a fetch window, so it cannot become a call by one store.
    #[error(
        "the NOP at {address:#x} crosses a fetch window; replace it by a CALL through wordpatch first, then toggle that"
    )]
    StraddlingNop {
        /// The address of the NOP.
        address: usize,
    },

    /// The target is not within reach of the site's 32-bit displacement.
    #[error(
        "{target:#x} is out of reach of the call at {address:#x}; call a stub within 2 GiB of it, which jumps to the target"
    )]
    OutOfReach {
        /// The address of the call.
        address: usize,
        /// The requested target.
        target: usize,
    },

    /// The site contains neither its active nor its inactive form: something else writes this code.
    #[error(
        "foreign bytes in the call at {address:#x}: expected {expected}, found {found}; another tool may have patched it"
    )]
    Foreign {
        /// The address of the compared bytes.
        address: usize,
        /// The expected bytes.
        expected: Bytes,
        /// The bytes that were found.
        found: Bytes,
    },

    /// wordpatch refused the operation.
    #[error(transparent)]
    Text(wordpatch::Error),
}

impl From<wordpatch::Error> for Error {
    fn from(error: wordpatch::Error) -> Self {
        match error {
            wordpatch::Error::Mismatch { address, expected, found } => {
                Self::Foreign { address, expected, found }
            }
            other => Self::Text(other),
        }
    }
}
