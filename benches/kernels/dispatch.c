// Calls through a table of functions, in a data-dependent order; n thousand of them.
#include "kernel.h"

typedef uint32_t (*Operation)(uint32_t, uint32_t);

static uint32_t add(uint32_t a, uint32_t b) { return a + b; }
static uint32_t subtract(uint32_t a, uint32_t b) { return a - b; }
static uint32_t multiply(uint32_t a, uint32_t b) { return a * (b | 1); }
static uint32_t both(uint32_t a, uint32_t b) { return a & (b | 0xff00ff); }
static uint32_t differ(uint32_t a, uint32_t b) { return a ^ b; }
static uint32_t rotate(uint32_t a, uint32_t b) { return a << (b & 31) | a >> (-b & 31); }
static uint32_t average(uint32_t a, uint32_t b) { return (a & b) + ((a ^ b) >> 1); }
static uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

static const Operation operations[] = {add, subtract, multiply, both, differ, rotate, average, larger};

uint64_t kernel(int n) {
    enum { LENGTH = 1000 };
    uint8_t which[LENGTH];
    uint64_t random = 67;
    // Mostly runs, as in programs: the processor can predict most of them.
    for (int i = 0, operation = 0; i < LENGTH; i++) {
        if (next_random(&random) % 4 == 0) operation = (int)(next_random(&random) % 8);
        which[i] = (uint8_t)operation;
    }
    uint32_t value = 1;
    for (int turn = 0; turn < n; turn++) {
        for (int i = 0; i < LENGTH; i++) value = operations[which[i]](value, (uint32_t)(i + turn));
    }
    return fold(0, value);
}
