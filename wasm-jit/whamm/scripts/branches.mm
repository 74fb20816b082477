// Which way conditional branches go, for each of them.
wasm:opcode:br_if|br_on_null|br_on_non_null|if:before {
    report unshared var taken_times: u64;
    report unshared var not_taken: u64;
    if (taken) {
        taken_times++;
    } else {
        not_taken++;
    }
}
