//! Watchpoints: expressions that are evaluated before each instruction.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use wasm_jit::probes::{Frame, FrameAccessor, InstanceId, Location};

use crate::Error;
use crate::code::Code;
use crate::dwarf::entries::Key;
use crate::expression::Expression;
use crate::frames::Scope;
use crate::position::{Point, Position};
use crate::stop::Reason;
use crate::value::Value;

/// The value of an expression, or the reason why it has none.
type Current = Result<Value, String>;

/// A watched expression.
#[derive(Debug)]
pub(crate) struct Watch {
    pub number: u32,
    pub expression: Arc<Expression>,
    /// The frame to which the expression belongs.
    pub frame: Option<WatchedFrame>,
    /// Where names of static variables were given their meaning, and the number of calls that are
    /// inlined there further in; `None` for outside of functions.
    pub named_in: Option<(Location, usize)>,
    /// Whether other instances have another value.
    is_of_instance: bool,
    /// The instance in which it was last evaluated, and its value; `None` until it is first
    /// evaluated.
    last: Mutex<Option<(InstanceId, Current)>>,
}

/// The frame of a watched expression, in all re-executions of the run.
#[derive(Debug)]
pub(crate) struct WatchedFrame {
    pub function: u32,
    /// The function of the inlined call to which the expression belongs, if any.
    pub inlined: Option<Key>,
    pub depth: usize,
    /// A point at which the frame was known to exist, if the run is repeatable.
    pub seen: Option<Point>,
    /// The position at which the frame was entered, once that is known.
    pub entry: Mutex<Option<Position>>,
    /// The frame in the present run, once it was entered.
    now: Mutex<Option<(ThreadId, FrameAccessor)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl WatchedFrame {
    pub(crate) fn new(
        (function, inlined): (u32, Option<Key>),
        depth: usize,
        seen: Option<Point>,
        accessor: FrameAccessor,
    ) -> Self {
        let now = Mutex::new(Some((std::thread::current().id(), accessor)));
        Self { function, inlined, depth, seen, entry: Mutex::default(), now }
    }

    pub(crate) fn entry(&self) -> Option<Position> {
        *lock(&self.entry)
    }

    /// Records that this thread has entered the frame.
    pub(crate) fn enter(&self, accessor: FrameAccessor) {
        *lock(&self.now) = Some((std::thread::current().id(), accessor));
    }

    /// Forgets the frame, because another run begins.
    pub(crate) fn forget(&self) {
        *lock(&self.now) = None;
    }

    fn now(&self) -> Option<(ThreadId, FrameAccessor)> {
        *lock(&self.now)
    }

    /// Whether the frame exists now.
    pub(crate) fn exists(&self, frame: &mut Frame<'_>) -> bool {
        self.now().is_some_and(|(_, accessor)| accessor.is_alive(frame))
    }
}

impl Watch {
    pub(crate) fn new(
        number: u32,
        expression: Arc<Expression>,
        frame: Option<WatchedFrame>,
        named_in: Option<(Location, usize)>,
        code: &Code,
    ) -> Self {
        let is_of_instance = expression.is_of_instance(|memory| code.has_shared_memory(memory));
        Self { number, expression, frame, named_in, is_of_instance, last: Mutex::default() }
    }

    /// Records the present value in a frame.
    ///
    /// # Errors
    /// As [`Scope::instance_id`].
    pub(crate) fn begin(&self, scope: &mut Scope<'_, '_>) -> Result<(), Error> {
        let instance = scope.instance_id()?;
        let value = self.expression.evaluate(scope).map_err(|error| error.to_string());
        *lock(&self.last) = Some((instance, value));
        Ok(())
    }

    /// Forgets the value: the next one is the first.
    pub(crate) fn forget(&self) {
        *lock(&self.last) = None;
    }

    /// Whether the thread is to stop: the value has changed and the condition, evaluated in the
    /// frame of the expression, holds or has no value; or the frame has ended.
    pub(crate) fn check(
        &self,
        frame: &mut Frame<'_>,
        code: &Code,
        condition: Option<&Expression>,
    ) -> Option<Reason> {
        let accessor = match &self.frame {
            None => None,
            Some(of) => {
                let (thread, accessor) = of.now()?;
                if thread != std::thread::current().id() {
                    return None;
                }
                if !accessor.is_alive(frame) {
                    return Some(self.out_of_scope());
                }
                Some((accessor, of.inlined))
            }
        };
        let instance = frame.instance_id();
        let is_other = |(last, _): &(InstanceId, Current)| *last != instance;
        if self.frame.is_none() && self.is_of_instance && lock(&self.last).as_ref().is_some_and(is_other) {
            return None;
        }
        let mut evaluate = |expression: &Expression| -> Current {
            let value = match accessor {
                None => expression.evaluate(&mut Scope::innermost(frame, code)),
                Some((accessor, inlined)) => Scope::of(frame, code, accessor, inlined)
                    .and_then(|mut scope| expression.evaluate(&mut scope)),
            };
            value.map_err(|error| error.to_string())
        };
        let new = evaluate(&self.expression);
        let (_, old) = lock(&self.last).replace((instance, new.clone()))?;
        if old == new {
            return None;
        }
        let problem = match condition.map(evaluate) {
            Some(Ok(value)) if !value.is_true() => return None,
            Some(Err(problem)) => Some(problem),
            _ => None,
        };
        let expression = self.expression.text().to_owned();
        Some(Reason::Watch { number: self.number, expression, old, new, problem })
    }

    /// The reason for a stop because the frame does not exist.
    pub(crate) fn out_of_scope(&self) -> Reason {
        Reason::OutOfScope { number: self.number, expression: self.expression.text().to_owned() }
    }
}
