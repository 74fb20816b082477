// How many calls begin in each 10 milliseconds of the run.
report var calls: map<u64, u64>;
native:func:entry {
    calls[ns / 10000000]++;
}
