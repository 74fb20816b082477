// A direct-mapped cache of 512 lines of 64 bytes. An access counts for the line where it begins.
report var hits: u64;
report var misses: u64;
var tags: map<u32, u32>;
wasm:opcode:*load*|*store*(effective_addr: u64):before {
    var line: u32 = (effective_addr / 64) as u32;
    if (tags[line % 512] == line + 1) {
        hits++;
    } else {
        misses++;
        tags[line % 512] = line + 1;
    }
}
