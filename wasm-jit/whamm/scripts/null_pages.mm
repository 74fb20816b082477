// Accesses below address 1024, where a null pointer to a structure leads. The predicate's first
// part is evaluated once for each instruction, its second part at each execution.
wasm:opcode:*load*|*store*(effective_addr: u64):before / offset < 1024 && effective_addr < 1024 / {
    report unshared var times: u64;
    times++;
}
