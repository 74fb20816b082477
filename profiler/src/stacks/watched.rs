//! One thread of the program as the companion sees it ([`super::blocked`]): whether it waits, where
//! its stack is, and how long it has waited.
//!
//! The kernel counts how long a thread was awake (it ran, or was ready to run), and how many turns
//! on a processor it has had (`schedstat`, Documentation/scheduler/sched-stats.rst). From these
//! figures follows what may have happened since the thread was last seen waiting:
//!
//! 1. It was not awake: it is in the same wait, with the same stack, so nothing need be copied.
//! 2. It had one turn: it has waited where it was and where it is, and nowhere else.
//! 3. It had several: it may have waited elsewhere in between, or may have been preempted.
//!
//! A thread that waits, and has had only one turn in its life or was preempted after the others,
//! has waited there only.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use super::waiting::Scheduled;
use crate::observe::preemption::switches_of;
use crate::observe::task_stat;

pub(super) const TASKS: &str = "/proc/self/task";

/// Where a thread waits: its kernel id and its registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Spot {
    pub(super) thread: u32,
    pub(super) ip: u64,
    pub(super) sp: u64,
}

/// Limits of the time for which a thread has waited since it was created, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Own {
    pub(super) least: f64,
    pub(super) most: f64,
}

/// A thread that is found waiting.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub(super) spot: Spot,
    /// How long the thread has waited since it was last seen waiting, in nanoseconds; if it is seen
    /// for the first time, since the last snapshot.
    pub(super) waited: f64,
    /// Whether it may have waited at a third place in between.
    pub(super) hides: bool,
    /// If it is seen for the first time: how long it has waited in its life.
    pub(super) own: Option<Own>,
}

/// A watched thread.
pub(super) struct Watched {
    pub(super) id: u32,
    state: File,
    times: File,
    /// When the thread was created, in nanoseconds since the system's start: within [`TICK`] after
    /// this.
    created: f64,
    /// When the thread was last seen waiting, or when the companion began. A later look that finds
    /// it awake does not count: the kernel adds the time for which a thread has waited for a
    /// processor when it gets one, and may not have done so yet.
    last: Option<Last>,
    /// The time for which the thread may have waited since then, up to the last look, in
    /// nanoseconds.
    unseen: f64,
    /// When it was last looked at.
    looked: Option<Instant>,
    pub(super) has_ended: bool,
}

#[derive(Clone, Copy, Debug)]
struct Last {
    at: Instant,
    scheduled: Scheduled,
    /// Whether it waited, and its stack is known.
    has_stack: bool,
}

/// What a thread was found to do.
#[derive(Debug)]
pub(super) enum Look {
    /// It runs, or is ready to run.
    Awake,
    /// It still waits where it was last seen, and has waited there for this time since, in
    /// nanoseconds.
    Same(f64),
    /// It waits, and this is its stack; none if it moved while that was copied, or the buffer is
    /// empty.
    Waits(Wait, Option<Box<[u8]>>),
    Ended,
}

impl Watched {
    pub(super) fn open(id: u32) -> io::Result<Self> {
        let state = File::open(format!("{TASKS}/{id}/syscall"))?;
        let times = File::open(format!("{TASKS}/{id}/schedstat"))?;
        let created = creation(&task_stat::read(id)?).unwrap_or(0.0);
        Ok(Self { id, state, times, created, last: None, unseen: 0.0, looked: None, has_ended: false })
    }

    /// Has the time before now belong to nobody: the thread existed when the companion began.
    pub(super) fn begin_now(&mut self) {
        let at = Instant::now();
        self.last = Scheduled::of(&self.times).map(|scheduled| Last { at, scheduled, has_stack: false });
        self.looked = Some(at);
    }

    /// Whether the thread has not been looked at yet.
    pub(super) fn is_new(&self) -> bool {
        self.looked.is_none()
    }

    /// Whether the thread does not exist any more.
    pub(super) fn is_gone(&self) -> bool {
        State::of(&self.state) == State::Ended
    }

    /// Looks at the thread; the last snapshot was `span` nanoseconds ago.
    pub(super) fn look(&mut self, span: f64, memory: &File, buffer: &mut [u8]) -> Look {
        let Some((look, now)) = self.see(span, memory, buffer) else { return Look::Ended };
        self.looked = Some(now.at);
        match &look {
            Look::Awake => self.unseen = self.may_have_waited(&now),
            _ => (self.last, self.unseen) = (Some(now), 0.0),
        }
        look
    }

    /// As [`Watched::look`], but the next look finds everything as if there had not been this one.
    /// The second result is the time since the last look that the thread may have waited anywhere.
    pub(super) fn peek(&self, memory: &File, buffer: &mut [u8]) -> (Look, f64) {
        let Some((look, now)) = self.see(0.0, memory, buffer) else { return (Look::Ended, 0.0) };
        let unseen = match &look {
            Look::Same(_) | Look::Waits(Wait { hides: false, .. }, Some(_)) => 0.0,
            Look::Waits(Wait { own: Some(own), .. }, _) => own.most,
            Look::Waits(wait, _) => wait.waited,
            _ => self.may_have_waited(&now),
        };
        (look, unseen)
    }

