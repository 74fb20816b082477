//! Errors of monitor modules.

use std::time::Duration;

use wasm_jit::Error;
use wasm_jit::probes::ProbeError;

/// A monitor module cannot be loaded or attached, or failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MonitorError {
    /// The name of an export begins like a rule, but is not one.
    #[error("the export `{export}`, column {column}: {reason}")]
    Name {
        /// The name of the export.
        export: String,
        /// The position of the mistake, in characters from 1.
        column: usize,
        /// The mistake.
        reason: NameError,
    },
    /// The rule of an export cannot be applied.
    #[error("{}", of_export(export, reason))]
    Signature {
        /// The name of the export.
        export: String,
        /// The reason.
        reason: SignatureError,
    },
    /// A function that was called at match time failed.
    #[error("{name}, for function {function} at offset {offset:#x}: {source}")]
    Call {
        /// The name of the rule's export.
        export: String,
        /// The name of the function that failed.
        call: String,
        /// Both, or for scripts the part of the rule, with its line; and the function of a library
        /// that was being executed.
        name: String,
        /// The index of the program's function with the place that was matched.
        function: u32,
        /// The offset of the place in the function's body, in bytes.
        offset: u32,
        /// The error of the call.
        source: Box<Error>,
    },
    /// A function that was called while the monitor was attached took too long.
    #[error("{name} was ended after {limit:?}: it is called {when}")]
    TooSlow {
        /// The name of the function that took too long, as in [`MonitorError::Call`].
        name: String,
        /// Why it was called.
        when: &'static str,
        /// The maximum time of a call.
        limit: Duration,
    },
    /// A probe cannot be created at a place.
    #[error("the export `{export}`: {source}")]
    Probe {
        /// The name of the rule's export.
        export: String,
        /// The reason.
        source: ProbeError,
    },
    /// A rule's probes could not be created in a function that was called: what the rule reports is
    /// incomplete.
    #[error("the report is incomplete: the export `{export}` did not observe function {function}: {source}")]
    Incomplete {
        /// The name of the rule's export.
        export: String,
        /// The index of the program's function.
        function: u32,
        /// The reason.
        source: ProbeError,
    },
    /// Existing probes cannot be activated or deactivated.
    #[error("the probes cannot be switched: {0}")]
    Switch(#[source] ProbeError),
    /// A rule of a script failed, or a rule's function in a monitor with a store of its own. The
    /// monitor observes nothing more.
    #[error("`{export}` failed, and later events were not observed: {reason}")]
    Failed {
        /// The name of the rule's export.
        export: String,
        /// The reason.
        reason: String,
    },
    /// First calls to functions cannot be watched.
    #[error("the program's functions cannot be watched: {0}")]
    Watch(#[source] ProbeError),
    /// A `br_table` has more targets than the monitor can store.
    #[error("a `br_table` of function {function} has {targets} targets, too many for `targets`")]
    Targets {
        /// The number of targets, without the default.
        targets: usize,
        /// The index of the program's function.
        function: u32,
    },
    /// The memory for strings is missing, or is not exported as the interface requires.
    #[error(
        "strings need the memory `whamm_buffer` and the i32 globals `whamm_buffer:start` and `whamm_buffer:max`"
    )]
    Buffer,
    /// A library or the monitor cannot be instantiated.
    #[error("{module}: {source}")]
    Instantiate {
        /// The name of the library, or `monitor`.
        module: String,
        /// The reason.
        source: Box<Error>,
    },
    /// A statement, an initial value or a rule of a script failed at the beginning.
    #[error("{name}: {source}")]
    Begin {
        /// What failed, with the line of the rule; and the function of a library that was being
        /// executed.
        name: String,
        /// The error of the call.
        source: Box<Error>,
    },
    /// The memory of a monitor does not contain the report of the script.
    #[error("there is no report of this script at address {address:#x} of the monitor's memory")]
    Report {
        /// The expected address of the report.
        address: u32,
    },
    /// A function that is called at the beginning or the end failed.
    #[error("`{export}`: {source}")]
    Run {
        /// The name of the rule's export.
        export: String,
        /// The error of the call.
        source: Box<Error>,
    },
}

/// A mistake in the name of an export.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// The package does not exist.
    #[error("expected opcode, func, block, begin, end or exit")]
    Package,
    /// The event does not exist.
    #[error("functions have the events entry and exit, blocks start and end")]
    Event,
    /// The pattern is missing.
    #[error("expected the name of an instruction, or a pattern")]
    Pattern,
    /// No instruction has this name.
    #[error("no instruction has this name")]
    Opcode,
    /// The mode does not exist.
    #[error("the modes are before, after, semantic_after, entry and exit")]
    Mode,
    /// The value does not exist.
    #[error("no value has this name")]
    Value,
    /// Calls are nested too deeply.
    #[error("calls are nested more than {limit} deep")]
    Nested {
        /// The maximum depth.
        limit: usize,
    },
    /// A certain text is expected at this position.
    #[error("expected {text}")]
    Expected {
        /// The expected text.
        text: &'static str,
    },
}

/// The message of a rule that cannot be applied, which names the export once.
fn of_export(export: &str, reason: &SignatureError) -> String {
    match reason {
        SignatureError::Count { function, .. } | SignatureError::Type { function, .. }
            if function == export =>
        {
            format!("the export {reason}")
        }
        _ => format!("the export `{export}`: {reason}"),
    }
}

/// The reason why the rule of an export cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SignatureError {
    /// The export is not a function.
    #[error("a rule must be the name of a function")]
    NoFunction,
    /// The function of a rule has results.
    #[error("the function of a rule has no results")]
    Results,
    /// The number of values differs from the number of parameters.
    #[error("`{function}` has {parameters} parameters, but its values take {values}")]
    Count {
        /// The name of the export.
        function: String,
        /// The number of the function's parameters.
        parameters: usize,
        /// The number of values of the rule; a string counts as two.
        values: usize,
    },
    /// A function that the rule calls is not exported.
    #[error("there is no exported function `{function}`")]
    NoCallee {
        /// The name of the function.
        function: String,
    },
    /// A function that the rule calls does not have exactly one result that is a number.
    #[error("`{function}` must have one result, which is a number; a predicate's is an i32")]
    Result {
        /// The name of the function.
        function: String,
    },
    /// A value that is not static cannot be passed at match time.
    #[error("`{function}` is called at match time, when there are no operands, locals or frames")]
    NotStatic {
        /// The name of the function.
        function: String,
    },
    /// A value cannot be passed as a parameter of this type.
    #[error("parameter {number} of `{function}` has a type that does not fit the value")]
    Type {
        /// The name of the function.
        function: String,
        /// The index of the parameter, from 0.
        number: usize,
    },
    /// A string cannot be passed to the function of a rule.
    #[error("strings can be passed only to functions that are called at match time")]
    String,
    /// The event has no such values.
    #[error("this event has no operands, locals or frames")]
    NoFrame,
}
