//! The paper's grid: straddlers at every split, toggled by [`patch`] while 2 to 6 threads execute
//! them. Also a real call that becomes a NOP: if it tears, the process crashes, and the crash is
//! counted.

use std::arch::asm;
use std::thread;

use wordpatch::patch;

use crate::executor::run_once;
use crate::run::{Kind, PARTS, Run};
use crate::sites::{self, LENGTH, RET, Value, bytes_at, offset_of};
use crate::{defect, sites::text};

const SITES: usize = 20;
const MIN_EXECUTORS: usize = 2;
const MAX_EXECUTORS: usize = MIN_EXECUTORS + PARTS - 1;

/// A five-byte NOP.
const NOP: [u8; LENGTH] = [0x0f, 0x1f, 0x44, 0, 0];

pub(crate) fn run(run: &Run) {
    let sites = sites::make(SITES);
    let calls = make_calls();
    thread::scope(|scope| {
        scope.spawn(|| patch_round(run, &sites, &calls));
        for number in 0..MAX_EXECUTORS {
            let (sites, calls) = (&sites, &calls);
            scope.spawn(move || execute(run, number, sites, calls));
        }
        scope.spawn(|| defect::inject(run, &sites));
    });
}

/// Toggles one site after the other.
fn patch_round(run: &Run, sites: &[usize], calls: &[Call]) {
    let mut worker = run.worker("paper's patcher");
    let mut values = vec![Value::FIRST; sites.len()];
    while worker.continues() {
        for (site, value) in sites.iter().zip(&mut values) {
            let next = value.other(&mut worker.random);
            // SAFETY: the site is one instruction and may hold any of the values; no thread here
            // blocks SIGTRAP.
            let patched = unsafe { patch(*site, &value.form(), &next.form()) };
            worker.check(patched.is_ok() && sites::holds(*site, next), Kind::Lost, || {
                format!("{patched:?} at {site:#x}, {next:?} wanted, {:02x?} found", bytes_at(*site))
            });
            *value = if patched.is_ok() { next } else { Value(bytes_at(*site)[1].max(1)) };
        }
        for call in calls {
            for (old, new) in [(&call.bytes, &NOP), (&NOP, &call.bytes)] {
                // SAFETY: as above; the program is correct with and without the call.
                let patched = unsafe { patch(call.site, old, new) };
                worker.check(patched.is_ok() && bytes_at(call.site) == *new, Kind::Lost, || {
                    format!("{patched:?} of the call at {:#x}", call.site)
                });
            }
        }
        worker.toggled((sites.len() + 2 * calls.len()) as u64);
    }
}

/// Executes all sites, if that many executors take part.
fn execute(run: &Run, number: usize, sites: &[usize], calls: &[Call]) {
    let worker = run.worker(format!("paper's executor {number}"));
    while worker.continues() {
        if number >= MIN_EXECUTORS + run.part() {
            thread::yield_now();
            continue;
        }
        for _ in 0..64 {
            run_once(&worker, sites);
            for call in calls {
                worker.check(call.execute(), Kind::Torn, || format!("the call at {:#x}", call.site));
            }
            worker.executed(calls.len() as u64);
        }
    }
}

/// A function that consists of a call and a return.
struct Call {
    site: usize,
    bytes: [u8; LENGTH],
}

/// The callee's result in EAX.
const CALLED: u32 = 0x5a5a_5a5a;

impl Call {
    /// Executes the site, and returns whether the callee was called or skipped.
    fn execute(&self) -> bool {
        let eax: u32;
        // SAFETY: the site is a call of a function that changes only EAX, or a NOP, followed by a
        // return.
        unsafe { asm!("call {}", in(reg) self.site, inout("eax") 0 => eax) };
        eax == CALLED || eax == 0
    }
}

/// Makes a call at each split.
fn make_calls() -> Vec<Call> {
    const COUNT: usize = 10;
    // At a distance for which all four bytes of the displacement differ from those of the NOP.
    const CALLEE: usize = 0x01_0101;
    let length = CALLEE + 16;
    let mut calls = Vec::new();
    text(length, |start| {
        let mut code = vec![0xcc; length];
        code[CALLEE] = 0xb8;
        code[CALLEE + 1..CALLEE + 5].copy_from_slice(&CALLED.to_le_bytes());
        code[CALLEE + 5] = RET;
        for at in (0..COUNT).map(offset_of) {
            let displacement = ((CALLEE - at - LENGTH) as u32).to_le_bytes();
            let mut bytes = [0xe8; LENGTH];
            bytes[1..].copy_from_slice(&displacement);
            code[at..at + LENGTH].copy_from_slice(&bytes);
            code[at + LENGTH] = RET;
            calls.push(Call { site: start + at, bytes });
        }
        code
    });
    calls
}
