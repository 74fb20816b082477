//! What all references have in common: deletion, copies, comparison, host values, and the
//! conversions between kinds.

use std::ffi::c_void;
use std::ptr;

use crate::host_info::Finalized;
use crate::last_error::required;
use crate::object::{Kind, Object};

/// Exports the functions that every kind of reference has.
macro_rules! export_references {
    ($($name:literal)*) => {
        $(
            const _: () = {
                use std::ffi::c_void;
                use $crate::host_info::Finalizer;
                use $crate::object::Object;

                #[unsafe(export_name = concat!("wasm_", $name, "_delete"))]
                extern "C" fn delete(_: Option<Box<Object>>) {}

                #[unsafe(export_name = concat!("wasm_", $name, "_copy"))]
                extern "C" fn copy(object: Option<&Object>) -> Option<Box<Object>> {
                    object.cloned().map(Box::new)
                }

                #[unsafe(export_name = concat!("wasm_", $name, "_same"))]
                extern "C" fn same(one: Option<&Object>, other: Option<&Object>) -> bool {
                    super::same(one, other)
                }

                #[unsafe(export_name = concat!("wasm_", $name, "_get_host_info"))]
                extern "C" fn get_host_info(object: Option<&Object>) -> *mut c_void {
                    super::host_info(object)
                }

                #[unsafe(export_name = concat!("wasm_", $name, "_set_host_info"))]
                extern "C" fn set_host_info(object: Option<&Object>, value: *mut c_void) {
                    super::set_host_info(object, value, None);
                }

                #[unsafe(export_name = concat!("wasm_", $name, "_set_host_info_with_finalizer"))]
                extern "C" fn set_host_info_with_finalizer(
                    object: Option<&Object>,
                    value: *mut c_void,
                    finalizer: Option<Finalizer>,
                ) {
                    super::set_host_info(object, value, finalizer);
                }
            };
        )*
    };
}

/// Exports conversions to and from a type that comprises several kinds of objects: `as_all` has the
/// same address, `of_all` is null for objects of other kinds.
macro_rules! export_conversions {
    ($($to:literal $from:literal $($pattern:path)|+;)*) => {
        $(
            const _: () = {
                use $crate::object::{Kind, Object};

                fn is_kind(kind: &Kind) -> bool {
                    matches!(kind, $($pattern(_))|+)
                }

                #[unsafe(export_name = $to)]
                extern "C" fn as_all(object: *mut Object) -> *mut Object {
                    object
                }

                #[unsafe(export_name = concat!($to, "_const"))]
                extern "C" fn as_all_const(object: *const Object) -> *const Object {
                    object
                }

                #[unsafe(export_name = $from)]
                unsafe extern "C" fn of_all(object: *mut Object) -> *mut Object {
                    // SAFETY: the caller's obligation.
                    unsafe { super::only_if(object, is_kind) }
                }

                #[unsafe(export_name = concat!($from, "_const"))]
                unsafe extern "C" fn of_all_const(object: *const Object) -> *const Object {
                    // SAFETY: the caller's obligation.
                    unsafe { super::only_if(object.cast_mut(), is_kind) }
                }
            };
        )*
    };
}

mod of_each_kind {
    export_references! { "ref" "trap" "foreign" "module" "func" "global" "table" "memory" "extern" "instance" }
}

mod as_references {
    export_conversions! {
        "wasm_trap_as_ref" "wasm_ref_as_trap" Kind::Trap;
        "wasm_foreign_as_ref" "wasm_ref_as_foreign" Kind::Foreign;
        "wasm_module_as_ref" "wasm_ref_as_module" Kind::Module;
        "wasm_func_as_ref" "wasm_ref_as_func" Kind::Func;
        "wasm_global_as_ref" "wasm_ref_as_global" Kind::Global;
        "wasm_table_as_ref" "wasm_ref_as_table" Kind::Table;
        "wasm_memory_as_ref" "wasm_ref_as_memory" Kind::Memory | Kind::SharedMemory;
        "wasm_instance_as_ref" "wasm_ref_as_instance" Kind::Instance;
        "wasm_extern_as_ref" "wasm_ref_as_extern"
            Kind::Func
            | Kind::Global
            | Kind::Table
            | Kind::Memory
            | Kind::SharedMemory
            | Kind::Tag;
    }
}

mod as_externs {
    export_conversions! {
        "wasm_func_as_extern" "wasm_extern_as_func" Kind::Func;
        "wasm_global_as_extern" "wasm_extern_as_global" Kind::Global;
        "wasm_table_as_extern" "wasm_extern_as_table" Kind::Table;
        "wasm_memory_as_extern" "wasm_extern_as_memory" Kind::Memory | Kind::SharedMemory;
    }
}

/// # Safety
/// The pointer is null or points to an object.
unsafe fn only_if(object: *mut Object, is_kind: fn(&Kind) -> bool) -> *mut Object {
    // SAFETY: the caller's obligation.
    let fits = unsafe { object.as_ref() }.is_some_and(|object| is_kind(&object.kind));
    if fits { object } else { ptr::null_mut() }
}

/// Whether both are the same object. Two null pointers are the same.
fn same(one: Option<&Object>, other: Option<&Object>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => one.same(other),
        (one, other) => one.is_none() && other.is_none(),
    }
}

fn host_info(object: Option<&Object>) -> *mut c_void {
    object.map_or(ptr::null_mut(), Object::host_info)
}

/// Attaches a host value. If the object is null, nothing keeps the value: its finalizer runs at
/// once.
fn set_host_info(
    object: Option<&Object>,
    value: *mut c_void,
    finalizer: Option<crate::host_info::Finalizer>,
) {
    let value = Finalized::new(value, finalizer);
    match required(object, "an object") {
        // The finalizer of the previous value may delete the object.
        Some(object) => object.clone().set_host_info(value),
        None => drop(value),
    }
}
