// The Hamming distances of one string of 1,024 bytes from each of 32, n times.
#include "kernel.h"
#include "vector.h"

enum { STRINGS = 32, LENGTH = 1024 };
static uint8_t strings[STRINGS][LENGTH], wanted[LENGTH];

static uint32_t distance(const uint8_t *a, const uint8_t *b) {
    u16x8 sums = {0};
    for (int i = 0; i < LENGTH; i += 32) {
        u8x16 first = u8_popcnt((u8x16)load(a + i) ^ (u8x16)load(b + i));
        u8x16 second = u8_popcnt((u8x16)load(a + i + 16) ^ (u8x16)load(b + i + 16));
        sums += u16_pairs(first + second);
    }
    u32x4 wide = u32_low(sums) + u32_high(sums);
    return wide[0] + wide[1] + wide[2] + wide[3];
}

uint64_t kernel(int n) {
    uint64_t random = 53, sum = 0;
    memset(wanted, 0, sizeof wanted);
    for (int s = 0; s < STRINGS; s++) {
        for (int i = 0; i < LENGTH; i++) strings[s][i] = (uint8_t)next_random(&random);
    }
    for (int turn = 0; turn < n; turn++) {
        wanted[turn % LENGTH] = (uint8_t)next_random(&random);
        for (int s = 0; s < STRINGS; s++) sum = fold(sum, distance(wanted, strings[s]));
    }
    return sum;
}
