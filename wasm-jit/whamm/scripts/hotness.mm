// How often each instruction is executed.
wasm:opcode:*:before {
    report unshared var times: u64;
    times++;
}
