//! Call sites of every shape at every offset, in every window setting, toggled by one thread while
//! another runs through them.
//!
//! Text is executed while it is toggled only where the processor fetches windows of that size: the
//! vendor guarantees 8 bytes, a calibration may state more. A window wider than the processor's
//! tears, which is for `tmax-probe` to measure and not for a test: on a Zen 5, which fetches 32
//! bytes, one run of this test in some hundreds executed half of a call when it was executed under
//! 64. With such windows the sites are toggled first and executed afterwards.
//!
//! `CALL_TOGGLES` sets the number of toggles (default: 1,000,000).

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard};

use callpatch::{CallSite, Clobbers, Shape, retarget};
use wordpatch::near::NearBlock;
use wordpatch::{FetchModel, FetchWindow, WaitPolicy, serialize_all_cores};

const SHAPES: [Shape; 4] = [Shape::Call, Shape::Jump, Shape::IndirectCall, Shape::IndirectJump];
const OFFSETS: usize = 64;
/// Executions that are counted exactly after each burst of toggles.
const COUNTED: u64 = 20;

static CALLS: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

extern "C" fn callee<const N: usize>() {
    CALLS[N].fetch_add(1, Ordering::Relaxed);
}

/// Text with one site for every shape and offset, all calling `callee::<0>`.
struct Sites {
    /// Entry of each function and its site.
    functions: Vec<(usize, usize)>,
    /// Targets of the operands, for each callee: thunks for direct calls, pointers for indirect
    /// ones.
    thunks: [usize; 2],
    pointers: [usize; 2],
}

impl Sites {
    fn new() -> Self {
        const FUNCTION: usize = 128;
        let anchor = callee::<0> as *const () as usize;
        let count = SHAPES.len() * OFFSETS;
        let mut block = NearBlock::allocate(&(anchor..anchor), (count + 1) * FUNCTION, 16).unwrap();
        let (start, data) = (block.code_address(), block.data_address());
        let pointers = [data, data + 8];
        let thunks = [start, start + 8];
        let code = block.code_mut();
        let relative = |from: usize, to: usize| (to.wrapping_sub(from) as i32).to_le_bytes();
        for (thunk, pointer) in thunks.into_iter().zip(pointers) {
            let at = thunk - start;
            code[at..at + 2].copy_from_slice(&[0xff, 0x25]);
            code[at + 2..at + 6].copy_from_slice(&relative(thunk + 6, pointer));
        }
        let mut functions = Vec::new();
        for (number, (shape, offset)) in
            SHAPES.iter().flat_map(|shape| (0..OFFSETS).map(move |o| (*shape, o))).enumerate()
        {
            // The function starts eight bytes before its site, so that the site has the requested
            // offset.
            let site = (number + 1) * FUNCTION + offset;
            let (opcode, target): (&[u8], usize) = match shape {
                Shape::Call => (&[0xe8], thunks[0]),
                Shape::Jump => (&[0xe9], thunks[0]),
                Shape::IndirectCall => (&[0xff, 0x15], pointers[0]),
                Shape::IndirectJump => (&[0xff, 0x25], pointers[0]),
            };
            let end = site + opcode.len() + 4;
            code[site..site + opcode.len()].copy_from_slice(opcode);
            code[end - 4..end].copy_from_slice(&relative(start + end, target));
            if shape.is_tail_call() {
                functions.push((start + site, start + site));
            } else {
                code[site - 4..site].copy_from_slice(&[0x48, 0x83, 0xec, 0x08]); // sub rsp, 8
                code[end..end + 5].copy_from_slice(&[0x48, 0x83, 0xc4, 0x08, 0xc3]); // add rsp, 8; ret
                functions.push((start + site - 4, start + site));
            }
        }
        let sealed = block.seal().unwrap();
        assert_eq!(sealed.data, data);
        for (pointer, callee) in
            pointers.into_iter().zip([callee::<0> as *const (), callee::<1> as *const ()])
        {
            // SAFETY: the block's data page is writable and long enough.
            unsafe { (pointer as *mut usize).write(callee as usize) };
        }
        Self { functions, thunks, pointers }
    }

    /// The target of an operand of `shape` for a call of callee `n`.
    fn target(&self, shape: Shape, n: usize) -> usize {
        match shape {
            Shape::Call | Shape::Jump => self.thunks[n],
            Shape::IndirectCall | Shape::IndirectJump => self.pointers[n],
        }
    }
}

