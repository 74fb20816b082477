//! Accesses with their values.
//!
//! The value of an access with a result is known only after the access: a record at its instruction
//! marks the beginning, and one at the next instruction has the result. As in `wasm_jit_hooks`, an
//! access that traps leaves an unfinished record. It is dropped with the next record of its frame,
//! or of a frame further up the stack.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use wasm_jit::probes::{Bound, Kind, Location, ProbeSpec, Recorder, StoreId};
use wasm_jit_hooks::{AccessInfo, Period};

use super::{Access, Consumer, Site, forget_earlier};
use crate::Error;
use crate::builtin::graph::Graph;
use crate::lock::lock;

/// The kind of a record; the comments list its other words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// An access without a value: address, size.
    Whole,
    /// An access with a value: address, size, value.
    WithValue,
    /// An access that stores the low bytes of the value, as many as its size: address, size, value.
    Stored,
    /// The beginning of an access: address, size, frame.
    Begun,
    /// The end of the last access that began in the frame: frame.
    Made,
    /// The same, with a result: frame, result.
    MadeWithResult,
}

impl Part {
    const ALL: [Self; 6] =
        [Self::Whole, Self::WithValue, Self::Stored, Self::Begun, Self::Made, Self::MadeWithResult];

    /// The first word of a record, with the index of its site.
    fn of_site(self, number: u64) -> Bound {
        Bound::Const(number << 3 | self as u64)
    }
}

/// The kind and the site index from the first word of a record.
fn parse(word: u64) -> (Part, usize) {
    (Part::ALL[(word & 7) as usize], (word >> 3) as usize)
}

/// An access that has begun.
struct Begun {
    frame: u64,
    access: Access,
}

/// The accesses of a store that have begun, that of the innermost frame last.
#[derive(Default)]
struct Pending(Vec<Begun>);

impl Pending {
    /// Adds a record. Returns the access that it completes, if any.
    fn add(&mut self, [first, words @ ..]: [u64; 4]) -> Option<Access> {
        let (part, site) = parse(first);
        let [address, size, third] = words;
        let access = Access { site, address, size, value: None };
        match part {
            Part::Whole => Some(access),
            Part::WithValue => Some(Access { value: Some(third), ..access }),
            Part::Stored => Some(Access { value: Some(third & u64::MAX >> (64 - 8 * size)), ..access }),
            Part::Begun => {
                while self.0.pop_if(|begun| begun.frame <= third).is_some() {}
                self.0.push(Begun { frame: third, access });
                None
            }
            Part::Made | Part::MadeWithResult => {
                let [frame, result, _] = words;
                while self.0.pop_if(|begun| begun.frame < frame).is_some() {}
                let is_it = |begun: &mut Begun| begun.frame == frame && begun.access.site == site;
                let Begun { access, .. } = self.0.pop_if(is_it)?;
                Some(Access { value: (part == Part::MadeWithResult).then_some(result), ..access })
            }
        }
    }
}

/// A recorder of accesses with values.
pub(super) fn recorder<C: Consumer>(
    sites: Arc<[Site]>,
    consumer: Arc<Mutex<C>>,
    period: Period,
) -> Result<Recorder, Error> {
    let mut all: HashMap<StoreId, Pending> = HashMap::new();
    let mut of_period = period.current();
    let recorder = Recorder::new(move |store, records: &[[u64; 4]]| {
        forget_earlier(&mut all, &mut of_period, &period);
        let mut consumer = lock(&consumer);
        let mut pending = all.remove(&store).unwrap_or_default();
        for record in records {
            if let Some(access) = pending.add(*record) {
                consumer.consume(&sites[access.site], access);
            }
        }
        if !pending.0.is_empty() {
            all.insert(store, pending);
        }
        consumer.pause();
    });
    Ok(recorder?)
}

/// The probes for accesses of a function, given the indices of their sites and of their
/// instructions.
pub(super) fn specs(
    recorder: &Recorder,
    graph: &Graph<'_>,
    accesses: impl Iterator<Item = (u64, (usize, AccessInfo))>,
) -> Vec<ProbeSpec> {
    let spec = |location, values: [Bound; 4]| {
        let (recorder, values) = (recorder.clone(), values.into());
        ProbeSpec { location, kind: Kind::Record { recorder, values } }
    };
    let none = Bound::Const(0);
    let (mut completions, mut specs) = (Vec::new(), Vec::new());
    for (number, (index, AccessInfo { address, size, value, has_result, .. })) in accesses {
        let location = graph.location(index);
        if has_result {
            specs.push(spec(location, [Part::Begun.of_site(number), address, size, Bound::Frame]));
            // Such an instruction has one successor.
            let place = graph.flow.place(graph.flow.successors[index][0]);
            let part = if value.is_some() { Part::MadeWithResult } else { Part::Made };
            let values = [part.of_site(number), Bound::Frame, value.unwrap_or(none), none];
            completions.push(spec(Location { place, ..location }, values));
        } else {
            let part = match (value, size) {
                (None, _) => Part::Whole,
                (Some(_), Bound::Const(_)) => Part::Stored,
                (Some(_), _) => Part::WithValue,
            };
            specs.push(spec(location, [part.of_site(number), address, size, value.unwrap_or(none)]));
        }
    }
    // An instruction completes before the next one begins.
    completions.append(&mut specs);
    completions
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the address of the access that a record completes.
    fn completed(
        pending: &mut Pending,
        part: Part,
        site: u64,
        words: [u64; 3],
    ) -> Option<(u64, Option<u64>)> {
        let [one, two, three] = words;
        let access = pending.add([site << 3 | part as u64, one, two, three])?;
        assert_eq!(access.site as u64, site);
        Some((access.address, access.value))
    }

    #[test]
    fn accesses_of_frames_that_have_ended_are_forgotten() {
        use Part::{Begun, Made, MadeWithResult};
        let pending = &mut Pending::default();
        assert_eq!(completed(pending, Begun, 1, [10, 4, 100]), None);
        assert_eq!(completed(pending, Begun, 2, [20, 4, 80]), None);
        assert_eq!(completed(pending, Made, 1, [80, 0, 0]), None, "another frame's");
        assert_eq!(completed(pending, MadeWithResult, 2, [80, 7, 0]), Some((20, Some(7))));
        assert_eq!(completed(pending, Begun, 2, [21, 4, 80]), None);
        assert_eq!(completed(pending, Made, 1, [100, 0, 0]), Some((10, None)));
        assert_eq!(completed(pending, Made, 2, [80, 0, 0]), None, "its frame has ended");
        assert_eq!(completed(pending, Begun, 3, [30, 4, 100]), None);
        assert_eq!(completed(pending, Begun, 4, [40, 4, 100]), None);
        assert_eq!(completed(pending, Made, 3, [100, 0, 0]), None, "it has trapped");
        assert_eq!(completed(pending, Made, 4, [100, 0, 0]), Some((40, None)));
    }

    #[test]
    fn stores_have_the_bytes_that_they_store() {
        let pending = &mut Pending::default();
        assert_eq!(completed(pending, Part::Stored, 5, [64, 2, 0x12345]), Some((64, Some(0x2345))));
        assert_eq!(completed(pending, Part::Stored, 5, [64, 8, u64::MAX]), Some((64, Some(u64::MAX))));
        assert_eq!(completed(pending, Part::WithValue, 5, [64, 2, 0x12345]), Some((64, Some(0x12345))));
        assert_eq!(completed(pending, Part::Whole, 5, [64, 16, 0]), Some((64, None)));
    }
}
