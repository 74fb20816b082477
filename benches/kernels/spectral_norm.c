// Spectral norm of the matrix 1 / ((i + j) (i + j + 1) / 2 + i + 1) by power iteration: integer to
// float conversions.
#include "kernel.h"

enum { MAX_N = 1500 };
static double u[MAX_N], v[MAX_N], w[MAX_N];

static double element(int i, int j) {
    return 1.0 / (double)((i + j) * (i + j + 1) / 2 + i + 1);
}

static void multiply(int n, const double *from, double *to) {
    for (int i = 0; i < n; i++) {
        to[i] = 0;
        for (int j = 0; j < n; j++) to[i] += element(i, j) * from[j];
    }
}

static void multiply_transposed(int n, const double *from, double *to) {
    for (int i = 0; i < n; i++) {
        to[i] = 0;
        for (int j = 0; j < n; j++) to[i] += element(j, i) * from[j];
    }
}

uint64_t kernel(int n) {
    limit(n, MAX_N);
    for (int i = 0; i < n; i++) u[i] = 1.0;
    for (int turn = 0; turn < 10; turn++) {
        multiply(n, u, w);
        multiply_transposed(n, w, v);
        multiply(n, v, w);
        multiply_transposed(n, w, u);
    }
    double uv = 0, vv = 0;
    for (int i = 0; i < n; i++) {
        uv += u[i] * v[i];
        vv += v[i] * v[i];
    }
    return fold_double(0, __builtin_sqrt(uv / vv));
}
