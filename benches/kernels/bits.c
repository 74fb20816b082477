// Counting, scanning and reversing bits of n thousand words; Gray codes and interleaving.
#include "kernel.h"

static uint64_t reversed(uint64_t x) {
    x = (x >> 1 & 0x5555555555555555u) | (x & 0x5555555555555555u) << 1;
    x = (x >> 2 & 0x3333333333333333u) | (x & 0x3333333333333333u) << 2;
    x = (x >> 4 & 0x0f0f0f0f0f0f0f0fu) | (x & 0x0f0f0f0f0f0f0f0fu) << 4;
    return __builtin_bswap64(x);
}

static uint64_t spread(uint32_t x) {
    uint64_t wide = x;
    wide = (wide | wide << 16) & 0x0000ffff0000ffffu;
    wide = (wide | wide << 8) & 0x00ff00ff00ff00ffu;
    wide = (wide | wide << 4) & 0x0f0f0f0f0f0f0f0fu;
    wide = (wide | wide << 2) & 0x3333333333333333u;
    return (wide | wide << 1) & 0x5555555555555555u;
}

uint64_t kernel(int n) {
    uint64_t x = 0x0123456789abcdefu, sum = 0;
    for (int i = 0; i < n * 1000; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        uint32_t low = (uint32_t)x, high = (uint32_t)(x >> 32);
        sum += (uint64_t)__builtin_clzll(x | 1) + (uint64_t)__builtin_ctz(low | 1u << 31) * 3;
        sum += (uint64_t)__builtin_clz(high | 1) << 8;
        sum ^= reversed(x ^ x >> 1);
        sum += spread(low) | spread(high) << 1;
        // Kernighan's count of the set bits of a byte.
        for (uint32_t left = low & 0xff; left; left &= left - 1) sum++;
    }
    return sum;
}
