// By which calls each function is called: how often, by call stack. With `-o calls.folded`, the
// report is what programs read that draw flame graphs.
report var calls: map<stack, u64>;
native:func:entry {
    calls[stack]++;
}
