// 16 kB encrypted by ChaCha20 (RFC 8439), n times: four blocks at a time, a vector for each word.
#include "kernel.h"
#include "vector.h"

enum { LENGTH = 16 * 1024 };
static uint8_t data[LENGTH];

static inline u32x4 rotate16(u32x4 x) {
    u8x16 b = (u8x16)x;
    return (u32x4)__builtin_shufflevector(b, b, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
}
static inline u32x4 rotate8(u32x4 x) {
    u8x16 b = (u8x16)x;
    return (u32x4)__builtin_shufflevector(b, b, 3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10, 15, 12, 13, 14);
}
#define ROTATE(x, by) ((x) << (by) | (x) >> (32 - (by)))

#define QUARTER(a, b, c, d)              \
    a += b, d = rotate16(d ^ a);         \
    c += d, b ^= c, b = ROTATE(b, 12);   \
    a += b, d = rotate8(d ^ a);          \
    c += d, b ^= c, b = ROTATE(b, 7)

static void encrypt(const uint32_t state[16], uint32_t counter, uint8_t *to) {
    u32x4 v[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) v[i] = u32_all(state[i]);
    v[12] = u32_all(counter) + (u32x4){0, 1, 2, 3};
    const u32x4 counters = v[12];
    for (int i = 0; i < 10; i++) {
        QUARTER(v[0], v[4], v[8], v[12]);
        QUARTER(v[1], v[5], v[9], v[13]);
        QUARTER(v[2], v[6], v[10], v[14]);
        QUARTER(v[3], v[7], v[11], v[15]);
        QUARTER(v[0], v[5], v[10], v[15]);
        QUARTER(v[1], v[6], v[11], v[12]);
        QUARTER(v[2], v[7], v[8], v[13]);
        QUARTER(v[3], v[4], v[9], v[14]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) v[i] += i == 12 ? counters : u32_all(state[i]);
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        transpose(v + i);
#pragma GCC unroll 4
        for (int block = 0; block < 4; block++) {
            uint8_t *at = to + 64 * block + 4 * i;
            store(at, (u32x4)load(at) ^ v[i + block]);
        }
    }
}

uint64_t kernel(int n) {
    uint64_t random = 13, sum = 0;
    uint32_t state[16] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574};
    for (int i = 4; i < 16; i++) state[i] = next_random(&random);
    memset(data, 0, LENGTH);
    for (int turn = 0; turn < n; turn++) {
        for (int at = 0; at < LENGTH; at += 256) encrypt(state, (uint32_t)(at / 64 + turn), data + at);
        state[4] += data[turn % LENGTH];
    }
    for (int i = 0; i < LENGTH; i++) sum = fold(sum, data[i]);
    return sum;
}
