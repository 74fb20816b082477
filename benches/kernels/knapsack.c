// The knapsack problem: the best value of n items for every capacity; 64-bit values.
#include "kernel.h"

enum { CAPACITY = 20000 };
static uint64_t best[CAPACITY + 1];

uint64_t kernel(int n) {
    uint64_t random = 23;
    memset(best, 0, sizeof best);
    for (int thing = 0; thing < n; thing++) {
        int weight = 1 + (int)(next_random(&random) % 500);
        uint64_t value = next_random(&random) % 1000;
        for (int room = CAPACITY; room >= weight; room--) {
            uint64_t with = best[room - weight] + value;
            if (with > best[room]) best[room] = with;
        }
    }
    uint64_t sum = 0;
    for (int room = 0; room <= CAPACITY; room++) sum = fold(sum, best[room]);
    return sum;
}
