//! Entries and exits of functions, including exits by traps and exceptions.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use wasm_jit::probes::{Bound, InstanceId, Place, ProbeError};

use crate::attach::{Instances, Probes, bodies, callback};
use crate::call_form::CallForm;
use crate::hook::Hook;
use crate::of_hooks::{HookKey, OfHooks};
use crate::period::Period;

/// How control enters or leaves a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FunctionEventKind {
    /// The function is called. A loop at its start does not repeat this event.
    Entry,
    /// The function returns: by `return`, after its last instruction, or by a branch to its
    /// outermost block.
    Return,
    /// The function is about to make a tail call. If this call traps because there
    /// is no callee, or one of another type, there is no other event of the frame.
    TailCall,
    /// The function is left by a trap, an exception, an interrupt or a failure of a host function.
    Unwound,
}

/// A function is entered or left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FunctionEvent {
    /// The function's index, imports included.
    pub function: u32,
    /// A number that identifies the frame among those that the thread has at the time.
    pub frame: u64,
    /// The kind of event.
    pub kind: FunctionEventKind,
    /// The instance whose function it is.
    pub instance: InstanceId,
}

/// The frames of a thread that were entered and not left: their functions and instances, and the
/// periods of the hook in which they were entered.
type Frames = HashMap<u64, (u32, InstanceId, u64)>;

thread_local! {
    static ENTERED: RefCell<OfHooks<Frames>> = RefCell::default();
}

/// The frames that a hook has seen entered.
struct Entered {
    key: HookKey,
    period: Period,
}

impl Entered {
    fn while_alive(alive: &Arc<()>) -> Self {
        Self { key: HookKey::new(alive), period: Period::default() }
    }

    fn add(&self, frame: u64, function: u32, instance: InstanceId) {
        // Programs that run while their thread ends are not recorded.
        let _ = ENTERED.try_with(|entered| {
            let of_frame = (function, instance, self.period.current());
            entered.borrow_mut().entry(&self.key).insert(frame, of_frame);
        });
    }

    /// The instance of a frame that was entered in this period of the hook, and not left.
    fn remove(&self, frame: u64, function: u32) -> Option<InstanceId> {
        let removed = ENTERED.try_with(|entered| {
            let mut entered = entered.borrow_mut();
            let frames = entered.get(&self.key)?;
            if frames.get(&frame)?.0 == function { frames.remove(&frame) } else { None }
        });
        let (_, instance, period) = removed.ok().flatten()?;
        (period == self.period.current()).then_some(instance)
    }
}

/// Calls a closure whenever one of the chosen functions, by their indices, is entered or left.
///
/// Each frame that is entered while the hook is active is left by exactly one event, if the hook
/// stays active. Frames that were entered before are reported when they return, but not when they
/// are unwound. If the closure panics at an [unwound](FunctionEventKind::Unwound) frame, the
/// process aborts.
///
/// # Errors
/// As [`Module::probes`](wasm_jit::Module::probes) and
/// [`Probe::activate`](wasm_jit::probes::Probe::activate).
pub fn functions<'a>(
    of: impl Into<Instances<'a>>,
    filter: impl Fn(u32) -> bool,
    hook: impl Fn(&FunctionEvent) + Send + Sync + 'static,
) -> Result<Hook, ProbeError> {
    let of = of.into();
    let hook = Arc::new(hook);
    let alive = Arc::new(());
    let entered = Arc::new(Entered::while_alive(&alive));
    let report = |kind: FunctionEventKind| {
        let (hook, entered) = (hook.clone(), entered.clone());
        // The number is that of the function.
        callback(move |number, instance, values| {
            let (function, frame) = (number as u32, values[0]);
            match kind {
                FunctionEventKind::Entry => entered.add(frame, function, instance),
                _ => _ = entered.remove(frame, function),
            }
            hook(&FunctionEvent { function, frame, kind, instance });
        })
    };
    let (entry, exit, tail) = (
        report(FunctionEventKind::Entry),
        report(FunctionEventKind::Return),
        report(FunctionEventKind::TailCall),
    );
    let mut probes = Probes::default();
    for (function, flow) in bodies(of.module).filter(|(function, _)| filter(*function)) {
        let number = function as usize;
        probes.add((function, Place::Entry), &entry, number, &[Bound::Frame]);
        probes.add((function, Place::Exit), &exit, number, &[Bound::Frame]);
        let tails = flow.instructions.iter().filter(|(_, operator)| CallForm::is_tail_call(operator));
        for (offset, _) in tails {
            let place = Place::Instruction { offset: *offset };
            probes.add((function, place), &tail, number, &[Bound::Frame]);
        }
    }
    let period = entered.period.clone();
    let watch = of.module.watch_unwound(move |left| {
        let _ = &alive;
        // Not those of other functions, nor one that is left after its exit.
        if let Some(instance) = entered.remove(left.frame, left.function) {
            let kind = FunctionEventKind::Unwound;
            hook(&FunctionEvent { function: left.function, frame: left.frame, kind, instance });
        }
    });
    Hook::with_period(probes.make(of)?, period, Some(watch))
}