/// A thread that executes a function until stopped, and an exact number of times on request.
#[derive(Default)]
struct Executor {
    /// The function to run; 0 to stop.
    function: AtomicUsize,
    /// Executions still to be counted; the executor counts down.
    counted: AtomicU64,
    /// The number of calls to each callee in these executions.
    result: [AtomicU64; 2],
    runs: AtomicU64,
}

/// Stops the executor, even if an assertion fails.
struct Stop<'a>(&'a Executor);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.function.store(0, Ordering::Release);
    }
}

impl Executor {
    fn run(&self) {
        loop {
            let function = self.function.load(Ordering::Acquire);
            if function == 0 {
                return;
            }
            // SAFETY: the test's functions take and return nothing.
            let run: extern "C" fn() = unsafe { std::mem::transmute(function) };
            let exactly = self.counted.load(Ordering::Acquire);
            if exactly == 0 {
                run();
                self.runs.fetch_add(1, Ordering::Relaxed);
            } else {
                CALLS.iter().for_each(|calls| calls.store(0, Ordering::Relaxed));
                (0..exactly).for_each(|_| run());
                for (result, calls) in self.result.iter().zip(&CALLS) {
                    result.store(calls.load(Ordering::Relaxed), Ordering::Relaxed);
                }
                self.counted.store(0, Ordering::Release);
            }
        }
    }

    /// Waits until the executor has executed the function again.
    fn has_run(&self) {
        let before = self.runs.load(Ordering::Relaxed);
        while self.runs.load(Ordering::Relaxed) == before {
            std::hint::spin_loop();
        }
    }

    /// Executes the function [`COUNTED`] times with the current code, and returns the number of
    /// calls to each callee.
    fn count(&self) -> [u64; 2] {
        serialize_all_cores().unwrap();
        self.counted.store(COUNTED, Ordering::Release);
        while self.counted.load(Ordering::Acquire) != 0 {
            std::hint::spin_loop();
        }
        self.result.each_ref().map(|result| result.load(Ordering::Relaxed))
    }
}

/// The fetch model and the callees' counters are global: serializes the tests. Holds the window
/// that was in force before any test, which is not wider than the processor's.
fn exclusive() -> MutexGuard<'static, FetchWindow> {
    static TEST: LazyLock<Mutex<FetchWindow>> = LazyLock::new(|| Mutex::new(FetchModel::in_force().window));
    TEST.lock().unwrap_or_else(|e| e.into_inner())
}

/// # Safety
/// If `window` is wider than the processor's, no thread executes text while it is patched.
unsafe fn force(window: FetchWindow) {
    // SAFETY: the caller's obligation.
    unsafe { FetchModel::force(window, None, WaitPolicy::Membarrier) };
}

/// Calls `function` `times` times in this thread, and returns the number of calls to each callee.
fn count_here(function: usize, times: u64) -> [u64; 2] {
    serialize_all_cores().unwrap();
    // SAFETY: the test's functions take and return nothing.
    let run: extern "C" fn() = unsafe { std::mem::transmute(function) };
    CALLS.iter().for_each(|calls| calls.store(0, Ordering::Relaxed));
    (0..times).for_each(|_| run());
    CALLS.each_ref().map(|calls| calls.load(Ordering::Relaxed))
}

/// Toggles `site` `times` times, an odd number, so that it is in the state `active` at the end.
fn toggle(site: &CallSite, times: usize, active: bool) {
    for number in 0..times {
        let activate = (number % 2 == 0) == active;
        let toggled = if activate { site.activate() } else { site.deactivate() };
        assert_eq!(toggled.unwrap(), callpatch::Toggle::Changed);
    }
}

