// A nine-point average over a square in place, n times: each cell needs the one before it.
#include "kernel.h"

enum { SIDE = 250 };
static double a[SIDE][SIDE];

uint64_t kernel(int n) {
    for (int i = 0; i < SIDE; i++) {
        for (int j = 0; j < SIDE; j++) a[i][j] = (double)((i * j + i) % 64) / 64.0;
    }
    for (int step = 0; step < n; step++) {
        for (int i = 1; i < SIDE - 1; i++) {
            for (int j = 1; j < SIDE - 1; j++) {
                a[i][j] = (a[i - 1][j - 1] + a[i - 1][j] + a[i - 1][j + 1] + a[i][j - 1] + a[i][j] + a[i][j + 1] +
                           a[i + 1][j - 1] + a[i + 1][j] + a[i + 1][j + 1]) /
                          9.0;
            }
        }
    }
    uint64_t sum = 0;
    for (int i = 0; i < SIDE; i++) {
        for (int j = 0; j < SIDE; j++) sum = fold_double(sum, a[i][j]);
    }
    return sum;
}
