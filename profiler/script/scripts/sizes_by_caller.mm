// Sizes that functions are asked for, by the function that calls them: a histogram of the arguments
// that are called `size`. Their object needs debugging information (-g).
report var sizes: map<(str, str, log2), u64>;
thread var open: map<u32, str>;

native:func:entry {
    open[depth] = fname;
}

native:func:entry(args.size: u64) {
    sizes[(fname, open[depth - 1], args.size)]++;
}
