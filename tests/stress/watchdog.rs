//! The thread that monitors a run: its progress, whether every worker makes progress, and whether a
//! mapping is writable and executable.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::run::{Kind, Run};

/// Interval between two checks.
const TICK: Duration = Duration::from_millis(2);

/// Monitors the run until the other end of `ended` is dropped. `give_up` ends the process when a
/// thread hangs. With a debugger, a mapping may be writable and executable temporarily.
pub(crate) fn watch(run: &Run, ended: &Receiver<()>, has_debugger: bool, give_up: impl Fn()) {
    let mut seen: HashMap<String, (u64, Instant)> = HashMap::new();
    let mut has_reported_mapping = has_debugger;
    let mut last_look = Instant::now();
    while ended.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
        run.advance();
        if let Some(line) = writable_and_executable().filter(|_| !has_reported_mapping) {
            run.found(Kind::Other, format_args!("a mapping is writable and executable: {line}"));
            has_reported_mapping = true;
        }
        let now = Instant::now();
        // Nobody makes progress while the whole machine stands still.
        let stall = (now - last_look).saturating_sub(2 * TICK);
        seen.values_mut().for_each(|(_, since)| *since += stall);
        last_look = now;
        let mut is_hung = false;
        for life in run.lives().iter().filter(|life| !life.has_ended.load(Ordering::Relaxed)) {
            let beats = life.beats.load(Ordering::Relaxed);
            let (last, since) = seen.entry(life.name.clone()).or_insert((beats, now));
            if *last != beats {
                (*last, *since) = (beats, now);
            } else if now - *since > run.patience {
                run.found(
                    Kind::Hung,
                    format_args!("{} has made no progress for {:?}", life.name, run.patience),
                );
                is_hung = true;
            }
        }
        if is_hung {
            give_up();
        }
    }
}

/// The first such line of the process's memory map.
fn writable_and_executable() -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let is_both = |line: &&str| line.split(' ').nth(1).is_some_and(|access| access.starts_with("rwx"));
    maps.lines().find(is_both).map(str::to_owned)
}
