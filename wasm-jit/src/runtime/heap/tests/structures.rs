//! Shapes of structures, and reuse of their memory.

use super::super::MAX_SMALL;
use super::super::chunk::{BLOCK, LINE};
use super::mutator::{
    Mutator, array_parts, array_type, load, plain_array_type, store, struct_type, struct_type_with_exception,
};
use crate::object_type::Elements;

#[test]
fn a_long_list_is_traced_without_recursion() {
    let mut mutator = Mutator::new();
    let ty = struct_type(3, [1]);
    let mut list = 0;
    for index in 0..1_000_000 {
        list = mutator.object(ty, &[list as u64, index]);
    }
    mutator.collect(&[list]);
    assert_eq!(mutator.objects(), 1_000_000);
    for index in (0..1_000_000).rev() {
        assert_eq!(load(list + 16), index);
        list = load(list + 8) as usize;
    }
    assert_eq!(list, 0);
    mutator.collect(&[]);
    assert_eq!(mutator.objects(), 0);
}

#[test]
fn elements_of_arrays_of_all_sizes() {
    let mut mutator = Mutator::new();
    let (leaf, array) = (struct_type(2, []), array_type(Elements::References));
    for length in [0, 1, 127, 128, 129, 256, 257, 2045, 2046, 2047, 10_000, 400_000] {
        let elements: Vec<u64> = (0..length).map(|index| mutator.object(leaf, &[index]) as u64).collect();
        let root = mutator.array(array, &elements);
        mutator.collect(&[root]);
        assert_eq!(mutator.objects(), elements.len() + 1);
        let (length_at, first) = array_parts(root);
        assert_eq!(load(length_at), length);
        for (index, element) in elements.iter().enumerate() {
            assert_eq!(load(first + 8 * index), *element);
            assert_eq!(load(*element as usize + 8), index as u64);
        }
    }
}

#[test]
fn fields_of_a_large_struct() {
    let mut mutator = Mutator::new();
    let words = 3 * BLOCK as u32 / 8;
    let (leaf, ty) = (struct_type(2, []), struct_type(words, [1, words / 2, words - 1]));
    let mut fields = vec![0; words as usize - 1];
    for word in [1, words / 2, words - 1] {
        fields[word as usize - 1] = mutator.object(leaf, &[u64::from(word)]) as u64;
    }
    let root = mutator.object(ty, &fields);
    mutator.collect(&[root]);
    assert_eq!(mutator.objects(), 4);
    for word in [1, words / 2, words - 1] {
        assert_eq!(load(load(root + 8 * word as usize) as usize + 8), u64::from(word));
    }
}

#[test]
fn arrays_in_arrays_are_traced_in_parts() {
    let mut mutator = Mutator::new();
    let (leaf, array) = (struct_type(2, []), array_type(Elements::References));
    let mut root = 0;
    for _ in 0..20 {
        let mut elements = vec![0; 1000];
        elements[5] = root as u64;
        for element in &mut elements[900..] {
            *element = mutator.object(leaf, &[7]) as u64;
        }
        root = mutator.array(array, &elements);
    }
    mutator.collect(&[root]);
    assert_eq!(mutator.objects(), 20 * 101);
}

#[test]
fn lengths_of_arrays_of_small_elements() {
    let mut mutator = Mutator::new();
    for element_log2 in 0..=4 {
        let ty = plain_array_type(element_log2);
        let arrays: Vec<_> = (0..200).map(|length| mutator.plain_array(ty, element_log2, length)).collect();
        mutator.collect(&arrays);
        assert_eq!(mutator.objects(), arrays.len());
        for (length, array) in arrays.iter().enumerate() {
            assert_eq!(load(array + 8), length as u64);
            let words = (length << element_log2).div_ceil(8);
            assert!((0..words).all(|word| load(array + 16 + 8 * word) == u64::MAX));
        }
    }
}

#[test]
fn all_lines_of_an_object_are_kept() {
    let mut mutator = Mutator::new();
    let filler = struct_type(1, []);
    for words in [2_u32, 15, 16, 17, 31, 32, 33, 48, 1000, MAX_SMALL as u32 / 8] {
        let ty = struct_type(words, []);
        let mut kept = Vec::new();
        for offset in 0..20 {
            for _ in 0..offset {
                mutator.object(filler, &[]);
            }
            kept.push(mutator.object(ty, &vec![u64::from(words); words as usize - 1]));
        }
        mutator.collect(&kept);
        // Freed memory is overwritten, and reused.
        for _ in 0..20_000 {
            mutator.object(filler, &[]);
        }
        for object in &kept {
            assert!((1..words as usize).all(|word| load(object + 8 * word) == u64::from(words)));
        }
    }
}

