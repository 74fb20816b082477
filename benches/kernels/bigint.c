// Digits of e by long division of an array, and factorials in words of 32 bits with carries in 64;
// n digits.
#include "kernel.h"

enum { MAX_N = 5000 };
static uint32_t remainders[MAX_N + 16], words[MAX_N];

static uint64_t digits_of_e(int n) {
    // e - 2 in the base whose i-th place is 1 / i!: multiply by ten and carry; the final carry is a
    // digit.
    int places = n + 8;
    uint64_t sum = 0;
    for (int i = 2; i < places; i++) remainders[i] = 1;
    for (int digit = 0; digit < n; digit++) {
        uint32_t carry = 0;
        for (int i = places - 1; i >= 2; i--) {
            uint32_t value = remainders[i] * 10 + carry;
            remainders[i] = value % (uint32_t)i;
            carry = value / (uint32_t)i;
        }
        sum = fold(sum, carry);
    }
    return sum;
}

static uint64_t factorial(int n) {
    int length = 1;
    uint64_t sum = 0;
    words[0] = 1;
    for (int factor = 2; factor <= n; factor++) {
        uint64_t carry = 0;
        for (int i = 0; i < length; i++) {
            carry += (uint64_t)words[i] * (uint64_t)factor;
            words[i] = (uint32_t)carry;
            carry >>= 32;
        }
        if (carry) words[length++] = (uint32_t)carry;
    }
    for (int i = 0; i < length; i++) sum = fold(sum, words[i]);
    return sum;
}

uint64_t kernel(int n) {
    limit(n, MAX_N);
    return digits_of_e(n) ^ factorial(n);
}
