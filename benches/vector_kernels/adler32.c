// Adler-32 (RFC 1950) of 32 kB, n times: the second sum by products with the distances from the end
// of 16 bytes.
#include "kernel.h"
#include "vector.h"

enum { LENGTH = 32 * 1024, UNTIL_MODULO = 4096, PRIME = 65521 };
static uint8_t data[LENGTH];

static uint32_t total(i32x4 sums) {
    return (uint32_t)sums[0] + (uint32_t)sums[1] + (uint32_t)sums[2] + (uint32_t)sums[3];
}

static uint32_t adler32(void) {
    const i16x8 early = {16, 15, 14, 13, 12, 11, 10, 9}, late = {8, 7, 6, 5, 4, 3, 2, 1};
    uint32_t first = 1, second = 0;
    for (int from = 0; from < LENGTH; from += UNTIL_MODULO) {
        i32x4 sums = {0}, before = {0}, weighted = {0};
        for (int i = from; i < from + UNTIL_MODULO; i += 16) {
            u8x16 bytes = (u8x16)load(data + i);
            before += sums;
            sums += i16_dot((i16x8)u16_pairs(bytes), i16_all(1));
            weighted += i16_dot((i16x8)u16_low(bytes), early) + i16_dot((i16x8)u16_high(bytes), late);
        }
        second = (second + UNTIL_MODULO * first + 16 * total(before) + total(weighted)) % PRIME;
        first = (first + total(sums)) % PRIME;
    }
    return second << 16 | first;
}

uint64_t kernel(int n) {
    uint64_t random = 23, sum = 0;
    for (int i = 0; i < LENGTH; i++) data[i] = (uint8_t)next_random(&random);
    for (int turn = 0; turn < n; turn++) {
        sum = fold(sum, adler32());
        data[turn % LENGTH] = (uint8_t)sum;
    }
    return sum;
}
