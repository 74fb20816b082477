//! Work on large memory, in pieces that several threads take: copies, hashes and comparisons of
//! code are limited by the speed at which pages are mapped, cleared and read.

use std::sync::{Mutex, PoisonError};

/// Size of a piece: large enough that taking one costs nothing, small enough that the last ones are
/// distributed over the threads.
pub(crate) const PIECE: usize = 1 << 20;

/// The results of `work` for each item, in order. At most `threads` threads do the work, including
/// the calling one; fewer if the system refuses to start them.
pub(crate) fn map<T: Send, R: Send>(
    threads: usize,
    items: impl ExactSizeIterator<Item = T> + Send,
    work: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    let count = items.len();
    if threads <= 1 || count <= 1 {
        return items.map(work).collect();
    }
    let left = Mutex::new(items.enumerate());
    let take = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
    let done = Mutex::new(Vec::with_capacity(count));
    let work = || {
        while let Some((number, item)) = take() {
            let result = work(item);
            done.lock().unwrap_or_else(PoisonError::into_inner).push((number, result));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(count) {
            // If a thread cannot be started, the others do its part.
            let _ = std::thread::Builder::new().name("wasm-load".into()).spawn_scoped(scope, work);
        }
        work();
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Copies bytes.
///
/// # Panics
/// If the lengths differ.
pub(crate) fn copy(threads: usize, to: &mut [u8], from: &[u8]) {
    assert_eq!(to.len(), from.len());
    let pieces = to.chunks_mut(PIECE).zip(from.chunks(PIECE));
    map(threads, pieces, |(to, from)| to.copy_from_slice(from));
}

/// Whether bytes are equal.
pub(crate) fn are_equal(threads: usize, left: &[u8], right: &[u8]) -> bool {
    let pieces = left.chunks(PIECE).zip(right.chunks(PIECE));
    left.len() == right.len()
        && map(threads, pieces, |(left, right)| left == right).into_iter().all(|same| same)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_handled_once_and_in_order() {
        for threads in [1, 2, 7] {
            let doubled = map(threads, 0..100_usize, |number| 2 * number);
            assert_eq!(doubled, (0..200).step_by(2).collect::<Vec<_>>());
            assert!(map(threads, 0..0_usize, |number| number).is_empty());
        }
        for length in [0, 1, PIECE, 3 * PIECE + 5] {
            let from: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            let mut to = vec![0; length];
            copy(2, &mut to, &from);
            assert!(are_equal(2, &to, &from));
            for at in [0, length / 2, length.saturating_sub(1)] {
                if let Some(byte) = to.get_mut(at) {
                    *byte ^= 1;
                    assert!(!are_equal(2, &to, &from), "{at} of {length}");
                    to[at] ^= 1;
                }
            }
            assert!(!are_equal(2, &to, &from[..length.saturating_sub(1)]) || length == 0);
        }
    }
}
