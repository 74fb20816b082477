//! The assumptions on which the results of the exploration depend.
//!
//! Each can be [dropped](crate::Scenario::without) from a scenario, and a test shows a
//! counterexample without it (`each_assumption_is_needed` in
//! `wordpatch/src/exploration/assumptions.rs`, and in `callpatch/src/exploration.rs` for the one
//! that only callpatch makes).

/// The basis of an assumption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// A manual guarantees it.
    Architectural,
    /// `tmax-probe` tests it on the machine in use; without a calibration, the vendors' guarantees
    /// are used instead.
    Measured,
    /// It is neither guaranteed nor measured.
    Assumed,
    /// It is an obligation of the library's caller.
    Caller,
}

/// One assumption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assumption {
    /// Instruction fetch never sees part of a store inside a fetch window.
    StoresAreAtomic,
    /// After a wait, no core executes bytes that were replaced before it began.
    WaitsEndStaleness,
    /// After a fixed time, no core executes bytes that were replaced before it.
    StalenessIsBounded,
    /// The waits of a patcher reach every core that executes the text.
    WaitsReachEveryCore,
    /// Stores of one processor become visible in program order.
    StoresKeepOrder,
    /// Instruction fetch returns only bytes that have been in memory.
    FetchedBytesWereStored,
    /// The return from a signal handler serializes the core.
    HandlerReturnSerializes,
    /// No thread jumps into the middle of an instruction.
    NoJumpIntoInstruction,
    /// Only the library writes the text.
    NoForeignStores,
    /// A thread that executes INT3 does not block the signal.
    SigtrapIsDelivered,
}

impl Assumption {
    /// Every assumption, its status, and its source or reason.
    pub const ALL: [(Self, Status, &str); 10] = [
        (
            Self::StoresAreAtomic,
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
            "50,000 ticks, or T_max if it is known; needed if membarrier is refused in the middle of callpatch::retarget",
        ),
        (
            Self::WaitsReachEveryCore,
            Status::Assumed,
            "membarrier reaches all threads of the process, not forked children that share its text: for these a bound of 50,000 ticks, or T_max if it is known",
        ),
        (
            Self::StoresKeepOrder,
            Status::Architectural,
            "x86-TSO: SDM volume 3, memory ordering; APM volume 2, section 7.2. Locked stores are ordered with all others",
        ),
        (
            Self::FetchedBytesWereStored,
            Status::Assumed,
            "the paper's second assumption; no manual states it for code that is modified while it is executed",
        ),
        (
            Self::HandlerReturnSerializes,
            Status::Architectural,
            "IRET is a serializing instruction (SDM volume 3, serializing instructions; APM volume 2, section 7.6.4); \
             the kernel returns from signals by IRET or ERETU",
        ),
        (
            Self::NoJumpIntoInstruction,
            Status::Caller,
            "obligation 3 of patch, obligation 3 of CallSite::decode",
        ),
        (Self::NoForeignStores, Status::Caller, "obligation 1 of patch and of CallSite::decode"),
        (
            Self::SigtrapIsDelivered,
            Status::Caller,
            "obligation 3 of patch; check_sigtrap_unblocked checks it",
        ),
    ];
}
