// SipHash-2-4 of short keys, n thousand of them: four words that add, rotate and exclusive-or.
#include "kernel.h"

enum { KEYS = 1000, MAX_N = 40 };
static uint8_t keys[KEYS][MAX_N];

static uint64_t rotated(uint64_t x, int by) { return x << by | x >> (64 - by); }

typedef struct {
    uint64_t a, b, c, d;
} State;

static State mixed(State v, int rounds) {
    for (int i = 0; i < rounds; i++) {
        v.a += v.b, v.b = rotated(v.b, 13) ^ v.a, v.a = rotated(v.a, 32);
        v.c += v.d, v.d = rotated(v.d, 16) ^ v.c;
        v.a += v.d, v.d = rotated(v.d, 21) ^ v.a;
        v.c += v.b, v.b = rotated(v.b, 17) ^ v.c, v.c = rotated(v.c, 32);
    }
    return v;
}

static uint64_t siphash(const uint8_t *key, int length, uint64_t k0, uint64_t k1) {
    State v = {k0 ^ 0x736f6d6570736575u, k1 ^ 0x646f72616e646f6du, k0 ^ 0x6c7967656e657261u, k1 ^ 0x7465646279746573u};
    int i = 0;
    for (; i + 8 <= length; i += 8) {
        uint64_t word;
        memcpy(&word, key + i, sizeof word);
        v.d ^= word;
        v = mixed(v, 2);
        v.a ^= word;
    }
    uint64_t last = (uint64_t)length << 56;
    for (int shift = 0; i < length; i++, shift += 8) last |= (uint64_t)key[i] << shift;
    v.d ^= last;
    v = mixed(v, 2);
    v.a ^= last;
    v.c ^= 0xff;
    v = mixed(v, 4);
    return v.a ^ v.b ^ v.c ^ v.d;
}

uint64_t kernel(int n) {
    uint64_t random = 41;
    for (int i = 0; i < KEYS; i++) {
        for (int j = 0; j < MAX_N; j++) keys[i][j] = (uint8_t)next_random(&random);
    }
    uint64_t sum = 0;
    for (int turn = 0; turn < n; turn++) {
        for (int i = 0; i < KEYS; i++) sum += siphash(keys[i], 8 + i % 32, sum, (uint64_t)turn);
    }
    return sum;
}
