// Calls that return a negative number, as many functions do when they fail: how many, and the last of
// these numbers. The object needs debugging information (-g).
native:func:exit(res0: i64) / res0 < 0 / {
    report var failures: u64;
    report var last: i64;
    failures++;
    last = res0;
}
