// Shortest paths between all pairs of n nodes.
#include "kernel.h"

enum { MAX_N = 500 };
static int distance[MAX_N][MAX_N];

uint64_t kernel(int n) {
    limit(n, MAX_N);
    uint64_t random = 19;
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) {
            uint32_t edge = next_random(&random);
            distance[i][j] = i == j ? 0 : edge % 8 == 0 ? 1 + (int)(edge / 8 % 100) : 1000000;
        }
    }
    for (int k = 0; k < n; k++) {
        for (int i = 0; i < n; i++) {
            for (int j = 0; j < n; j++) {
                int through = distance[i][k] + distance[k][j];
                if (through < distance[i][j]) distance[i][j] = through;
            }
        }
    }
    uint64_t sum = 0;
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) sum = fold(sum, (uint64_t)distance[i][j]);
    }
    return sum;
}
