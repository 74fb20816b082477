//! Watchpoints: expressions that are evaluated before each instruction.

use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

use wasm_jit::probes::{Frame, FrameAccessor};

use crate::Error;
use crate::code::Code;
use crate::expression::Expression;
use crate::frames::Scope;
use crate::stop::Reason;
use crate::value::Value;

/// The value of an expression, or why it has none.
type Current = Result<Value, String>;

/// A watched expression.
#[derive(Debug)]
pub(crate) struct Watch {
    pub number: u32,
    pub expression: Arc<Expression>,
    /// The frame that it belongs to.
    pub frame: Option<(ThreadId, FrameAccessor)>,
    /// `None` until it is evaluated first.
    last: Mutex<Option<Current>>,
}

impl Watch {
    pub(crate) fn new(
        number: u32,
        expression: Arc<Expression>,
        frame: Option<(ThreadId, FrameAccessor)>,
    ) -> Self {
        Self { number, expression, frame, last: Mutex::default() }
    }

    /// Takes the present value as the one before, in the innermost frame.
    pub(crate) fn begin(&self, scope: &mut Scope<'_, '_>) {
        let value = self.expression.evaluate(scope).map_err(|error| error.to_string());
        *self.last.lock().unwrap_or_else(|e| e.into_inner()) = Some(value);
    }

    /// Whether the thread is to stop: the value has changed, or the frame has ended.
    pub(crate) fn check(&self, frame: &mut Frame<'_>, code: &Code) -> Option<Reason> {
        let expression = || self.expression.text().to_owned();
        let new: Result<Value, Error> = match self.frame {
            None => self.expression.evaluate(&mut Scope::innermost(frame, code)),
            Some((thread, _)) if thread != std::thread::current().id() => return None,
            Some((_, accessor)) => {
                if !accessor.is_alive(frame) {
                    return Some(Reason::OutOfScope { number: self.number, expression: expression() });
                }
                Scope::of(frame, code, accessor).and_then(|mut scope| self.expression.evaluate(&mut scope))
            }
        };
        let new = new.map_err(|error| error.to_string());
        let mut last = self.last.lock().unwrap_or_else(|e| e.into_inner());
        let old = last.replace(new.clone())?;
        (old != new).then(|| Reason::Watch { number: self.number, expression: expression(), old, new })
    }
}
