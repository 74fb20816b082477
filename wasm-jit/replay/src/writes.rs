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

/// Zeros to compare with.
const ZEROS: [u8; BLOCK] = [0; BLOCK];

/// The blocks in which two states of a memory differ, as ranges of at most [`MAX_WRITE`] bytes.
/// What the state before lacks was zero.
pub(crate) fn changed_blocks<'a>(
    before: &'a [u8],
    now: &'a [u8],
) -> impl Iterator<Item = (usize, usize)> + 'a {
    let mut at = 0;
    let differs = move |start: usize| {
        let new = &now[start..now.len().min(start + BLOCK)];
        let old = before.get(start..).unwrap_or_default();
        let (known, rest) = new.split_at(old.len().min(new.len()));
        *known != old[..known.len()] || *rest != ZEROS[..rest.len()]
    };
    std::iter::from_fn(move || {
        while at < now.len() && !differs(at) {
            at += BLOCK;
        }
        let start = at;
        while at < now.len() && at - start < MAX_WRITE && differs(at) {
            at += BLOCK;
        }
        (start < now.len()).then(|| (start, at.min(now.len())))
    })
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
    fn blocks_that_differ_are_ranges() {
        #[track_caller]
        fn check(before: usize, now: usize, positions: &[usize], expected: &[(usize, usize)]) {
            let before = vec![7; before];
            let mut now =
                [&vec![7; before.len().min(now)][..], &vec![0; now.saturating_sub(before.len())]].concat();
            positions.iter().for_each(|position| now[*position] ^= 0x80);
            let found: Vec<_> = changed_blocks(&before, &now).collect();
            assert_eq!(found, expected, "{positions:?}");
        }
        check(0, 0, &[], &[]);
        check(1000, 1000, &[], &[]);
        check(0, 1000, &[], &[]);
        check(300, 1000, &[299, 300, 999], &[(256, 512), (768, 1000)]);
        check(0, 600, &[0, 256, 599], &[(0, 600)]);
        let all: Vec<usize> = (0..MAX_WRITE + 1000).step_by(BLOCK).collect();
        check(0, MAX_WRITE + 1000, &all, &[(0, MAX_WRITE), (MAX_WRITE, MAX_WRITE + 1000)]);
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
