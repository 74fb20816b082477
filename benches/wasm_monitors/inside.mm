// The accesses to memory inside of a function, which the kernels do not call.
var inside: i32;
report var accesses: u64;
wasm:func:entry / fname == "never called" / { inside++; }
wasm:func:exit / fname == "never called" / { inside = inside - 1; }
wasm:opcode:*load*|*store*:before / inside > 0 / { accesses++; }
