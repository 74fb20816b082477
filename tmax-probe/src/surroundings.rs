//! Limits of what a run on this machine can detect.

use std::collections::BTreeSet;
use std::fs;

use wordpatch::calibration::Host;

/// One line for each condition that may affect the results and could not be tested.
pub(crate) fn blind_spots(host: &Host, usable_processors: usize, max_executors: u8) -> Vec<String> {
    let mut lines = Vec::new();
    if usable_processors < 2 {
        lines.push(
            "only one processor may be used: no code was rewritten while another core ran it".to_owned(),
        );
    }
    if usable_processors < host.processors {
        lines.push(format!(
            "only {usable_processors} of {} processors may be used (taskset, cpuset): the others may differ, and the calibration is \
             used on them as well",
            host.processors
        ));
    }
    if host.sockets == 1 {
        lines.push(
            "one socket: stores take longer to become visible on another socket (the paper's two-socket machine waits 3,000 ticks)"
                .to_owned(),
        );
    }
    match threads_per_core() {
        Some(1) => lines.push(
            "apparently no two of the processors are threads of one core: sibling threads share an instruction cache"
                .to_owned(),
        ),
        None => lines.push("it is unknown which processors are threads of one core".to_owned()),
        Some(_) => {}
    }
    if host.hypervisor != "none" {
        lines.push(format!(
            "a virtual machine ({}): the hypervisor may move it to another processor model, hide the microcode, and stop virtual \
             processors at any time",
            host.hypervisor
        ));
    }
    lines.push(
        "frequency and power states were not controlled; T_max is in ticks of a clock that does not change with them".into(),
    );
    lines.push(
        "tears under conditions that no trial had: an address counts as safe because equal trials tear at other \
         addresses of the line".into(),
    );
    lines.push(format!(
        "at most {max_executors} executors on {usable_processors} processors; more processors may take longer"
    ));
    lines
}

/// The largest number of processors that are threads of one core.
fn threads_per_core() -> Option<usize> {
    let folder = fs::read_dir("/sys/devices/system/cpu").ok()?;
    let cores: BTreeSet<String> = folder
        .flatten()
        .filter_map(|entry| fs::read_to_string(entry.path().join("topology/thread_siblings_list")).ok())
        .map(|list| list.trim().to_owned())
        .collect();
    cores.iter().map(|list| members(list)).max()
}

/// Number of processors in a list such as `0,4-6`.
fn members(list: &str) -> usize {
    let parts = list.split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(last.parse::<usize>().ok()?.checked_sub(first.parse().ok()?)? + 1)
    });
    parts.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_counted() {
        assert_eq!([members("0"), members("0,4"), members("0-3,8"), members("")], [1, 2, 5, 0]);
    }

    #[test]
    fn every_machine_has_blind_spots_and_each_is_one_line() {
        let lines = blind_spots(&Host::here(), 1, 4);
        assert!(lines.len() >= 3 && lines.iter().all(|line| !line.contains('\n')), "{lines:?}");
    }
}
