//! Words that are objects, and words that only look like objects.

use super::super::MAX_SMALL;
use super::super::chunk::{BLOCK, CHUNK};
use super::mutator::{Mutator, array_parts, array_type, load, plain_array_type, store, struct_type};
use crate::object_type::Elements;

/// Which of these words are objects, according to a collection that keeps those objects.
fn objects_among(mutator: &mut Mutator, words: impl IntoIterator<Item = u64>) -> Vec<u64> {
    mutator.begin();
    let objects = words.into_iter().filter(|word| mutator.heap.mark_ambiguous(*word)).collect();
    mutator.heap.trace(&mut |_| {});
    mutator.finish();
    objects
}

#[test]
fn exactly_the_starts_of_objects_are_found() {
    let mut mutator = Mutator::new();
    let (small, array) = (struct_type(3, []), plain_array_type(0));
    let mut objects = Vec::new();
    for index in 0..3000 {
        objects.push(mutator.object(small, &[u64::MAX; 2]) as u64);
        objects.push(mutator.plain_array(array, 0, index % 50) as u64);
    }
    objects.push(mutator.plain_array(array, 0, MAX_SMALL as u32 - 16) as u64);
    objects.push(mutator.plain_array(array, 0, MAX_SMALL as u32 - 15) as u64);
    objects.push(mutator.plain_array(array, 0, 3_000_000) as u64);
    objects.sort_unstable();
    let first = mutator.heap.chunks[0].base as u64;
    let last = mutator.heap.chunks.last().expect("there are chunks").base as u64 + 5 * CHUNK as u64;
    let words: Vec<u64> = (first - 64..last).collect();
    assert_eq!(objects_among(&mut mutator, words.clone()), objects, "new ones");
    assert_eq!(mutator.objects(), objects.len());
    assert_eq!(objects_among(&mut mutator, words.clone()), objects, "survivors");
    let half: Vec<u64> = objects.iter().copied().step_by(2).collect();
    assert_eq!(objects_among(&mut mutator, half.clone()), half);
    assert_eq!(objects_among(&mut mutator, words), half, "after others died");
}

#[test]
fn words_that_are_no_addresses_of_the_heap() {
    let mut mutator = Mutator::new();
    let object = mutator.object(struct_type(2, []), &[0]) as u64;
    let far =
        [0, 1, 8, u64::MAX, u64::MAX - 7, 1 << 63, object | 1 << 47, object | 1 << 63, object ^ 1 << 40];
    assert_eq!(objects_among(&mut mutator, far), []);
    assert_eq!(objects_among(&mut Mutator::new(), far), [], "of a heap without memory");
}

#[test]
fn an_object_that_is_not_complete_is_none() {
    let mut mutator = Mutator::new();
    let ty = struct_type(4, [1, 2, 3]);
    let complete = mutator.object(ty, &[0; 3]);
    let incomplete = mutator.reserve(32).expect("there is no limit");
    store(incomplete, load(complete));
    store(incomplete + 8, 0x0000_1234_5678_9ab0);
    assert_eq!(objects_among(&mut mutator, [complete as u64, incomplete as u64]), [complete as u64]);
    // The same for an incomplete object that remains when the span is exchanged because too little
    // of it is left.
    mutator.object(struct_type(MAX_SMALL as u32 / 8, []), &[0; MAX_SMALL / 8 - 1]);
    let complete = mutator.object(ty, &[0; 3]);
    let incomplete = mutator.reserve(32).expect("there is no limit");
    store(incomplete, load(complete));
    let (next, end) = (mutator.next, mutator.end);
    let span = mutator.heap.refill(next, MAX_SMALL, u64::MAX).expect("there is no limit");
    (mutator.next, mutator.end) = (span.start, span.end);
    assert!(!(next..end).contains(&span.start));
    assert_eq!(objects_among(&mut mutator, [complete as u64, incomplete as u64]), [complete as u64]);
}

#[test]
fn new_objects_in_holes_are_found_next_to_survivors() {
    let mut mutator = Mutator::new();
    let ty = struct_type(3, []);
    let objects: Vec<_> = (0..20_000).map(|_| mutator.object(ty, &[1; 2])).collect();
    let mut kept: Vec<_> = objects.iter().copied().step_by(37).collect();
    for round in 0..6 {
        mutator.collect(&kept);
        assert_eq!(mutator.objects(), kept.len());
        let new: Vec<_> = (0..5_000).map(|_| mutator.object(ty, &[round; 2])).collect();
        kept.extend(new.iter().step_by(11 + round as usize));
    }
    assert!(mutator.heap.bytes() < 24 * 60_000);
}

#[test]
fn spans_that_follow_one_another_are_walked() {
    // Only some bytes of each span are used, up to a line boundary or not.
    for used in [1, 15, 16, 17, 31, 32, 40] {
        let mut mutator = Mutator::new();
        let (word, large) = (struct_type(1, []), struct_type(MAX_SMALL as u32 / 8, []));
        let mut objects = Vec::new();
        for _ in 0..50 {
            objects.extend((0..used).map(|_| mutator.object(word, &[])));
            objects.push(mutator.object(large, &[0; MAX_SMALL / 8 - 1]));
        }
        objects.sort_unstable();
        mutator.collect(&objects);
        assert_eq!(mutator.objects(), objects.len());
    }
}

#[test]
fn roots_may_be_added_between_traces() {
    let mut mutator = Mutator::new();
    let ty = struct_type(2, [1]);
    let lists: Vec<_> =
        (0..4).map(|_| (0..100).fold(0, |list, _| mutator.object(ty, &[list as u64]))).collect();
    mutator.begin();
    for list in &lists[..3] {
        assert!(mutator.heap.mark_ambiguous(*list as u64));
        mutator.heap.trace(&mut |_| {});
    }
    mutator.finish();
    assert_eq!(mutator.objects(), 300);
}

#[test]
fn exact_roots_of_each_kind() {
    let mut mutator = Mutator::new();
    let ty = struct_type(2, [1]);
    let inner = mutator.object(ty, &[0]);
    let outer = mutator.object(ty, &[inner as u64]);
    let host = 0x6b1d_e7f5_0000_0003;
    mutator.object(ty, &[outer as u64]);
    mutator.begin();
    let mut other = Vec::new();
    for word in [0, 1, 0xffff_ffff, host, outer as u64, outer as u64] {
        mutator.heap.mark_reference(word, &mut |word| other.push(word));
    }
    mutator.heap.trace(&mut |_| {});
    mutator.finish();
    assert_eq!(other, [host]);
    assert_eq!(objects_among(&mut mutator, [inner as u64, outer as u64]).len(), 2);
    assert_eq!(mutator.objects(), 2);
}

#[test]
fn the_end_of_an_array_of_a_block_of_its_own_is_no_object() {
    let mut mutator = Mutator::new();
    let ty = array_type(Elements::References);
    let arrays: Vec<_> = (0..3).map(|_| mutator.array(ty, &vec![0; 2 * BLOCK / 8 - 2]) as u64).collect();
    let words = arrays.iter().flat_map(|array| {
        let (length, first) = array_parts(*array as usize);
        [*array, length as u64, first as u64, array + BLOCK as u64]
    });
    assert_eq!(objects_among(&mut mutator, words.collect::<Vec<_>>()), arrays);
}
