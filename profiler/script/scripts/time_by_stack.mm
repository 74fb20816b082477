// Nanoseconds that are spent in calls, by call stack: without the time of the observed functions that
// they call. With `-o time.folded`, the report is what programs read that draw flame graphs.
report var ns: map<stack, u64>;
thread var in_callees: map<u32, u64>;

native:func:entry {
    in_callees[depth] = 0;
}

native:func:exit {
    if (duration > in_callees[depth]) {
        ns[stack] = ns[stack] + duration - in_callees[depth];
    }
    in_callees[depth - 1] = in_callees[depth - 1] + duration;
}
