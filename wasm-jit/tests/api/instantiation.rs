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

#[test]
fn limits_of_64_bits_are_refused_by_their_features_name() {
    let engine = Engine::default();
    #[track_caller]
    fn check(engine: &Engine, text: &str, expected: &str) {
        let bytes = wat::parse_str(text).unwrap();
        for error in [Module::new(engine, &bytes).unwrap_err(), Module::validate(engine, &bytes).unwrap_err()]
        {
            assert!(matches!(error, Error::Unsupported { .. }), "{text}: {error}");
            assert!(error.to_string().contains(expected), "{text}: {error}");
        }
    }
    let memory = "memory64 must be enabled for 64-bit memories";
    let table = "memory64 must be enabled for 64-bit tables";
    check(&engine, "(module (memory i64 1))", memory);
    check(&engine, "(module (memory i64 0x100000000))", memory);
    check(&engine, "(module (memory i64 0 0x1000000000000))", memory);
    check(&engine, r#"(module (import "a" "b" (memory i64 0 0x1000000000000)))"#, memory);
    check(&engine, "(module (table i64 0x100000000 funcref))", table);
    check(&engine, "(module (table i64 1 0xffffffffffffffff funcref))", table);
    // A malformed module is still reported as malformed.
    let overlong = b"\0asm\x01\0\0\0\x05\x08\x01\x00\x81\x80\x80\x80\x80\x00";
    let error = Module::new(&engine, overlong).unwrap_err();
    assert!(matches!(&error, Error::Invalid { message, .. } if message.contains("integer")), "{error}");
}
