//! Images do not depend on which thread compiles them, and are found by address while others are
//! created and freed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use wasm_jit_codegen::objects::ModuleType;
use wasm_jit_codegen::{Callee, Chunk, CompiledFunction, DirectCall, ModuleInfo};

use super::link::ImageLinker;
use super::probed::enter::{Enters, new_number};
use super::probed::{Request, RequestedKind};
use super::registry::{image_at, share_image_at};
use super::{CodeImage, CompileError, compile_all, compile_lazily};
use crate::engine::{Config, Engine};
use crate::module::parse;

/// An image of functions of these lengths; the first one calls all others.
pub(super) fn image(lengths: &[u32]) -> Arc<CodeImage> {
    let module = ModuleInfo { imported_functions: 2, ..ModuleInfo::default() };
    let mut linker = ImageLinker::new(1 << 20, 1 << 20).unwrap();
    for (number, length) in (0..).zip(lengths) {
        let function = CompiledFunction {
            index: 2 + number,
            entry: 0,
            body: 1,
            end: *length,
            frame_size: 0,
            saved: 0,
            try_regions: Box::default(),
        };
        let calls = if number == 0 { 0..lengths.len() as u32 } else { 0..0 };
        let calls = calls.map(|callee| DirectCall { at: 1 + 5 * callee, function: 2 + callee }).collect();
        let chunk = Chunk { code: vec![0x90; *length as usize], calls, functions: vec![function] };
        linker.add(&module, &chunk, std::iter::once(0..0)).unwrap();
    }
    linker.finish(Arc::new(module), Bytes::new(), &[]).unwrap()
}

/// An image of one function with this body, whose code is not that of the body.
pub(crate) fn image_of_other_code(body: &[u8]) -> Arc<CodeImage> {
    let types = vec![wasmparser::FuncType::new([], [])];
    let types = types.into_iter().map(ModuleType::of_function).collect();
    let module = ModuleInfo { types, functions: vec![0], ..ModuleInfo::default() };
    let function = CompiledFunction {
        index: 0,
        entry: 0,
        body: 4,
        end: 100,
        frame_size: 0,
        saved: 0,
        try_regions: Box::default(),
    };
    let chunk = Chunk { code: vec![0x90; 100], calls: Vec::new(), functions: vec![function] };
    let mut linker = ImageLinker::new(1 << 20, 1 << 20).unwrap();
    linker.add(&module, &chunk, std::iter::once(0..body.len())).unwrap();
    linker.finish(Arc::new(module), Bytes::copy_from_slice(body), &[false]).unwrap()
}