#[test]
fn every_shape_offset_and_window_toggled() {
    let of_processor = exclusive();
    let toggles: usize = std::env::var("CALL_TOGGLES").map_or(1_000_000, |n| n.parse().unwrap());
    let cases = FetchWindow::ALL.len() * 2 * SHAPES.len() * OFFSETS;
    // An odd number: a burst of toggles changes the state.
    let burst = (toggles / cases / 2) | 1;
    let mut done = 0;
    let mut strategies = std::collections::HashSet::new();
    for window in FetchWindow::ALL {
        for clobbers in [Clobbers::Nothing, Clobbers::CallerSaved] {
            // SAFETY: an executor runs below only if the window is not wider than the processor's;
            // that of an earlier iteration has ended.
            unsafe { force(window) };
            let sites = Sites::new();
            let executor = Executor::default();
            std::thread::scope(|scope| {
                let is_executed = window.bytes() <= of_processor.bytes();
                if is_executed {
                    executor.function.store(sites.functions[0].0, Ordering::Release);
                    scope.spawn(|| executor.run());
                }
                let _stop = Stop(&executor);
                for (function, address) in &sites.functions {
                    // SAFETY: the site is one instruction of the test's own text, which is correct
                    // with and without the call.
                    let site = unsafe { CallSite::decode(*address, clobbers) }.unwrap();
                    strategies.insert(site.strategy());
                    for active_at_end in [false, true] {
                        let counted = if is_executed {
                            executor.function.store(*function, Ordering::Release);
                            executor.has_run();
                            toggle(&site, burst, active_at_end);
                            executor.count()
                        } else {
                            toggle(&site, burst, active_at_end);
                            count_here(*function, COUNTED)
                        };
                        done += burst;
                        let expected = if active_at_end { [COUNTED, 0] } else { [0, 0] };
                        assert_eq!(counted, expected, "{window:?} {site:?}");
                    }
                }
            });
        }
    }
    assert_eq!(strategies.len(), 5, "not every strategy was used: {strategies:?}");
    println!("{done} toggles");
}

#[test]
fn every_shape_and_offset_retargeted_while_executing() {
    let _exclusive = exclusive();
    for clobbers in [Clobbers::Nothing, Clobbers::CallerSaved] {
        // SAFETY: the vendor guarantees this window.
        unsafe { force(FetchWindow::Bytes8) };
        let sites = Sites::new();
        let executor = Executor::default();
        executor.function.store(sites.functions[0].0, Ordering::Release);
        std::thread::scope(|scope| {
            scope.spawn(|| executor.run());
            let _stop = Stop(&executor);
            for (function, address) in &sites.functions {
                // SAFETY: as above; both callees are functions without arguments or result.
                let mut site = unsafe { CallSite::decode(*address, clobbers) }.unwrap();
                for round in 1..=4 {
                    executor.function.store(*function, Ordering::Release);
                    executor.has_run();
                    let target = sites.target(site.shape(), round % 2);
                    // SAFETY: as above.
                    site = unsafe { retarget(&[(site, target)]) }.pop().unwrap().unwrap();
                    site.activate().unwrap();
                    executor.has_run();
                    let mut expected = [0; 2];
                    expected[round % 2] = COUNTED;
                    assert_eq!(executor.count(), expected, "{site:?}");
                }
            }
        });
    }
}

#[test]
fn calls_named_by_address_as_in_the_paper() {
    let _exclusive = exclusive();
    // SAFETY: the vendor guarantees this window.
    unsafe { force(FetchWindow::Bytes8) };
    let sites = Sites::new();
    let run = |function| count_here(function, 1);
    for (function, address) in &sites.functions {
        // SAFETY: the sites are calls, and no other thread executes or writes them.
        unsafe {
            assert_eq!(run(*function), [1, 0]);
            callpatch::deactivate_call(*address).unwrap();
            callpatch::deactivate_call(*address).unwrap();
            assert_eq!(run(*function), [0, 0]);
        }
    }
    // A NOP inside a window becomes a call; one that straddles is refused.
    let nop = [0x0f, 0x1f, 0x44, 0, 0];
    let mut block = NearBlock::allocate(&(sites.thunks[0]..sites.thunks[0]), 64, 0).unwrap();
    block.code_mut()[0..5].copy_from_slice(&nop);
    block.code_mut()[12..17].copy_from_slice(&nop);
    let start = block.seal().unwrap().code;
    let offset = |at: usize| sites.thunks[1].wrapping_sub(at + 5) as i32;
    // SAFETY: no thread executes the block.
    unsafe {
        callpatch::activate_call(start, offset(start)).unwrap();
        assert_eq!(*(start as *const u8), 0xe8);
        let refused = callpatch::activate_call(start + 12, offset(start + 12));
        assert!(matches!(refused, Err(callpatch::Error::StraddlingNop { .. })), "{refused:?}");
        let refused = callpatch::deactivate_call(start + 20);
        assert!(matches!(refused, Err(callpatch::Error::NotACall { .. })), "{refused:?}");
    }
    // Another operand: retargets the call.
    let (function, address) = sites.functions[4];
    // SAFETY: as above.
    unsafe { callpatch::activate_call(address, offset(address)) }.unwrap();
    assert_eq!(run(function), [0, 1]);
}
