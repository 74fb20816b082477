// Ackermann's function of 3 and 5 to 7, n times: recursion that is a thousand calls deep.
#include "kernel.h"

static __attribute__((noinline)) uint32_t ackermann(uint32_t m, uint32_t n) {
    if (m == 0) return n + 1;
    return ackermann(m - 1, n == 0 ? 1 : ackermann(m, n - 1));
}

uint64_t kernel(int n) {
    uint64_t sum = 0;
    for (int turn = 0; turn < n; turn++) sum = fold(sum, ackermann(3, 5 + (uint32_t)turn % 3));
    return sum;
}
