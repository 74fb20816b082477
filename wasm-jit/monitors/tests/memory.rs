//! The memory that reports take. In a process of its own: all allocations are counted.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use wasm_jit::{Engine, Module};
use wasm_jit_monitors::{Format, Output, Session};

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

/// The analyses of the functions are larger than the module: they are not in memory together.
#[test]
fn functions_that_are_not_called_take_little_memory() {
    let body = "(br_if 0 (i32.eqz (local.get 0))) (br_table 0 1 0 (local.get 0))".repeat(100);
    let function = format!("(func (param i32) (block (block {body})))");
    let module = Module::new(&Engine::default(), format!("(module {})", function.repeat(300))).unwrap();
    let session = Session::new(&module, Output::standard_error(Format::Text));
    session.enable("coverage{branches}".parse().unwrap()).unwrap();
    let before = NOW.load(Relaxed);
    PEAK.store(before, Relaxed);
    // Without files.
    session.write().unwrap();
    let took = PEAK.load(Relaxed) - before;
    let size = module.bytes().len();
    assert!(took < 2 * size, "{took} bytes for a module of {size} bytes");
}
