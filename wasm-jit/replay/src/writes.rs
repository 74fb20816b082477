//! The ranges of bytes that are events of a trace.

use super::event::MAX_WRITE;

/// Number of bytes that are compared at once.
const BLOCK: usize = 256;

/// Ranges that are nearer to each other are one: an event takes about as many bytes.
const GAP: usize = 8;

/// The ranges that contain these positions, which are in order; each of at most [`MAX_WRITE`]
/// bytes.
pub(crate) fn runs(positions: impl Iterator<Item = usize>) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for here in positions {
        match runs.last_mut() {
            Some((start, end)) if here - *end < GAP && here - *start < MAX_WRITE => *end = here + 1,
            _ => runs.push((here, here + 1)),
        }
    }
    runs
}

/// The ranges that contain all differences of two slices of equal length.
pub(crate) fn changed(before: &[u8], now: &[u8]) -> Vec<(usize, usize)> {
    let blocks = before.chunks(BLOCK).zip(now.chunks(BLOCK)).enumerate();
    let different = blocks.filter(|(_, (old, new))| old != new);
    runs(different.flat_map(|(block, (old, new))| {
        let differs = move |byte: &usize| old[*byte] != new[*byte];
        (0..new.len()).filter(differs).map(move |byte| block * BLOCK + byte)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(positions: &[usize], length: usize, expected: &[(usize, usize)]) {
        let before = vec![7; length];
        let mut now = before.clone();
        positions.iter().for_each(|position| now[*position] ^= 0x80);
        assert_eq!(changed(&before, &now), expected, "{positions:?} of {length}");
    }

    #[test]
    fn near_changes_are_one_range() {
        check(&[], 0, &[]);
        check(&[], 1000, &[]);
        check(&[0], 1, &[(0, 1)]);
        check(&[255, 256, 999], 1000, &[(255, 257), (999, 1000)]);
        check(&[10, 18], 100, &[(10, 19)]);
        check(&[10, 19], 100, &[(10, 11), (19, 20)]);
        let all: Vec<usize> = (0..2 * MAX_WRITE + 1).collect();
        let last = 2 * MAX_WRITE;
        check(&all, all.len(), &[(0, MAX_WRITE), (MAX_WRITE, last), (last, last + 1)]);
    }
}
