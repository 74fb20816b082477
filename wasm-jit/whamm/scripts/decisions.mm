// The paper's monitor of branches: how select, br, br_if and br_table decide; and branches that
// depend on references.
wasm:opcode:br|br_if|br_on_null|br_on_non_null|if:before {
    report unshared var yes: u64;
    report unshared var no: u64;
    if (taken) {
        yes++;
    } else {
        no++;
    }
}

wasm:opcode:select(arg0: i32):before {
    report unshared var first: u64;
    report unshared var second: u64;
    if (arg0 != 0) {
        first++;
    } else {
        second++;
    }
}

wasm:opcode:br_table:before {
    report unshared var targets: map<u32, u64>;
    targets[target]++;
}