#[test]
fn holes_between_survivors_are_reused() {
    let mut mutator = Mutator::new();
    let ty = struct_type(4, []);
    // A line for the survivor of each four.
    let objects: Vec<_> = (0..4 * BLOCK / 8).map(|_| mutator.object(ty, &[1; 3])).collect();
    let survivors: Vec<_> = objects.iter().copied().step_by(4 * LINE / 32).collect();
    mutator.collect(&survivors);
    let before = mutator.heap.bytes();
    for _ in 0..objects.len() - survivors.len() * LINE / 32 {
        let object = mutator.object(ty, &[2; 3]);
        assert!((objects[0]..=objects[objects.len() - 1]).contains(&object), "{object:x}");
    }
    assert_eq!(mutator.heap.bytes(), before);
    assert!(survivors.iter().all(|object| load(object + 8) == 1));
}

#[test]
fn objects_larger_than_a_line_find_holes_beyond_small_ones() {
    let mut mutator = Mutator::new();
    let (small, larger) = (struct_type(4, []), struct_type(24, []));
    let objects: Vec<_> = (0..8 * BLOCK / 32).map(|_| mutator.object(small, &[1; 3])).collect();
    // Blocks in the first half have holes of a line, the others holes of two lines.
    let lines: Vec<_> = objects.chunks(LINE / 32).map(|objects| objects[0]).collect();
    let (narrow, wide) = lines.split_at(lines.len() / 2);
    let survivors: Vec<_> = narrow.iter().step_by(2).chain(wide.iter().step_by(3)).copied().collect();
    mutator.collect(&survivors);
    let bytes = mutator.heap.bytes();
    for _ in 0..wide.len() / 3 - 4 {
        let object = mutator.object(larger, &[2; 23]);
        assert!((wide[0]..=wide[wide.len() - 1]).contains(&object), "{object:x}");
    }
    // Holes that were too small are found when they are large enough.
    for _ in 0..4 * (narrow.len() / 2 - 4) {
        mutator.object(small, &[3; 3]);
    }
    assert_eq!(mutator.heap.bytes(), bytes);
}

#[test]
fn the_rest_of_a_span_is_used_later() {
    let mut mutator = Mutator::new();
    let (small, large) = (struct_type(2, []), struct_type(MAX_SMALL as u32 / 8, []));
    let mut objects = Vec::new();
    // Two such objects do not fit into a block together with a small one.
    for index in 0..40 {
        objects.push(mutator.object(small, &[index]));
        objects.push(mutator.object(large, &vec![index; MAX_SMALL / 8 - 1]));
    }
    let bytes = mutator.heap.bytes();
    for index in 0..30 * 1000 {
        objects.push(mutator.object(small, &[index]));
    }
    assert_eq!(mutator.heap.bytes(), bytes);
    mutator.collect(&objects);
    assert_eq!(mutator.objects(), objects.len());
}

#[test]
fn large_objects_are_zeroed_moved_to_freed_places_and_freed() {
    let mut mutator = Mutator::new();
    let ty = plain_array_type(3);
    let sizes = [MAX_SMALL / 8, BLOCK / 8 - 2, BLOCK / 8 - 1, 5000, 100_000, 122_880 - 2, 122_880, 1_000_000];
    let mut kept = Vec::new();
    for round in 0..5 {
        for (index, length) in sizes.iter().enumerate() {
            let array = mutator.array(ty, &vec![u64::MAX; *length]);
            if (index + round) % 3 == 0 {
                kept.push(array);
            }
        }
        mutator.collect(&kept);
        mutator.check();
        assert_eq!(mutator.objects(), kept.len());
        for array in &kept {
            let (length, first) = array_parts(*array);
            assert!((0..load(length) as usize).all(|index| load(first + 8 * index) == u64::MAX));
        }
    }
    mutator.collect(&[]);
    assert_eq!(mutator.objects(), 0);
}

#[test]
fn exceptions_and_values_of_the_host_are_passed_on() {
    let mut mutator = Mutator::new();
    let ty = struct_type_with_exception();
    let host = 0x6b1d_e7f5_0000_0001;
    let inner = mutator.object(ty, &[0x10, host, 0x1000]);
    let outer = mutator.object(ty, &[0x20, inner as u64, 0]);
    let odd = mutator.object(ty, &[0x30, u64::from(u32::MAX), 0x2000]);
    let exceptions = array_type(Elements::Exceptions);
    let array = mutator.array(exceptions, &[0, 0x3000, 0, 0x4000]);
    let mut other = mutator.collect(&[outer, odd, array]);
    other.sort_unstable();
    assert_eq!(other, [0x1000, 0x2000, 0x3000, 0x4000, host]);
    assert_eq!(mutator.objects(), 4);
}

#[test]
fn cycles_are_traced_once_and_freed() {
    let mut mutator = Mutator::new();
    let ty = struct_type(2, [1]);
    let ring: Vec<_> = (0..1000).map(|_| mutator.object(ty, &[0])).collect();
    for (index, object) in ring.iter().enumerate() {
        store(object + 8, ring[(index + 1) % ring.len()] as u64);
    }
    mutator.collect(&[ring[500]]);
    assert_eq!(mutator.objects(), 1000);
    mutator.collect(&[]);
    assert_eq!(mutator.objects(), 0);
}
