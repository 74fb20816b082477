// Most base pairs of an RNA strand of length n that can be folded: a triangle of sub-strands.
#include "kernel.h"

enum { MAX_N = 1000 };
static uint8_t base[MAX_N];
static int table[MAX_N][MAX_N];

static int greatest(int x, int y) { return x > y ? x : y; }

uint64_t kernel(int n) {
    limit(n, MAX_N);
    uint64_t random = 29;
    for (int i = 0; i < n; i++) base[i] = (uint8_t)(next_random(&random) % 4);
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) table[i][j] = 0;
    }
    for (int i = n - 1; i >= 0; i--) {
        for (int j = i + 1; j < n; j++) {
            int pairs = greatest(table[i][j - 1], table[i + 1][j]);
            int inside = i < j - 1 ? table[i + 1][j - 1] + (base[i] + base[j] == 3) : 0;
            pairs = greatest(pairs, inside);
            for (int k = i + 1; k < j; k++) pairs = greatest(pairs, table[i][k] + table[k + 1][j]);
            table[i][j] = pairs;
        }
    }
    uint64_t sum = 0;
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) sum = fold(sum, (uint64_t)table[i][j]);
    }
    return sum;
}
