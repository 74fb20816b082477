//! Link options of `libwasm_jit.so`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The name by which programs find it, also if they were linked by its path.
    println!("cargo::rustc-link-arg-cdylib=-Wl,-soname,libwasm_jit.so");
    // It has installed signal handlers and may have threads: `dlclose` must not unmap it.
    println!("cargo::rustc-link-arg-cdylib=-Wl,-z,nodelete");
}
