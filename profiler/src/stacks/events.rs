//! Samples the program's threads as they use processor time, with the kernel's software events.
//!
//! One event per processor (perf_event_open(2), `PERF_COUNT_SW_CPU_CLOCK`), attached to the main
//! thread and inherited by the threads that are created from then on. Each event has a ring in
//! memory that the kernel fills: whenever a thread has run for another period, the kernel writes
//! the thread's registers and the top of its stack. No signal is sent, and the program executes no
//! code for it.
//!
//! The descriptors are closed at once: the mappings keep the events alive. Thus the program cannot
//! close or inherit them. The kernel does not copy the mappings into forked children, and
//! `inherit_thread` (Linux 5.13) keeps the events from following them.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use perf_event_open_sys::bindings::{
    PERF_COUNT_SW_CPU_CLOCK, PERF_FLAG_FD_CLOEXEC, PERF_RECORD_FORK, PERF_RECORD_LOST, PERF_RECORD_SAMPLE,
    PERF_SAMPLE_REGS_USER, PERF_SAMPLE_STACK_USER, PERF_TYPE_SOFTWARE, perf_event_attr, perf_event_mmap_page,
};
use perf_event_open_sys::perf_event_open;

/// The number of samples for which a ring has room. It determines how much of the stack a sample
/// can have, and how often samples must be read: few at a time cost more, because what unwinding
/// needs is no longer in the processor's caches.
const SAMPLES: usize = 16;

/// The registers in each sample: BP, SP and IP (Linux, arch/x86/include/uapi/asm/perf_regs.h).
const REGISTERS: u64 = 1 << 6 | 1 << 7 | 1 << 8;

/// The register set of a 64-bit thread (`PERF_SAMPLE_REGS_ABI_64`); 0 stands for none.
const ABI_64: u64 = 2;

/// Sizes of a ring's data to try, in pages: the memory that a user may lock is limited.
const RING_PAGES: [usize; 3] = [128, 64, 32];

const PAGE: usize = 4096;

/// A record starts with its type (4 bytes), flags (2) and size (2).
const HEADER: usize = 8;

/// Bytes of a sample that are not of the stack: the header, the registers and what they are, the
/// size of the stack, and how much of it there is.
const REST: usize = HEADER + 6 * size_of::<u64>();

/// The state of a thread when it had run for another period.
#[derive(Debug)]
pub(super) struct RawSample<'a> {
    pub(super) ip: u64,
    pub(super) sp: u64,
    pub(super) bp: u64,
    /// The memory at `sp` and above.
    pub(super) stack: &'a [u8],
}

/// A record of a ring.
#[derive(Debug)]
pub(super) enum Record<'a> {
    Sample(RawSample<'a>),
    /// A sample without registers of a 64-bit program.
    Unreadable,
    /// The number of records that the kernel has dropped because a ring was full.
    Lost(u64),
    /// A thread has begun, and inherited the events.
    Begun,
}

/// The sampling events of all processors.
#[derive(Debug)]
pub(super) struct Events {
    rings: Vec<Ring>,
    /// Buffer for a record that wraps around the end of its ring.
    wrapped: Vec<u8>,
}

