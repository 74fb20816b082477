// How long the calls of each function take: a histogram of nanoseconds.
native:func:exit {
    report var ns: map<log2, u64>;
    ns[duration]++;
}
