// Takeuchi's function: calls with three arguments, three of whose results are arguments again.
#include "kernel.h"

static __attribute__((noinline)) int tak(int x, int y, int z) {
    return y < x ? tak(tak(x - 1, y, z), tak(y - 1, z, x), tak(z - 1, x, y)) : z;
}

uint64_t kernel(int n) { return (uint64_t)tak(n, n * 2 / 3, n / 3); }
