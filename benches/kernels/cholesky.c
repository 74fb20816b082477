// Cholesky decomposition A = L L^T of a positive definite matrix, in place.
#include "kernel.h"

enum { MAX_N = 1000 };
static double a[MAX_N][MAX_N];

uint64_t kernel(int n) {
    limit(n, MAX_N);
    // Symmetric and diagonally dominant.
    for (int i = 0; i < n; i++) {
        for (int j = 0; j <= i; j++) a[i][j] = a[j][i] = (double)((i * 7 + j * 13) % 11) / 11.0;
        a[i][i] = (double)n + 1.0;
    }
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < i; j++) {
            for (int k = 0; k < j; k++) a[i][j] -= a[i][k] * a[j][k];
            a[i][j] /= a[j][j];
        }
        for (int k = 0; k < i; k++) a[i][i] -= a[i][k] * a[i][k];
        a[i][i] = __builtin_sqrt(a[i][i]);
    }
    uint64_t sum = 0;
    for (int i = 0; i < n; i++) {
        for (int j = 0; j <= i; j++) sum = fold_double(sum, a[i][j]);
    }
    return sum;
}
