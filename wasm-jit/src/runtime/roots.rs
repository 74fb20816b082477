//! The objects and exceptions for which the host has handles.

use std::sync::{Arc, Weak};

/// The number of entries that there may be before those of dropped handles are looked for.
const MINIMUM: usize = 1024;

/// Addresses of objects, each with a handle's root.
#[derive(Debug)]
pub(crate) struct Roots {
    entries: Vec<(usize, Weak<()>)>,
    /// At this number of entries, those of dropped handles are removed.
    prune_at: usize,
}

impl Default for Roots {
    fn default() -> Self {
        Self { entries: Vec::new(), prune_at: MINIMUM }
    }
}

impl Roots {
    /// Adds a handle of the object at this address.
    pub(crate) fn add(&mut self, address: usize, root: &Arc<()>) {
        if self.entries.len() >= self.prune_at {
            self.prune();
        }
        self.entries.push((address, Arc::downgrade(root)));
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The addresses of the objects whose handles exist.
    pub(crate) fn addresses(&mut self) -> impl Iterator<Item = u64> {
        self.prune();
        self.entries.iter().map(|(address, _)| *address as u64)
    }

    /// Forgets dropped handles, at a cost that is amortized over added ones.
    fn prune(&mut self) {
        self.entries.retain(|(_, root)| root.strong_count() > 0);
        self.prune_at = MINIMUM.max(2 * self.entries.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_handles_are_forgotten() {
        let mut roots = Roots::default();
        let kept = Arc::new(());
        roots.add(8, &kept);
        for address in 0..100_000 {
            roots.add(address, &Arc::new(()));
            assert!(roots.entries.len() <= MINIMUM + 1);
        }
        assert_eq!(roots.addresses().collect::<Vec<_>>(), [8]);
    }
}
