// Ways to place n queens, by backtracking over sets of bits.
#include "kernel.h"

static uint64_t place(uint32_t all, uint32_t columns, uint32_t left, uint32_t right) {
    if (columns == all) return 1;
    uint64_t ways = 0;
    for (uint32_t free = all & ~(columns | left | right); free; free &= free - 1) {
        uint32_t here = free & -free;
        ways += place(all, columns | here, (left | here) << 1, (right | here) >> 1);
    }
    return ways;
}

uint64_t kernel(int n) {
    limit(n, 16);
    return place((1u << n) - 1, 0, 0, 0);
}
