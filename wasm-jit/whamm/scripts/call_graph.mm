// How often each function calls each other one, by their names.
report var calls: map<(str, str), u64>;

wasm:opcode:call|return_call:before {
    calls[(fname, target_fn_name)]++;
}
