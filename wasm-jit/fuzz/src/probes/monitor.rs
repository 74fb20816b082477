//! Functions of a program's store that probes call: those of another instance, and host functions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use wasm_jit::probes::WasmFn;
use wasm_jit::{Engine, Func, Instance, MemoryType, Module, SharedMemory, Store, ValType};

use super::change_sometimes;

/// Counts in a memory that all stores share, and overwrites registers.
const TEXT: &str = r#"(module
    (import "host" "counts" (memory 1 1 shared))
    (global $sum (mut f64) (f64.const 0))
    (func $count (param $slot i32) (local i64 i64 i64 i64)
        (local.set 1 (i64.atomic.rmw.add (i32.shl (local.get $slot) (i32.const 3)) (i64.const 1)))
        (local.set 2 (i64.mul (local.get 1) (i64.const 3)))
        (local.set 3 (i64.xor (local.get 2) (local.get 1)))
        (local.set 4 (i64.shl (local.get 3) (local.get 2)))
        (global.set $sum (f64.add
            (f64.mul (f64.convert_i64_s (local.get 4)) (f64.convert_i64_s (local.get 3)))
            (f64.sub (f64.convert_i64_s (local.get 2)) (global.get $sum)))))
    (func (export "short") (param i32) (local i32)
        (local.set 1 (i32.shl (local.get 0) (i32.const 3)))
        (i64.store (local.get 1) (i64.add (i64.load (local.get 1)) (i64.const 1))))
    (func (export "none") (param i32) (call $count (local.get 0)))
    (func (export "i32") (param i32 i32) (call $count (local.get 0)))
    (func (export "i64") (param i32 i64) (call $count (local.get 0)))
    (func (export "f32") (param i32 f32) (call $count (local.get 0)))
    (func (export "f64") (param i32 f64) (call $count (local.get 0)))
    (func (export "v128") (param i32 v128) (call $count (local.get 0))))"#;

/// The memory in which WebAssembly functions count: eight bytes for each slot.
pub(super) fn memory() -> Result<SharedMemory, String> {
    SharedMemory::new(MemoryType::shared(1, 1)).map_err(|error| error.to_string())
}

/// The number of slots of the memory.
pub(super) const SLOTS: usize = 8192;

/// The module with the functions.
pub(super) fn module(engine: &Engine) -> Result<Module, String> {
    Module::new(engine, TEXT).map_err(|error| error.to_string())
}

/// The functions of a store. The first argument of each is a slot.
#[derive(Clone, Debug)]
pub(super) struct Functions {
    /// Functions by the type of the second argument; the last one has none.
    wasm: [WasmFn; 6],
    /// A function without a second argument and calls, so that stubs may execute it themselves.
    pub short: WasmFn,
    /// A host function without a second argument.
    pub host: WasmFn,
}

impl Functions {
    /// Instantiates the module in a store.
    pub(super) fn new(
        store: &mut Store<()>,
        module: &Module,
        memory: &SharedMemory,
        counters: &Arc<[AtomicU64]>,
    ) -> Result<Self, String> {
        let instance = Instance::new(&mut *store, module, &[memory.clone().into()])
            .map_err(|error| error.to_string())?;
        let mut function = |name: &str| {
            let function = instance.get_func(&mut *store, name).ok_or("the function is exported")?;
            WasmFn::new(&*store, function).map_err(|error| error.to_string())
        };
        let [i32, i64, f32, f64] = [function("i32")?, function("i64")?, function("f32")?, function("f64")?];
        let wasm = [i32, i64, f32, f64, function("v128")?, function("none")?];
        let short = function("short")?;
        let counters = counters.clone();
        let host = Func::wrap(&mut *store, move |slot: i32| {
            counters[slot as usize].fetch_add(1, Ordering::Relaxed);
            change_sometimes();
        })
        .map_err(|error| error.to_string())?;
        let host = WasmFn::new(&*store, host).map_err(|error| error.to_string())?;
        Ok(Self { wasm, short, host })
    }

    /// The function with a second argument of this type; without one for other types.
    pub(super) fn with(&self, ty: Option<ValType>) -> &WasmFn {
        &self.wasm[match ty {
            Some(ValType::I32) => 0,
            Some(ValType::I64) => 1,
            Some(ValType::F32) => 2,
            Some(ValType::F64) => 3,
            Some(ValType::V128) => 4,
            _ => 5,
        }]
    }
}
