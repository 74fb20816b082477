// Validation of 32 kB of UTF-8, n times, by the method of Keiser and Lemire ("Validating UTF-8 In
// Less Than One Instruction Per Byte", Software: Practice and Experience 51(5), 2021): the errors
// that two neighbouring bytes can show are looked up by the upper and the lower half of the first
// one and the upper half of the second one. What all three tables allow is an error.
#include "kernel.h"
#include "vector.h"

enum { LENGTH = 32 * 1024, LEFT = 64 };
static uint8_t text[LENGTH];

// Pairs of bytes that are an error, one kind in each bit, as sets of half bytes. The last one is
// no error where a third or a fourth byte of a character is due.
static const struct {
    uint16_t first_upper, first_lower, second_upper;
} errors[8] = {
    {0xf000, 0xffff, 0xf0ff},  // a character ends too early
    {0x00ff, 0xffff, 0x0f00},  // ASCII is continued
    {0x1000, 0x0003, 0x0f00},  // two bytes for ASCII
    {0x4000, 0x0001, 0x0300},  // three bytes for what fits into two
    {0x4000, 0x2000, 0x0c00},  // a surrogate
    {0x8000, 0xfff0, 0x0e00},  // above U+10FFFF
    {0x8000, 0xffe1, 0x0100},  // far above, or four bytes for what fits into three
    {0x0f00, 0xffff, 0x0f00},  // two bytes that continue
};
static uint8_t first_upper[16], first_lower[16], second_upper[16];

static void make_tables(void) {
    for (int half = 0; half < 16; half++) {
        uint8_t a = 0, b = 0, c = 0;
        for (int kind = 0; kind < 8; kind++) {
            a |= (uint8_t)((errors[kind].first_upper >> half & 1) << kind);
            b |= (uint8_t)((errors[kind].first_lower >> half & 1) << kind);
            c |= (uint8_t)((errors[kind].second_upper >> half & 1) << kind);
        }
        first_upper[half] = a, first_lower[half] = b, second_upper[half] = c;
    }
}

// The bytes that are `by` before those of `now`.
#define BEFORE1(last, now) \
    __builtin_shufflevector(last, now, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30)
#define BEFORE2(last, now) \
    __builtin_shufflevector(last, now, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29)
#define BEFORE3(last, now) \
    __builtin_shufflevector(last, now, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28)

static inline u8x16 errors_of(u8x16 last, u8x16 now) {
    u8x16 first = BEFORE1(last, now), half = u8_all(15);
    u8x16 pairs = swizzle((u8x16)load(first_upper), first >> 4) &
                  swizzle((u8x16)load(first_lower), first & half) &
                  swizzle((u8x16)load(second_upper), now >> 4);
    u8x16 third = u8_sub_sat(BEFORE2(last, now), u8_all(0xe0 - 0x80));
    u8x16 fourth = u8_sub_sat(BEFORE3(last, now), u8_all(0xf0 - 0x80));
    return ((third | fourth) & u8_all(0x80)) ^ pairs;
}

static int is_valid(void) {
    const u8x16 most = {255, 255, 255, 255, 255, 255, 255, 255,
                        255, 255, 255, 255, 255, 0xf0 - 1, 0xe0 - 1, 0xc0 - 1};
    u8x16 last = {0}, found = {0};
    for (int i = 0; i < LENGTH; i += 64) {
        u8x16 a = (u8x16)load(text + i), b = (u8x16)load(text + i + 16);
        u8x16 c = (u8x16)load(text + i + 32), d = (u8x16)load(text + i + 48);
        if (bitmask8(a | b | c | d)) {
            found |= errors_of(last, a) | errors_of(a, b) | errors_of(b, c) | errors_of(c, d);
        } else {
            found |= u8_sub_sat(last, most);
        }
        last = d;
    }
    return !any_true(found | u8_sub_sat(last, most));
}

// One character, mostly ASCII in some regions and seldom in others. Returns its length.
static int put(uint8_t *to, uint64_t *random, int ascii) {
    uint32_t code = next_random(random);
    int length = (int)(next_random(random) % 16) < ascii ? 1 : 2 + (int)(code >> 28 & 3) % 3;
    if (length == 1) {
        to[0] = (uint8_t)(code % 128);
    } else if (length == 2) {
        code = 0x80 + code % 0x780;
        to[0] = (uint8_t)(0xc0 | code >> 6);
    } else if (length == 3) {
        code = 0x800 + code % 0xd000;
        to[0] = (uint8_t)(0xe0 | code >> 12);
    } else {
        code = 0x10000 + code % 0x100000;
        to[0] = (uint8_t)(0xf0 | code >> 18);
    }
    for (int i = 1; i < length; i++) to[i] = (uint8_t)(0x80 | (code >> (6 * (length - 1 - i)) & 0x3f));
    return length;
}

uint64_t kernel(int n) {
    uint64_t random = 7, sum = 0;
    make_tables();
    memset(text, ' ', LENGTH);
    for (int at = 0; at < LENGTH - LEFT;) at += put(text + at, &random, at % 4096 < 1024 ? 16 : 9);
    for (int turn = 0; turn < n; turn++) {
        int valid = is_valid();
        // Now and then, one byte is changed for a turn.
        uint8_t *byte = text + next_random(&random) % LENGTH, kept = *byte;
        if (turn % 4 == 0) *byte = (uint8_t)next_random(&random);
        sum = fold(sum, (uint64_t)(2 * valid + is_valid()));
        *byte = kept;
    }
    return sum;
}
