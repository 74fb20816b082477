//! `wasm_func_t`: functions, and calls in both directions.

use std::ffi::c_void;
use std::iter::repeat_with;
use std::rc::Rc;

use wasm_jit::{Caller, Error, Func, FuncType, Val, ValType};

use crate::host_info::{Finalized, Finalizer};
use crate::last_error::{expect, failed, null, other, required};
use crate::object::{Kind, Object, OfStore};
use crate::store::{Data, SharedStore, StoreHandle};
use crate::trap;
use crate::types::ExternType;
use crate::value::{self, Value, no_vectors};
use crate::vector::Vector;

type Callback = unsafe extern "C" fn(*const Vector<Value>, *mut Vector<Value>) -> Option<Box<Object>>;
type CallbackWithEnv =
    unsafe extern "C" fn(*mut c_void, *const Vector<Value>, *mut Vector<Value>) -> Option<Box<Object>>;

/// A function of C code.
enum HostFunc {
    Plain(Callback),
    /// The finalizer of the environment, which runs when the store is freed.
    WithEnv(CallbackWithEnv, Finalized),
}

impl HostFunc {
    /// Calls the function; returns its trap.
    ///
    /// # Safety
    /// The arguments are of the function's parameter types.
    unsafe fn call(&self, args: &Vector<Value>, results: &mut Vector<Value>) -> Option<Box<Object>> {
        // SAFETY: the caller's obligation.
        unsafe {
            match self {
                Self::Plain(callback) => callback(args, results),
                Self::WithEnv(callback, env) => callback(env.value(), args, results),
            }
        }
    }

    /// Adds the engine's function that calls this one to the store.
    fn insert(self, store: &Rc<SharedStore>, ty: &FuncType) -> Result<Func, Error> {
        if ty.params().chain(ty.results()).any(|ty| ty == ValType::V128) {
            return Err(no_vectors());
        }
        let func = OfStore(self);
        let results = ty.clone();
        store.with(|store| {
            Func::new(store, ty.clone(), move |caller: Caller<'_, Data>, args: &[Val], out: &mut [Val]| {
                // All of it is captured, not only the part that C code may move to another thread.
                let func: &OfStore<Self> = &func;
                call_host(&func.0, &results, caller, args, out)
            })
        })
    }
}

/// Calls a function of C code for WebAssembly.
fn call_host(
    func: &HostFunc,
    ty: &FuncType,
    mut caller: Caller<'_, Data>,
    args: &[Val],
    out: &mut [Val],
) -> Result<(), Error> {
    let Some(store) = caller.data().shared() else {
        return Err(Error::host("a host function was called in a store that is being freed"));
    };
    let args: Vector<Value> = args.iter().map(|value| Value::of(&store, value)).collect();
    let zeros = ty.results().map(|ty| Value::of(&store, &Val::default_for_ty(ty)));
    let mut results: Vector<Value> = zeros.collect();
    // SAFETY: these are values of the function's type.
    let trap = store.lend(&mut caller, || unsafe { func.call(&args, &mut results) });
    if let Some(trap) = trap {
        // C code may have deleted what it had stored there.
        results.leave_elements();
        return Err(trap::to_error(&store, &trap));
    }
    if results.len() != out.len() {
        return Err(Error::ValueCount { what: "results", expected: out.len(), found: results.len() });
    }
    for ((out, value), ty) in out.iter_mut().zip(results.elements()).zip(ty.results()) {
        *out = value.to_engine(&store, ty)?;
    }
    Ok(())
}

fn new(store: Option<&StoreHandle>, ty: Option<&ExternType>, func: Option<HostFunc>) -> Option<Box<Object>> {
    let store = &required(store, "a store")?.clone();
    let ty = expect(ty, "the type of a function", ExternType::as_func)?;
    let func = required(func, "a function")?.insert(store, ty).map_err(failed).ok()?;
    Some(Object::new(store, Kind::Func(func)))
}

