// Shared by the kernels: their entry point, random numbers, and checksums.
#ifndef KERNEL_H
#define KERNEL_H

#include <stdint.h>
#include <string.h>

// Does work of size n, from the same initial state each time, and returns a checksum of its result.
uint64_t kernel(int n);

// Ends the program if the kernel has no room for n.
static inline void limit(int n, int most) {
    if (n < 1 || n > most) __builtin_trap();
}

// A linear congruential generator; its upper 31 bits.
static inline uint32_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

// At least 0 and less than 1.
static inline double next_uniform(uint64_t *state) {
    return (double)next_random(state) / 2147483648.0;
}

static inline uint64_t fold(uint64_t sum, uint64_t value) {
    sum = (sum ^ value) * 0x9e3779b97f4a7c15u;
    return sum ^ (sum >> 29);
}

// Every bit of the number counts: floating-point results are the same everywhere unless operations
// are contracted or reassociated.
static inline uint64_t fold_double(uint64_t sum, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return fold(sum, bits);
}

#endif
