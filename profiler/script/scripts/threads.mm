// How many calls each thread makes, and the deepest nesting of them.
report thread var calls: u64;
report thread var deepest: u32;

native:func:entry {
    calls++;
    if (depth > deepest) {
        deepest = depth;
    }
}
