// Sizes that are asked of the allocator: how often each power of two that holds them, and in all.
report var sizes: map<u32, u64>;
report var bytes: u64;

fn rounded(size: u32) -> u32 {
    var power: u32 = 1;
    while (power < size && power < 0x80000000) {
        power = power * 2;
    }
    return power;
}

wasm:func:entry(local0: i32) / fname == "malloc" || fname == "dlmalloc" / {
    sizes[rounded(local0 as u32)]++;
    bytes = bytes + (local0 as u32 as u64);
}
