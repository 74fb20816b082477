// Additions, subtractions and multiplications whose signed result does not fit 32 bits.
wasm:opcode:i32.add|i32.sub|i32.mul:before {
    report unshared var overflows: u64;
    var a: i64 = arg1 as i64;
    var b: i64 = arg0 as i64;
    var exact: i64 = opname == "i32.add" ? a + b : (opname == "i32.sub" ? a - b : a * b);
    if (exact != (exact as i32 as i64)) {
        overflows++;
    }
}
