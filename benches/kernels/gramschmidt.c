// Orthogonalization of the columns of a matrix (modified Gram-Schmidt): A = Q R.
#include "kernel.h"

enum { MAX_N = 500 };
static double a[MAX_N][MAX_N], q[MAX_N][MAX_N], r[MAX_N][MAX_N];

uint64_t kernel(int n) {
    limit(n, MAX_N);
    uint64_t random = 5;
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) {
            a[i][j] = next_uniform(&random) + (i == j ? 10.0 : 0.0);
            r[i][j] = 0;
        }
    }
    for (int k = 0; k < n; k++) {
        double square = 0;
        for (int i = 0; i < n; i++) square += a[i][k] * a[i][k];
        r[k][k] = __builtin_sqrt(square);
        for (int i = 0; i < n; i++) q[i][k] = a[i][k] / r[k][k];
        for (int j = k + 1; j < n; j++) {
            double product = 0;
            for (int i = 0; i < n; i++) product += q[i][k] * a[i][j];
            r[k][j] = product;
            for (int i = 0; i < n; i++) a[i][j] -= q[i][k] * product;
        }
    }
    uint64_t sum = 0;
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) sum = fold_double(fold_double(sum, q[i][j]), r[i][j]);
    }
    return sum;
}
