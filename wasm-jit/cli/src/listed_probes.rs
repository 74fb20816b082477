//! Probes that are switched on so that a listing shows their stubs.

use clap::ValueEnum;
use wasm_jit::probes::{
    Bound, Callback, GenericFn, Kind, Location, NativeFn, Probe, ProbeError, ProbeSpec, Recorder, Values,
    WasmFn, activate_all,
};
use wasm_jit::{Engine, Instance, Module, Store};

use super::Failure;

/// A function that stubs call, instead of executing it by themselves, because it has a loop.
const FUNCTION: &str = r#"(module (func (export "probe") (param i32 i32 i32) (loop)))"#;

/// What a probe does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ProbeKind {
    /// Nothing
    Empty,
    /// Counts
    Counter,
    /// Appends values to a buffer: the function's index, the offset, and the top operand, or 0
    /// where it cannot be passed
    Record,
    /// Calls a native function with these values
    Native,
    /// Calls a WebAssembly function with these values
    Wasm,
    /// Calls a closure with these values
    Callback,
    /// Calls a closure that sees the complete frame
    Generic,
}

extern "C" fn ignore(_: u64, _: u64, _: u64) {}

/// Probes at the sites of a listing.
pub(super) struct ListedProbes {
    probes: Vec<Probe>,
    /// The store of the WebAssembly function.
    _store: Store<()>,
}

impl ListedProbes {
    /// Makes probes of these kinds at each location. There is none at an unreachable instruction,
    /// which has neither code nor a site.
    pub(super) fn new(
        engine: &Engine,
        module: &Module,
        kinds: &[ProbeKind],
        locations: &[Location],
    ) -> Result<Self, Failure> {
        let mut store = Store::new(engine, ());
        let mut actions = |last| -> Result<Vec<Kind>, Failure> {
            kinds.iter().map(|kind| kind.action(last, &mut store)).collect()
        };
        let (with_operand, without) = (actions(Bound::Operand(0))?, actions(Bound::Const(0))?);
        // The probes of a function are made at once, since each request may need another version.
        let spec = |kind: &Kind, location| ProbeSpec { location, kind: kind.clone() };
        let specs = |kinds: &[Kind]| -> Vec<ProbeSpec> {
            let at = |location: &Location| kinds.iter().map(|kind| spec(kind, *location)).collect::<Vec<_>>();
            locations.iter().flat_map(at).collect()
        };
        let mut made = module.probes(&specs(&with_operand));
        let has_no_value = |at: &usize| matches!(made[*at], Err(ProbeError::Value { .. }));
        let remaining: Vec<usize> = (0..made.len()).filter(has_no_value).collect();
        let others = specs(&without);
        let others: Vec<ProbeSpec> = remaining.iter().map(|at| others[*at].clone()).collect();
        remaining.into_iter().zip(module.probes(&others)).for_each(|(at, probe)| made[at] = probe);
        let mut probes = Vec::new();
        for probe in made {
            match probe {
                Ok(probe) => probes.push(probe),
                Err(ProbeError::Unreachable { .. }) => {}
                Err(error) => return Err(Failure::new(error)),
            }
        }
        Ok(Self { probes, _store: store })
    }

    /// Switches the probes on.
    pub(super) fn activate(&self) -> Result<(), Failure> {
        let activated: Result<(), ProbeError> = activate_all(&self.probes).into_iter().collect();
        activated.map_err(|error| match error {
            ProbeError::StubMemory { .. } => {
                Failure::new(format_args!("{error}: list one function, or fewer kinds of probes at once"))
            }
            error => Failure::new(error),
        })
    }
}

impl ProbeKind {
    /// The action, with this as the last value.
    fn action(self, last: Bound, store: &mut Store<()>) -> Result<Kind, Failure> {
        let values: Values = [Bound::Function, Bound::Offset, last].into();
        Ok(match self {
            Self::Empty => Kind::Empty,
            Self::Counter => Kind::Count,
            Self::Record => {
                let recorder = Recorder::new(|_, _: &[[u64; 3]]| {}).map_err(Failure::new)?;
                Kind::Record { recorder, values }
            }
            Self::Native => {
                // SAFETY: the function does nothing, and is part of the program.
                let function = unsafe { NativeFn::new(ignore as extern "C" fn(u64, u64, u64)) };
                Kind::Native { function, values }
            }
            Self::Wasm => {
                let module = Module::new(&store.engine().clone(), FUNCTION).map_err(Failure::new)?;
                let instance = Instance::new(&mut *store, &module, &[]).map_err(Failure::new)?;
                let function = instance.get_func(&mut *store, "probe").expect("it is exported");
                let function = WasmFn::new(&*store, function).map_err(Failure::new)?;
                Kind::Wasm { function, values }
            }
            Self::Callback => Kind::Callback { function: Callback::new(|_| {}), values },
            Self::Generic => Kind::Generic(GenericFn::new(|_| Ok(()))),
        })
    }
}
