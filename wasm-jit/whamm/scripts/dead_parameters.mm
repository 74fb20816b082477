// Functions whose first parameter, an i32 that is not always zero, has not been read: those with 1.
report var is_unread: map<str, u32>;
var is_read: map<u32, bool>;

wasm:func:entry(local0: i32) / local0 != 0 / {
    if (!is_read[fid]) {
        is_unread[fname] = 1;
    }
}

wasm:opcode:local.get:before / imm0 == 0 / {
    if (!is_read[fid]) {
        is_read[fid] = true;
        is_unread[fname] = 0;
    }
}
