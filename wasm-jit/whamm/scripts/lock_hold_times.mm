// How long locks are held, by address: a word that is zero when it is free, acquired by a compare and
// exchange, and released by a store or an exchange of zero.
use clock;
report var acquired: map<u64, u64>;
report var contended: map<u64, u64>;
report var nanoseconds: map<u64, i64>;
var since: map<u64, i64>;
var lock: u64;
var is_acquire: bool;

wasm:opcode:i32.atomic.rmw.cmpxchg(effective_addr: u64):before {
    lock = effective_addr;
    is_acquire = arg1 == 0 && arg0 != 0;
}

wasm:opcode:i32.atomic.rmw.cmpxchg:after {
    if (is_acquire && res0 == 0) {
        acquired[lock]++;
        since[lock] = clock.now();
    } elif (is_acquire) {
        contended[lock]++;
    }
}

wasm:opcode:i32.atomic.store|i32.atomic.rmw.xchg(effective_addr: u64):before / arg0 == 0 / {
    if (since[effective_addr] != 0) {
        nanoseconds[effective_addr] = nanoseconds[effective_addr] + clock.now() - since[effective_addr];
        since[effective_addr] = 0;
    }
}
