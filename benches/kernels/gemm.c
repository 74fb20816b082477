// Matrix product C = alpha A B + beta C, rows of B innermost.
#include "kernel.h"

enum { MAX_N = 600 };
static double a[MAX_N][MAX_N], b[MAX_N][MAX_N], c[MAX_N][MAX_N];

uint64_t kernel(int n) {
    limit(n, MAX_N);
    uint64_t random = 1;
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) {
            a[i][j] = next_uniform(&random);
            b[i][j] = next_uniform(&random);
            c[i][j] = next_uniform(&random);
        }
    }
    const double alpha = 1.5, beta = 1.2;
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) c[i][j] *= beta;
        for (int k = 0; k < n; k++) {
            for (int j = 0; j < n; j++) c[i][j] += alpha * a[i][k] * b[k][j];
        }
    }
    uint64_t sum = 0;
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) sum = fold_double(sum, c[i][j]);
    }
    return sum;
}
