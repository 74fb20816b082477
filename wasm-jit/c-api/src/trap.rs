//! `wasm_trap_t`: traps, as objects and as errors of the engine.

use std::error::Error as StdError;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use wasm_jit::{Error, WasmBacktrace};

use crate::frame::Frame;
use crate::last_error::{expect, required};
use crate::object::{Attached, Kind, Object, OfStore};
use crate::store::{SharedStore, StoreHandle};
use crate::trap_info::TrapInfo;
use crate::vector::{Out, Vector, store};

/// The error of a host function that returns a trap: the call that led to it returns the same trap.
#[derive(Debug)]
struct Returned(OfStore<Rc<Attached<TrapInfo>>>);

impl fmt::Display for Returned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0.0.value.message))
    }
}

impl StdError for Returned {}

/// The trap that a failed call returns.
pub(crate) fn of_error(store: &Rc<SharedStore>, error: Error) -> Box<Object> {
    let trap = match error {
        Error::Host(error) => match error.downcast::<Returned>() {
            Ok(returned) => returned.0.0.clone(),
            Err(error) => Attached::new(TrapInfo::of_error(Error::Host(error))),
        },
        error => Attached::new(TrapInfo::of_error(error)),
    };
    Object::new(store, Kind::Trap(trap))
}

/// The error that a host function of a store returns for the trap that C code has returned. An
/// exception is rethrown. A trap of another store, which another thread may use later, is copied:
/// its exception cannot be caught here, and its frames have instances only there.
pub(crate) fn to_error(store: &Rc<SharedStore>, object: &Object) -> Error {
    let Kind::Trap(trap) = &object.kind else {
        return Error::host("a host function has returned an object that is no trap");
    };
    if !Rc::ptr_eq(store, &object.store) {
        let TrapInfo { message, backtrace, .. } = &trap.value;
        let copy = TrapInfo::of_host(message.clone(), backtrace.clone());
        return Error::host(Returned(OfStore(Attached::new(copy))));
    }
    match &trap.value.exception {
        Some(exception) => {
            let backtrace = WasmBacktrace::clone(&trap.value.backtrace);
            Error::Exception { exception: exception.clone(), backtrace }
        }
        None => Error::host(Returned(OfStore(trap.clone()))),
    }
}

fn info(trap: Option<&Object>) -> Option<(&Rc<SharedStore>, &TrapInfo)> {
    expect(trap, "a trap", |object| match &object.kind {
        Kind::Trap(trap) => Some((&object.store, &trap.value)),
        _ => None,
    })
}

/// Creates a trap with this message, up to the first null byte. Its frames are the functions that
/// are active in the store.
#[unsafe(no_mangle)]
extern "C" fn wasm_trap_new(
    store: Option<&StoreHandle>,
    message: Option<&Vector<u8>>,
) -> Option<Box<Object>> {
    let store = &required(store, "a store")?.clone();
    let message = message.map_or(&[][..], Vector::elements).split(|byte| *byte == 0).next();
    let backtrace = store.with(|store| WasmBacktrace::capture(&store));
    let trap = TrapInfo::of_host(message.unwrap_or_default().to_vec(), Arc::new(backtrace));
    Some(Object::new(store, Kind::Trap(Attached::new(trap))))
}

/// Stores the message of a trap, null-terminated.
#[unsafe(no_mangle)]
extern "C" fn wasm_trap_message(trap: Option<&Object>, out: Out<'_, u8>) {
    let message = info(trap).map_or(&[][..], |(_, trap)| &trap.message);
    store(out, message.iter().copied().chain([0]).collect());
}

/// The innermost frame of a trap, or null if there is none.
#[unsafe(no_mangle)]
extern "C" fn wasm_trap_origin(trap: Option<&Object>) -> Option<Box<Frame>> {
    let (store, trap) = info(trap)?;
    trap.backtrace.frames().first().map(|frame| Box::new(Frame::of(store, frame)))
}

/// Stores all frames of a trap, innermost first; at most 256.
#[unsafe(no_mangle)]
extern "C" fn wasm_trap_trace(trap: Option<&Object>, out: Out<'_, Option<Box<Frame>>>) {
    let frames = info(trap).map_or_else(Vector::empty, |(store, trap)| {
        trap.backtrace.frames().iter().map(|frame| Some(Box::new(Frame::of(store, frame)))).collect()
    });
    store(out, frames);
}
