//! Link options of `libfastinst.so`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The name by which programs find it, also if they were linked by its path.
    println!("cargo::rustc-link-arg-cdylib=-Wl,-soname,libfastinst.so");
    // It has a signal handler and a thread, and probes call it: `dlclose` must not unmap it.
    println!("cargo::rustc-link-arg-cdylib=-Wl,-z,nodelete");
}
