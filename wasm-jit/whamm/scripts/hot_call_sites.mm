// How often each call is made, and of what.
wasm:opcode:call:before {
    report unshared var callee: str = target_fn_name;
    report unshared var times: u64;
    times++;
}
