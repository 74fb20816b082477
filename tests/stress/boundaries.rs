//! Single stores at exactly the offsets that the fetch model in force calls safe: an instruction
//! across every multiple of four bytes inside a window, at every split. One thread exchanges its
//! operand back to back, two or three execute it in a tight loop, and a value that was never stored
//! is a torn fetch.
//!
//! ```text
//!          mov eax, imm32        the site: its operand is A or B
//!          cmp eax, esi          A?
//!          je  next
//!          cmp eax, edx          B?
//!          jne torn
//! next:    dec rdi
//!          jnz site
//!          xor eax, eax
//! torn:    ret                   0, or the value that was torn
//! ```
//!
//! # Conditions in which a processor tears
//! Measured on an AMD Zen 5: stores within about ten nanoseconds of each other, executors on both
//! processors, one of them on the patcher's, and no call between two executions. A single executor
//! rarely observes a tear. Tears come in clusters, so every pass over the sites uses new text.
//!
//! With a window larger than this processor's (`--window 64`), the scenario may or may not find
//! tears: if not, the run only shows that the processor did not tear this time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use wordpatch::text::{Form, TogglePair};
use wordpatch::{Bytes, FetchModel, FetchWindow, Split, TextRef, patch};

use crate::defect;
use crate::run::{Kind, Run, Worker};
use crate::sites::{LENGTH, text};

const EXECUTORS: usize = 3;

/// Operands that differ in every byte, so that every mixture is neither of them.
const OPERANDS: [u32; 2] = [0x1111_1111, 0xeeee_eeee];

/// The number of exchanges of one site before the next one's turn, with two executors and with
/// three. One in [`PATCHES`] of them is a complete [`patch`].
const EXCHANGES: [usize; 2] = [2_000, 200_000];
const PATCHES: usize = 50;

/// Turns before new text is made, with another number of executors.
const TURNS: usize = 4;

/// The maximum number of texts: each is two mappings, the number of which is limited per process.
/// After that, texts are reused in turn.
const TEXTS: usize = 10_000;

/// The number of executions between two checks of whose turn it is.
const EXECUTIONS: u64 = 2_000;

/// Distance between two sites.
const LINE: usize = 64;
const DISTANCE: usize = 2 * LINE;

/// The code after the site.
const REST: [u8; 17] = [
    0x39, 0xf0, // cmp eax, esi
    0x74, 0x04, // je next
    0x39, 0xd0, // cmp eax, edx
    0x75, 0x07, // jne torn
    0x48, 0xff, 0xcf, // next: dec rdi
    0x75, 0x00, // jnz site: the displacement is filled in
    0x31, 0xc0, // xor eax, eax
    0xc3, 0xcc,
];

/// The current turn.
#[derive(Default)]
struct Turn {
    /// The site; 0 before the first.
    site: AtomicUsize,
    /// Number of executors that run it.
    executors: AtomicUsize,
}

pub(crate) fn run(run: &Run) {
    let turn = Turn::default();
    let processors = processors();
    thread::scope(|scope| {
        let (turn, processors) = (&turn, &processors);
        scope.spawn(move || exchange(run, turn, processors));
        for number in 0..EXECUTORS {
            scope.spawn(move || execute(run, number, turn, processors));
        }
        scope.spawn(|| defect::inject(run, &crate::sites::make(1)));
    });
}

/// The processors available to this process.
fn processors() -> Vec<usize> {
    let Ok(allowed) = sched_getaffinity(Pid::from_raw(0)) else { return vec![] };
    (0..CpuSet::count()).filter(|processor| allowed.is_set(*processor).unwrap_or(false)).collect()
}

/// Pins the calling thread to the processor, if it exists and the kernel permits it.
fn pin(processor: Option<&usize>) {
    let mut set = CpuSet::new();
    if let Some(processor) = processor
        && set.set(*processor).is_ok()
    {
        let _ = sched_setaffinity(Pid::from_raw(0), &set);
    }
}

/// The largest power of two, at least 4, whose multiple splits an instruction at this offset;
/// `None` if it is not split.
fn boundary(offset: usize) -> Option<usize> {
    let cut = |boundary: &usize| offset / boundary != (offset + LENGTH - 1) / boundary;
    [32, 16, 8, 4].into_iter().find(cut)
}

/// Offsets in a line at which an instruction is inside one window and across a multiple of four
/// bytes.
fn offsets(window: FetchWindow) -> Vec<usize> {
    let is_safe =
        |offset: &usize| window.split(*offset, LENGTH) == Split::Inside && boundary(*offset).is_some();
    (0..=LINE - LENGTH).filter(is_safe).collect()
}

fn site_bytes(operand: u32) -> [u8; LENGTH] {
    let [a, b, c, d] = operand.to_le_bytes();
    [0xb8, a, b, c, d]
}

