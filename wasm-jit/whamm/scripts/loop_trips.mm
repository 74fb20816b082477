// For each loop: how often its body is executed, in how many calls, and the most in one call. Calls
// that a recursive function makes between two iterations count as others.
var calls_so_far: u64;
frame var call: u64;

wasm:func:entry {
    calls_so_far++;
    call = calls_so_far;
}

wasm:opcode:loop:before {
    report unshared var iterations: u64;
    report unshared var calls: u64;
    report unshared var most: u64;
    unshared var last: u64;
    unshared var in_call: u64;
    iterations++;
    if (last != call) {
        last = call;
        calls++;
        in_call = 0;
    }
    in_call++;
    if (in_call > most) {
        most = in_call;
    }
}
