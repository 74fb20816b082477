//! How often each place of a module is executed: counted by the module itself, rewritten, in the
//! reference engine.

#[path = "../../../tests/probes/rewrite.rs"]
mod rewrite;

use std::collections::HashMap;

use rewrite::Counted;

use crate::case::Case;
use crate::engine::{Engine, load_and_run};
use crate::record::{Event, Outcome, Value};

/// Counts by function, and the module offset of the instruction; none for the entry.
pub(crate) type Expected = HashMap<Counted, u64>;

/// The counts of all rounds; `None` if they are unknown: there is no instance to read them from, a
/// stack was exhausted, or the engine does not support the module that is compared.
pub(crate) fn of(engine: &impl Engine, case: &Case) -> Result<Option<Expected>, String> {
    if case.legacy.is_some() {
        return Ok(None);
    }
    let (wasm, places) = rewrite::rewrite(&case.wasm);
    let record = load_and_run(engine, &Case { wasm, legacy: None, ..*case })
        .map_err(|error| format!("rewritten: {error}"))?;
    if record.is_exhausted() {
        return Ok(None);
    }
    let mut counts = HashMap::new();
    for event in &record.events {
        match event {
            Event::Instantiated(outcome) if !matches!(outcome, Outcome::Returned(_)) => return Ok(None),
            Event::Global(name, Value::I64(count)) => {
                let number = name.strip_prefix("count ").and_then(|number| number.parse::<usize>().ok());
                if let Some(place) = number.and_then(|number| places.get(number)) {
                    *counts.entry(*place).or_default() += *count as u64;
                }
            }
            _ => {}
        }
    }
    Ok(Some(counts))
}
