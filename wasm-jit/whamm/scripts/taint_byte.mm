// Where one byte of the input goes: address 1024. A byte that is loaded and then stored by the same
// call, unchanged, is a copy; other values are not followed. A store of another value is the end.
var is_tainted: map<u64, bool>;
report var copies: map<u64, u32>;
frame var has_byte: bool;
frame var byte: u32;

wasm:begin {
    is_tainted[1024] = true;
}

wasm:opcode:i32.load8_u(effective_addr: u64):before {
    report unshared var reads: u64;
    frame var is_source: bool;
    is_source = is_tainted[effective_addr];
    if (is_source) {
        reads++;
    }
}

wasm:opcode:i32.load8_u:after {
    frame var is_source: bool;
    if (is_source) {
        has_byte = true;
        byte = res0;
    }
}

wasm:opcode:i32.store8(effective_addr: u64):before {
    is_tainted[effective_addr] = has_byte && arg0 as u32 == byte;
    if (is_tainted[effective_addr]) {
        copies[effective_addr]++;
    }
}
