// How long the calls of each function take: a histogram of powers of two of nanoseconds.
native:func:exit {
    report var log2_ns: map<u32, u64>;
    log2_ns[log2(duration)]++;
}
