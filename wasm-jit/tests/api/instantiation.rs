//! Start functions of the host, and unsupported limits.

use wasm_jit::{Caller, Engine, Error, Extern, Linker, Module, Store};

#[test]
fn a_host_function_that_is_the_start_function_sees_the_instances_exports() {
    let engine = Engine::default();
    let text = r#"(module
        (import "host" "start" (func $start))
        (memory (export "memory") 1)
        (data (i32.const 0) "ready")
        (start $start))"#;
    let module = Module::new(&engine, text).unwrap();
    let mut linker: Linker<Vec<u8>> = Linker::new(&engine);
    linker
        .func_wrap("host", "start", |mut caller: Caller<'_, Vec<u8>>| -> Result<(), Error> {
            let Some(Extern::Memory(memory)) = caller.get_export("memory") else {
                return Err(Error::host("no memory is found"));
            };
            let mut bytes = vec![0; 5];
            memory.read(&caller, 0, &mut bytes)?;
            *caller.data_mut() = bytes;
            Ok(())
        })
        .unwrap();
    let mut store = Store::new(&engine, Vec::new());
    linker.instantiate(&mut store, &module).unwrap();
    assert_eq!(store.data(), b"ready");
}
