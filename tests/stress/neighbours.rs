//! Sites five bytes apart, which share words and fetch windows, each toggled by its own thread: no
//! thread may lose another's update.
//!
//! ```text
//! b8|b9 v v v v    mov eax|ecx     by patch
//! e8 d d d d       call            by CallSite
//! ba|be v v v v    mov edx|esi     by patch_all, all runs at once
//! e8 d d d d       call            by CallSite
//! bf v v v v       mov edi         by patch
//! e8 d d d d       call            by CallSite, and sometimes retargeted to another callee
//! c3               ret
//! ```
//!
//! There is one such run for each offset in a word.

use std::arch::asm;
use std::thread;

use callpatch::{CallSite, Clobbers, Toggle, retarget};
use wordpatch::{Patch, patch, patch_all};

use crate::defect;
use crate::run::{Kind, Run, Worker};
use crate::sites::{LENGTH, Opcodes, RET, Value, bytes_at, is_repeated, is_whole, text};

const RUNS: usize = 8;
const EXECUTORS: usize = 2;

/// The instruction in a slot of the run.
#[derive(Clone, Copy)]
enum Slot {
    Move(Opcodes),
    Call,
}

const SLOTS: [Slot; 6] = [
    Slot::Move([0xb8, 0xb9]),
    Slot::Call,
    Slot::Move([0xba, 0xbe]),
    Slot::Call,
    Slot::Move([0xbf, 0xbf]),
    Slot::Call,
];

/// The slot whose patcher uses batches, and the one whose calls are retargeted.
const BATCHES: usize = 2;
const RETARGETED: usize = 5;

/// Offsets of the callees, and of run `number`.
const CALLEES: [usize; 2] = [0, 16];

fn start_of(number: usize) -> usize {
    128 * (number + 1) + 40 + number
}

pub(crate) fn run(run: &Run) {
    let start = make();
    let runs: Vec<usize> = (0..RUNS).map(|number| start + start_of(number)).collect();
    let sites_of = |slot: usize| runs.iter().map(move |run| run + slot * LENGTH).collect::<Vec<_>>();
    let left = thread::scope(|scope| {
        let patchers: Vec<_> = SLOTS
            .into_iter()
            .enumerate()
            .map(|(number, slot)| {
                let sites = sites_of(number);
                scope.spawn(move || {
                    let mut worker = run.worker(format!("neighbour {number}"));
                    match slot {
                        Slot::Move(opcodes) => move_all(&mut worker, &sites, opcodes, number == BATCHES),
                        Slot::Call if number == RETARGETED => retarget_all(&worker, &sites, start),
                        Slot::Call => toggle_all(&worker, &sites),
                    }
                    sites.into_iter().map(|site| (site, bytes_at(site))).collect::<Vec<_>>()
                })
            })
            .collect();
        for number in 0..EXECUTORS {
            let runs = &runs;
            scope.spawn(move || execute_all(run, number, runs));
        }
        scope.spawn(|| defect::inject(run, &sites_of(0)));
        patchers.into_iter().filter_map(|patcher| patcher.join().ok()).flatten().collect::<Vec<_>>()
    });
    for (site, bytes) in left {
        run.check(bytes_at(site) == bytes, Kind::Lost, || {
            format!("{bytes:02x?} was stored last at {site:#x}, but its bytes are {:02x?}", bytes_at(site))
        });
    }
}

fn make() -> usize {
    let length = start_of(RUNS);
    text(length, |_| {
        let mut code = vec![0xcc; length];
        CALLEES.into_iter().for_each(|callee| code[callee] = RET);
        for number in 0..RUNS {
            for (slot, kind) in SLOTS.into_iter().enumerate() {
                let at = start_of(number) + slot * LENGTH;
                let bytes = match kind {
                    Slot::Move(opcodes) => Value::FIRST.form_with(opcodes),
                    Slot::Call => {
                        let [a, b, c, d] = ((CALLEES[0] as i32) - (at + LENGTH) as i32).to_le_bytes();
                        [0xe8, a, b, c, d]
                    }
                };
                code[at..at + LENGTH].copy_from_slice(&bytes);
            }
            code[start_of(number) + SLOTS.len() * LENGTH] = RET;
        }
        code
    })
}

