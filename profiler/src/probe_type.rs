//! The kinds of probes that the profiler observes, and what they call.

use fastinst::ProbeKind;

/// Where in a function a probe is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeType {
    /// At its entry.
    Entry,
    /// At one of its exits.
    Exit,
}

/// What the entry probe of a function of an engine calls ([`crate::embedded`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryProbe {
    /// Nothing.
    Off,
    /// [`entered`](crate::embedded::entered).
    Timed,
    /// [`counted`](crate::embedded::counted).
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
