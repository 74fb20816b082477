// Powers modulo numbers of 32 bits, and n Miller-Rabin tests by them: division of 64 bits.
#include "kernel.h"

static uint64_t power(uint64_t base, uint64_t exponent, uint64_t modulus) {
    uint64_t result = 1;
    for (base %= modulus; exponent; exponent >>= 1) {
        if (exponent & 1) result = result * base % modulus;
        base = base * base % modulus;
    }
    return result;
}

static int is_prime(uint64_t number) {
    if (number % 2 == 0) return number == 2;
    uint64_t odd = number - 1;
    int twos = 0;
    for (; odd % 2 == 0; odd /= 2) twos++;
    // These three are enough below 4,759,123,141.
    static const uint64_t witnesses[] = {2, 7, 61};
    for (int i = 0; i < 3; i++) {
        if (witnesses[i] % number == 0) continue;
        uint64_t x = power(witnesses[i], odd, number);
        if (x == 1 || x == number - 1) continue;
        int left = twos - 1;
        while (left > 0 && x != number - 1) x = x * x % number, left--;
        if (x != number - 1) return 0;
    }
    return 1;
}

uint64_t kernel(int n) {
    uint64_t random = 103, sum = 0;
    for (int i = 0; i < n; i++) {
        uint64_t number = next_random(&random) | 1;
        if (number > 1 && is_prime(number)) sum = fold(sum, number);
    }
    return sum;
}
