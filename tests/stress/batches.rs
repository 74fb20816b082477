//! Batches of random sites from several threads, including patches that must be refused: foreign
//! bytes, memory that is not mapped or not executable, a site that occurs twice in the batch.
//! Refused sites are unchanged, and the others are patched.

use std::thread;

use wordpatch::{Error, Patch, patch_all};

use crate::defect;
use crate::executor;
use crate::run::{Kind, Run};
use crate::sites::{self, Change, Value, bytes_at, holds};

const PATCHERS: usize = 3;
const EACH: usize = 30;
const EXECUTORS: usize = 2;

/// Never mapped: below the lowest address that the kernel assigns.
const UNMAPPED: usize = 0x1000;

pub(crate) fn run(run: &Run) {
    let sites = sites::make(PATCHERS * EACH);
    thread::scope(|scope| {
        for (number, mine) in sites.chunks(EACH).enumerate() {
            scope.spawn(move || patch_batches(run, number, mine));
        }
        for number in 0..EXECUTORS {
            let sites = &sites;
            scope.spawn(move || executor::run_all(run, format!("batches' executor {number}"), sites));
        }
        scope.spawn(|| defect::inject(run, &sites));
    });
}

/// The kind of a patch of the batch, and its expected result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Done(usize),
    Foreign(usize),
    Overlap,
    NotMapped,
    NotExecutable,
}

fn patch_batches(run: &Run, number: usize, sites: &[usize]) {
    let mut worker = run.worker(format!("batch patcher {number}"));
    let mut values = vec![Value::FIRST; sites.len()];
    let data = Box::new([0_u8; 64]);
    while worker.continues() {
        let mut changes = Vec::new();
        for (place, site) in sites.iter().enumerate() {
            let value = values[place];
            let next = value.other(&mut worker.random);
            let other = value.other(&mut worker.random);
            match worker.random.below(10) {
                0 => changes.push((Change::new(*site, other, next), next, Expected::Foreign(place))),
                1 => {
                    changes.push((Change::new(*site, value, next), next, Expected::Done(place)));
                    changes.push((Change::new(site + 1, value, next), next, Expected::Overlap));
                }
                2..6 => changes.push((Change::new(*site, value, next), next, Expected::Done(place))),
                6 => {
                    changes.push((Change::new(UNMAPPED + place * 8, value, next), next, Expected::NotMapped))
                }
                7 => {
                    // Inside the box, each at a different offset.
                    let address = data.as_ptr() as usize + place;
                    if place % 8 == 0 {
                        changes.push((Change::new(address, value, next), next, Expected::NotExecutable));
                    }
                }
                _ => {}
            }
        }
        let patches: Vec<Patch<'_>> = changes.iter().map(|(change, ..)| change.patch()).collect();
        // SAFETY: each site is one instruction that may hold any value, and no thread here blocks
        // SIGTRAP. The others are not text, and are not changed.
        let results = unsafe { patch_all(&patches) };
        worker.check(results.len() == patches.len(), Kind::Lost, || "a result is missing".to_owned());
        for ((change, next, expected), result) in changes.iter().zip(&results) {
            let is_right = match expected {
                Expected::Done(_) => result.is_ok(),
                Expected::Foreign(_) => matches!(result, Err(Error::Mismatch { .. })),
                Expected::Overlap => matches!(result, Err(Error::Overlap { .. })),
                Expected::NotMapped => matches!(result, Err(Error::NotMapped { .. })),
                Expected::NotExecutable => matches!(result, Err(Error::NotExecutable { .. })),
            };
            worker.check(is_right, Kind::Lost, || {
                format!("{expected:?} gave {result:?} at {:#x}", change.site)
            });
            if let Expected::Done(place) = expected {
                values[*place] = *next;
                worker.toggled(1);
            }
        }
        for (site, value) in sites.iter().zip(&values) {
            worker.check(holds(*site, *value), Kind::Lost, || {
                format!("{value:?} should stand at {site:#x}, not {:02x?}", bytes_at(*site))
            });
        }
        worker.check(data.iter().all(|byte| *byte == 0), Kind::Lost, || "data was written".to_owned());
    }
}
