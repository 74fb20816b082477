// A hash of 16 kB in eight sums of 64 bits, n times, in the manner of XXH3: products of the halves
// of the data, which was combined with a key.
#include "kernel.h"
#include "vector.h"

enum { LENGTH = 16 * 1024, STRIPE = 64, KEYS = 1024 };
static uint8_t data[LENGTH], key[KEYS + STRIPE];

// The product of the halves of each lane.
static inline u64x2 fold_halves(u64x2 x) {
    u32x4 halves = (u32x4)x;
    return u64_extmul_low(__builtin_shufflevector(halves, halves, 0, 2, 0, 2),
                          __builtin_shufflevector(halves, halves, 1, 3, 1, 3));
}

static inline u64x2 swapped(u64x2 x) {
    return __builtin_shufflevector(x, x, 1, 0);
}

static inline u64x2 add(u64x2 sum, const uint8_t *of, const uint8_t *by) {
    u64x2 bytes = (u64x2)load(of);
    return sum + swapped(bytes) + fold_halves(bytes ^ (u64x2)load(by));
}

static inline u64x2 scramble(u64x2 sum, const uint8_t *by) {
    sum ^= sum >> 47;
    sum ^= (u64x2)load(by);
    u64x2 prime = {0x9e3779b1, 0x9e3779b1};
    return sum * prime;
}

static uint64_t hash(void) {
    u64x2 a = {1, 2}, b = {3, 4}, c = {5, 6}, d = {7, 8};
    for (int block = 0; block < LENGTH; block += KEYS * STRIPE / 8) {
        for (int i = 0; i < KEYS / 8; i++) {
            const uint8_t *of = data + (block + i * STRIPE) % LENGTH, *by = key + 8 * i;
            a = add(a, of, by);
            b = add(b, of + 16, by + 16);
            c = add(c, of + 32, by + 32);
            d = add(d, of + 48, by + 48);
        }
        a = scramble(a, key + KEYS);
        b = scramble(b, key + KEYS + 16);
        c = scramble(c, key + KEYS + 32);
        d = scramble(d, key + KEYS + 48);
    }
    u64x2 sum = (a ^ b) + (c ^ d);
    return sum[0] * 31 + sum[1];
}

uint64_t kernel(int n) {
    uint64_t random = 19, sum = 0;
    for (int i = 0; i < LENGTH; i++) data[i] = (uint8_t)next_random(&random);
    for (int i = 0; i < KEYS + STRIPE; i++) key[i] = (uint8_t)next_random(&random);
    for (int turn = 0; turn < n; turn++) {
        sum = fold(sum, hash());
        data[turn % LENGTH] = (uint8_t)sum;
    }
    return sum;
}
