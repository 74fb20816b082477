// Heat diffusion in a cube, n steps from one grid to the other and n back.
#include "kernel.h"

enum { SIDE = 40 };
static double a[SIDE][SIDE][SIDE], b[SIDE][SIDE][SIDE];

static void spread(double from[SIDE][SIDE][SIDE], double to[SIDE][SIDE][SIDE]) {
    for (int i = 1; i < SIDE - 1; i++) {
        for (int j = 1; j < SIDE - 1; j++) {
            for (int k = 1; k < SIDE - 1; k++) {
                double here = from[i][j][k];
                to[i][j][k] = here + 0.125 * (from[i + 1][j][k] - 2.0 * here + from[i - 1][j][k]) +
                              0.125 * (from[i][j + 1][k] - 2.0 * here + from[i][j - 1][k]) +
                              0.125 * (from[i][j][k + 1] - 2.0 * here + from[i][j][k - 1]);
            }
        }
    }
}

uint64_t kernel(int n) {
    uint64_t random = 131;
    for (int i = 0; i < SIDE; i++) {
        for (int j = 0; j < SIDE; j++) {
            for (int k = 0; k < SIDE; k++) a[i][j][k] = b[i][j][k] = next_uniform(&random);
        }
    }
    for (int step = 0; step < n; step++) {
        spread(a, b);
        spread(b, a);
    }
    uint64_t sum = 0;
    for (int i = 0; i < SIDE; i++) {
        for (int j = 0; j < SIDE; j++) {
            for (int k = 0; k < SIDE; k++) sum = fold_double(sum, a[i][j][k]);
        }
    }
    return sum;
}
