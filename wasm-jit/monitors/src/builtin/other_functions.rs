//! Functions of other modules and of the host that have no index in the observed module: they are
//! called by a table or a reference. They have numbers from [`FIRST`] on, in all monitors.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wasm_jit::probes::{Called, InstanceId, OTHER_FUNCTION};

/// The number of the first such function: no module has as many functions.
const FIRST: u32 = 0xf000_0000;

/// Stands for all functions of the host that have no index.
pub(super) const FOREIGN: u32 = u32::MAX - 1;

/// Maximum number of functions of other modules, and of instances' functions that are known.
const MAX: usize = 1 << 16;

/// The function that is about to be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Callee {
    /// None: the call traps.
    None,
    /// A function with this index in the observed module, in whichever instance.
    Of(u32),
    /// A function with this number, or [`FOREIGN`].
    Other(u32),
}

impl Callee {
    pub(super) fn of(called: &Called<'_>) -> Self {
        if !called.is_called() {
            return Self::None;
        }
        match (called.index(), called.definition()) {
            (OTHER_FUNCTION, Some((_, index))) if called.is_of_module() => Self::Of(index),
            (OTHER_FUNCTION, Some(definition)) => Self::Other(lock().number(definition, called)),
            (OTHER_FUNCTION, None) => Self::Other(FOREIGN),
            (index, _) => Self::Of(index as u32),
        }
    }
}

#[derive(Default)]
struct Others {
    /// The numbers of known functions, by the instance that defines them.
    numbers: HashMap<(InstanceId, u32), u32>,
    /// By name, and index in the module.
    named: HashMap<(Arc<str>, u32), u32>,
    /// In the order of the numbers.
    functions: Vec<Other>,
    /// By name: the first function of this name.
    first: HashMap<Arc<str>, usize>,
}

struct Other {
    name: Arc<str>,
    index: u32,
    /// Whether other functions have the name.
    is_shared: bool,
}

/// The functions are few, and have names even after their modules have ended.
static OTHERS: Mutex<Option<Others>> = Mutex::new(None);

/// The lock is held only here.
struct Locked(MutexGuard<'static, Option<Others>>);

fn lock() -> Locked {
    Locked(OTHERS.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Locked {
    fn number(&mut self, definition: (InstanceId, u32), called: &Called<'_>) -> u32 {
        let others = self.0.get_or_insert_default();
        if let Some(number) = others.numbers.get(&definition) {
            return *number;
        }
        let Some((module, function)) = called.names() else { return FOREIGN };
        let number = others.add(module.as_deref(), &function, definition.1);
        if others.numbers.len() >= MAX {
            others.numbers.clear();
        }
        others.numbers.insert(definition, number);
        number
    }
}

impl Others {
    fn add(&mut self, module: Option<&str>, function: &str, index: u32) -> u32 {
        let name: Arc<str> = format!("{}::{function}", module.unwrap_or("<other module>")).into();
        if let Some(number) = self.named.get(&(name.clone(), index)) {
            return *number;
        }
        let place = self.functions.len();
        if place >= MAX {
            return FOREIGN;
        }
        let first = *self.first.entry(name.clone()).or_insert(place);
        let is_shared = first != place;
        if is_shared {
            self.functions[first].is_shared = true;
        }
        let number = FIRST + place as u32;
        self.named.insert((name.clone(), index), number);
        self.functions.push(Other { name, index, is_shared });
        number
    }
}

/// The name of a function with this number, if it is one: of its module and itself, followed by
/// `#INDEX` if others have it. Control characters are not escaped.
pub(super) fn name(number: u32) -> Option<Arc<str>> {
    if number == FOREIGN {
        return Some("<function of the host>".into());
    }
    let place = number.checked_sub(FIRST)? as usize;
    let others = lock();
    let Other { name, index, is_shared } = others.0.as_ref()?.functions.get(place)?;
    Some(if *is_shared { format!("{name}#{index}").into() } else { name.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_known_by_module_name_and_index() {
        let mut others = Others::default();
        let first = others.add(Some("lib"), "f", 1);
        assert_eq!(others.add(Some("lib"), "f", 1), first);
        assert!(!others.functions[0].is_shared);
        assert_eq!(others.add(Some("lib"), "f", 2), first + 1);
        assert_eq!(others.add(None, "f", 2), first + 2);
        let shared: Vec<bool> = others.functions.iter().map(|other| other.is_shared).collect();
        assert_eq!(shared, [true, true, false]);
        assert_eq!(&*others.functions[2].name, "<other module>::f");
    }

    #[test]
    fn there_is_a_limit() {
        let mut others = Others::default();
        (0..MAX as u32).for_each(|index| assert_eq!(others.add(None, "f", index), FIRST + index));
        assert_eq!(others.add(None, "f", u32::MAX), FOREIGN);
        assert_eq!(others.add(None, "f", 3), FIRST + 3);
    }
}
