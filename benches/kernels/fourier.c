// A number-theoretic Fourier transform of 2^n points and its inverse: butterflies in integers.
#include "kernel.h"

enum { MAX_N = 20 };
static const uint64_t PRIME = 998244353, ROOT = 3;
static uint32_t points[1 << MAX_N];

static uint64_t power(uint64_t base, uint64_t exponent) {
    uint64_t result = 1;
    for (; exponent; exponent >>= 1) {
        if (exponent & 1) result = result * base % PRIME;
        base = base * base % PRIME;
    }
    return result;
}

static void transform(int length, uint64_t root) {
    for (int i = 1, j = 0; i < length; i++) {
        int bit = length >> 1;
        for (; j & bit; bit >>= 1) j ^= bit;
        j ^= bit;
        if (i < j) {
            uint32_t kept = points[i];
            points[i] = points[j];
            points[j] = kept;
        }
    }
    for (int half = 1; half < length; half *= 2) {
        uint64_t step = power(root, (PRIME - 1) / (2 * (uint64_t)half));
        for (int from = 0; from < length; from += 2 * half) {
            uint64_t turned = 1;
            for (int i = from; i < from + half; i++) {
                uint32_t even = points[i], odd = (uint32_t)(points[i + half] * turned % PRIME);
                uint32_t sum = even + odd;
                points[i] = sum < PRIME ? sum : sum - (uint32_t)PRIME;
                points[i + half] = even >= odd ? even - odd : even + (uint32_t)PRIME - odd;
                turned = turned * step % PRIME;
            }
        }
    }
}

uint64_t kernel(int n) {
    limit(n, MAX_N);
    int length = 1 << n;
    uint64_t random = 109, sum = 0;
    for (int i = 0; i < length; i++) points[i] = next_random(&random) % (uint32_t)PRIME;
    transform(length, ROOT);
    for (int i = 0; i < length; i++) sum = fold(sum, points[i]);
    transform(length, power(ROOT, PRIME - 2));
    for (int i = 0; i < length; i++) sum = fold(sum, points[i]);
    return sum;
}
