// How often each category of instructions is executed.
report var times: map<str, u64>;
wasm:opcode:*:before { times[category_name]++; }
