//! Functions for the tests on real text.

// Each test binary compiles this module and uses part of it.
#![allow(dead_code, unreachable_pub)]

pub mod alone;
pub mod children;
pub mod generated;
pub mod refused;
pub mod sigtrap;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use wordpatch::near::NearBlock;
use wordpatch::text::{Form, TogglePair};
use wordpatch::{Bytes, Error, FetchModel, FetchWindow, Patch, TMax, TextRef, WaitPolicy};

/// The fetch model is global, so tests that force one are serialized.
pub fn with_model(window: FetchWindow, t_max: Option<TMax>, wait: WaitPolicy) -> MutexGuard<'static, ()> {
    static MODEL: Mutex<()> = Mutex::new(());
    let guard = MODEL.lock().unwrap_or_else(|e| e.into_inner());
    // SAFETY: eight bytes are the vendors' guarantee; the tests that force more do not execute
    // concurrently. If text is executed concurrently, the T_max of the test is much longer than
    // that of any known processor.
    unsafe { FetchModel::force(window, t_max, wait) };
    guard
}

/// Waits are `membarrier` calls.
pub fn with_window(window: FetchWindow) -> MutexGuard<'static, ()> {
    with_model(window, None, WaitPolicy::Membarrier)
}

/// Longer than that of any known processor, but only about ten microseconds.
pub const LONG_T_MAX: TMax = TMax(30_000);

pub const A: u32 = 0x1111_1111;
pub const B: u32 = 0xeeee_eeee;

pub const fn mov_eax(value: u32) -> [u8; 5] {
    let [a, b, c, d] = value.to_le_bytes();
    [0xb8, a, b, c, d]
}

pub const RET: u8 = 0xc3;

/// A sealed block of text that begins with `code` at `offset`; the rest is INT3. Returns the
/// address of the code.
pub fn text(offset: usize, code: &[u8]) -> usize {
    let anchor = text as *const () as usize;
    let mut block = NearBlock::allocate(&(anchor..anchor), offset + code.len(), 0).unwrap();
    block.code_mut()[offset..offset + code.len()].copy_from_slice(code);
    block.seal().unwrap().code + offset
}

/// Functions `mov eax, A; ret`, one every 64 bytes, `offset` bytes after the start of the cache
/// line. Returns their addresses.
pub fn functions(count: usize, offset: usize) -> Vec<usize> {
    let mut code = vec![0xcc; 64 * (count + 1)];
    for number in 0..count {
        let at = 64 * number + offset;
        code[at..at + 5].copy_from_slice(&mov_eax(A));
        code[at + 5] = RET;
    }
    let start = text(0, &code);
    (0..count).map(|number| start + 64 * number + offset).collect()
}

/// Whether two threads can run at the same time; prints a message if not.
pub fn has_two_processors() -> bool {
    let usable = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    if usable < 2 {
        eprintln!("skipped: the process may use one processor only, so threads cannot run at the same time");
    }
    usable >= 2
}

/// An offset at which `mov eax, imm32` crosses a boundary of every window.
pub const STRADDLING: usize = 61;
/// An offset at which it crosses none.
pub const INSIDE: usize = 8;

pub fn call(address: usize) -> u32 {
    // SAFETY: the tests write `mov eax, imm32; ret` there.
    let function: extern "C" fn() -> u32 = unsafe { std::mem::transmute(address) };
    function()
}

/// The patches of all sites from one `mov eax` to another.
pub fn patches<'a>(sites: &[usize], old: &'a [u8; 5], new: &'a [u8; 5]) -> Vec<Patch<'a>> {
    sites.iter().map(|site| Patch { address: *site, expected: old, replacement: new }).collect()
}

/// Counts of a thread that calls sites repeatedly.
#[derive(Default)]
pub struct Executor {
    stop: AtomicBool,
    /// The number of calls that returned A, and B.
    pub seen: [AtomicU64; 2],
    torn: AtomicU64,
}

impl Executor {
    pub fn calls(&self) -> u64 {
        self.seen.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Waits until this number of further calls has been made.
    pub fn wait_for_calls(&self, more: u64) {
        let until = self.calls() + more;
        while self.calls() < until {
            assert_eq!(self.torn.load(Ordering::Relaxed), 0, "torn values were seen");
            std::thread::yield_now();
        }
    }

    fn run(&self, sites: &[usize]) {
        while !self.stop.load(Ordering::Relaxed) {
            for site in sites {
                let count = match call(*site) {
                    A => &self.seen[0],
                    B => &self.seen[1],
                    _ => &self.torn,
                };
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

struct Stop<'a>(&'a Executor);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

/// Runs `act` while a thread calls the sites, which contain `mov eax` of A or B. Fails if a call
/// returns anything else.
pub fn while_executing<R>(sites: &[usize], act: impl FnOnce(&Executor) -> R) -> R {
    let executor = Executor::default();
    let result = std::thread::scope(|scope| {
        scope.spawn(|| executor.run(sites));
        // This is done even if `act` panics.
        let _stop = Stop(&executor);
        executor.wait_for_calls(sites.len() as u64);
        act(&executor)
    });
    assert_eq!(executor.torn.into_inner(), 0, "torn values were seen");
    result
}

/// Exchanges `mov eax` of A and B at a site inside a window, which contains A.
pub fn check_two_forms(site: usize) {
    let [a, b, seven] = [A, B, 7].map(|value| Bytes::new(&mov_eax(value)).unwrap());
    // SAFETY: the text stays mapped, and no other thread executes or writes it. Both forms are one
    // instruction.
    unsafe {
        let place = TextRef::resolve(site, 5).unwrap();
        let forms = TogglePair::new(&place, FetchWindow::Bytes8, 0, [&a, &b]);
        use Form::{First, Second};
        for (to, changes, value) in
            [(Second, true, B), (Second, false, B), (First, true, A), (First, false, A)]
        {
            assert_eq!(forms.exchange(to).unwrap(), changes);
            assert_eq!(call(site), value);
        }
        place.compare_exchange(FetchWindow::Bytes8, 0, &a, &seven).unwrap();
        for (to, expected) in [(First, b), (Second, a)] {
            let error = forms.exchange(to).unwrap_err();
            let Error::Mismatch { address, expected: wanted, found } = error else { panic!("{error}") };
            assert_eq!((address, wanted, found), (site, expected, seven));
        }
        assert_eq!(call(site), 7);
    }
}