impl Events {
    /// Starts to sample the main thread of this process, and all threads that are created from now
    /// on by sampled ones, each whenever it has run for `period` nanoseconds. Samples cover the
    /// time in the kernel if the process may observe that, otherwise the time in user code only.
    pub(super) fn open(period: u64) -> io::Result<Self> {
        // SAFETY: no arguments in memory.
        let processors = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) }.max(1) as libc::c_int;
        Self::of(std::process::id() as libc::pid_t, 0..processors, period)
    }

    /// Starts to sample the calling thread whenever it has run for `period` nanoseconds, as long as
    /// it stays on its present processor.
    pub(super) fn of_this_thread(period: u64) -> io::Result<Self> {
        const THIS_THREAD: libc::pid_t = 0;
        let processor = nix::sched::sched_getcpu()? as libc::c_int;
        Self::of(THIS_THREAD, processor..processor + 1, period)
    }

    fn of(thread: libc::pid_t, processors: Range<libc::c_int>, period: u64) -> io::Result<Self> {
        match Self::with(thread, processors.clone(), period, false) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM)) => {
                Self::with(thread, processors, period, true)
            }
            result => result,
        }
    }

    fn with(
        thread: libc::pid_t,
        processors: Range<libc::c_int>,
        period: u64,
        excludes_kernel: bool,
    ) -> io::Result<Self> {
        let mut rings = Vec::new();
        for processor in processors {
            match Ring::open(thread, processor, period, excludes_kernel) {
                Ok(ring) => rings.push(ring),
                // The processor is offline.
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
                Err(error) => return Err(error),
            }
        }
        if rings.is_empty() {
            Err(io::ErrorKind::NotFound.into())
        } else {
            Ok(Self { rings, wrapped: Vec::new() })
        }
    }

    /// The number of samples for which every ring has room.
    pub(super) fn capacity(&self) -> usize {
        self.rings.iter().map(|ring| ring.size / (REST + stack(ring.size))).min().unwrap_or(0)
    }

    /// The number of events that each thread has.
    pub(super) fn number(&self) -> usize {
        self.rings.len()
    }

    /// Bytes of memory of the rings.
    pub(super) fn memory(&self) -> usize {
        self.rings.iter().map(|ring| ring.size + PAGE).sum()
    }

    /// Takes all records that the kernel has written.
    pub(super) fn drain(&mut self, mut visit: impl FnMut(Record<'_>)) {
        for ring in &mut self.rings {
            ring.drain(&mut self.wrapped, &mut visit);
        }
    }

    /// To be called in a forked child, where the mappings do not exist.
    pub(super) fn forget(self) {
        self.rings.into_iter().for_each(std::mem::forget);
    }
}

