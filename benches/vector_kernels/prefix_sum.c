// The prefix sums of 8,192 integers, n times, in two steps for four of them.
#include "kernel.h"
#include "vector.h"

enum { LENGTH = 8192 };
static uint32_t numbers[LENGTH];

static void prefix_sums(void) {
    const u32x4 zero = {0};
    u32x4 before = zero;
    for (int i = 0; i < LENGTH; i += 4) {
        u32x4 x = (u32x4)load(numbers + i);
        x += __builtin_shufflevector(zero, x, 0, 4, 5, 6);
        x += __builtin_shufflevector(zero, x, 0, 1, 4, 5);
        x += before;
        before = __builtin_shufflevector(x, x, 3, 3, 3, 3);
        store(numbers + i, x);
    }
}

uint64_t kernel(int n) {
    uint64_t random = 61, sum = 0;
    for (int i = 0; i < LENGTH; i++) numbers[i] = next_random(&random);
    for (int turn = 0; turn < n; turn++) {
        prefix_sums();
        numbers[turn % LENGTH] ^= numbers[LENGTH - 1];
    }
    for (int i = 0; i < LENGTH; i++) sum = fold(sum, numbers[i]);
    return sum;
}
