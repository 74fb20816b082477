//! Memory that is taken, limited, and returned.

use super::super::chunk::BLOCK;
use super::super::{MAX_SMALL, MINIMUM_ALLOWANCE};
use super::mutator::{Mutator, plain_array_type, struct_type};

#[test]
fn nothing_is_taken_before_it_is_needed() {
    let mut mutator = Mutator::new();
    mutator.collect(&[]);
    assert_eq!(mutator.heap.bytes(), 0);
    assert!(mutator.heap.chunks.is_empty() && !mutator.heap.is_due(u64::MAX));
    mutator.object(struct_type(1, []), &[]);
    assert_eq!(mutator.heap.bytes(), BLOCK as u64);
}

#[test]
fn blocks_are_refused_at_the_limit_and_available_after_a_collection() {
    let mut mutator = Mutator::new();
    mutator.limit = 5 * BLOCK as u64 + 100;
    let ty = struct_type(8, []);
    for _ in 0..3 {
        let mut count = 0;
        while mutator.try_object(ty, &[0; 7]).is_some() {
            count += 1;
        }
        assert_eq!(count, 5 * BLOCK / 64);
        assert!(mutator.try_object(ty, &[0; 7]).is_none());
        assert_eq!(mutator.heap.bytes(), 5 * BLOCK as u64);
        mutator.collect(&[]);
        mutator.check();
    }
}

#[test]
fn holes_of_any_block_are_used_before_a_request_is_refused() {
    let mut mutator = Mutator::new();
    mutator.limit = 4 * BLOCK as u64;
    let (small, large) = (struct_type(2, []), struct_type(1024, []));
    let objects: Vec<_> = std::iter::from_fn(|| mutator.try_object(small, &[0])).collect();
    // Each block has one hole of 8 KiB and one of a line.
    let survivors: Vec<_> = objects
        .iter()
        .copied()
        .filter(|object| {
            !(8192..16384).contains(&(object % BLOCK)) && !(128..256).contains(&(object % BLOCK))
        })
        .collect();
    mutator.collect(&survivors);
    for _ in 0..4 {
        assert!(mutator.try_object(large, &[0; 1023]).is_some());
    }
    assert!(mutator.try_object(large, &[0; 1023]).is_none());
    let count = std::iter::from_fn(|| mutator.try_object(small, &[0])).count();
    assert_eq!(count, 4 * 128 / 16);
}

#[test]
fn large_objects_are_refused_at_the_limit() {
    let mut mutator = Mutator::new();
    mutator.limit = 4 << 20;
    assert!(mutator.heap.allocate_large(usize::MAX, u64::MAX).is_none());
    assert!(mutator.heap.allocate_large(usize::MAX / 2, u64::MAX).is_none());
    assert!(mutator.heap.allocate_large((4 << 20) + 1, mutator.limit).is_none());
    assert_eq!(mutator.heap.bytes(), 0);
    let ty = plain_array_type(0);
    for size in [MAX_SMALL + 8, BLOCK, 2 << 20, 4 << 20] {
        let blocks = size.div_ceil(BLOCK);
        for _ in 0..2 {
            let words = vec![size as u64 - 16; size / 8 - 1];
            let count = std::iter::from_fn(|| mutator.try_object(ty, &words)).count();
            assert_eq!(count, (4 << 20) / BLOCK / blocks, "{size}");
            mutator.collect(&[]);
            mutator.check();
        }
    }
}

#[test]
fn memory_of_scattered_free_blocks_is_returned_for_a_large_object() {
    let mut mutator = Mutator::new();
    mutator.limit = 64 * BLOCK as u64;
    let ty = plain_array_type(0);
    let block = vec![BLOCK as u64 - 16; BLOCK / 8 - 1];
    let objects: Vec<_> = std::iter::from_fn(|| mutator.try_object(ty, &block)).collect();
    let survivors: Vec<_> = objects.iter().copied().step_by(2).collect();
    mutator.collect(&survivors);
    assert_eq!(mutator.heap.bytes(), mutator.limit, "free blocks are kept");
    let size = 20 * BLOCK;
    assert!(mutator.try_object(ty, &vec![size as u64 - 16; size / 8 - 1]).is_some());
    mutator.check();
    assert_eq!(mutator.heap.bytes(), (32 + 20) * BLOCK as u64);
    assert!(mutator.try_object(ty, &vec![size as u64 - 16; size / 8 - 1]).is_none());
}

#[test]
fn a_collection_is_due_when_as_much_was_allocated_as_survived() {
    let mut mutator = Mutator::new();
    let ty = struct_type(128, []);
    let allocate_until_due = |mutator: &mut Mutator| {
        let mut objects = Vec::new();
        while !mutator.heap.is_due(u64::MAX) {
            objects.push(mutator.object(ty, &[0; 127]));
        }
        objects
    };
    let mut kept = Vec::new();
    for expected in [1, 1, 2, 4] {
        let new = allocate_until_due(&mut mutator);
        let bytes = 1024 * new.len() as u64;
        let expected = expected * MINIMUM_ALLOWANCE;
        assert!(bytes <= expected && bytes >= expected / 100 * 99, "{bytes} {expected}");
        kept.extend(new);
        mutator.collect(&kept);
        assert!(!mutator.heap.is_due(u64::MAX));
    }
}

#[test]
fn a_collection_is_due_when_a_quarter_of_the_limit_was_allocated() {
    let mut mutator = Mutator::new();
    let ty = struct_type(128, []);
    let mut bytes = 0;
    while !mutator.heap.is_due(1 << 20) {
        mutator.object(ty, &[0; 127]);
        bytes += 1024;
    }
    assert!((200 << 10..=256 << 10).contains(&bytes), "{bytes}");
    assert!(!mutator.heap.is_due(u64::MAX));
}

#[test]
fn memory_is_returned_when_everything_is_dead() {
    let mut mutator = Mutator::new();
    let (small, array) = (struct_type(4, []), plain_array_type(3));
    let mut objects: Vec<_> = (0..2_000_000).map(|_| mutator.object(small, &[0; 3])).collect();
    objects.extend((0..100).map(|_| mutator.plain_array(array, 3, 10_000)));
    objects.extend((0..3).map(|_| mutator.plain_array(array, 3, 1_000_000)));
    mutator.collect(&objects);
    assert!(mutator.heap.bytes() >= 96_000_000);
    mutator.collect(&objects[..1]);
    mutator.check();
    let allowed = MINIMUM_ALLOWANCE + BLOCK as u64;
    assert!(mutator.heap.bytes() <= allowed, "{}", mutator.heap.bytes());
    assert!(mutator.heap.chunks.len() <= 10);
    mutator.collect(&[]);
    assert!(mutator.heap.bytes() <= MINIMUM_ALLOWANCE);
    // One object in each block keeps little more than the blocks.
    let objects: Vec<_> = (0..2_000_000).map(|_| mutator.object(small, &[0; 3])).collect();
    let survivors: Vec<_> = objects.iter().copied().step_by(8 * BLOCK / 32).collect();
    mutator.collect(&survivors);
    let blocks = survivors.len() as u64 + MINIMUM_ALLOWANCE / BLOCK as u64;
    assert!(mutator.heap.bytes() <= blocks * BLOCK as u64);
}
