// By how many pages memories grow, and how often.
report var pages: map<i32, u64>;

wasm:opcode:memory.grow(arg0: i32):before {
    pages[arg0]++;
}
