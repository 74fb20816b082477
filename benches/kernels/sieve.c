// The sieve of Eratosthenes up to 200,000, n times: once with a byte and once with a bit for each
// odd number.
#include "kernel.h"

enum { END = 200000 };
static uint8_t is_composite[END / 2];
static uint32_t bits[END / 64 + 1];

static uint32_t by_bytes(void) {
    memset(is_composite, 0, sizeof is_composite);
    uint32_t count = 1;
    for (uint32_t number = 3; number < END; number += 2) {
        if (is_composite[number / 2]) continue;
        count++;
        for (uint32_t multiple = 3 * number; multiple < END; multiple += 2 * number) is_composite[multiple / 2] = 1;
    }
    return count;
}

static uint32_t by_bits(void) {
    memset(bits, 0, sizeof bits);
    uint32_t count = 1;
    for (uint32_t number = 3; number < END; number += 2) {
        if (bits[number / 64] >> number / 2 % 32 & 1) continue;
        count++;
        for (uint32_t multiple = 3 * number; multiple < END; multiple += 2 * number) {
            bits[multiple / 64] |= 1u << multiple / 2 % 32;
        }
    }
    return count;
}

uint64_t kernel(int n) {
    uint64_t sum = 0;
    for (int turn = 0; turn < n; turn++) sum = fold(fold(sum, by_bytes()), by_bits());
    return sum;
}
