//! The machine to which a calibration belongs.

use std::fs;

use raw_cpuid::{CpuId, Hypervisor};
use serde::{Deserialize, Serialize};

/// The properties of a machine on which instruction fetch may depend. Unknown text is empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// The vendor: the twelve letters of CPUID.
    pub cpu_vendor: String,
    /// The family, including the extended family.
    pub cpu_family: u32,
    /// The model, including the extended model.
    pub cpu_model: u32,
    /// The stepping.
    pub cpu_stepping: u32,
    /// The marketing name, for information: not compared.
    pub cpu_name: String,
    /// The microcode version, as the kernel prints it. In a virtual machine it may be a constant.
    pub microcode: String,
    /// The number of processor packages that the kernel reports.
    pub sockets: usize,
    /// The number of processors that the kernel reports, for information: not compared.
    pub processors: usize,
    /// The hypervisor, according to its CPUID leaf; `none` on bare metal.
    pub hypervisor: String,
    /// The release of the kernel.
    pub kernel: String,
}

impl Host {
    /// This machine. Executes a few CPUID instructions, each of which may take 10,000 ticks under a
    /// hypervisor, and reads small files of `/proc`.
    pub fn here() -> Self {
        let cpuid = CpuId::new();
        let feature = cpuid.get_feature_info();
        let feature = feature.as_ref();
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let (microcode, sockets, processors) = from_cpuinfo(&cpuinfo);
        Self {
            cpu_vendor: cpuid.get_vendor_info().map_or(String::new(), |vendor| vendor.as_str().to_owned()),
            cpu_family: feature.map_or(0, |feature| feature.family_id().into()),
            cpu_model: feature.map_or(0, |feature| feature.model_id().into()),
            cpu_stepping: feature.map_or(0, |feature| feature.stepping_id().into()),
            cpu_name: cpuid
                .get_processor_brand_string()
                .map_or(String::new(), |name| name.as_str().trim().to_owned()),
            microcode,
            sockets,
            processors,
            hypervisor: match cpuid.get_hypervisor_info().map(|info| info.identify()) {
                None => "none".into(),
                Some(Hypervisor::Unknown(b, c, d)) => format!("{b:08x}{c:08x}{d:08x}"),
                Some(known) => format!("{known:?}"),
            },
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
        }
    }

    /// The first relevant property in which the two differ, with both values.
    pub(super) fn difference(&self, other: &Self) -> Option<(&'static str, String, String)> {
        let text = |what, ours: &String, theirs: &String| (what, ours.clone(), theirs.clone());
        let number = |what, ours: usize, theirs: usize| (what, ours.to_string(), theirs.to_string());
        [
            text("cpu_vendor", &self.cpu_vendor, &other.cpu_vendor),
            number("cpu_family", self.cpu_family as usize, other.cpu_family as usize),
            number("cpu_model", self.cpu_model as usize, other.cpu_model as usize),
            number("cpu_stepping", self.cpu_stepping as usize, other.cpu_stepping as usize),
            text("microcode", &self.microcode, &other.microcode),
            number("sockets", self.sockets, other.sockets),
            text("hypervisor", &self.hypervisor, &other.hypervisor),
            text("kernel", &self.kernel, &other.kernel),
        ]
        .into_iter()
        .find(|(_, ours, theirs)| ours != theirs)
    }
}

/// Microcode, sockets and processors from the text of `/proc/cpuinfo`.
fn from_cpuinfo(text: &str) -> (String, usize, usize) {
    let values = |key: &'static str| {
        text.lines()
            .filter_map(|line| line.split_once(':'))
            .filter(move |(name, _)| name.trim() == key)
            .map(|(_, value)| value.trim().to_owned())
    };
    let mut sockets: Vec<_> = values("physical id").collect();
    sockets.sort();
    sockets.dedup();
    (values("microcode").next().unwrap_or_default(), sockets.len().max(1), values("processor").count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_counted_once() {
        let processor = |number: u32, socket: u32| {
            format!("processor\t: {number}\nmicrocode\t: 0x2b\nphysical id\t: {socket}\n\n")
        };
        let text = [processor(0, 0), processor(1, 0), processor(2, 1)].concat();
        assert_eq!(from_cpuinfo(&text), ("0x2b".to_owned(), 2, 3));
        assert_eq!(from_cpuinfo(""), (String::new(), 1, 0));
    }

    #[test]
    fn this_host_is_itself_and_has_a_vendor() {
        let here = Host::here();
        assert_eq!(here.difference(&Host::here()), None);
        assert_eq!(here.cpu_vendor.len(), 12, "{here:?}");
        assert!(here.cpu_family > 0 && here.processors > 0, "{here:?}");
    }

    #[test]
    fn names_are_not_compared() {
        let here = Host::here();
        let renamed = Host { cpu_name: "another".into(), processors: 1000, ..here.clone() };
        assert_eq!(here.difference(&renamed), None);
        let updated = Host { kernel: "0.1".into(), ..here.clone() };
        assert_eq!(
            here.difference(&updated).map(|(what, _, theirs)| (what, theirs)),
            Some(("kernel", "0.1".into()))
        );
    }
}
