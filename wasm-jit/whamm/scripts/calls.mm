// How often each function is called.
wasm:func:entry {
    report unshared var calls: u64;
    calls++;
}
