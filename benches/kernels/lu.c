// LU decomposition without pivots, then forward and back substitution.
#include "kernel.h"

enum { MAX_N = 800 };
static double a[MAX_N][MAX_N], x[MAX_N], y[MAX_N];

uint64_t kernel(int n) {
    limit(n, MAX_N);
    uint64_t random = 3;
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) a[i][j] = next_uniform(&random);
        a[i][i] += (double)n;
    }
    for (int k = 0; k < n; k++) {
        for (int i = k + 1; i < n; i++) {
            double factor = a[i][k] /= a[k][k];
            for (int j = k + 1; j < n; j++) a[i][j] -= factor * a[k][j];
        }
    }
    for (int i = 0; i < n; i++) {
        y[i] = (double)(i % 9) - 4.0;
        for (int j = 0; j < i; j++) y[i] -= a[i][j] * y[j];
    }
    for (int i = n - 1; i >= 0; i--) {
        x[i] = y[i];
        for (int j = i + 1; j < n; j++) x[i] -= a[i][j] * x[j];
        x[i] /= a[i][i];
    }
    uint64_t sum = 0;
    for (int i = 0; i < n; i++) sum = fold_double(sum, x[i]);
    return sum;
}