/// Opens an event, whose samples have up to `stack` bytes of the stack.
fn event(
    thread: libc::pid_t,
    processor: libc::c_int,
    period: u64,
    excludes_kernel: bool,
    stack: usize,
) -> io::Result<OwnedFd> {
    let mut attributes = perf_event_attr {
        type_: PERF_TYPE_SOFTWARE,
        size: size_of::<perf_event_attr>() as u32,
        config: u64::from(PERF_COUNT_SW_CPU_CLOCK),
        sample_type: u64::from(PERF_SAMPLE_REGS_USER | PERF_SAMPLE_STACK_USER),
        sample_regs_user: REGISTERS,
        sample_stack_user: stack as u32,
        ..perf_event_attr::default()
    };
    attributes.__bindgen_anon_1.sample_period = period;
    attributes.set_inherit(1);
    attributes.set_inherit_thread(1);
    attributes.set_task(1);
    attributes.set_exclude_kernel(excludes_kernel.into());
    attributes.set_exclude_hv(1);
    // SAFETY: the attributes are initialized, and sampling writes only to memory that is mapped for
    // it.
    let descriptor =
        unsafe { perf_event_open(&mut attributes, thread, processor, -1, u64::from(PERF_FLAG_FD_CLOEXEC)) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just created the descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// The memory that the kernel and the service thread share for one processor.
#[derive(Debug)]
struct Ring {
    control: NonNull<perf_event_mmap_page>,
    data: NonNull<u8>,
    /// Size of the data in bytes; a power of two.
    size: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread.
unsafe impl Send for Ring {}

/// Maximum number of bytes of the stack in each sample, for a ring of this size: a few bytes less
/// than 32 KiB in the largest. Frames further out are not known. The kernel copies no more than
/// there is.
fn stack(ring: usize) -> usize {
    // Records are aligned to 8 bytes.
    (ring / SAMPLES - REST) & !7
}

impl Ring {
    fn open(
        thread: libc::pid_t,
        processor: libc::c_int,
        period: u64,
        excludes_kernel: bool,
    ) -> io::Result<Self> {
        let mut error = io::Error::from_raw_os_error(libc::EPERM);
        for size in RING_PAGES.map(|pages| pages * PAGE) {
            let descriptor = event(thread, processor, period, excludes_kernel, stack(size))?;
            match Self::map(&descriptor, size) {
                Ok(ring) => return Ok(ring),
                Err(refused) => error = refused,
            }
        }
        Err(error)
    }

    fn map(descriptor: &OwnedFd, size: usize) -> io::Result<Self> {
        use nix::sys::mman::{MapFlags, ProtFlags, mmap};
        let length = std::num::NonZeroUsize::new(PAGE + size).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe {
            mmap(
                None,
                length,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                MapFlags::MAP_SHARED,
                descriptor.as_fd(),
                0,
            )
        }?;
        // SAFETY: the mapping has one page of control data, then `size` bytes.
        let data = unsafe { start.cast::<u8>().add(PAGE) };
        Ok(Self { control: start.cast(), data, size })
    }

    fn position(&self, field: fn(*mut perf_event_mmap_page) -> *mut u64) -> &AtomicU64 {
        // SAFETY: a field of the mapped page, which is aligned, and which kernel and user change
        // only as atomic words. It is mapped as long as `self` exists.
        unsafe { AtomicU64::from_ptr(field(self.control.as_ptr())) }
    }

    fn drain(&mut self, wrapped: &mut Vec<u8>, visit: &mut impl FnMut(Record<'_>)) {
        // SAFETY: computes the address of a field.
        let head = self.position(|page| unsafe { &raw mut (*page).data_head });
        // SAFETY: as above.
        let tail = self.position(|page| unsafe { &raw mut (*page).data_tail });
        // Acquire: pairs with the kernel's barrier between the records and `data_head`
        // (Documentation in include/uapi/linux/perf_event.h).
        let (end, mut at) = (head.load(Ordering::Acquire), tail.load(Ordering::Relaxed));
        while end.wrapping_sub(at) >= HEADER as u64 {
            let start = (at % self.size as u64) as usize;
            let size = {
                // SAFETY: records are aligned to 8 bytes, so a header does not wrap; the kernel has
                // written it, and writes it again only when `data_tail` has passed it.
                let header = unsafe { self.data.add(start).cast::<[u8; HEADER]>().read() };
                usize::from(u16::from_le_bytes([header[6], header[7]]))
            };
            if size < HEADER || size > self.size {
                break;
            }
            let in_one_piece = start + size <= self.size;
            let first = if in_one_piece { size } else { self.size - start };
            // SAFETY: inside the data; the kernel does not write there before `data_tail` has
            // passed it.
            let record = unsafe { std::slice::from_raw_parts(self.data.add(start).as_ptr(), first) };
            if in_one_piece {
                read(record).into_iter().for_each(&mut *visit);
            } else {
                wrapped.clear();
                wrapped.extend_from_slice(record);
                // SAFETY: as above.
                wrapped.extend_from_slice(unsafe {
                    std::slice::from_raw_parts(self.data.as_ptr(), size - first)
                });
                read(wrapped).into_iter().for_each(&mut *visit);
            }
            at = at.wrapping_add(size as u64);
        }
        // Release: the records have been read. Pairs with the kernel's control dependency before it
        // writes there again.
        tail.store(at, Ordering::Release);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: our mapping, to which no reference is left. Nothing else can be done about an
        // error.
        let _ = unsafe { nix::sys::mman::munmap(self.control.cast(), PAGE + self.size) };
    }
}

/// Parses a record; `None` if it is of no interest here.
fn read(record: &[u8]) -> Option<Record<'_>> {
    let kind = u32::from_le_bytes(record.get(..4)?.try_into().ok()?);
    let mut rest = record.get(HEADER..)?;
    let mut word = || {
        let (word, after) = rest.split_first_chunk::<8>()?;
        rest = after;
        Some(u64::from_le_bytes(*word))
    };
    match kind {
        PERF_RECORD_LOST => {
            word()?;
            word().map(Record::Lost)
        }
        PERF_RECORD_FORK => {
            let ids = word()?;
            // Of a thread: the process is that of the thread which has created it.
            (ids >> 32 == ids & u64::from(u32::MAX)).then_some(Record::Begun)
        }
        PERF_RECORD_SAMPLE => {
            if word()? != ABI_64 {
                return Some(Record::Unreadable);
            }
            let (bp, sp, ip, size) = (word()?, word()?, word()?, word()? as usize);
            let (stack, after) = rest.split_at_checked(size)?;
            // The number of bytes that the kernel could copy.
            let copied = after.first_chunk::<8>().map_or(0, |word| u64::from_le_bytes(*word) as usize);
            Some(Record::Sample(RawSample { ip, sp, bp, stack: stack.get(..copied)? }))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn every_ring_has_room_for_the_same_number_of_samples() {
        for pages in RING_PAGES {
            let stack = stack(pages * PAGE);
            assert!(stack.is_multiple_of(8) && REST + stack <= u16::MAX.into(), "{stack}");
            assert_eq!(pages * PAGE / (REST + stack), SAMPLES);
        }
    }

    #[test]
    fn samples_have_as_much_of_a_deep_stack_as_they_can() {
        let mut frame = [0u8; 80 << 10];
        std::hint::black_box(&mut frame);
        let Ok(mut events) = Events::of_this_thread(100_000) else {
            eprintln!("skipped: the kernel refuses perf_event_open here");
            return;
        };
        let (ring, deadline) = (events.rings[0].size, Instant::now() + Duration::from_secs(10));
        let mut sizes = Vec::new();
        // A thread that was moved to another processor has no more samples.
        while sizes.is_empty() && Instant::now() < deadline {
            events.drain(|record| {
                if let Record::Sample(sample) = record {
                    sizes.push(sample.stack.len());
                }
            });
        }
        assert!(sizes.iter().all(|size| *size == stack(ring)), "{sizes:?}");
        assert!(ring < RING_PAGES[0] * PAGE || stack(ring) > 31 << 10, "{ring}");
        std::hint::black_box(&mut frame);
    }

    /// The layout of a record (perf_event_open(2)).
    fn record(kind: u32, words: &[u64]) -> Vec<u8> {
        let size = (HEADER + 8 * words.len()) as u16;
        let header = kind.to_le_bytes().into_iter().chain(0u16.to_le_bytes()).chain(size.to_le_bytes());
        header.chain(words.iter().flat_map(|word| word.to_le_bytes())).collect()
    }

    #[test]
    fn records_are_read_and_what_is_cut_off_is_not() {
        let sample = record(PERF_RECORD_SAMPLE, &[ABI_64, 1, 2, 3, 16, 7, 8, 8]);
        match read(&sample) {
            Some(Record::Sample(RawSample { ip: 3, sp: 2, bp: 1, stack })) => {
                assert_eq!(stack, 7u64.to_le_bytes())
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(read(&record(PERF_RECORD_SAMPLE, &[0, 0])), Some(Record::Unreadable)));
        assert!(matches!(read(&record(PERF_RECORD_LOST, &[1, 42])), Some(Record::Lost(42))));
        assert!(read(&record(99, &[1])).is_none());
        let begun = |process: u64, parent: u64| {
            let record = record(PERF_RECORD_FORK, &[parent << 32 | process, 2 << 32 | 3, 4]);
            matches!(read(&record), Some(Record::Begun))
        };
        assert!(begun(7, 7) && !begun(8, 7), "a child process does not inherit the events");
        for length in 0..sample.len() - 24 {
            assert!(read(&sample[..length]).is_none(), "{length}");
        }
    }
}
