//! Captures what modules print through WASI.

use std::sync::{Arc, Mutex};

use wasm_jit::{Caller, Engine, Extern, Linker};

pub(crate) type Printed = Arc<Mutex<Vec<u8>>>;

/// A linker with `fd_write`, which writes to standard error or output, as the module requests.
pub(crate) fn printing(engine: &Engine) -> (Linker<()>, Printed) {
    let printed = Printed::default();
    let mut linker = Linker::new(engine);
    let bytes = printed.clone();
    let write = move |mut caller: Caller<'_, ()>, _: i32, vectors: i32, _: i32, written: i32| {
        let Some(all) = written_bytes(&mut caller, vectors, written) else { return 8 };
        bytes.lock().unwrap().extend(all);
        0
    };
    linker.func_wrap("wasi_snapshot_preview1", "fd_write", write).unwrap();
    (linker, printed)
}

/// The bytes of a call to `fd_write` with one vector; `None` without a memory.
pub(crate) fn written_bytes(caller: &mut Caller<'_, ()>, vectors: i32, written: i32) -> Option<Vec<u8>> {
    let Some(Extern::Memory(memory)) = caller.get_export("memory") else { return None };
    let mut vector = [0; 8];
    memory.read(&*caller, vectors as usize, &mut vector).unwrap();
    let word = |from: usize| u32::from_le_bytes(vector[from..from + 4].try_into().unwrap());
    let mut all = vec![0; word(4) as usize];
    memory.read(&*caller, word(0) as usize, &mut all).unwrap();
    memory.write(&mut *caller, written as usize, &word(4).to_le_bytes()).unwrap();
    Some(all)
}

pub(crate) fn text(printed: &Printed) -> String {
    String::from_utf8(printed.lock().unwrap().clone()).unwrap()
}
