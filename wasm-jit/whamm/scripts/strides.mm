// How far apart the addresses of accesses are that an instruction makes one after the other: a histogram
// of bytes for each function. Small strides are friendly to caches.
report var bytes: map<(str, log2), u64>;

wasm:opcode:*load*|*store*(effective_addr: u64):before {
    unshared var last: u64;
    unshared var is_first: bool = true;
    if (!is_first) {
        bytes[(fname, last > effective_addr ? last - effective_addr : effective_addr - last)]++;
    }
    is_first = false;
    last = effective_addr;
}
