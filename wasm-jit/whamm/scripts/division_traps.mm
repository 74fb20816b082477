// Divisions that are about to trap: by zero, or of the least number by -1.
wasm:opcode:i32.div_?|i32.rem_?|i64.div_?|i64.rem_?:before / trap / {
    report unshared var times: u64;
    times++;
}
