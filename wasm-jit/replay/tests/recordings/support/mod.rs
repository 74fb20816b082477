//! Functions that the tests share.

use std::io::{Cursor, Write};
use std::sync::{Arc, Mutex};

use wasm_jit::{Engine, Instance, Linker, Module, Store};
use wasm_jit_replay::{DIFFERENCE, Event, LAST, POSITION, Reader, Separate, Writer, reduce};

/// A file in memory.
#[derive(Clone, Default)]
pub(crate) struct Trace(Arc<Mutex<Vec<u8>>>);

impl Trace {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }

    /// Whether no writer has it any more.
    pub(crate) fn is_closed(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

impl Write for Trace {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// How a replay with checks ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replayed {
    /// As recorded, with whether it returned.
    Complete { returned: bool },
    /// An event differs.
    Differs(i32),
    /// It ended too early, after this event.
    Stopped(i32),
}

/// Runs a replay in this engine.
pub(crate) fn replay(bench: &[u8]) -> Replayed {
    let engine = Engine::default();
    let module = Module::from_binary(&engine, bench).unwrap();
    assert_eq!(module.imports().len(), 0);
    let mut store = Store::new(&engine, ());
    let instance = Linker::new(&engine).instantiate(&mut store, &module).unwrap();
    start(&mut store, instance)
}

/// Runs the modules of a replay in this engine.
pub(crate) fn replay_separately(modules: &Separate) -> Replayed {
    let engine = Engine::default();
    let mut store = Store::new(&engine, ());
    let mut linker = Linker::new(&engine);
    for (name, bytes) in [("imports", &modules.imports), ("program", &modules.program)] {
        let module = Module::from_binary(&engine, bytes).unwrap();
        let instance = linker.instantiate(&mut store, &module).unwrap();
        linker.instance(&mut store, name, instance).unwrap();
    }
    let host = Module::from_binary(&engine, &modules.host).unwrap();
    let instance = linker.instantiate(&mut store, &host).unwrap();
    start(&mut store, instance)
}

/// The same in wasmi.
pub(crate) fn replay_separately_in_wasmi(modules: &Separate) -> Replayed {
    let engine = wasmi_engine();
    let mut store = wasmi::Store::new(&engine, ());
    let mut linker = wasmi::Linker::new(&engine);
    for (name, bytes) in [("imports", &modules.imports), ("program", &modules.program)] {
        let module = wasmi::Module::new(&engine, bytes).unwrap();
        let instance = linker.instantiate_and_start(&mut store, &module).unwrap();
        linker.instance(&mut store, name, instance).unwrap();
    }
    let host = wasmi::Module::new(&engine, &modules.host).unwrap();
    let instance = linker.instantiate_and_start(&mut store, &host).unwrap();
    start_in_wasmi(&mut store, instance)
}

/// Runs a replay in wasmi.
pub(crate) fn replay_in_wasmi(bench: &[u8]) -> Replayed {
    let engine = wasmi_engine();
    let module = wasmi::Module::new(&engine, bench).unwrap();
    let mut store = wasmi::Store::new(&engine, ());
    let instance = wasmi::Linker::new(&engine).instantiate_and_start(&mut store, &module).unwrap();
    start_in_wasmi(&mut store, instance)
}

fn wasmi_engine() -> wasmi::Engine {
    let mut config = wasmi::Config::default();
    config.wasm_multi_memory(true);
    wasmi::Engine::new(&config)
}

/// Runs a replay to its end.
fn start(mut store: &mut Store<()>, instance: Instance) -> Replayed {
    let start = instance.get_typed_func::<(), ()>(&mut store, "_start").unwrap();
    let returned = start.call(&mut store, ()).is_ok();
    let [difference, position, last] = [DIFFERENCE, POSITION, LAST]
        .map(|name| instance.get_global(&mut store, name).unwrap().get(&mut store).unwrap_i32());
    conclude(returned, difference, position, last)
}

/// The same in wasmi.
fn start_in_wasmi(mut store: &mut wasmi::Store<()>, instance: wasmi::Instance) -> Replayed {
    let start = instance.get_typed_func::<(), ()>(&mut store, "_start").unwrap();
    let returned = start.call(&mut store, ()).is_ok();
    let [difference, position, last] = [DIFFERENCE, POSITION, LAST].map(|name| {
        match instance.get_global(&mut store, name).unwrap().get(&mut store) {
            wasmi::Val::I32(value) => value,
            other => panic!("{other:?}"),
        }
    });
    conclude(returned, difference, position, last)
}

fn conclude(returned: bool, difference: i32, position: i32, last: i32) -> Replayed {
    match difference {
        0 if position == last => Replayed::Complete { returned },
        0 => Replayed::Stopped(position),
        event => Replayed::Differs(event),
    }
}

pub(crate) fn events(trace: &[u8]) -> Vec<Event> {
    Reader::new(trace).collect::<Result<_, _>>().unwrap()
}

/// A trace of these events.
pub(crate) fn trace_of(events: &[Event]) -> Vec<u8> {
    let trace = Trace::default();
    let mut writer = Writer::new(trace.clone()).unwrap();
    events.iter().for_each(|event| writer.write(event).unwrap());
    writer.flush().unwrap();
    trace.bytes()
}

/// The next number of a pseudorandom sequence, below a limit.
pub(crate) fn random(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % below
}

/// The trace without what the program does not read.
#[track_caller]
pub(crate) fn reduced(module: &Module, trace: &[u8]) -> Vec<u8> {
    let small = Trace::default();
    reduce(module, Cursor::new(trace.to_vec()), small.clone()).unwrap();
    small.bytes()
}
