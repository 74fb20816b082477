//! Errors of monitor modules.

use std::time::Duration;

use wasm_jit::Error;
use wasm_jit::probes::ProbeError;

/// A monitor module cannot be loaded or attached, or failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MonitorError {
    /// The name of an export begins like a rule, and is none.
    #[error("the export `{export}`, column {column}: {reason}")]
    Name {
        /// The name.
        export: String,
        /// The position of the mistake, in characters from 1.
        column: usize,
        /// The mistake.
        reason: NameError,
    },
    /// The rule of an export cannot be followed.
    #[error("the export `{export}`: {reason}")]
    Signature {
        /// The name.
        export: String,
        /// Why.
        reason: SignatureError,
    },
    /// A function that is called at match time failed.
    #[error("the export `{export}`, for function {function} at offset {offset:#x}: `{call}`: {source}")]
    Call {
        /// The name of the rule.
        export: String,
        /// The name of the function.
        call: String,
        /// The function of the program.
        function: u32,
        /// The offset of the place in its body.
        offset: u32,
        /// The cause.
        source: Box<Error>,
    },
    /// A function that is called at match time took too long.
    #[error(
        "the export `{export}`: `{call}` was ended after {limit:?}: it is called when the rule is matched"
    )]
    TooSlow {
        /// The name of the rule.
        export: String,
        /// The name of the function.
        call: String,
        /// The time that a call may take.
        limit: Duration,
    },
    /// There is no probe at a place.
    #[error("the export `{export}`: {source}")]
    Probe {
        /// The name of the rule.
        export: String,
        /// Why.
        source: ProbeError,
    },
    /// A rule's probes could not be made in a function that was called: what the rule reports is
    /// incomplete.
    #[error("the report is incomplete: the export `{export}` did not observe function {function}: {source}")]
    Incomplete {
        /// The name of the rule.
        export: String,
        /// The number of the function.
        function: u32,
        /// Why.
        source: ProbeError,
    },
    /// Probes that were made cannot be switched.
    #[error("the probes cannot be switched: {0}")]
    Switch(#[source] ProbeError),
    /// A function of a rule failed in a monitor with a store of its own. The monitor observes
    /// nothing more.
    #[error("`{export}` failed, and later events were not observed: {reason}")]
    Failed {
        /// The name of the rule.
        export: String,
        /// The cause.
        reason: String,
    },
    /// Functions' first calls cannot be watched.
    #[error("the program's functions cannot be watched: {0}")]
    Watch(#[source] ProbeError),
    /// Memory for strings is missing, or not exported as the interface wants it.
    #[error(
        "strings need the memory `whamm_buffer` and the i32 globals `whamm_buffer:start` and `whamm_buffer:max`"
    )]
    Buffer,
    /// A library or the monitor cannot be instantiated.
    #[error("{module}: {source}")]
    Instantiate {
        /// The library, or `monitor`.
        module: String,
        /// Why.
        source: Box<Error>,
    },
    /// The memory of a monitor does not contain the report of the script.
    #[error("there is no report of this script at address {address:#x} of the monitor's memory")]
    Report {
        /// The expected address of the report.
        address: u32,
    },
    /// A function of the beginning or the end failed.
    #[error("`{export}`: {source}")]
    Run {
        /// The name of the rule.
        export: String,
        /// The cause.
        source: Box<Error>,
    },
}

/// A mistake in the name of an export.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// Another package.
    #[error("expected opcode, func, block, begin, end or exit")]
    Package,
    /// Another event.
    #[error("functions have the events entry and exit, blocks start and end")]
    Event,
    /// There is no pattern.
    #[error("expected the name of an instruction, or a pattern")]
    Pattern,
    /// There is no such instruction.
    #[error("no instruction has this name")]
    Opcode,
    /// Another mode.
    #[error("the modes are before, after, semantic_after, entry and exit")]
    Mode,
    /// There is no such value.
    #[error("no value has this name")]
    Value,
    /// Calls are nested too deeply.
    #[error("calls are nested more than {limit} deep")]
    Nested {
        /// The maximum number.
        limit: usize,
    },
    /// Something else is needed there.
    #[error("expected {text}")]
    Expected {
        /// The expected text.
        text: &'static str,
    },
}

/// Why a rule cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SignatureError {
    /// The export is no function.
    #[error("a rule must be the name of a function")]
    NoFunction,
    /// The function of a rule has results.
    #[error("the function of a rule has no results")]
    Results,
    /// The number of values differs from the number of parameters.
    #[error("`{function}` has {parameters} parameters, but its values take {values}")]
    Count {
        /// The export.
        function: String,
        /// Of the function.
        parameters: usize,
        /// Of the rule; a string takes two.
        values: usize,
    },
    /// The function of a call is not exported.
    #[error("there is no exported function `{function}`")]
    NoCallee {
        /// Its name.
        function: String,
    },
    /// The function of a call has not one numeric result.
    #[error("`{function}` must have one result, which is a number; a predicate's is an i32")]
    Result {
        /// Its name.
        function: String,
    },
    /// A value cannot be passed at match time.
    #[error("`{function}` is called at match time, when there are no operands, locals or frames")]
    NotStatic {
        /// The function's name.
        function: String,
    },
    /// A value cannot be passed as a parameter of this type.
    #[error("parameter {number} of `{function}` has a type that does not fit the value")]
    Type {
        /// The function's name.
        function: String,
        /// The number of the parameter, from 0.
        number: usize,
    },
    /// A string cannot be passed to the function of a rule.
    #[error("strings can be passed only to functions that are called at match time")]
    String,
    /// The event has no such values.
    #[error("this event has no operands, locals or frames")]
    NoFrame,
}
