//! The version of the library, for programs that were compiled for another one.

/// `WASM_JIT_VERSION` of the header.
const VERSION: u32 = 1_000_000 * part(env!("CARGO_PKG_VERSION_MAJOR"))
    + 1_000 * part(env!("CARGO_PKG_VERSION_MINOR"))
    + part(env!("CARGO_PKG_VERSION_PATCH"));

const fn part(number: &str) -> u32 {
    match u32::from_str_radix(number, 10) {
        Ok(number) => number,
        Err(_) => panic!("cargo gives numbers"),
    }
}

#[unsafe(no_mangle)]
extern "C" fn wasm_jit_version() -> u32 {
    VERSION
}
