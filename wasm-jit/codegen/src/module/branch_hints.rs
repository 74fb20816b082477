//! Branch hints: the custom section `metadata.code.branch_hint`, in which a toolchain records which
//! way a `br_if` or an `if` most likely goes.
//!
//! The compiler uses them for two decisions. Unlikely code, and calls in it, do not count when the
//! compiler chooses the locals that are cached in registers (`scan.rs`). The moves of a `br_if`
//! that is likely to be taken are in the main sequence of the code, those of other branches in cold
//! code (`compiler/operators/branches.rs`).
//!
//! Code is compiled in the order of the program, so both parts of an `if` stay where they are.

use std::ops::Range;

use wasmparser::BranchHintSectionReader;

/// The hints of a module.
#[derive(Debug, Default)]
pub struct BranchHints {
    /// Functions with hints, in ascending order, and the ranges of their hints.
    functions: Vec<(u32, Range<u32>)>,
    hints: Vec<Hint>,
}

/// The hint for one instruction.
#[derive(Clone, Copy, Debug)]
struct Hint {
    /// The offset of the instruction from the start of the function's body.
    offset: u32,
    /// Whether the condition most likely holds.
    is_likely: bool,
}

impl BranchHints {
    /// Decodes the section. `None` if it is malformed, in which case it must be ignored, since a
    /// custom section does not make a module invalid.
    #[must_use]
    pub fn decode(section: BranchHintSectionReader<'_>) -> Option<Self> {
        let mut decoded = Self::default();
        for function in section {
            let function = function.ok()?;
            let first = decoded.hints.len();
            if decoded.functions.last().is_some_and(|(before, _)| *before >= function.func) {
                return None;
            }
            for hint in function.hints {
                let hint = hint.ok()?;
                if decoded.hints[first..].last().is_some_and(|before| before.offset >= hint.func_offset) {
                    return None;
                }
                decoded.hints.push(Hint { offset: hint.func_offset, is_likely: hint.taken });
            }
            let end = u32::try_from(decoded.hints.len()).ok()?;
            decoded.functions.push((function.func, first as u32..end));
        }
        Some(decoded)
    }

    /// The hints of a function whose body is at this offset in the module.
    pub(crate) fn of(&self, function: u32, body: u32) -> FunctionHints<'_> {
        let at = self.functions.binary_search_by_key(&function, |(function, _)| *function);
        let hints = at.map_or(&[][..], |at| {
            let Range { start, end } = self.functions[at].1;
            &self.hints[start as usize..end as usize]
        });
        FunctionHints { hints, body }
    }
}

/// The hints of a function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FunctionHints<'a> {
    hints: &'a [Hint],
    /// The offset of the body in the module.
    body: u32,
}

impl FunctionHints<'_> {
    /// Whether the condition of the instruction at a module offset most likely holds, if there is a
    /// hint.
    pub(crate) fn is_likely(&self, position: u32) -> Option<bool> {
        let at = self.hints.binary_search_by_key(&(position - self.body), |hint| hint.offset).ok()?;
        Some(self.hints[at].is_likely)
    }
}

#[cfg(test)]
mod tests {
    use wasmparser::BinaryReader;

    use super::*;

    fn decode(section: &[u8]) -> Option<BranchHints> {
        BranchHints::decode(BranchHintSectionReader::new(BinaryReader::new(section, 0)).ok()?)
    }

    #[test]
    fn hints_are_found_by_function_and_position() {
        // Function 1: offsets 3 (unlikely) and 200 (likely); function 4: offset 3 (likely).
        let hints = decode(&[2, 1, 2, 3, 1, 0, 0xc8, 1, 1, 1, 4, 1, 3, 1, 1]).unwrap();
        let at = |function, position| hints.of(function, 1000).is_likely(position);
        assert_eq!([at(1, 1003), at(1, 1200), at(4, 1003)], [Some(false), Some(true), Some(true)]);
        assert_eq!([at(1, 1000), at(1, 1004), at(4, 1200), at(0, 1003), at(5, 1003)], [None; 5]);
    }

    #[test]
    fn malformed_sections_are_refused() {
        assert!(decode(&[0]).is_some());
        let malformed: [&[u8]; 8] = [
            &[],
            &[1],
            &[1, 1, 1, 3, 1],
            // A hint of two bytes, and one that is neither 0 nor 1.
            &[1, 1, 1, 3, 2, 0, 0],
            &[1, 1, 1, 3, 1, 2],
            // Functions and offsets that do not ascend.
            &[2, 1, 1, 3, 1, 0, 1, 1, 4, 1, 0],
            &[1, 1, 2, 3, 1, 0, 3, 1, 0],
            // More bytes than items.
            &[1, 1, 1, 3, 1, 0, 7],
        ];
        for section in malformed {
            assert!(decode(section).is_none(), "{section:?}");
        }
    }
}