/// New text with a site at each offset.
fn make(offsets: &[usize]) -> Vec<usize> {
    let place = |number: usize, offset: usize| number * DISTANCE + offset;
    let length = (offsets.len() + 1) * DISTANCE;
    let start = text(length, |_| {
        let mut code = vec![0xcc; length];
        for (number, offset) in offsets.iter().enumerate() {
            let at = place(number, *offset);
            code[at..at + LENGTH].copy_from_slice(&site_bytes(OPERANDS[0]));
            let rest = at + LENGTH;
            code[rest..rest + REST.len()].copy_from_slice(&REST);
            // Relative to the end of the jump back to the site.
            code[rest + 12] = (LENGTH as i8 + 13).wrapping_neg() as u8;
        }
        code
    });
    offsets.iter().enumerate().map(|(number, offset)| start + place(number, *offset)).collect()
}

fn exchange(run: &Run, turn: &Turn, processors: &[usize]) {
    let mut worker = run.worker("boundaries' patcher");
    pin(processors.first());
    let window = FetchModel::in_force().window;
    let offsets = offsets(window);
    let mut texts: Vec<Vec<usize>> = Vec::new();
    for pass in 0.. {
        if texts.len() < TEXTS {
            let mut sites = make(&offsets);
            // The sites on the largest boundaries first.
            sites.sort_by_key(|site| std::cmp::Reverse(boundary(site % LINE)));
            texts.push(sites);
        }
        let sites = &texts[pass % texts.len()];
        let classes: Vec<&[usize]> =
            sites.chunk_by(|one, other| boundary(one % LINE) == boundary(other % LINE)).collect();
        let third = usize::from(worker.random.below(128) == 0);
        turn.executors.store(2 + third, Ordering::Relaxed);
        for _ in 0..TURNS {
            // Three of four turns are on the largest boundaries, three of four of the rest on the
            // next ones.
            let class =
                (0..classes.len() - 1).find(|_| worker.random.below(4) > 0).unwrap_or(classes.len() - 1);
            let site = classes[class][worker.random.below(classes[class].len())];
            turn.site.store(site, Ordering::Release);
            exchange_times(&worker, window, site, EXCHANGES[third]);
            if !worker.continues() {
                return;
            }
        }
    }
}

/// Exchanges the site's operand `times` times, an even number.
fn exchange_times(worker: &Worker<'_>, window: FetchWindow, site: usize, times: usize) {
    let [a, b] = OPERANDS.map(site_bytes);
    let [form_a, form_b] = [a, b].map(|form| Bytes::new(&form).expect("five bytes"));
    // SAFETY: the text stays mapped, and only this thread writes it. Both forms are one
    // instruction.
    let place = unsafe { TextRef::resolve(site, LENGTH) }.expect("text of this program");
    let forms = TogglePair::new(&place, window, 0, [&form_a, &form_b]);
    for round in 1..=times {
        // SAFETY: as above, inside the window. If that is larger than the processor's, the run
        // detects it.
        let exchanged = unsafe {
            if round.is_multiple_of(PATCHES) {
                let (old, new) = if round.is_multiple_of(2) { (&b, &a) } else { (&a, &b) };
                patch(site, old, new).map(|()| true)
            } else {
                forms.exchange([Form::First, Form::Second][round % 2])
            }
        };
        worker.check(matches!(exchanged, Ok(true)), Kind::Lost, || format!("{exchanged:?} at {site:#x}"));
    }
    worker.toggled(times as u64);
}

/// Executes the site whose turn it is, if this executor takes part in the turn.
fn execute(run: &Run, number: usize, turn: &Turn, processors: &[usize]) {
    let worker = run.worker(format!("boundaries' executor {number}"));
    // The first two are on the patcher's processor and the next one; the kernel places the third.
    if number < 2 {
        pin(processors.get(number));
    }
    while worker.continues() {
        let site = turn.site.load(Ordering::Acquire);
        if site == 0 || number >= turn.executors.load(Ordering::Relaxed) {
            thread::yield_now();
            continue;
        }
        execute_times(&worker, site, EXECUTIONS);
    }
}

fn execute_times(worker: &Worker<'_>, site: usize, times: u64) {
    let mut left = times;
    while left > 0 {
        let torn: u32;
        // SAFETY: the code at the site changes RAX and RDI only, and returns.
        unsafe {
            std::arch::asm!("call {}", in(reg) site, inout("rdi") left, in("esi") OPERANDS[0], in("edx") OPERANDS[1], out("eax") torn)
        };
        if left > 0 {
            let offset = site % LINE;
            worker.found(
                Kind::Torn,
                format_args!("{torn:#x} at offset {offset} of a line, which was never stored"),
            );
            left -= 1;
        }
    }
    worker.executed(times);
}
