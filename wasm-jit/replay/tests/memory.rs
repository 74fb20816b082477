//! The memory that `generate` takes. In a process of its own: all allocations are counted.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use wasm_jit_replay::{Event, Value, Writer, generate, separate};

struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn add(size: usize) {
    PEAK.fetch_max(NOW.fetch_add(size, Relaxed) + size, Relaxed);
}

// SAFETY: passes every request on to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller's obligation.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's obligation.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // The system allocator moves large blocks without a copy.
        NOW.fetch_sub(layout.size(), Relaxed);
        add(size);
        // SAFETY: the caller's obligation.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[derive(Clone, Default)]
struct Bytes(Arc<Mutex<Vec<u8>>>);

impl Write for Bytes {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

const PROGRAM: &str = r#"(module (import "h" "f" (func (param i32 i32) (result i32)))
    (memory (export "memory") 3)
    (func (export "run")))"#;

/// A trace with this number of calls of `f`, each of which writes this number of bytes.
fn trace(program: &[u8], calls: i32, length: usize) -> Vec<u8> {
    let trace = Bytes::default();
    let mut writer = Writer::new(trace.clone()).unwrap();
    let (module, mut state) = (crc32fast::hash(program), 1_u64);
    writer.write(&Event::Start { module, length: program.len() as u64 }).unwrap();
    writer.write(&Event::Enter { function: 1, arguments: Vec::new() }).unwrap();
    for number in 0..calls {
        let mut bytes = vec![0; length];
        for byte in &mut bytes {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (state >> 56) as u8;
        }
        writer.write(&Event::Call { import: 0, arguments: vec![Value::I32(number); 2] }).unwrap();
        writer.write(&Event::Write { memory: 0, address: 8, bytes }).unwrap();
        writer.write(&Event::Return { results: vec![Value::I32(number)] }).unwrap();
    }
    writer.write(&Event::Leave { results: Vec::new() }).unwrap();
    writer.close().unwrap();
    let trace = trace.0.lock().unwrap();
    trace.clone()
}

/// The greatest amount of memory that something takes, and its result.
fn peak_of<T>(run: impl FnOnce() -> T) -> (usize, T) {
    let before = NOW.load(Relaxed);
    PEAK.store(before, Relaxed);
    let result = run();
    (PEAK.load(Relaxed) - before, result)
}

#[test]
fn the_memory_is_in_proportion_to_what_the_host_does() {
    let program = wat::parse_str(PROGRAM).unwrap();
    // 32 MiB of bytes: they and the module. The list of them may have a capacity of twice as much.
    let writes = trace(&program, 512, 1 << 16);
    let (used, bench) = peak_of(|| generate(&program, &writes[..], true).unwrap());
    assert!(bench.len() > 32 << 20 && used < 3 * bench.len(), "{used} bytes for {}", bench.len());
    let (used, modules) = peak_of(|| separate(&program, &writes[..], true).unwrap());
    assert!(used < 3 * modules.host.len(), "{used} bytes for {}", modules.host.len());
    // A call with one action, two arguments and a result.
    let calls = trace(&program, 100_000, 8);
    let (used, bench) = peak_of(|| generate(&program, &calls[..], true).unwrap());
    assert!(used < 100_000 * 500, "{used} bytes, of which {} are the module", bench.len());
}
