//! Names what has failed in a monitor: the part of a script's rule, and the library function that
//! it has called.

use wasm_jit::probes::InstanceId;
use wasm_jit::{AsContext, Error, Instance, Module};

use crate::failure::RuleFailure;
use crate::lang::OUTSIDE;

/// The libraries of a monitor, by their instances.
#[derive(Debug, Default)]
pub(super) struct Libraries(Vec<(InstanceId, String, Module)>);

impl Libraries {
    pub(super) fn add(&mut self, store: impl AsContext, instance: &Instance, name: &str, library: &Module) {
        self.0.push((instance.id(store), name.to_owned(), library.clone()));
    }

    /// The library function that the monitor was executing when it failed, as scripts call it:
    /// `library.function`.
    pub(super) fn called(&self, error: &Error) -> Option<String> {
        // The outermost one is the one that the monitor has called.
        let mut frames = error.backtrace()?.frames().iter().rev();
        frames.find_map(|frame| {
            let (_, library, module) = self.0.iter().find(|(id, ..)| *id == frame.instance())?;
            let function = module.function(frame.func_index())?;
            let name = function.exports().next().map_or_else(|| function.display_name(), str::to_owned);
            Some(format!("{library}.{name}"))
        })
    }

    /// What a script was executing when it failed: the name of its innermost function that has one.
    pub(super) fn executed(&self, error: &Error) -> Option<String> {
        let frames = error.backtrace()?.frames().iter();
        let mut own = frames.filter(|frame| !self.0.iter().any(|(id, ..)| *id == frame.instance()));
        let is_of_script = |name: &&str| name.contains(" (line ") || *name == OUTSIDE;
        own.find_map(|frame| frame.func_name().filter(is_of_script).map(str::to_owned))
    }

    /// Adds the library function that was being executed to a name.
    pub(super) fn with_called(&self, name: String, error: &Error) -> String {
        match self.called(error) {
            Some(function) => format!("{name}: `{function}`"),
            None => name,
        }
    }
}

/// The name for messages of a function that is called at match time for a rule: its export; or the
/// part of a script's rule that it executes, as the name section says.
pub(crate) fn name_of_call(monitor: &Module, export: &str, call: &str) -> String {
    // The compiler names these exports by numbers.
    let is_numbered = call.strip_prefix('$').is_some_and(|number| number.parse::<u32>().is_ok());
    let mut functions = monitor.functions().filter(|_| is_numbered);
    let function = functions.find(|function| function.exports().any(|name| name == call));
    match function.and_then(|function| function.name()) {
        Some(part) => part.to_owned(),
        None => format!("the export `{export}`: `{call}`"),
    }
}

/// The name of the rule that has failed, and an error without this name.
pub(super) fn of_rule(error: Error) -> Result<(String, Error), Error> {
    match error.downcast_ref::<RuleFailure>() {
        Some(RuleFailure { rule, reason }) => Ok((rule.clone(), Error::host(*reason))),
        None => Err(error),
    }
}
