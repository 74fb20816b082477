//! Whether the processor time of the process has a quota (cgroups, as containers use them).
//!
//! When the quota of a period is used up, the kernel stops all threads of the group at once, until
//! the next period: they wait for processors at the same time.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

const ROOT: &str = "/sys/fs/cgroup";

/// Whether a group of the process, or one that contains it, had a quota when this was first asked.
/// Opens files.
pub(crate) fn is_set() -> bool {
    static IS_SET: OnceLock<bool> = OnceLock::new();
    *IS_SET.get_or_init(|| {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        files(&groups).any(|file| fs::read_to_string(file).is_ok_and(|content| is_quota(&content)))
    })
}

/// The files that may have a quota of the groups in `/proc/self/cgroup`: lines of the form
/// `NUMBER:CONTROLLERS:PATH`; without controllers, the group is one of the second version.
fn files(groups: &str) -> impl Iterator<Item = PathBuf> {
    groups.lines().flat_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
        let mount = match controllers {
            "" => Some((ROOT.to_owned(), "cpu.max")),
            names if names.split(',').any(|name| name == "cpu") => {
                Some((format!("{ROOT}/{names}"), "cpu.cfs_quota_us"))
            }
            _ => None,
        };
        let path = Path::new(path.trim_start_matches('/'));
        mount.into_iter().flat_map(|(mount, name)| {
            path.ancestors().map(move |group| Path::new(&mount).join(group).join(name)).collect::<Vec<_>>()
        })
    })
}

/// Whether the content of such a file is a number of microseconds, not `max` or -1.
fn is_quota(content: &str) -> bool {
    content.split_whitespace().next().is_some_and(|quota| quota.parse::<u64>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_of_all_groups_that_contain_the_process() {
        let found = |groups| files(groups).map(|file| file.display().to_string()).collect::<Vec<_>>();
        let of_second = ["/sys/fs/cgroup/a/b/cpu.max", "/sys/fs/cgroup/a/cpu.max", "/sys/fs/cgroup/cpu.max"];
        assert_eq!(found("0::/a/b\n"), of_second);
        let of_first = ["/sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_quota_us"];
        assert_eq!(found("4:memory:/m\n3:cpu,cpuacct:/c\n2:cpuset:/\n")[..1], of_first);
        assert_eq!(found(""), [""; 0]);
        assert!(is_quota("100000 100000\n") && is_quota("50000\n"));
        assert!(!is_quota("max 100000\n") && !is_quota("-1\n") && !is_quota(""));
    }
}
