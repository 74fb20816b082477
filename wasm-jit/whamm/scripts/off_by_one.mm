// Accesses that begin right behind a block of `malloc`, until it is freed.
var sizes: map<u32, u32>;
var is_end: map<u32, bool>;

wasm:opcode:call(arg0: i32):before / target_fn_name == "malloc" / {
    frame var size: u32;
    size = arg0 as u32;
}

wasm:opcode:call(res0: i32):after / target_fn_name == "malloc" / {
    frame var size: u32;
    sizes[res0 as u32] = size;
    is_end[res0 as u32 + size] = true;
}

wasm:opcode:call(arg0: i32):before / target_fn_name == "free" / {
    is_end[arg0 as u32 + sizes[arg0 as u32]] = false;
}

wasm:opcode:*load*|*store*:before / fname != "malloc" && fname != "free" / {
    report unshared var times: u64;
    report unshared var address: u32;
    if (is_end[effective_addr]) {
        times++;
        address = effective_addr;
    }
}
