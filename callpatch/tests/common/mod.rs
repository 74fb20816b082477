//! Call sites for the tests: a function with one site, and two callees that count.

// Each test binary uses only a part.
#![allow(dead_code, unreachable_pub)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use callpatch::Shape;
use wordpatch::near::NearBlock;
use wordpatch::{Bytes, FetchModel, FetchWindow, TMax, TextRef, WaitPolicy};

pub const SHAPES: [Shape; 4] = [Shape::Call, Shape::Jump, Shape::IndirectCall, Shape::IndirectJump];

static CALLS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

pub extern "C" fn callee<const N: usize>() {
    CALLS[N].fetch_add(1, Ordering::Relaxed);
}

/// The fetch model and the callees' counters are global, so the tests are serialized.
pub fn with_model(window: FetchWindow, t_max: Option<TMax>, wait: WaitPolicy) -> MutexGuard<'static, ()> {
    static TEST: Mutex<()> = Mutex::new(());
    let guard = TEST.lock().unwrap_or_else(|e| e.into_inner());
    force(window, t_max, wait);
    guard
}

/// Requires the guard.
pub fn force(window: FetchWindow, t_max: Option<TMax>, wait: WaitPolicy) {
    // SAFETY: in these tests, no thread executes what another patches.
    unsafe { FetchModel::force(window, t_max, wait) };
}

pub fn with_window(window: FetchWindow) -> MutexGuard<'static, ()> {
    with_model(window, None, WaitPolicy::Membarrier)
}

/// A function that makes one call and returns, or ends with a tail call.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// The address of the call instruction.
    pub site: usize,
    pub shape: Shape,
    entry: usize,
    /// Targets of the site's operand, for each callee.
    pub targets: [usize; 2],
}

/// Distance between two functions.
const FUNCTION: usize = 128;

/// Functions with one site each, of the given shape and at the given offset in a line; they call
/// `callee::<0>`.
pub fn functions(sites: &[(Shape, usize)]) -> Vec<Function> {
    let anchor = callee::<0> as *const () as usize;
    let mut block = NearBlock::allocate(&(anchor..anchor), (sites.len() + 1) * FUNCTION, 16).unwrap();
    let (start, pointers) = (block.code_address(), block.data_address());
    let relative = |from: usize, to: usize| (to.wrapping_sub(from) as i32).to_le_bytes();
    let code = block.code_mut();
    for number in 0..2 {
        // jmp *pointer(%rip)
        let at = 8 * number;
        code[at..at + 2].copy_from_slice(&[0xff, 0x25]);
        code[at + 2..at + 6].copy_from_slice(&relative(start + at + 6, pointers + 8 * number));
    }
    let mut functions = Vec::new();
    for (number, (shape, offset)) in sites.iter().enumerate() {
        let (opcode, targets): (&[u8], _) = match shape {
            Shape::Call => (&[0xe8], [start, start + 8]),
            Shape::Jump => (&[0xe9], [start, start + 8]),
            Shape::IndirectCall => (&[0xff, 0x15], [pointers, pointers + 8]),
            Shape::IndirectJump => (&[0xff, 0x25], [pointers, pointers + 8]),
        };
        let site = (number + 1) * FUNCTION + offset;
        let end = site + opcode.len() + 4;
        code[site..site + opcode.len()].copy_from_slice(opcode);
        code[end - 4..end].copy_from_slice(&relative(start + end, targets[0]));
        let mut entry = site;
        if !shape.is_tail_call() {
            entry -= 4;
            code[entry..site].copy_from_slice(&[0x48, 0x83, 0xec, 0x08]); // sub rsp, 8
            code[end..end + 5].copy_from_slice(&[0x48, 0x83, 0xc4, 0x08, 0xc3]); // add rsp, 8; ret
        }
        functions.push(Function { site: start + site, shape: *shape, entry: start + entry, targets });
    }
    let sealed = block.seal().unwrap();
    for (number, callee) in [callee::<0> as *const (), callee::<1> as *const ()].into_iter().enumerate() {
        // SAFETY: the block's data page is writable and long enough.
        unsafe { ((sealed.data + 8 * number) as *mut usize).write(callee as usize) };
    }
    functions
}

/// One such function.
pub fn function(shape: Shape, offset: usize) -> Function {
    functions(&[(shape, offset)])[0]
}

impl Function {
    /// Runs the function, and returns the number of calls to each callee.
    pub fn run(&self) -> [u64; 2] {
        CALLS.iter().for_each(|calls| calls.store(0, Ordering::Relaxed));
        // SAFETY: the function takes and returns nothing.
        let run: extern "C" fn() = unsafe { std::mem::transmute(self.entry) };
        run();
        CALLS.each_ref().map(|calls| calls.load(Ordering::Relaxed))
    }

    /// The current bytes of the site.
    pub fn bytes(&self) -> Vec<u8> {
        // SAFETY: the text stays mapped.
        unsafe { TextRef::resolve(self.site, 6).unwrap().read(0, self.shape.len()) }.to_vec()
    }

    /// Overwrites one of the site's bytes; returns the previous value.
    pub fn write(&self, offset: usize, byte: u8) -> u8 {
        // SAFETY: the text stays mapped, and no thread executes it concurrently.
        unsafe {
            let text = TextRef::resolve(self.site, 6).unwrap();
            let old = text.read(offset, 1);
            text.compare_exchange(FetchWindow::Bytes8, offset, &old, &Bytes::new(&[byte]).unwrap()).unwrap();
            old[0]
        }
    }
}
