// 24 kB to base64 and back, n times: 12 bytes become 16 digits.
#include "kernel.h"
#include "vector.h"

enum { LENGTH = 24 * 1024, DIGITS = LENGTH / 3 * 4 };
static uint8_t bytes[LENGTH + 4], back[LENGTH + 4], digits[DIGITS];

static inline u8x16 is(u8x16 a, uint8_t b) { return (u8x16)(a == u8_all(b)); }
static inline u8x16 above(u8x16 a, uint8_t b) { return (u8x16)(a > u8_all(b)); }

// The digits' values are 6 bits; those of lower-case letters, digits and the last two characters
// are at other distances from their characters than those of capital letters.
static inline u8x16 to_digits(u8x16 values) {
    return values + u8_all('A') + (above(values, 25) & u8_all(6)) - (above(values, 51) & u8_all(75)) -
           (is(values, 62) & u8_all(15)) - (is(values, 63) & u8_all(12));
}

static void encode(void) {
    const u8x16 spread = {2, 1, 0, 128, 5, 4, 3, 128, 8, 7, 6, 128, 11, 10, 9, 128};
    for (int from = 0, to = 0; from < LENGTH; from += 12, to += 16) {
        u32x4 three = (u32x4)swizzle((u8x16)load(bytes + from), spread);
        u32x4 values = (three >> 18 & u32_all(0x3f)) | (three >> 4 & u32_all(0x3f00)) |
                       (three << 10 & u32_all(0x3f0000)) | (three << 24 & u32_all(0x3f000000));
        store(digits + to, to_digits((u8x16)values));
    }
}

// Whether a character is one of `count` from this one on.
static inline u8x16 among(u8x16 characters, uint8_t first, uint8_t count) {
    return (u8x16)(characters - u8_all(first) < u8_all(count));
}

static int decode(void) {
    const u8x16 gather = {2, 1, 0, 6, 5, 4, 10, 9, 8, 14, 13, 12, 128, 128, 128, 128};
    u8x16 all = u8_all(255);
    for (int from = 0, to = 0; from < DIGITS; from += 16, to += 12) {
        u8x16 c = (u8x16)load(digits + from);
        u8x16 upper = among(c, 'A', 26), lower = among(c, 'a', 26), digit = among(c, '0', 10);
        u8x16 plus = is(c, '+'), slash = is(c, '/');
        all &= upper | lower | digit | plus | slash;
        u8x16 values = c - (upper & u8_all('A')) - (lower & u8_all(71)) + (digit & u8_all(4)) +
                       (plus & u8_all(19)) + (slash & u8_all(16));
        u32x4 v = (u32x4)values;
        u32x4 three = (v & u32_all(0x3f)) << 18 | (v & u32_all(0x3f00)) << 4 |
                      (v >> 10 & u32_all(0xfc0)) | v >> 24;
        store(back + to, swizzle((u8x16)three, gather));
    }
    return !any_true(~all);
}

uint64_t kernel(int n) {
    uint64_t random = 41, sum = 0;
    for (int i = 0; i < LENGTH; i++) bytes[i] = (uint8_t)next_random(&random);
    for (int turn = 0; turn < n; turn++) {
        encode();
        if (!decode()) __builtin_trap();
        // The next round depends on all of the result.
        for (int i = 0; i < LENGTH; i += 16) store(bytes + i, (u8x16)load(back + i) + u8_all(1));
        sum = fold(sum, digits[next_random(&random) % DIGITS]);
    }
    for (int i = 0; i < LENGTH; i++) sum = fold(sum, bytes[i]);
    return sum;
}
