// Loads and stores, the bytes that they access, and those that are not aligned to their size.
report var loads: u64;
report var stores: u64;
report var bytes: u64;
report var unaligned: u64;

wasm:opcode:*load*|*store*(effective_addr: u64):before {
    if (is_write) {
        stores++;
    } else {
        loads++;
    }
    bytes = bytes + (data_size as u64);
    if (effective_addr % (data_size as u64) != 0) {
        unaligned++;
    }
}
