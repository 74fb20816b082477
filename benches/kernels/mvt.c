// Products of a matrix and of its transpose with vectors, n times in turn.
#include "kernel.h"

enum { SIZE = 300 };
static double a[SIZE][SIZE], x[SIZE], y[SIZE];

uint64_t kernel(int n) {
    uint64_t random = 7;
    for (int i = 0; i < SIZE; i++) {
        x[i] = next_uniform(&random);
        // Rows add up to about 1, so that the lengths of the vectors stay about the same.
        for (int j = 0; j < SIZE; j++) a[i][j] = next_uniform(&random) * 2.0 / SIZE;
    }
    for (int turn = 0; turn < n; turn++) {
        for (int i = 0; i < SIZE; i++) {
            double sum = 0;
            for (int j = 0; j < SIZE; j++) sum += a[i][j] * x[j];
            y[i] = sum;
        }
        for (int i = 0; i < SIZE; i++) {
            double sum = 0;
            for (int j = 0; j < SIZE; j++) sum += a[j][i] * y[j];
            x[i] = sum;
        }
    }
    uint64_t sum = 0;
    for (int i = 0; i < SIZE; i++) sum = fold_double(sum, x[i]);
    return sum;
}
