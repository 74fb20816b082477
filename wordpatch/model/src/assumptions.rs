//! What the proofs of the exploration rest on, in one list.
//!
//! Each can be [dropped](crate::Scenario::without) from a scenario, and there is a test that shows
//! what breaks then (`each_assumption_is_needed` in `wordpatch/src/exploration/assumptions.rs`, and
//! in `callpatch/src/exploration.rs` for the one that only callpatch makes).

/// Where an assumption comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// A manual promises it.
    Architectural,
    /// `tmax-probe` tries to refute it on the machine at hand; the vendors' promise is used until
    /// it has.
    Measured,
    /// Nobody promises it, and nothing here measures it.
    Assumed,
    /// The library's documentation demands it of its caller.
    Caller,
}

/// One assumption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assumption {
    /// A store inside a fetch window is fetched whole or not at all.
    StoresAreWhole,
    /// After a wait, no core executes bytes that were replaced before it began.
    WaitsEndStaleness,
    /// After a fixed time, no core executes bytes that were replaced before it.
    StalenessIsBounded,
    /// The waits of a patcher reach every core that executes the text.
    WaitsReachEveryCore,
    /// Stores of one processor become visible in program order.
    StoresKeepOrder,
    /// Fetch gives only bytes that once stood in memory.
    FetchedBytesStoodThere,
    /// The return from a signal handler serializes the core.
    HandlerReturnSerializes,
    /// No thread enters an instruction in its middle.
    NobodyEntersTheMiddle,
    /// Only the library writes the text.
    NobodyElseWrites,
    /// A thread that meets INT3 can take the signal.
    SigtrapIsDelivered,
}

impl Assumption {
    /// Every assumption, its status, and its source or reason.
    pub const ALL: [(Self, Status, &str); 10] = [
        (
            Self::StoresAreWhole,
            Status::Measured,
            "aligned quadwords: architectural on AMD (APM volume 2, section 7.6.1), assumed on Intel; larger windows: calibration",
        ),
        (
            Self::WaitsEndStaleness,
            Status::Architectural,
            "membarrier SYNC_CORE: a serializing instruction on each core (SDM volume 3, cross-modifying code; membarrier(2)); \
             waits of T_max instead: measured",
        ),
        (
            Self::StalenessIsBounded,
            Status::Assumed,
            "50,000 ticks, or T_max where it is known; relied on where membarrier is refused in the middle of callpatch::retarget",
        ),
        (
            Self::WaitsReachEveryCore,
            Status::Assumed,
            "membarrier reaches all threads of the process, not forked children that share its text: for these a bound of \
             50,000 ticks, or T_max where it is known",
        ),
        (
            Self::StoresKeepOrder,
            Status::Architectural,
            "x86-TSO: SDM volume 3, memory ordering; APM volume 2, section 7.2. Locked stores are ordered with all others",
        ),
        (
            Self::FetchedBytesStoodThere,
            Status::Assumed,
            "the paper's second assumption; no manual says so of code that is modified while it is executed",
        ),
        (
            Self::HandlerReturnSerializes,
            Status::Architectural,
            "IRET is a serializing instruction (SDM volume 3, serializing instructions; APM volume 2, section 7.6.4); \
             the kernel returns from signals by IRET or ERETU",
        ),
        (
            Self::NobodyEntersTheMiddle,
            Status::Caller,
            "obligation 3 of patch, obligation 3 of CallSite::decode",
        ),
        (Self::NobodyElseWrites, Status::Caller, "obligation 1 of patch and of CallSite::decode"),
        (Self::SigtrapIsDelivered, Status::Caller, "obligation 3 of patch; check_sigtrap_unblocked looks"),
    ];
}