/// Creates a function. Null if its type has vectors.
#[unsafe(no_mangle)]
extern "C" fn wasm_func_new(
    store: Option<&StoreHandle>,
    ty: Option<&ExternType>,
    callback: Option<Callback>,
) -> Option<Box<Object>> {
    new(store, ty, callback.map(HostFunc::Plain))
}

/// As [`wasm_func_new`]. The finalizer runs when the store is freed, or at once if the result is
/// null.
#[unsafe(no_mangle)]
extern "C" fn wasm_func_new_with_env(
    store: Option<&StoreHandle>,
    ty: Option<&ExternType>,
    callback: Option<CallbackWithEnv>,
    env: *mut c_void,
    finalizer: Option<Finalizer>,
) -> Option<Box<Object>> {
    let env = Finalized::new(env, finalizer);
    new(store, ty, callback.map(|callback| HostFunc::WithEnv(callback, env)))
}

/// The name of the argument in failure messages.
const A_FUNCTION: &str = "a function";

fn func(object: Option<&Object>) -> Option<(Rc<SharedStore>, Func)> {
    expect(object, A_FUNCTION, |object| match object.kind {
        Kind::Func(func) => Some((object.store.clone(), func)),
        _ => None,
    })
}

fn type_of(object: Option<&Object>) -> Option<FuncType> {
    let (store, func) = func(object)?;
    Some(store.with(|store| func.ty(store)))
}

#[unsafe(no_mangle)]
extern "C" fn wasm_func_type(object: Option<&Object>) -> Option<Box<ExternType>> {
    type_of(object).map(|ty| Box::new(ExternType::func(ty)))
}

#[unsafe(no_mangle)]
extern "C" fn wasm_func_param_arity(object: Option<&Object>) -> usize {
    type_of(object).map_or(0, |ty| ty.params().len())
}

#[unsafe(no_mangle)]
extern "C" fn wasm_func_result_arity(object: Option<&Object>) -> usize {
    type_of(object).map_or(0, |ty| ty.results().len())
}

/// Calls a function. Returns null if it succeeds, with the results written; results for which there
/// is no room are dropped. Otherwise returns a trap, including for arguments of the wrong types or
/// number, for functions with vectors, and for an object that is not a function. A null pointer has
/// no store to create a trap in: then the results are zeros.
///
/// # Safety
/// The elements of `results` are overwritten; they need not be initialized.
#[unsafe(no_mangle)]
unsafe extern "C" fn wasm_func_call(
    object: Option<&Object>,
    args: Option<&Vector<Value>>,
    results: Option<&Vector<Value>>,
) -> Option<Box<Object>> {
    let overwrite = |values: &mut dyn Iterator<Item = Value>| {
        // SAFETY: the caller's obligation.
        results.inspect(|results| unsafe { results.overwrite(values) });
    };
    let Some(Object { store, kind }) = object else {
        failed(null(A_FUNCTION));
        overwrite(&mut repeat_with(Value::zero));
        return None;
    };
    // C code may delete the object while the function runs.
    let store = store.clone();
    let called = match *kind {
        Kind::Func(func) => call(&store, func, args),
        _ => Err(Error::host(other(A_FUNCTION))),
    };
    match called {
        Ok(values) => {
            overwrite(&mut values.iter().map(|value| Value::of(&store, value)));
            None
        }
        Err(error) => Some(trap::of_error(&store, error)),
    }
}

fn call(store: &Rc<SharedStore>, func: Func, args: Option<&Vector<Value>>) -> Result<Vec<Val>, Error> {
    let ty = store.with(|store| func.ty(store));
    if ty.params().chain(ty.results()).any(|ty| ty == ValType::V128) {
        return Err(no_vectors());
    }
    let args = value::to_engine(store, args, ty.params())?;
    let mut results: Vec<Val> = ty.results().map(Val::default_for_ty).collect();
    store.with(|store| func.call(store, &args, &mut results))?;
    Ok(results)
}
