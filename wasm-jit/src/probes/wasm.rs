//! Probes that call functions of WebAssembly, with values of the frame as arguments.

use std::fmt;
use std::sync::Arc;

use wasm_jit_codegen::{Callee, Ty};

use super::ProbeError;
use crate::runtime::{AsContext, Func};
use crate::types::ValType;

/// A function of a store that probes may call: of another instance, as a rule.
///
/// A probe with this function fires in the instances of the function's store only. The stub of the
/// probe calls it directly, as compiled code calls functions of other instances; if it is a
/// [host function](Func::wrap), it is called through its trampoline.
///
/// # Permitted operations
/// All that a function may do: use its own memory, tables and globals, call others, and also run
/// functions of the instance that is probed. If it traps, or fails, or throws an exception, the
/// program's call ends with that; handlers of the program do not see the exception. The backtrace
/// has the frames of the function and then those of the program, from the instruction that is
/// probed.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct WasmFn {
    store: u64,
    func_ref: usize,
    parameters: Arc<[ValType]>,
}

impl WasmFn {
    /// The function, which must have no results.
    ///
    /// # Errors
    /// [`ProbeError::Results`] if it has.
    ///
    /// # Panics
    /// If the function belongs to another store.
    ///
    /// # Example
    /// ```
    /// use wasm_jit::probes::{Bound, Kind, Location, Place, ProbeSpec, WasmFn};
    /// use wasm_jit::{Engine, Instance, Module, Store};
    ///
    /// let engine = Engine::default();
    /// let mut store = Store::new(&engine, ());
    /// let monitor = Module::new(&engine, "(module
    ///     (global $largest (export \"largest\") (mut i32) (i32.const 0))
    ///     (func (export \"observe\") (param i32)
    ///         (if (i32.gt_u (local.get 0) (global.get $largest))
    ///             (then (global.set $largest (local.get 0))))))")?;
    /// let monitor = Instance::new(&mut store, &monitor, &[])?;
    /// let observe = monitor.get_func(&mut store, "observe").expect("it is exported");
    ///
    /// let module = Module::new(&engine, "(module (func $count (export \"count\") (param i32)
    ///     (if (local.get 0) (then (call $count (i32.sub (local.get 0) (i32.const 1)))))))")?;
    /// let probe = module.probe(ProbeSpec {
    ///     location: Location { function: 0, place: Place::Entry },
    ///     kind: Kind::Wasm { function: WasmFn::new(&store, observe)?, values: [Bound::Local(0)].into() },
    /// })?;
    /// probe.activate()?;
    /// let program = Instance::new(&mut store, &module, &[])?;
    /// program.get_typed_func::<i32, ()>(&mut store, "count")?.call(&mut store, 7)?;
    /// let largest = monitor.get_global(&mut store, "largest").expect("it is exported");
    /// assert_eq!(largest.get(&mut store).i32(), Some(7));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(store: impl AsContext, function: Func) -> Result<Self, ProbeError> {
        let store = store.as_context();
        let ty = function.ty(store);
        let results = ty.results().len();
        if results != 0 {
            return Err(ProbeError::Results { results });
        }
        Ok(Self {
            store: store.0.opaque.id.number(),
            func_ref: function.vm().expose_provenance(),
            parameters: ty.params().collect(),
        })
    }

    /// The types of its parameters.
    pub fn parameters(&self) -> &[ValType] {
        &self.parameters
    }

    /// The number of its store.
    pub(super) fn store(&self) -> u64 {
        self.store
    }

    pub(super) fn callee(&self) -> Callee {
        let parameters = self.parameters.iter().map(|ty| Ty::from(ty.to_wasm())).collect();
        Callee::Wasm { store: self.store, func_ref: self.func_ref, parameters }
    }
}

impl fmt::Debug for WasmFn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WasmFn").field(&self.parameters).finish()
    }
}