    /// What the thread does, and the figures at this time; `None` if it has ended.
    fn see(&self, span: f64, memory: &File, buffer: &mut [u8]) -> Option<(Look, Last)> {
        let before = State::of(&self.state);
        if before == State::Ended {
            return None;
        }
        let at = Instant::now();
        let scheduled = Scheduled::of(&self.times)?;
        let mut now = Last { at, scheduled, has_stack: false };
        let State::Blocked { sp, ip } = before else { return Some((Look::Awake, now)) };
        let waited = match (self.last, self.looked) {
            (Some(_), _) => self.waited_until(&now),
            (None, None) => span,
            // It was awake at all looks.
            (None, Some(_)) => (self.own(&now).most - TICK / 2.0).max(0.0),
        };
        if self.last.is_some_and(|last| last.has_stack && last.scheduled == scheduled) {
            now.has_stack = true;
            return Some((Look::Same(waited), now));
        }
        let copied = memory.read_at(buffer, sp).ok().filter(|length| *length > 0);
        // If the thread has run in between, the copy may mix two moments.
        let copied = copied.filter(|_| State::of(&self.state) == before);
        now.has_stack = copied.is_some();
        let hides = match self.last {
            // What it did in the first turn is known if it waited before that.
            Some(last) => scheduled.turns > last.scheduled.turns + u64::from(last.has_stack),
            None => scheduled.turns > 1 && has_waited_before(self.id),
        };
        let wait = Wait {
            spot: Spot { thread: self.id, ip, sp },
            waited,
            hides,
            own: self.last.is_none().then(|| self.own(&now)),
        };
        Some((Look::Waits(wait, copied.map(|length| buffer[..length].into())), now))
    }

    /// How long the thread has waited since it was last seen waiting.
    fn waited_until(&self, now: &Last) -> f64 {
        self.last.map_or(0.0, |last| {
            let passed = now.at.duration_since(last.at).as_nanos() as f64;
            (passed - (now.scheduled.awake() - last.scheduled.awake())).max(0.0)
        })
    }

    /// How long the thread has waited in its life.
    fn own(&self, now: &Last) -> Own {
        let most = (since_start_of_system() - self.created - now.scheduled.awake()).max(0.0);
        Own { least: (most - TICK).max(0.0), most }
    }

    /// How long a thread that is awake now may have waited since it was last seen waiting.
    fn may_have_waited(&self, now: &Last) -> f64 {
        match self.last {
            Some(_) => self.waited_until(now),
            None if now.scheduled.turns <= 1 => 0.0,
            None => self.own(now).most,
        }
    }

    /// Discards the stack in which the thread was last seen waiting.
    pub(super) fn forget_stack(&mut self) {
        self.last.iter_mut().for_each(|last| last.has_stack = false);
    }

    /// How long the thread was awake in its life, in nanoseconds.
    #[cfg(test)]
    pub(super) fn awake(&self) -> Option<f64> {
        Some(Scheduled::of(&self.times)?.awake())
    }

    /// The time since the last look, in nanoseconds.
    pub(super) fn since_look(&self, now: Instant) -> f64 {
        self.looked.map_or(0.0, |looked| now.saturating_duration_since(looked).as_nanos() as f64)
    }

    /// The time of waits that were not seen, up to the last look, in nanoseconds.
    pub(super) fn unseen(&self) -> f64 {
        self.unseen
    }
}

/// The precision of the time at which a thread was created, in nanoseconds. The kernel rounds down,
/// to units of `USER_HZ`, which is 100 on x86-64 (asm-generic/param.h).
pub(super) const TICK: f64 = 1e7;

/// Whether a thread that waits may have done so before in its life. Opens a file, which takes some
/// ten microseconds.
fn has_waited_before(thread: u32) -> bool {
    switches_of(thread).is_none_or(|(voluntary, _)| voluntary > 1)
}

/// When a thread was created, in nanoseconds since the system's start, from its `stat`
/// (proc_pid_stat(5)).
fn creation(statistics: &str) -> Option<f64> {
    /// The index of `starttime`, field 22, among the fields from the third one on.
    const START_TIME: usize = 22 - 3;
    let ticks: f64 = task_stat::fields(statistics)?.nth(START_TIME)?.parse().ok()?;
    Some(ticks * TICK)
}

/// Nanoseconds since the system's start.
fn since_start_of_system() -> f64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME);
    now.map_or(f64::INFINITY, |now| now.tv_sec() as f64 * 1e9 + now.tv_nsec() as f64)
}

/// The state of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It runs, or is ready to run.
    Running,
    /// It is blocked, with these registers.
    Blocked {
        sp: u64,
        ip: u64,
    },
    Ended,
}

impl State {
    fn of(state: &File) -> Self {
        // A number and eight addresses.
        let mut line = [0; 256];
        match state.read_at(&mut line, 0) {
            Ok(length) => Self::parse(&line[..length]),
            Err(_) => Self::Ended,
        }
    }

    fn parse(line: &[u8]) -> Self {
        let line = String::from_utf8_lossy(line);
        let mut last = line.split_ascii_whitespace().rev();
        let mut address = || u64::from_str_radix(last.next()?.strip_prefix("0x")?, 16).ok();
        match (address(), address()) {
            // The main thread, if it has ended before others.
            (_, Some(0)) => Self::Ended,
            (Some(ip), Some(sp)) => Self::Blocked { sp, ip },
            _ => Self::Running,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_those_of_the_manual() {
        assert_eq!(State::parse(b"running\n"), State::Running);
        let blocked = State::Blocked { sp: 0x7ffc10, ip: 0x7f01 };
        assert_eq!(State::parse(b"202 0x1 0x2 0x3 0x4 0x5 0x6 0x7ffc10 0x7f01\n"), blocked);
        // In a page fault.
        assert_eq!(State::parse(b"-1 0x7ffc10 0x7f01\n"), blocked);
        assert_eq!(State::parse(b"-1 0x0 0x0\n"), State::Ended);
        assert_eq!(State::parse(b""), State::Running);
    }

    #[test]
    fn the_creation_of_a_thread_is_in_its_statistics() {
        let line = "7 (a) b) S 1 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 9 0 12345 1 2";
        assert_eq!(creation(line), Some(123.45e9));
        assert_eq!(creation("7 (a) S 1"), None);
    }
}
