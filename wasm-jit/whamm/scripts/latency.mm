// How long calls of a function take, by its first argument: their number, and nanoseconds in all.
use clock;
report var calls: map<i32, u64>;
report var nanoseconds: map<i32, i64>;
frame var start: i64;
frame var argument: i32;

wasm:func:entry(local0: i32) / fname == "work" / {
    argument = local0;
    start = clock.now();
}

wasm:func:exit / fname == "work" / {
    nanoseconds[argument] = nanoseconds[argument] + clock.now() - start;
    calls[argument]++;
}
