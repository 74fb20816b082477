//! `poll_oneoff`: waits for a time, or until a descriptor can be read or written.
//!
//! 1. Clocks are combined into one deadline of the host's monotonic clock, the earliest; host
//!    streams, and files that are not regular ones, are put into a list for `poll(2)`. Regular
//!    files, and streams in memory, are always ready.
//! 2. If any subscription is ready or invalid, there is no wait. Otherwise `poll(2)` waits until
//!    the deadline.
//! 3. Every subscription that is then ready produces an event. An invalid subscription produces an
//!    event with an error.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::FileType;
use rustix::time::ClockId;

use super::clock::{clock_id, now};
use super::context::{Descriptor, WasiCtx};
use super::errno::{Errno, Outcome};
use super::memory::GuestMemory;
use super::types::{Abi, Awaited, Event, Subscription, eventrwflags, subclockflags};

/// Maximum number of subscriptions of one call.
pub(crate) const MAX_SUBSCRIPTIONS: u32 = 16_384;

/// The state of a subscription before the wait.
enum State {
    /// The deadline of a clock subscription, on the monotonic clock.
    At(u64),
    /// A host stream, or a file that is none on a disk, such as a pipe: an index in the list for
    /// `poll(2)`.
    Polled(usize),
    Ready {
        bytes: u64,
        flags: u32,
    },
    Wrong(Errno),
}

/// The deadline of a clock subscription, on the monotonic clock, for a call that began at this
/// time.
fn deadline(id: u32, timeout: u64, flags: u32, began: u64) -> Result<u64, Errno> {
    let clock = clock_id(id)?;
    if flags & !subclockflags::ALL != 0 || !matches!(clock, ClockId::Realtime | ClockId::Monotonic) {
        return Err(Errno::Inval);
    }
    Ok(match flags & subclockflags::ABSTIME != 0 {
        true => now(ClockId::Monotonic).saturating_add(timeout.saturating_sub(now(clock))),
        false => began.saturating_add(timeout),
    })
}

/// What `poll(2)` waits for. Each descriptor is there once for each direction: the number of
/// subscriptions may be larger than that of the process's descriptors, which limits the list.
#[derive(Default)]
struct Polled<'a> {
    list: Vec<PollFd<'a>>,
    indices: HashMap<(RawFd, PollFlags), usize>,
}

impl<'a> Polled<'a> {
    /// The state of a subscription for this descriptor.
    fn add(&mut self, fd: BorrowedFd<'a>, flags: PollFlags) -> State {
        let index = *self.indices.entry((fd.as_raw_fd(), flags)).or_insert_with(|| {
            self.list.push(PollFd::from_borrowed_fd(fd, flags));
            self.list.len() - 1
        });
        State::Polled(index)
    }

    /// As [`Polled::add`]. A stream in memory is always ready.
    fn stream(&mut self, host: Option<BorrowedFd<'a>>, flags: PollFlags) -> State {
        host.map_or(State::Ready { bytes: 1, flags: 0 }, |fd| self.add(fd, flags))
    }

    /// A regular file is always ready. The number of readable bytes is the rest after the position.
    fn file(&mut self, file: &'a File, flags: PollFlags) -> Result<State, Errno> {
        let stat = rustix::fs::fstat(file).map_err(io::Error::from)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Ok(self.add(file.as_fd(), flags));
        }
        if flags == PollFlags::OUT {
            return Ok(State::Ready { bytes: 1, flags: 0 });
        }
        let bytes = stat.st_size.cast_unsigned().saturating_sub(rustix::fs::tell(file).unwrap_or(0));
        Ok(State::Ready { bytes, flags: if bytes == 0 { eventrwflags::HANGUP } else { 0 } })
    }
}

/// A subscription, and the descriptor that it waits for.
type Subscribed = (Subscription, Result<Option<Arc<Descriptor>>, Errno>);

