// How often each function is called.
native:func:entry {
    report var calls: u64;
    calls++;
}
