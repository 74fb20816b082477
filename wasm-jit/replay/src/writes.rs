//! The byte ranges that become events of a trace.

use super::event::MAX_WRITE;

/// Number of bytes that are compared together.
const BLOCK: usize = 256;

/// Number of bytes that are compared together in a block that differs.
const WORD: usize = 8;

/// Ranges with a smaller distance are merged: an event takes about as many bytes.
const GAP: usize = 8;

/// The ranges that contain these positions, which are in ascending order; each has at most
/// [`MAX_WRITE`] bytes.
pub(crate) fn runs(positions: impl Iterator<Item = usize>) -> Vec<(usize, usize)> {
    let mut runs = Vec::new();
    positions.for_each(|here| add(&mut runs, here));
    runs
}

/// Adds a position.
fn add(runs: &mut Vec<(usize, usize)>, here: usize) {
    match runs.last_mut() {
        Some((start, end)) if here - *end < GAP && here - *start < MAX_WRITE => *end = here + 1,
        _ => runs.push((here, here + 1)),
    }
}

/// The ranges that contain all differences of two slices of equal length.
pub(crate) fn changed(before: &[u8], now: &[u8]) -> Vec<(usize, usize)> {
    let mut runs = Vec::new();
    for (block, (old, new)) in before.chunks(BLOCK).zip(now.chunks(BLOCK)).enumerate() {
        if old != new {
            add_changed(&mut runs, block * BLOCK, old, new);
        }
    }
    runs
}

/// Adds the differences of two slices, which begin at this position, eight bytes at a time.
fn add_changed(runs: &mut Vec<(usize, usize)>, position: usize, before: &[u8], now: &[u8]) {
    // The bytes of a word are near to each other.
    const { assert!(WORD <= GAP) };
    let ((old, old_rest), (new, new_rest)) = (before.as_chunks::<WORD>(), now.as_chunks::<WORD>());
    for (at, (old, new)) in (position..).step_by(WORD).zip(old.iter().zip(new)) {
        let different = u64::from_le_bytes(*old) ^ u64::from_le_bytes(*new);
        if different == 0 {
            continue;
        }
        let first = at + different.trailing_zeros() as usize / 8;
        let last = at + WORD - different.leading_zeros() as usize / 8;
        match runs.last_mut() {
            Some((_, end)) if first - *end >= GAP => runs.push((first, last)),
            None => runs.push((first, last)),
            Some((start, end)) if last - *start <= MAX_WRITE => *end = last,
            // The range must be divided here.
            _ => (at..at + WORD)
                .filter(|byte| old[byte - at] != new[byte - at])
                .for_each(|byte| add(runs, byte)),
        }
    }
    let rest = position + WORD * old.len();
    let differs = |byte: &usize| old_rest[*byte] != new_rest[*byte];
    (0..new_rest.len()).filter(differs).for_each(|byte| add(runs, rest + byte));
}

/// Zeros to compare with.
const ZEROS: [u8; BLOCK] = [0; BLOCK];

/// The blocks in which two states of a memory differ, as ranges of at most [`MAX_WRITE`] bytes.
/// Anything missing from the earlier state was zero.
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

    /// As if each byte was compared.
    #[test]
    fn words_are_compared_as_bytes_are() {
        let mut state = 1_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for round in 0..200 {
            let length = if round < 190 { random(600) } else { 2 * MAX_WRITE as u64 + random(600) } as usize;
            let before: Vec<u8> = (0..length).map(|_| random(2) as u8).collect();
            // Rare differences, or nearly all bytes.
            let rarity = 1 + random(30) * random(2);
            let now: Vec<u8> = before.iter().map(|byte| byte ^ u8::from(random(rarity) == 0)).collect();
            let expected = runs((0..length).filter(|byte| before[*byte] != now[*byte]));
            assert_eq!(changed(&before, &now), expected, "round {round}");
        }
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
