//! Images are found by addresses, whatever images come and go.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::link::Linker;
use super::registry::{image_at, share_image_at};
use super::{CodeImage, CompileError};
use crate::compiler::{Chunk, CompiledFunction, DirectCall};
use crate::module::ModuleInfo;

/// An image of functions of so many bytes each, the first of which calls all.
pub(super) fn image(lengths: &[u32]) -> Arc<CodeImage> {
    let module = ModuleInfo { imported_functions: 2, ..ModuleInfo::default() };
    let mut linker = Linker::new(1 << 20).unwrap();
    for (number, length) in (0..).zip(lengths) {
        let function = CompiledFunction {
            index: 2 + number,
            entry: 0,
            body: 1,
            end: *length,
            frame_size: 0,
            try_regions: Box::default(),
        };
        let calls = if number == 0 { 0..lengths.len() as u32 } else { 0..0 };
        let calls = calls.map(|callee| DirectCall { at: 1 + 5 * callee, function: 2 + callee }).collect();
        let chunk = Chunk { code: vec![0x90; *length as usize], calls, functions: vec![function] };
        linker.add(&module, &chunk, std::iter::once(0..0)).unwrap();
    }
    linker.finish(Arc::new(module), Arc::default(), &[]).unwrap()
}

#[test]
fn a_function_is_found_by_every_address_of_its_code() {
    let lengths = [100, 1, 64, 3000, 200_000];
    let image = image(&lengths);
    let mut expected_entry = image.memory().address();
    for (index, length) in (2..).zip(lengths) {
        assert_eq!(image.entry(index) as usize, expected_entry);
        let end = expected_entry + length as usize;
        for pc in [expected_entry, expected_entry + length as usize / 2, end - 1] {
            assert_eq!(image.function_at(pc), Some(index));
        }
        expected_entry = end.next_multiple_of(64);
        if end < expected_entry {
            assert_eq!(image.function_at(end), None, "between two functions");
        }
    }
    assert_eq!(image.function_at(image.memory().address() - 1), None);
    assert_eq!(image.function_at(image.memory().pages().end), None);
}

#[test]
fn calls_reach_functions_in_front_and_behind() {
    let image = image(&[100, 1, 64, 3000, 200_000]);
    let code = image.memory().code();
    for callee in 0..5 {
        let at = 1 + 5 * callee as usize;
        let rel32 = i32::from_le_bytes(code[at..at + 4].try_into().unwrap());
        let target = image.memory().address() + at + 4;
        assert_eq!(target.wrapping_add_signed(rel32 as isize), image.entry(2 + callee) as usize);
    }
}

#[test]
fn more_code_than_there_is_room_for_is_an_error() {
    let mut linker = Linker::new(4096).unwrap();
    let chunk = Chunk { code: vec![0x90; 4097], ..Chunk::default() };
    let result = linker.add(&ModuleInfo::default(), &chunk, std::iter::empty());
    assert!(matches!(result, Err(CompileError::TooMuchCode)));
}

#[test]
fn the_right_image_is_found_while_others_come_and_go() {
    let kept: Vec<_> = (0..100).map(|number| image(&[10 + number])).collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let several: Vec<_> = (0..10).map(|number| image(&[4096 * (number % 3 + 1)])).collect();
                for image in &several {
                    // SAFETY: the image is alive.
                    let found = unsafe { image_at(image.memory().pages().end - 1) }.unwrap();
                    assert!(std::ptr::eq(found, &**image));
                }
            }
        });
        for _ in 0..200 {
            for image in &kept {
                // SAFETY: the image is alive.
                let found = unsafe { share_image_at(image.memory().address()) }.unwrap();
                assert!(Arc::ptr_eq(&found, image));
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    let pages = kept[7].memory().pages();
    drop(kept);
    // SAFETY: nothing is there.
    assert!(unsafe { image_at(pages.start) }.is_none_or(|image| image.memory().pages() != pages));
}
