// How often each basic block is executed, and its length in instructions.
wasm:block:end {
    report unshared var times: u64;
    report unshared var length: u32 = instr_count;
    times++;
}
