//! [`OfHooks`]: what a thread keeps for each hook, until some time after the hook has ended.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Identifies a hook.
#[derive(Clone, Debug)]
pub(crate) struct HookKey {
    number: u64,
    /// Exists as long as the hook. The closures of its probes, which have copies of this, may exist
    /// longer.
    alive: Weak<()>,
}

impl HookKey {
    /// A new key for a hook that owns `alive`.
    pub(crate) fn new(alive: &Arc<()>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self { number: NEXT.fetch_add(1, Ordering::Relaxed), alive: Arc::downgrade(alive) }
    }
}

/// One `T` for each hook.
#[derive(Debug, Default)]
pub(crate) struct OfHooks<T>(HashMap<u64, (Weak<()>, T)>);

impl<T: Default> OfHooks<T> {
    /// That of a hook; makes it if there is none, and then removes those of hooks that have ended.
    pub(crate) fn entry(&mut self, key: &HookKey) -> &mut T {
        if !self.0.contains_key(&key.number) {
            self.0.retain(|_, (alive, _)| alive.strong_count() > 0);
        }
        let (_, of_hook) = self.0.entry(key.number).or_insert_with(|| (key.alive.clone(), T::default()));
        of_hook
    }

    /// That of a hook, if there is one.
    pub(crate) fn get(&mut self, key: &HookKey) -> Option<&mut T> {
        self.0.get_mut(&key.number).map(|(_, of_hook)| of_hook)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}
