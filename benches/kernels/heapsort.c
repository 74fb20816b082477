// Heapsort of n random numbers of 64 bits.
#include "kernel.h"

enum { MAX_N = 600000 };
static uint64_t heap[MAX_N];

static void sink(int from, int length) {
    uint64_t number = heap[from];
    for (;;) {
        int child = 2 * from + 1;
        if (child >= length) break;
        if (child + 1 < length && heap[child + 1] > heap[child]) child++;
        if (heap[child] <= number) break;
        heap[from] = heap[child];
        from = child;
    }
    heap[from] = number;
}

uint64_t kernel(int n) {
    limit(n, MAX_N);
    uint64_t random = 53;
    for (int i = 0; i < n; i++) heap[i] = (uint64_t)next_random(&random) << 20 ^ next_random(&random);
    for (int i = n / 2; i-- > 0;) sink(i, n);
    for (int length = n; length-- > 1;) {
        uint64_t greatest = heap[0];
        heap[0] = heap[length];
        sink(0, length);
        heap[length] = greatest;
    }
    uint64_t sum = 0;
    for (int i = 0; i < n; i++) {
        if (i > 0 && heap[i - 1] > heap[i]) __builtin_trap();
        sum = fold(sum, heap[i]);
    }
    return sum;
}