/// The state of a subscription in a call that began at this time.
fn state<'a>(
    (subscription, descriptor): &'a Subscribed,
    polled: &mut Polled<'a>,
    began: u64,
) -> Result<State, Errno> {
    let descriptor = descriptor.as_ref().map_err(|error| *error)?.as_deref();
    match (subscription.what, descriptor) {
        (Awaited::Clock { id, timeout, flags }, _) => Ok(State::At(deadline(id, timeout, flags, began)?)),
        (Awaited::Read { .. }, Some(Descriptor::Input(input))) => {
            Ok(polled.stream(input.host(), PollFlags::IN))
        }
        (Awaited::Write { .. }, Some(Descriptor::Output(output))) => {
            Ok(polled.stream(output.host(), PollFlags::OUT))
        }
        (Awaited::Read { .. }, Some(Descriptor::File(file))) => polled.file(file, PollFlags::IN),
        (Awaited::Write { .. }, Some(Descriptor::File(file))) => polled.file(file, PollFlags::OUT),
        _ => Err(Errno::Badf),
    }
}

impl WasiCtx {
    /// The call began at the time `began` of the monotonic clock: it may be repeated, if it was
    /// ended by a signal that is not for the program.
    pub(crate) fn poll_oneoff(
        &self,
        memory: &GuestMemory<'_>,
        (abi, began): (Abi, u64),
        subscriptions: u32,
        events: u32,
        count: u32,
        result: u32,
    ) -> Outcome {
        if count == 0 {
            return Err(Errno::Inval.into());
        }
        if count > MAX_SUBSCRIPTIONS {
            return Err(Errno::Nomem.into());
        }
        memory.buffer(events, count * Event::SIZE)?;
        let mut subscribed = Vec::with_capacity(count as usize);
        let size = Subscription::size(abi);
        memory.buffer(subscriptions, count * size)?;
        for n in 0..count {
            let subscription = read_subscription(memory, abi, subscriptions + n * size)?;
            let descriptor = match subscription.what {
                Awaited::Clock { .. } => Ok(None),
                Awaited::Read { fd } | Awaited::Write { fd } => self.descriptor(fd).map(Some),
            };
            subscribed.push((subscription, descriptor));
        }
        let mut polled = Polled::default();
        let state = |one| state(one, &mut polled, began).unwrap_or_else(State::Wrong);
        let states: Vec<State> = subscribed.iter().map(state).collect();
        let mut polled = polled.list;
        wait(&states, &mut polled)?;
        let time = now(ClockId::Monotonic);
        let mut written = 0;
        for ((subscription, _), state) in subscribed.iter().zip(&states) {
            if let Some(event) = event(*subscription, state, &polled, time) {
                memory.write_bytes(events + written * Event::SIZE, &event.encode())?;
                written += 1;
            }
        }
        memory.write_u32(result, written)
    }
}

fn read_subscription(memory: &GuestMemory<'_>, abi: Abi, address: u32) -> Outcome<Subscription> {
    let mut record = [0; 56];
    match abi {
        Abi::Unstable => record = memory.read_array(address)?,
        Abi::Preview1 => record[..48].copy_from_slice(&memory.read_array::<48>(address)?),
    }
    Ok(Subscription::decode(&record, abi).ok_or(Errno::Inval)?)
}

