//! [`reduce`]: keeps what the program reads (section 3.3.1 of the paper).
//!
//! 1. The program runs with the host of the trace. Each byte that the host writes becomes
//!    *pending*, and the shadow memory records the number of the written byte. A load of a pending
//!    byte marks it as needed; a store by the program or a later write by the host clears it.
//! 2. The trace is copied without the bytes that are not needed.
//!
//! Calls inside the program (section 3.3.2) are not in the trace in the first place.

use std::collections::HashMap;
use std::io::{Read, Seek, SeekFrom, Write};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use wasm_jit::Module;

use super::accesses::{self, Access, Probed};
use super::error::Error;
use super::event::Event;
use super::limits::Limits;
use super::rerun::{Observer, rerun};
use super::trace::{Reader, Writer};
use super::writes;

/// The effect of a reduction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Reduced {
    /// The numbers of events, before and after.
    pub events: [u64; 2],
    /// The numbers of bytes that the host writes, before and after.
    pub bytes: [u64; 2],
}

/// Writes a trace of the same run without the bytes that the program does not read before they are
/// overwritten. Runs the program on this thread, about ten times slower than usual. No other
/// instance of the module may run at the same time.
///
/// # Errors
/// As [`generate`](super::generate); [`Error::Mismatch`] with the first event that does not repeat.
pub fn reduce(
    module: &Module,
    trace: impl Read + Seek + Send + 'static,
    out: impl Write + Send + 'static,
) -> Result<Reduced, Error> {
    reduce_within(&Limits::default(), module, trace, out)
}

/// As [`reduce`], with limits for the program.
///
/// # Errors
/// As [`reduce`]; [`Error::Failed`] also if the program reaches a limit.
pub fn reduce_within(
    limits: &Limits,
    module: &Module,
    mut trace: impl Read + Seek + Send + 'static,
    out: impl Write + Send + 'static,
) -> Result<Reduced, Error> {
    let start = trace.stream_position()?;
    let shadow = Shared(Arc::new(Mutex::new(Shadow::default())));
    let trace = Arc::new(Mutex::new(trace));
    let observed = shadow.clone();
    let callback = accesses::callback(move |access| observed.lock(|shadow| shadow.access(access)));
    let probed = Probed::new(module, move |function| accesses::specs(function, &callback, |_| true))?;
    rerun(module, Handle(trace.clone()), shadow.clone(), limits, |_, _| Ok(()))?;
    probed.is_complete()?;
    let mut trace = Handle(trace);
    trace.0.lock().unwrap_or_else(PoisonError::into_inner).seek(SeekFrom::Start(start))?;
    shadow.lock(|shadow| copy(&mut trace, Writer::new(out)?, &shadow.needed))
}

/// A trace that is read twice.
struct Handle<R>(Arc<Mutex<R>>);

impl<R: Read> Read for Handle<R> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).read(bytes)
    }
}

/// Copies a trace with the needed bytes.
fn copy(trace: impl Read, mut out: Writer, needed: &Bits) -> Result<Reduced, Error> {
    let mut reduced = Reduced::default();
    let mut first = 0;
    for event in Reader::new(trace) {
        let event = event?;
        reduced.events[0] += 1;
        let Event::Write { memory, address, bytes } = event else {
            reduced.events[1] += 1;
            out.write(&event)?;
            continue;
        };
        let is_needed = |at: usize| needed.contains(first + at as u64);
        for (start, end) in writes::runs((0..bytes.len()).filter(|at| is_needed(*at))) {
            reduced.events[1] += 1;
            reduced.bytes[1] += (end - start) as u64;
            let bytes = bytes[start..end].to_vec();
            out.write(&Event::Write { memory, address: address + start as u64, bytes })?;
        }
        reduced.bytes[0] += bytes.len() as u64;
        first += bytes.len() as u64;
    }
    out.close()?;
    Ok(reduced)
}

/// Number of bytes of a page of the shadow memory.
const PAGE: u64 = 4096;

/// The pending bytes. Written bytes are numbered in the order of the trace.
#[derive(Default)]
struct Shadow {
    /// By memory and page: for each byte, its number plus 1 if it is pending, otherwise 0.
    pending: HashMap<(u32, u64), Box<[u64; PAGE as usize]>>,
    needed: Bits,
    written: u64,
}

impl Shadow {
    fn access(&mut self, access: Access) {
        let end = access.address.saturating_add(access.size);
        let pages = access.address / PAGE..end.div_ceil(PAGE);
        let mut access_page = |page: u64, numbers: &mut [u64; PAGE as usize]| {
            for byte in access.address.max(page * PAGE)..end.min((page + 1).saturating_mul(PAGE)) {
                let number = std::mem::take(&mut numbers[(byte % PAGE) as usize]);
                if access.is_read && number > 0 {
                    self.needed.insert(number - 1);
                }
            }
        };
        // An access out of bounds may have any size.
        if pages.end - pages.start > self.pending.len() as u64 {
            for ((memory, page), numbers) in &mut self.pending {
                if *memory == access.memory && pages.contains(page) {
                    access_page(*page, numbers);
                }
            }
            return;
        }
        for page in pages {
            if let Some(numbers) = self.pending.get_mut(&(access.memory, page)) {
                access_page(page, numbers);
            }
        }
    }

    fn write(&mut self, memory: u32, address: u64, length: usize) {
        for byte in address..address + length as u64 {
            self.written += 1;
            let page = self.pending.entry((memory, byte / PAGE));
            page.or_insert_with(|| Box::new([0; PAGE as usize]))[(byte % PAGE) as usize] = self.written;
        }
    }
}

#[derive(Clone)]
struct Shared(Arc<Mutex<Shadow>>);

impl Shared {
    fn lock<R>(&self, run: impl FnOnce(&mut Shadow) -> R) -> R {
        run(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Observer for Shared {
    fn writes(&mut self, memory: u32, address: u64, length: usize) {
        self.lock(|shadow| shadow.write(memory, address, length));
    }
}

/// A set of numbers.
#[derive(Default)]
struct Bits(Vec<u64>);

impl Bits {
    fn insert(&mut self, number: u64) {
        let word = (number / 64) as usize;
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (number % 64);
    }

    fn contains(&self, number: u64) -> bool {
        self.0.get((number / 64) as usize).is_some_and(|word| word >> (number % 64) & 1 != 0)
    }
}
