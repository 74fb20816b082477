//! Comparison of bytes before and after the host ran.

use super::event::MAX_WRITE;

/// Number of bytes that are compared at once.
const BLOCK: usize = 256;

/// Runs of changed bytes that are nearer to each other are one write: an event takes about as many
/// bytes.
const GAP: usize = 8;

/// The ranges that contain all differences of two slices of equal length, in order, each of at most
/// [`MAX_WRITE`] bytes.
pub(crate) fn changed(before: &[u8], now: &[u8]) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for (block, (old, new)) in before.chunks(BLOCK).zip(now.chunks(BLOCK)).enumerate() {
        if old == new {
            continue;
        }
        for byte in (0..new.len()).filter(|byte| old[*byte] != new[*byte]) {
            let here = block * BLOCK + byte;
            match runs.last_mut() {
                Some((start, end)) if here - *end < GAP && here - *start < MAX_WRITE => *end = here + 1,
                _ => runs.push((here, here + 1)),
            }
        }
    }
    runs
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
        check(
            &all,
            all.len(),
            &[(0, MAX_WRITE), (MAX_WRITE, 2 * MAX_WRITE), (2 * MAX_WRITE, 2 * MAX_WRITE + 1)],
        );
    }
}