/// Gives each site a new value, individually or in one batch.
fn move_all(worker: &mut Worker<'_>, sites: &[usize], opcodes: Opcodes, batch: bool) {
    let mut values = vec![Value::FIRST; sites.len()];
    while worker.continues() {
        let next: Vec<Value> = values.iter().map(|value| value.other(&mut worker.random)).collect();
        let forms =
            |values: &[Value]| values.iter().map(|value| value.form_with(opcodes)).collect::<Vec<_>>();
        let (old, new) = (forms(&values), forms(&next));
        let patches: Vec<Patch<'_>> = sites
            .iter()
            .zip(old.iter().zip(&new))
            .map(|(site, (old, new))| Patch { address: *site, expected: old, replacement: new })
            .collect();
        for (site, old) in sites.iter().zip(&old) {
            let found = bytes_at(*site);
            worker
                .check(found == *old, Kind::Lost, || format!("{old:02x?} became {found:02x?} at {site:#x}"));
        }
        let results = if batch {
            // SAFETY: each site is one instruction that may hold any value; no thread here blocks
            // SIGTRAP.
            unsafe { patch_all(&patches) }
        } else {
            // SAFETY: as above.
            patches.iter().map(|one| unsafe { patch(one.address, one.expected, one.replacement) }).collect()
        };
        for ((site, result), new) in sites.iter().zip(&results).zip(&new) {
            let found = bytes_at(*site);
            worker.check(result.is_ok() && found == *new, Kind::Lost, || {
                format!("{result:?} at {site:#x}, {new:02x?} wanted, {found:02x?} found")
            });
        }
        worker.toggled(sites.len() as u64);
        values = next;
    }
}

/// The sites of these calls.
fn decode(sites: &[usize]) -> Vec<CallSite> {
    // SAFETY: each is a call in this program's own text, which is correct with and without it.
    let decode = |site: &usize| unsafe { CallSite::decode(*site, Clobbers::Nothing) }.expect("a call");
    sites.iter().map(decode).collect()
}

/// Toggles each call, several times in a round.
fn toggle_all(worker: &Worker<'_>, sites: &[usize]) {
    const TIMES: u64 = 64;
    let sites = decode(sites);
    while worker.continues() {
        for site in &sites {
            (0..TIMES).for_each(|_| toggle_twice(worker, site));
        }
        worker.toggled(2 * TIMES * sites.len() as u64);
    }
}

/// Switches a call off and on again.
fn toggle_twice(worker: &Worker<'_>, site: &CallSite) {
    for toggled in [site.deactivate(), site.activate()] {
        worker.check(matches!(toggled, Ok(Toggle::Changed)), Kind::Lost, || {
            format!("{toggled:?} of the call at {:#x}", site.address())
        });
    }
}

/// Retargets the calls from one callee to the other and back, and toggles them in between.
fn retarget_all(worker: &Worker<'_>, sites: &[usize], start: usize) {
    let mut sites = decode(sites);
    let mut round = 0;
    while worker.continues() {
        round += 1;
        let target = start + CALLEES[round % 2];
        let wanted: Vec<(CallSite, usize)> = sites.iter().map(|site| (*site, target)).collect();
        // SAFETY: both callees return immediately.
        for (place, result) in sites.iter_mut().zip(unsafe { retarget(&wanted) }) {
            match result {
                Ok(site) => {
                    *place = site;
                    let activated = site.activate();
                    worker.check(activated.is_ok(), Kind::Lost, || {
                        format!("{activated:?} at {:#x}", site.address())
                    });
                    (0..32).for_each(|_| toggle_twice(worker, &site));
                }
                Err(error) => worker.found(Kind::Lost, format_args!("{error} at {:#x}", place.address())),
            }
        }
        worker.toggled(66 * sites.len() as u64);
    }
}

fn execute_all(run: &Run, number: usize, runs: &[usize]) {
    let worker = run.worker(format!("neighbours' executor {number}"));
    while worker.continues() {
        for _ in 0..64 {
            for place in runs {
                let (eax, ecx, edx, esi, edi): (u32, u32, u32, u32, u32);
                // SAFETY: a run changes these registers only, and returns.
                unsafe {
                    asm!("call {}", in(reg) *place, inout("eax") 0 => eax, inout("ecx") 0 => ecx,
                        inout("edx") 0 => edx, inout("esi") 0 => esi, inout("edi") 0 => edi)
                };
                let whole = is_whole(eax, ecx) && is_whole(edx, esi) && is_repeated(edi) && edi != 0;
                worker.check(whole, Kind::Torn, || {
                    format!("{eax:#x} or {ecx:#x}, {edx:#x} or {esi:#x}, {edi:#x} from {place:#x}")
                });
            }
            worker.executed((runs.len() * SLOTS.len()) as u64);
        }
    }
}
