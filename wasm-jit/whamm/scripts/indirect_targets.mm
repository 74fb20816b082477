// Where indirect calls lead: for each function that makes them, the functions that it reaches. A call
// of a function of the host is not seen.
report var targets: map<(str, str), u64>;
var caller: str;
var is_pending: bool;

wasm:opcode:call_indirect|return_call_indirect:before {
    caller = fname;
    is_pending = true;
}

wasm:opcode:call_indirect:after {
    is_pending = false;
}

wasm:opcode:call|return_call:before {
    is_pending = false;
}

wasm:func:entry {
    if (is_pending) {
        targets[(caller, fname)]++;
        is_pending = false;
    }
}
