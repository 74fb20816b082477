//! The module `spectest` that scripts import from.

use wasm_jit::{
    Error, Global, GlobalType, Linker, Memory, MemoryType, Mutability, RefType, SharedMemory, Store, Table,
    TableType, Val, ValType,
};

/// Defines the module.
pub(crate) fn define(store: &mut Store<()>, linker: &mut Linker<()>) -> Result<(), Error> {
    linker.func_wrap("spectest", "print", || {})?;
    linker.func_wrap("spectest", "print_i32", |_: i32| {})?;
    linker.func_wrap("spectest", "print_i64", |_: i64| {})?;
    linker.func_wrap("spectest", "print_f32", |_: f32| {})?;
    linker.func_wrap("spectest", "print_f64", |_: f64| {})?;
    linker.func_wrap("spectest", "print_i32_f32", |_: i32, _: f32| {})?;
    linker.func_wrap("spectest", "print_f64_f64", |_: f64, _: f64| {})?;
    let globals = [
        ("global_i32", ValType::I32, Val::I32(666)),
        ("global_i64", ValType::I64, Val::I64(666)),
        ("global_f32", ValType::F32, Val::F32(666.6_f32.to_bits())),
        ("global_f64", ValType::F64, Val::F64(666.6_f64.to_bits())),
    ];
    for (name, ty, value) in globals {
        let global = Global::new(&mut *store, GlobalType::new(ty, Mutability::Const), value)?;
        linker.define(&mut *store, "spectest", name, global)?;
    }
    let ty = TableType::new(RefType::FUNCREF, 10, Some(20));
    let table = Table::new(&mut *store, ty, Val::FuncRef(None))?;
    linker.define(&mut *store, "spectest", "table", table)?;
    let memory = Memory::new(&mut *store, MemoryType::new(1, Some(2)))?;
    linker.define(&mut *store, "spectest", "memory", memory)?;
    let shared = SharedMemory::new(MemoryType::shared(1, 2))?;
    linker.define(&mut *store, "spectest", "shared_memory", shared)?;
    Ok(())
}
