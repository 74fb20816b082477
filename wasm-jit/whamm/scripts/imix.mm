// How often each kind of instruction is executed, by its name.
report var times: map<str, u64>;

wasm:opcode:*:before {
    times[opname]++;
}
