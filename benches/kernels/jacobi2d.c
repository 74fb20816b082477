// A five-point average over a square, n times, from one grid to another and back.
#include "kernel.h"

enum { SIDE = 250 };
static double a[SIDE][SIDE], b[SIDE][SIDE];

static void average(double from[SIDE][SIDE], double to[SIDE][SIDE]) {
    for (int i = 1; i < SIDE - 1; i++) {
        for (int j = 1; j < SIDE - 1; j++) {
            to[i][j] = 0.2 * (from[i][j] + from[i][j - 1] + from[i][j + 1] + from[i + 1][j] + from[i - 1][j]);
        }
    }
}

uint64_t kernel(int n) {
    for (int i = 0; i < SIDE; i++) {
        for (int j = 0; j < SIDE; j++) a[i][j] = b[i][j] = (double)(i * (j + 2) % 100) / 100.0;
    }
    for (int step = 0; step < n; step++) {
        average(a, b);
        average(b, a);
    }
    uint64_t sum = 0;
    for (int i = 0; i < SIDE; i++) {
        for (int j = 0; j < SIDE; j++) sum = fold_double(sum, a[i][j]);
    }
    return sum;
}
