// Operations whose result is not a number, although their operands are.
frame var was_number: bool;

wasm:opcode:f64.add|f64.sub|f64.mul|f64.div:before {
    was_number = arg0 == arg0 && arg1 == arg1;
}

wasm:opcode:f64.add|f64.sub|f64.mul|f64.div:after {
    report unshared var times: u64;
    if (was_number && res0 != res0) {
        times++;
    }
}
