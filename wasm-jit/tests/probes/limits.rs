//! Limits that hostile modules reach, or hosts with very many probes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use wasm_jit::probes::{
    Bound, Callback, Kind, Location, Place, Probe, ProbeError, ProbeSpec, Values, activate_all,
    deactivate_all,
};
use wasm_jit::{Instance, Module, Store};

use super::engine;

/// More probes than there is memory for their stubs: each is on or refused, the program does the
/// same, and the others can be on when some are off.
#[test]
fn probes_of_more_sites_than_fit_into_memory_are_refused() {
    const VALUES: usize = 300;
    const ADDITIONS: i32 = 2000;
    let additions = "(local.set 0 (i32.add (local.get 0) (i32.const 1)))".repeat(ADDITIONS as usize);
    let text = format!("(module (func (export \"f\") (param i32) (result i32) {additions} (local.get 0)))");
    let module = Module::new(&engine(), text).unwrap();
    let fired = Arc::new(AtomicUsize::new(0));
    let of_closure = fired.clone();
    let function = Callback::new(move |_: &[u64]| _ = of_closure.fetch_add(1, Ordering::Relaxed));
    let values = vec![Bound::Const(u64::MAX / 3); VALUES];
    let kind = Kind::Callback { function, values: Values::from(&values[..]) };
    let info = module.function(0).unwrap();
    let body = info.body().unwrap();
    let spec = |offset: u64| ProbeSpec {
        location: Location { function: 0, place: Place::Instruction { offset: offset as u32 } },
        kind: kind.clone(),
    };
    let specs: Vec<ProbeSpec> =
        body.instructions().map(|at| spec(at.offset() as u64 - body.range().start as u64)).collect();
    let probes: Vec<Probe> = module.probes(&specs).into_iter().map(Result::unwrap).collect();
    let switched = activate_all(&probes);
    let is_refused = |on: &Result<(), ProbeError>| matches!(on, Err(ProbeError::StubMemory { .. }));
    assert!(switched.iter().all(|on| on.is_ok() || is_refused(on)), "{switched:?}");
    let limit = switched.iter().find_map(|on| match on {
        Err(ProbeError::StubMemory { limit }) => Some(*limit),
        _ => None,
    });
    assert!(limit.unwrap() > (16 << 20) + 512 * probes.len(), "{limit:?}");
    let on = switched.iter().filter(|on| on.is_ok()).count();
    assert!((1000..probes.len()).contains(&on), "{on} of {}", probes.len());
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let f = instance.get_typed_func::<i32, i32>(&mut store, "f").unwrap();
    assert_eq!(f.call(&mut store, 1).unwrap(), 1 + ADDITIONS);
    assert_eq!(fired.load(Ordering::Relaxed), on);
    deactivate_all(&probes[..100]).into_iter().for_each(|off| off.unwrap());
    activate_all(&probes[on..][..100]).into_iter().for_each(|on| on.unwrap());
    assert_eq!(f.call(&mut store, 1).unwrap(), 1 + ADDITIONS);
    assert_eq!(fired.load(Ordering::Relaxed), 2 * on);
    drop(probes);
    assert_eq!(f.call(&mut store, 1).unwrap(), 1 + ADDITIONS);
    assert_eq!(fired.load(Ordering::Relaxed), 2 * on);
}
