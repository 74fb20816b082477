// BLAKE2s (RFC 7693) of 16 kB, n times: a vector for each row of the state.
#include "kernel.h"
#include "vector.h"

enum { LENGTH = 16 * 1024 };
static uint8_t message[LENGTH];

static const uint32_t initial[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
static const uint8_t order[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
    {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
    {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
    {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
    {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
};

static inline u32x4 rotate16(u32x4 x) {
    u8x16 b = (u8x16)x;
    return (u32x4)__builtin_shufflevector(b, b, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
}
static inline u32x4 rotate8(u32x4 x) {
    u8x16 b = (u8x16)x;
    return (u32x4)__builtin_shufflevector(b, b, 1, 2, 3, 0, 5, 6, 7, 4, 9, 10, 11, 8, 13, 14, 15, 12);
}
#define ROTATE(x, by) ((x) >> (by) | (x) << (32 - (by)))

#define HALF(words, turn_d, by_b)      \
    a += b + (words), d = turn_d(d ^ a); \
    c += d, b ^= c, b = ROTATE(b, by_b)

static void compress(uint32_t hash[8], const uint8_t *block, uint32_t count, uint32_t last) {
    uint32_t m[16];
    memcpy(m, block, sizeof m);
    u32x4 a = (u32x4)load(hash), b = (u32x4)load(hash + 4);
    u32x4 c = (u32x4)load(initial), d = (u32x4)load(initial + 4) ^ (u32x4){count, 0, last, 0};
    for (int round = 0; round < 10; round++) {
        const uint8_t *s = order[round];
        HALF(((u32x4){m[s[0]], m[s[2]], m[s[4]], m[s[6]]}), rotate16, 12);
        HALF(((u32x4){m[s[1]], m[s[3]], m[s[5]], m[s[7]]}), rotate8, 7);
        b = __builtin_shufflevector(b, b, 1, 2, 3, 0);
        c = __builtin_shufflevector(c, c, 2, 3, 0, 1);
        d = __builtin_shufflevector(d, d, 3, 0, 1, 2);
        HALF(((u32x4){m[s[8]], m[s[10]], m[s[12]], m[s[14]]}), rotate16, 12);
        HALF(((u32x4){m[s[9]], m[s[11]], m[s[13]], m[s[15]]}), rotate8, 7);
        b = __builtin_shufflevector(b, b, 3, 0, 1, 2);
        c = __builtin_shufflevector(c, c, 2, 3, 0, 1);
        d = __builtin_shufflevector(d, d, 1, 2, 3, 0);
    }
    store(hash, (u32x4)load(hash) ^ a ^ c);
    store(hash + 4, (u32x4)load(hash + 4) ^ b ^ d);
}

uint64_t kernel(int n) {
    uint64_t random = 17, sum = 0;
    for (int i = 0; i < LENGTH; i++) message[i] = (uint8_t)next_random(&random);
    for (int turn = 0; turn < n; turn++) {
        uint32_t hash[8];
        memcpy(hash, initial, sizeof hash);
        hash[0] ^= 0x01010020;
        for (uint32_t at = 64; at < LENGTH; at += 64) compress(hash, message + at - 64, at, 0);
        compress(hash, message + LENGTH - 64, LENGTH, UINT32_MAX);
        for (int i = 0; i < 8; i++) sum = fold(sum, hash[i]);
        message[turn % LENGTH] = (uint8_t)sum;
    }
    return sum;
}
