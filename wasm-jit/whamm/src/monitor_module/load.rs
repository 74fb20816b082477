//! [`MonitorModule`]: a module whose exports are rules, checked against its functions.

use std::sync::Arc;
use std::time::Duration;

use wasm_jit::{ExternType, FuncType, Module, ValType};

use super::clock::{Clock, SystemClock};
use super::error::{MonitorError, SignatureError};
use super::modes::Mode;
use super::names::{Call, Event, Parameter, Parsed, Replacement, Rule, Static, parse, parse_replacing};
use crate::described::Described;

/// A monitor that is a WebAssembly module.
#[derive(Debug)]
pub struct MonitorModule {
    pub(super) module: Module,
    pub(super) libraries: Vec<(String, Module)>,
    /// The rules in the order of the exports, with their names.
    pub(super) rules: Vec<(String, Rule)>,
    pub(super) described: Described,
    pub(super) has_strings: bool,
    pub(super) always_calls: bool,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) call_limit: Duration,
}

/// The default maximum time of a call at match time.
const CALL_LIMIT: Duration = Duration::from_secs(10);

impl MonitorModule {
    /// Reads the rules of a module, and checks that its functions fit them.
    ///
    /// The libraries are modules whose exports may be imported by the monitor, or by later
    /// libraries, under their names: Whamm's own library is `whamm_core`.
    ///
    /// # Errors
    /// [`MonitorError::Name`] and [`MonitorError::Signature`].
    pub fn new(module: Module, libraries: Vec<(String, Module)>) -> Result<Self, MonitorError> {
        Self::read(module, libraries, parse)
    }

    /// As [`new`](Self::new), for a monitor that becomes a part of the program: rules may replace
    /// instructions.
    pub(crate) fn into_program(module: Module) -> Result<Self, MonitorError> {
        Self::read(module, Vec::new(), parse_replacing)
    }

    /// The replacements by rule, for rules that replace something.
    pub(crate) fn replacements(&self) -> Vec<Option<Replacement>> {
        self.rules.iter().map(|(_, rule)| rule.replacement()).collect()
    }

    fn read(
        module: Module,
        libraries: Vec<(String, Module)>,
        parse: fn(&str) -> Parsed,
    ) -> Result<Self, MonitorError> {
        let mut rules = Vec::new();
        let mut has_strings = false;
        for export in module.exports() {
            let name = export.name();
            let parsed = parse(name);
            let Some(rule) = parsed.map_err(|(column, reason)| MonitorError::Name {
                export: name.to_owned(),
                column,
                reason,
            })?
            else {
                continue;
            };
            let check = Check { module: &module };
            let checked = check.rule(name, export.ty(), &rule);
            has_strings |=
                checked.map_err(|reason| MonitorError::Signature { export: name.to_owned(), reason })?;
            rules.push((name.to_owned(), rule));
        }
        Ok(Self {
            described: Described::of(module.bytes()),
            module,
            libraries,
            rules,
            has_strings,
            always_calls: false,
            clock: Arc::new(SystemClock::default()),
            call_limit: CALL_LIMIT,
        })
    }

    /// Sets the clock for rules that are sampled by time; the default is the system's.
    pub fn with_clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Limits the time of each function that is called while the monitor is attached; the default
    /// is 10 s.
    pub fn with_call_limit(mut self, limit: Duration) -> Self {
        self.call_limit = limit;
        self
    }

    /// Calls functions even where the engine could count instead, and where a group of probes could
    /// be off, which takes much longer: for measurements and comparisons.
    pub fn always_call(mut self) -> Self {
        self.always_calls = true;
        self
    }

    /// The names of the exports that are rules, in order.
    pub fn rules(&self) -> impl ExactSizeIterator<Item = &str> + '_ {
        self.rules.iter().map(|(name, _)| name.as_str())
    }
}

struct Check<'a> {
    module: &'a Module,
}

/// The types that a value can be passed as.
#[derive(Clone, Copy)]
enum Fits {
    Integer,
    Number,
    I64,
    Exactly(ValType),
}

impl Fits {
    fn allows(self, ty: ValType) -> bool {
        match self {
            Self::Integer => matches!(ty, ValType::I32 | ValType::I64),
            Self::Number => is_number(ty),
            Self::I64 => ty == ValType::I64,
            Self::Exactly(wanted) => ty == wanted,
        }
    }
}

