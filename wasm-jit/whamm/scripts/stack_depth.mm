// How often calls begin at each depth of the stack. Exceptions and tail calls are taken into account:
// before each call, the depth is that of its frame.
report var calls: map<u32, u64>;
report var deepest: u32;
var depth: u32;
frame var mine: u32;

wasm:func:entry {
    depth++;
    mine = depth;
    calls[depth]++;
    if (depth > deepest) {
        deepest = depth;
    }
}

wasm:opcode:call|call_indirect|call_ref:before {
    depth = mine;
}

wasm:opcode:return_call|return_call_indirect|return_call_ref:before {
    depth = mine - 1;
}

wasm:func:exit {
    depth = mine - 1;
}
