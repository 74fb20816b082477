// How long threads do something else between two calls of a function: a histogram of 10 microseconds
// for each function.
report var pauses: map<(str, linear<10000>), u64>;
thread var ended: map<u32, u64>;

native:func:entry {
    var before: u64 = ended[fid];
    if (before != 0 && before <= ns) {
        pauses[(fname, ns - before)]++;
    }
}

native:func:exit {
    ended[fid] = ns;
}