fn is_number(ty: ValType) -> bool {
    matches!(ty, ValType::I32 | ValType::I64 | ValType::F32 | ValType::F64)
}

impl Check<'_> {
    /// Checks the signature of a rule; returns whether it binds strings.
    fn rule(&self, name: &str, export: &ExternType, rule: &Rule) -> Result<bool, SignatureError> {
        let ExternType::Func(ty) = export else { return Err(SignatureError::NoFunction) };
        if ty.results().len() != 0 {
            return Err(SignatureError::Results);
        }
        let is_string = |value: &Parameter| matches!(value, Parameter::Static(value) if value.is_string());
        if rule.parameters.iter().any(is_string) {
            return Err(SignatureError::String);
        }
        let has_frame = !matches!(rule.event, Event::Exit | Event::Begin | Event::End | Event::LastEnd);
        let of_frame = |value: &Parameter| match value {
            Parameter::Argument(_) | Parameter::Reference(_) => !has_frame || !rule.mode.has_operands(),
            Parameter::Result(_) => rule.mode != Mode::After,
            // Control may continue at the end of the call.
            Parameter::Local(_) => !has_frame || rule.mode == Mode::SemanticAfter,
            Parameter::Frame => !has_frame && rule.event != Event::Exit,
            _ => false,
        };
        if rule.parameters.iter().any(of_frame) {
            return Err(SignatureError::NoFrame);
        }
        let mut strings = self.parameters(name, ty, &rule.parameters)?;
        if let Some(call) = &rule.predicate {
            let (result, of_call) = self.call(call)?;
            if result != ValType::I32 {
                return Err(SignatureError::Result { function: call.name.clone() });
            }
            strings |= of_call;
        }
        Ok(strings)
    }

    fn parameters(
        &self,
        function: &str,
        ty: &FuncType,
        values: &[Parameter],
    ) -> Result<bool, SignatureError> {
        let mut wanted = Vec::new();
        let mut strings = false;
        for value in values {
            match value {
                Parameter::Argument(_)
                | Parameter::Result(_)
                | Parameter::Local(_)
                | Parameter::NativeValue(_) => {
                    wanted.push(Fits::Number);
                }
                Parameter::Frame | Parameter::Reference(_) => wanted.push(Fits::I64),
                Parameter::OfCall(_)
                | Parameter::Callee
                | Parameter::Replaced(_)
                | Parameter::Alternative(_) => wanted.push(Fits::Integer),
                Parameter::Static(Static::Immediate(_)) => wanted.push(Fits::Number),
                Parameter::Static(value) if value.is_string() => {
                    strings = true;
                    wanted.extend([Fits::Exactly(ValType::I32); 2]);
                }
                Parameter::Static(_) => wanted.push(Fits::Integer),
                Parameter::Call(call) => {
                    let (result, of_call) = self.call(call)?;
                    strings |= of_call;
                    wanted.push(Fits::Exactly(result));
                }
            }
        }
        let parameters = ty.params().len();
        if parameters != wanted.len() {
            return Err(SignatureError::Count {
                function: function.to_owned(),
                parameters,
                values: wanted.len(),
            });
        }
        match ty.params().zip(&wanted).position(|(ty, fits)| !fits.allows(ty)) {
            Some(number) => Err(SignatureError::Type { function: function.to_owned(), number }),
            None => Ok(strings),
        }
    }

    /// Checks a call at match time. Returns the type of its result, and whether it has strings.
    fn call(&self, call: &Call) -> Result<(ValType, bool), SignatureError> {
        let function = || call.name.clone();
        let Some(ExternType::Func(ty)) = self.module.get_export(&call.name) else {
            return Err(SignatureError::NoCallee { function: function() });
        };
        let is_dynamic = |value: &Parameter| !matches!(value, Parameter::Static(_) | Parameter::Call(_));
        if call.parameters.iter().any(is_dynamic) {
            return Err(SignatureError::NotStatic { function: function() });
        }
        let strings = self.parameters(&call.name, &ty, &call.parameters)?;
        let results: Vec<ValType> = ty.results().collect();
        match results[..] {
            [result] if is_number(result) => Ok((result, strings)),
            _ => Err(SignatureError::Result { function: function() }),
        }
    }
}
