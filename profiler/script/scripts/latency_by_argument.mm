// How long calls take, by their first argument, if that is a number that is not negative: a histogram
// of nanoseconds for each function and each power of two. The object needs debugging information (-g).
report var ns: map<(str, u32, log2), u64>;

native:func:exit(arg0: u64) {
    ns[(fname, log2(arg0), duration)]++;
}
