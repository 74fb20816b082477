//! Probes that call native functions.

use wasm_jit_codegen::Callee;

/// A native function that probes may call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NativeFn {
    address: usize,
    parameters: usize,
}

impl NativeFn {
    /// Makes a function of at most six parameters of the type `u64` callable by probes.
    ///
    /// The thread that executes the probe's place calls it in the middle of the program, with no
    /// lock of the engine held. It may make, activate, deactivate and drop probes, including the
    /// one that fires: the probes of this event stay as they were when it began. It may run other
    /// stores. An [interrupt](crate::Store::interrupt_handle) of the store takes effect after it
    /// has returned.
    ///
    /// # Example
    /// ```
    /// use std::sync::atomic::{AtomicU64, Ordering};
    /// use wasm_jit::probes::{Bound, Kind, Location, NativeFn, Place, ProbeSpec};
    /// use wasm_jit::{Engine, Instance, Module, Store};
    ///
    /// static LARGEST: AtomicU64 = AtomicU64::new(0);
    ///
    /// extern "C" fn record(value: u64) {
    ///     LARGEST.fetch_max(value, Ordering::Relaxed);
    /// }
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, "(module (func $count (export \"count\") (param i32)
    ///     (if (local.get 0) (then (call $count (i32.sub (local.get 0) (i32.const 1)))))))")?;
    /// // SAFETY: the function does not unwind, and is part of the program.
    /// let function = unsafe { NativeFn::new(record as extern "C" fn(u64)) };
    /// let probe = module.probe(ProbeSpec {
    ///     location: Location { function: 0, place: Place::Entry },
    ///     kind: Kind::Native { function, values: [Bound::Local(0)].into() },
    /// })?;
    /// probe.activate()?;
    /// let mut store = Store::new(&engine, ());
    /// let count = Instance::new(&mut store, &module, &[])?.get_typed_func::<i32, ()>(&mut store, "count")?;
    /// count.call(&mut store, 7)?;
    /// assert_eq!(LARGEST.load(Ordering::Relaxed), 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Safety
    /// The caller must make sure that, for every probe with this function:
    /// - the function can be called, with any values, at any time, by any number of threads, from
    ///   the probe's first activation until the module's code is freed: until there is no
    ///   [`Module`](crate::Module), no [`Probe`](super::Probe), no instance of it in a store, and
    ///   no [`WasmBacktrace`](crate::WasmBacktrace) that refers to it. Deactivating or dropping the
    ///   probe is not enough: another thread may be about to call it;
    /// - it returns, and does not unwind;
    /// - it uses at most 128 KiB of the stack;
    /// - it does not access the store whose program runs, or its instances, in any way, except for
    ///   memory that is shared between threads, as other threads access it.
    pub unsafe fn new<F: NativeFunction>(function: F) -> Self {
        Self { address: function.address(), parameters: F::PARAMETERS }
    }

    pub(super) fn parameters(self) -> usize {
        self.parameters
    }

    pub(super) fn address(self) -> usize {
        self.address
    }

    pub(super) fn callee(self) -> Callee {
        Callee::Native(self.address)
    }
}

/// The types of functions that probes can call: `extern "C" fn(u64, ...)`, safe or unsafe, with at
/// most six parameters.
pub trait NativeFunction: sealed::Address {
    /// The number of the function's parameters.
    const PARAMETERS: usize;
}

mod sealed {
    pub trait Address: Copy {
        fn address(self) -> usize;
    }
}

macro_rules! native_functions {
    ($($count:literal: $($parameter:ident)*;)*) => {$(
        native_functions! { @one $count, extern "C" fn($($parameter),*) }
        native_functions! { @one $count, unsafe extern "C" fn($($parameter),*) }
    )*};
    (@one $count:literal, $function:ty) => {
        impl sealed::Address for $function {
            fn address(self) -> usize {
                self as *const () as usize
            }
        }
        impl NativeFunction for $function {
            const PARAMETERS: usize = $count;
        }
    };
}

native_functions! {
    0: ;
    1: u64;
    2: u64 u64;
    3: u64 u64 u64;
    4: u64 u64 u64 u64;
    5: u64 u64 u64 u64 u64;
    6: u64 u64 u64 u64 u64 u64;
}
