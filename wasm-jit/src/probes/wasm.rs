//! Probes that call WebAssembly functions, with values of the frame as arguments.

use std::fmt;
use std::sync::Arc;

use wasm_jit_codegen::{Callee, Inlined, InlinedInstance, InlinedMemory, Ty};

use super::ProbeError;
use crate::code::CodeImage;
use crate::runtime::instance::InstanceData;
use crate::runtime::store::StoreOpaque;
use crate::runtime::{AsContext, Func};
use crate::types::ValType;
use crate::vmctx::VmFuncRef;

/// A WebAssembly or host function that probes may call, usually a function of another instance in
/// the program's store.
///
/// A probe with this function fires only in the instances of the function's store. The stub of the
/// probe calls the function directly, as compiled code calls functions of other instances; a [host
/// function](Func::wrap) is called through its trampoline.
///
/// The stub executes short functions itself, without a call: those of at most 128 instructions that
/// compute with integers, access globals and memory 0, and choose by `if`. Where such a function
/// would trap, or do something else in an arm of an `if`, it is called nevertheless. A function
/// that changes memory or a global before it computes the address of an access, or has a loop or a
/// call, is always called, as are all functions of a module in which a probe was made.
///
/// # Permitted operations
/// The function may do all that any function may: use its own memory, tables and globals, and call
/// other functions, including those of the probed instance. If it traps, fails, or throws an
/// exception, the program's call ends with this error; handlers of the program do not see the
/// exception. The backtrace has the frames of the function and then those of the program, from the
/// probed instruction.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct WasmFn {
    store: u64,
    func_ref: usize,
    is_host: bool,
    /// The address of the code image with the function, which lives as long as the store; 0 for
    /// host functions.
    image: usize,
    parameters: Arc<[ValType]>,
    inlined: Option<Arc<Inlined>>,
}

impl WasmFn {
    /// Makes a function callable by probes. It must have no results.
    ///
    /// # Errors
    /// [`ProbeError::Results`] if the function has results.
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
        let store = &store.0.opaque;
        Ok(Self {
            store: store.id.number(),
            func_ref: function.vm().expose_provenance(),
            is_host: function.is_host_in(store),
            image: instance_of(store, function).map_or(0, |instance| address(instance.module.code())),
            parameters: ty.params().collect(),
            inlined: inlined(store, function).map(Arc::new),
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

    /// Whether an image has the function's code. Only as long as the function's store exists.
    pub(super) fn is_in(&self, image: &CodeImage) -> bool {
        self.image == address(image)
    }

    pub(super) fn callee(&self) -> Callee {
        let parameters = self.parameters.iter().map(|ty| Ty::from(ty.to_wasm())).collect();
        let inlined = self.inlined.clone();
        let (func_ref, is_host) = (self.func_ref, self.is_host);
        Callee::Wasm { store: self.store, func_ref, is_host, parameters, inlined }
    }
}

fn address(image: &CodeImage) -> usize {
    std::ptr::from_ref(image).addr()
}

/// The instance that defines a function of a store; none for host functions.
fn instance_of(store: &StoreOpaque, function: Func) -> Option<&InstanceData> {
    if function.is_host_in(store) {
        return None;
    }
    let VmFuncRef { context, .. } = function.direct(store);
    // SAFETY: instances live as long as their store, which is borrowed; only contexts of host
    // functions have no instance.
    Some(unsafe { &*(*context).owner.cast_const().cast::<InstanceData>() })
}

/// The function of a store as its probes' stubs may execute it.
fn inlined(store: &StoreOpaque, function: Func) -> Option<Inlined> {
    let func_ref = function.vm();
    let instance = instance_of(store, function)?;
    let index = function.direct(store).index as u32;
    let image = instance.module.code();
    // What an import refers to may change.
    if index < image.module.imported_functions || !std::ptr::eq(instance.func_ref(index).as_ptr(), func_ref) {
        return None;
    }
    let memory = instance.memories.first().map(|memory| {
        let memory = &store.memories[*memory as usize];
        InlinedMemory {
            base: memory.base().expose_provenance(),
            length: memory.length_cell().expose_provenance(),
            least: memory.length(),
        }
    });
    let instance_of = InlinedInstance {
        func_ref: func_ref.expose_provenance(),
        must_call: (&raw const image.must_call).expose_provenance(),
        memory: memory.unwrap_or_default(),
    };
    let global = |global: u32| {
        let place = instance.block.at::<usize>(image.layout.global(global));
        match global < image.module.imported_globals {
            // SAFETY: the context has the address of an imported global, which does not change.
            true => unsafe { place.read() },
            false => place.as_ptr().expose_provenance(),
        }
    };
    Inlined::new(&image.module, index, &image.body(index), instance_of, global)
}

impl fmt::Debug for WasmFn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WasmFn").field(&self.parameters).finish()
    }
}
