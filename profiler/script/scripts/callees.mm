// How many calls of observed functions a call makes, itself and by what it calls: a histogram for each
// function.
report var calls: map<(str, log2), u64>;
thread var made: u64;
frame var before: u64;

native:func:entry {
    made++;
    before = made;
}

native:func:exit {
    calls[(fname, made - before)]++;
}