/// Waits until a subscription is ready.
fn wait(states: &[State], polled: &mut [PollFd<'_>]) -> Outcome {
    let deadlines = states.iter().map(|state| match state {
        State::At(deadline) => Some(*deadline),
        State::Polled(_) => None,
        State::Ready { .. } | State::Wrong(_) => Some(0),
    });
    let deadline = deadlines.flatten().min();
    loop {
        let timeout = deadline.map(|deadline| {
            let remaining = deadline.saturating_sub(now(ClockId::Monotonic));
            Timespec {
                tv_sec: (remaining / 1_000_000_000).cast_signed(),
                tv_nsec: (remaining % 1_000_000_000).cast_signed(),
            }
        });
        // A signal ends the wait with `EINTR`, so a waiting program can be interrupted. If it is
        // not interrupted, the call is repeated (`linker`).
        match rustix::event::poll(polled, timeout.as_ref()) {
            // The host may wake up slightly before the deadline.
            Ok(0) if deadline.is_some_and(|deadline| now(ClockId::Monotonic) < deadline) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// The event, if the subscription is ready.
fn event(subscription: Subscription, state: &State, polled: &[PollFd<'_>], time: u64) -> Option<Event> {
    let event = |error, bytes, flags| Some(Event { subscription, error, bytes, flags });
    match state {
        State::At(deadline) if *deadline > time => None,
        State::At(_) => event(Errno::Success, 0, 0),
        State::Wrong(error) => event(*error, 0, 0),
        State::Ready { bytes, flags } => event(Errno::Success, *bytes, *flags),
        State::Polled(index) => {
            let found = polled[*index].revents();
            if found.is_empty() {
                None
            } else if found.contains(PollFlags::NVAL) {
                event(Errno::Badf, 0, 0)
            } else if found.contains(PollFlags::ERR) {
                event(Errno::Io, 0, 0)
            } else if found.intersects(PollFlags::IN | PollFlags::OUT) {
                event(Errno::Success, 1, 0)
            } else {
                event(Errno::Success, 0, eventrwflags::HANGUP)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::super::testing::{Program, Sandbox, check_errno};
    use super::super::types::{oflags, rights};
    use super::*;

    /// The addresses of subscriptions, events and the result in the tests.
    const SUBSCRIPTIONS: u32 = 4096;
    const EVENTS: u32 = 16_384;
    const RESULT: u32 = 64;

    /// Writes a subscription with its number as userdata.
    fn subscribe(program: &Program, number: u32, tag: u8, value: u32, timeout: u64, flags: u8) {
        let mut record = [0; 48];
        record[0] = number as u8;
        record[8] = tag;
        record[16..20].copy_from_slice(&value.to_le_bytes());
        record[24..32].copy_from_slice(&timeout.to_le_bytes());
        record[40] = flags;
        program.put(SUBSCRIPTIONS + 48 * number, record);
    }

    /// The userdata, error, type, bytes and flags of each event.
    fn poll(sandbox: &Sandbox, count: u32) -> Vec<(u64, u16, u8, u64, u8)> {
        let program = &sandbox.program;
        let memory = program.memory();
        sandbox
            .wasi
            .poll_oneoff(
                &memory,
                (Abi::Preview1, now(ClockId::Monotonic)),
                SUBSCRIPTIONS,
                EVENTS,
                count,
                RESULT,
            )
            .unwrap();
        let event = |n| {
            let at = EVENTS + 32 * n;
            let record = program.bytes(at, 32);
            let error = u16::from_le_bytes([record[8], record[9]]);
            (program.u64(at), error, record[10], program.u64(at + 16), record[24])
        };
        (0..program.u32(RESULT)).map(event).collect()
    }

    #[test]
    fn the_earliest_clock_ends_the_wait() {
        let sandbox = Sandbox::new();
        let start = Instant::now();
        subscribe(&sandbox.program, 0, 0, 1, u64::MAX, 0);
        subscribe(&sandbox.program, 1, 0, 0, 20_000_000, 0);
        assert_eq!(poll(&sandbox, 2), [(1, 0, 0, 0, 0)]);
        assert!(start.elapsed().as_millis() >= 20);
    }

    #[test]
    fn an_absolute_time_that_has_passed_is_due_at_once() {
        let sandbox = Sandbox::new();
        subscribe(&sandbox.program, 0, 0, 0, 1_000_000_000, 1);
        subscribe(&sandbox.program, 1, 0, 1, now(ClockId::Monotonic), 1);
        subscribe(&sandbox.program, 2, 0, 1, 3_600_000_000_000, 0);
        assert_eq!(poll(&sandbox, 3), [(0, 0, 0, 0, 0), (1, 0, 0, 0, 0)]);
    }

    #[test]
    fn files_are_ready_and_errors_are_events() {
        let sandbox = Sandbox::new();
        std::fs::write(sandbox.host("a"), "abc").unwrap();
        std::fs::write(sandbox.host("empty"), "").unwrap();
        let fd = sandbox.open("a", 0, rights::FD_READ, 0).unwrap();
        let empty = sandbox.open("empty", oflags::TRUNC, rights::FD_READ | rights::FD_WRITE, 0).unwrap();
        for (number, (tag, value)) in
            [(1, fd), (1, empty), (2, empty), (1, 99), (2, Sandbox::ROOT), (0, 2), (0, 1), (1, 0), (2, 1)]
                .into_iter()
                .enumerate()
        {
            subscribe(&sandbox.program, number as u32, tag, value, u64::MAX, 0);
        }
        let badf = Errno::Badf as u16;
        let expected = [
            (0, 0, 1, 3, 0),
            (1, 0, 1, 0, 1),
            (2, 0, 2, 1, 0),
            (3, badf, 1, 0, 0),
            (4, badf, 2, 0, 0),
            (5, Errno::Inval as u16, 0, 0, 0),
            (7, 0, 1, 1, 0),
            (8, 0, 2, 1, 0),
        ];
        assert_eq!(poll(&sandbox, 9), expected);
    }

    #[test]
    fn a_pipe_in_a_directory_is_waited_for() {
        let sandbox = Sandbox::new();
        let path = sandbox.host("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, path, FileType::Fifo, 0o600.into(), 0).unwrap();
        let fd = sandbox.open("pipe", 0, rights::FD_READ | rights::FD_WRITE, 0).unwrap();
        let program = &sandbox.program;
        subscribe(program, 0, 1, fd, 0, 0);
        subscribe(program, 1, 0, 1, 1_000_000, 0);
        assert_eq!(poll(&sandbox, 2), [(1, 0, 0, 0, 0)], "there is nothing to read");
        let (list, count) = program.iovec((100, 1));
        sandbox.wasi.fd_write(&program.memory(), fd, list, count, 50).unwrap();
        subscribe(program, 1, 2, fd, 0, 0);
        assert_eq!(poll(&sandbox, 2), [(0, 0, 1, 1, 0), (1, 0, 2, 1, 0)]);
    }

    #[test]
    fn a_descriptor_is_polled_once_for_each_direction() {
        let pipe = File::open("/dev/null").unwrap();
        let mut polled = Polled::default();
        let mut index = |flags| match polled.add(pipe.as_fd(), flags) {
            State::Polled(index) => index,
            _ => panic!("it is polled"),
        };
        assert_eq!(
            [PollFlags::IN, PollFlags::OUT, PollFlags::IN, PollFlags::OUT].map(&mut index),
            [0, 1, 0, 1]
        );
        assert_eq!(polled.list.len(), 2);
    }

    #[test]
    fn hostile_lists_are_refused() {
        let sandbox = Sandbox::new();
        let memory = sandbox.program.memory();
        let poll = |subscriptions, events, count| {
            sandbox.wasi.poll_oneoff(
                &memory,
                (Abi::Preview1, now(ClockId::Monotonic)),
                subscriptions,
                events,
                count,
                RESULT,
            )
        };
        check_errno(poll(0, 0, 0), Errno::Inval);
        check_errno(poll(0, 0, MAX_SUBSCRIPTIONS + 1), Errno::Nomem);
        check_errno(poll(0, 0, u32::MAX), Errno::Nomem);
        for (subscriptions, events) in [(0, u32::MAX), (u32::MAX, 0), (Program::SIZE - 47, 0)] {
            let outcome = poll(subscriptions, events, 1);
            assert!(matches!(outcome, Err(super::super::errno::Failure::OutOfBounds { .. })), "{outcome:?}");
        }
        subscribe(&sandbox.program, 0, 3, 0, 0, 0);
        check_errno(poll(SUBSCRIPTIONS, EVENTS, 1), Errno::Inval);
    }
}
