// Calls that take longer than a millisecond: how many, the longest, and when it ended.
native:func:exit / duration > 1000000 / {
    report var slow: u64;
    report var longest_ns: u64;
    report var at_ns: u64;
    slow++;
    if (duration > longest_ns) {
        longest_ns = duration;
        at_ns = ns;
    }
}
