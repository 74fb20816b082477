//! The kinds of probes that the profiler observes, and the functions that they call.

use fastinst::ProbeKind;

/// The position of a probe in its function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeType {
    /// At the function's entry.
    Entry,
    /// At one of the function's exits.
    Exit,
}

/// The state of the entry probe of an engine's function ([`crate::embedded`]): the function that it
/// calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EntryProbe {
    /// The probe is off.
    #[default]
    Off,
    /// The probe calls [`entered`](crate::embedded::entered).
    Timed,
    /// The probe calls [`counted`](crate::embedded::counted).
    Counted,
}

impl ProbeType {
    /// The type of a probe of this kind; `None` for a kind that is not observed.
    pub(crate) fn of(kind: ProbeKind) -> Option<Self> {
        match kind {
            ProbeKind::ENTRY => Some(Self::Entry),
            ProbeKind::EXIT => Some(Self::Exit),
            _ => None,
        }
    }
}