#[test]
fn a_function_that_cannot_be_compiled_again_is_an_error() {
    let error = image_of_other_code(&[0x00, 0x0b]).positions(0).unwrap_err();
    assert_eq!(error.to_string(), "function 0: compiling it again produced different code");
    let error = image_of_other_code(&[0x00, 0xff]).positions(0).unwrap_err();
    assert_eq!(error.to_string(), "function 0: its body cannot be read");
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
fn calls_reach_functions_before_and_after() {
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
fn more_code_than_fits_is_an_error() {
    let mut linker = ImageLinker::new(4096, 4096).unwrap();
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

/// A module of functions that form several jobs, each of which calls another function.
fn many_functions(functions: u32, body: impl Fn(u32) -> String) -> Vec<u8> {
    let mut text = String::from("(module (import \"host\" \"f\" (func (param i32) (result i32)))\n");
    for index in 0..functions {
        // Before and after, far and near.
        let callee = 1 + index * 7919 % functions;
        let filling = "f64.const 1.5 drop ".repeat(48);
        let body = body(index);
        text += &format!("(func (param i32) (result i32) local.get 0 {filling} call {callee} {body})\n");
    }
    text.push(')');
    wat::parse_str(text).unwrap()
}

/// A few counters have stubs.
pub(crate) fn compile(bytes: Vec<u8>, threads: usize) -> Result<Arc<CodeImage>, CompileError> {
    compile_with(Config::new().counter_stubs(4), bytes, threads)
}

pub(crate) fn compile_with(
    config: &Config,
    bytes: Vec<u8>,
    threads: usize,
) -> Result<Arc<CodeImage>, CompileError> {
    let engine = Engine::new(config).unwrap();
    let bytes = Bytes::from(bytes);
    let (mut parsed, bodies) = parse::parse(&engine, &bytes).unwrap();
    let info = Arc::new(std::mem::take(&mut parsed.info));
    compile_all(info, bytes.clone(), &bodies, threads)
}

/// An image whose functions are compiled when they are first called.
pub(super) fn lazy_image(text: &str) -> Arc<CodeImage> {
    let engine = Engine::new(&Config::new()).unwrap();
    let bytes = Bytes::from(wat::parse_str(text).unwrap());
    let (mut parsed, bodies) = parse::parse(&engine, &bytes).unwrap();
    parsed.info.settings.patches_calls = true;
    let info = Arc::new(std::mem::take(&mut parsed.info));
    compile_lazily(info, bytes.clone(), &bodies, 2).unwrap()
}

/// A request for a counter at a position.
pub(crate) fn count_at(position: u32) -> Request {
    Request { position, what: RequestedKind::Count, only: None }
}

/// A request for a call to a function that does nothing.
pub(crate) fn call_at(position: u32) -> Request {
    extern "C" fn nothing() {}
    let callee = Callee::Native(nothing as extern "C" fn() as usize);
    let what = RequestedKind::Call { callee, arguments: Vec::new() };
    Request { position, what, only: None }
}

#[test]
fn any_number_of_threads_makes_the_same_image() {
    let module = many_functions(1500, |_| String::new());
    assert!(module.len() > 5 * (128 << 10), "{} bytes are too few jobs", module.len());
    let by_one = compile(module.clone(), 1).unwrap();
    for threads in [2, 3, 8, 1000] {
        let image = compile(module.clone(), threads).unwrap();
        assert!(image.memory().code() == by_one.memory().code(), "{threads} threads");
        for index in image.indices() {
            let places = [&image, &by_one].map(|image| {
                let function = image.function(index);
                (function.entry, function.body, function.end, function.wasm_start, function.wasm_end)
            });
            assert_eq!(places[0], places[1]);
        }
    }
    // Each function calls the correct one.
    let code = by_one.memory().code();
    for index in by_one.indices() {
        let function = by_one.function(index);
        let callee = by_one.function(1 + (index - 1) * 7919 % 1500);
        let calls = call_targets(&code, function.entry, function.end);
        assert_eq!(calls, [u64::from(callee.entry)], "function {index}");
    }
}

fn call_targets(code: &[u8], start: u32, end: u32) -> Vec<u64> {
    let code = &code[start as usize..end as usize];
    let decoder = iced_x86::Decoder::with_ip(64, code, start.into(), iced_x86::DecoderOptions::NONE);
    let calls = decoder.into_iter().filter(|instruction| instruction.is_call_near());
    calls.map(|instruction| instruction.near_branch_target()).collect()
}

#[test]
fn the_first_invalid_function_is_reported() {
    // Too few operands, in several jobs.
    let is_wrong = |index: u32| matches!(index, 700 | 1100 | 1101 | 1400);
    let module = many_functions(1500, |index| if is_wrong(index) { "i32.add".into() } else { String::new() });
    let offset = |threads| match compile(module.clone(), threads) {
        Err(CompileError::Invalid(error)) => error.offset(),
        other => panic!("{other:?}"),
    };
    let expected = offset(1);
    for threads in [2, 3, 8] {
        for _ in 0..5 {
            assert_eq!(offset(threads), expected);
        }
    }
}

#[test]
fn a_module_without_functions_has_an_image() {
    let image = compile(wat::parse_str("(module)").unwrap(), 4).unwrap();
    assert_eq!(image.indices().len(), 0);
    assert_eq!(image.code_length(), 0);
}

#[test]
fn each_function_has_one_line_in_the_map_for_perf() {
    let text = "(module $\"a\\0ab\" (func $\"c\\0ad\") (func))";
    let image = compile(wat::parse_str(text).unwrap(), 1).unwrap();
    let mut map = Vec::new();
    super::perf::write_map(&image, &mut map).unwrap();
    let map = String::from_utf8(map).unwrap();
    let names: Vec<_> = map.lines().map(|line| line.splitn(3, ' ').nth(2).unwrap()).collect();
    let originals = [r"a\nb!c\nd", r"a\nb!function[1]", r"a\nb!trampolines"];
    assert_eq!(names, originals);
    image.make_probes(1, &[count_at(image.function(1).wasm_start)]).unwrap();
    let mut map = Vec::new();
    super::perf::write_map(&image, &mut map).unwrap();
    let map = String::from_utf8(map).unwrap();
    let names: Vec<_> = map.lines().map(|line| line.splitn(3, ' ').nth(2).unwrap()).collect();
    assert_eq!(names[..3], originals);
    assert_eq!(names[3..], [r"a\nb!function[1] [probed]", r"a\nb!function[1] [stub]"]);
    for line in map.lines().skip(3) {
        let mut fields = line.split(' ').map(|field| usize::from_str_radix(field, 16));
        let [start, length] = [fields.next().unwrap().unwrap(), fields.next().unwrap().unwrap()];
        assert!(
            length > 0 && image.version_at(start).is_some() && image.version_at(start + length - 1).is_some()
        );
        assert_eq!(image.stub_at(start).is_some(), line.ends_with("[stub]"));
    }
    // The stub of a list is made when it is first used.
    let probe = image.make_probes(1, &[call_at(image.function(1).wasm_start)]).unwrap()[0].unwrap();
    image.activate_probe(probe).unwrap();
    let mut map = Vec::new();
    super::perf::write_map(&image, &mut map).unwrap();
    let map = String::from_utf8(map).unwrap();
    assert_eq!(map.lines().count(), 6);
    assert!(map.lines().last().unwrap().ends_with(r"a\nb!function[1] [stub]"), "{map}");
    // The stubs of entries are made when the first watcher waits for functions.
    let watcher: Arc<dyn Enters> = Arc::new(NoProbes);
    let number = new_number();
    image.wait_for_entries(number, Arc::downgrade(&watcher), |_| false).unwrap();
    image.stop_waiting(number);
    let mut map = Vec::new();
    super::perf::write_map(&image, &mut map).unwrap();
    let map = String::from_utf8(map).unwrap();
    assert_eq!(map.lines().count(), 7);
    assert!(map.lines().last().unwrap().ends_with(r"a\nb!entries [stub]"), "{map}");
}

/// Makes no probes.
pub(super) struct NoProbes;

impl Enters for NoProbes {
    fn comes_first(&self) -> bool {
        false
    }

    fn entered(&self, _: &Arc<CodeImage>, _: u32) {}
}
