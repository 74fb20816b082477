// How many calls each thread makes, and the deepest nesting of them.
report var by_thread: map<u32, (u64, u32)>;
native:func:entry {
    var seen: (u64, u32) = by_thread[tid];
    seen.0 = seen.0 + 1;
    if (depth > seen.1) {
        seen.1 = depth;
    }
    by_thread[tid] = seen;
}
