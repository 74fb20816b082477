//! How often instructions went each way.

use super::Kind;
use crate::code::CodeImage;
use crate::code::probed::counting::Choice;

/// How often an instruction went each way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Branches {
    /// The counts of any counted instruction except `br_table`.
    Condition {
        /// How often the condition held: the branch was taken, the first part of the `if` was
        /// executed, or the first operand was selected.
        taken: u64,
        /// How often the condition did not hold.
        not_taken: u64,
    },
    /// The counts of a `br_table`.
    Table {
        /// For each index in the table, how often it was the operand.
        targets: Box<[u64]>,
        /// How often the operand was a larger index.
        default: u64,
    },
}

impl Branches {
    /// How often the instruction was executed.
    pub fn total(&self) -> u64 {
        match self {
            Self::Condition { taken, not_taken } => taken + not_taken,
            Self::Table { targets, default } => targets.iter().sum::<u64>() + default,
        }
    }

    /// What a probe has counted, if it counts branches.
    pub(super) fn of(image: &CodeImage, number: usize) -> Option<Self> {
        let mut counts = Vec::new();
        image.probe_counts(number, |count| counts.push(count));
        Some(match image.probe_choice(number)? {
            // The cells of a branch are those of what it ends, and of what follows it.
            Choice::Branch { then_follows } => {
                let [executed, follows] = counts[..] else { return None };
                let jumped = executed - follows;
                let [taken, not_taken] = if then_follows { [follows, jumped] } else { [jumped, follows] };
                Self::Condition { taken, not_taken }
            }
            Choice::Select => {
                let [not_taken, taken] = counts[..] else { return None };
                Self::Condition { taken, not_taken }
            }
            Choice::Table { .. } => {
                let default = counts.pop()?;
                Self::Table { targets: counts.into(), default }
            }
        })
    }
}

/// How often control came to the place of a probe of this kind; 0 unless it counts.
pub(super) fn executions(image: &CodeImage, number: usize, kind: &Kind) -> u64 {
    if let Kind::CountBranch = kind {
        return Branches::of(image, number).map_or(0, |branches| branches.total());
    }
    let mut counted = 0;
    image.probe_counts(number, |count| counted = count);
    counted
}
