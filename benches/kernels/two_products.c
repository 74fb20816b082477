// D = A B C by two matrix products with inner products innermost: columns are read with a stride.
#include "kernel.h"

enum { MAX_N = 450 };
static float a[MAX_N][MAX_N], b[MAX_N][MAX_N], c[MAX_N][MAX_N], ab[MAX_N][MAX_N], d[MAX_N][MAX_N];

static void multiply(int n, float left[MAX_N][MAX_N], float right[MAX_N][MAX_N], float product[MAX_N][MAX_N]) {
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) {
            float sum = 0;
            for (int k = 0; k < n; k++) sum += left[i][k] * right[k][j];
            product[i][j] = sum;
        }
    }
}

uint64_t kernel(int n) {
    limit(n, MAX_N);
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) {
            a[i][j] = (float)((i * j + 1) % n) / (float)n;
            b[i][j] = (float)(i * (j + 1) % n) / (float)n;
            c[i][j] = (float)((i * (j + 3) + 1) % n) / (float)n;
        }
    }
    multiply(n, a, b, ab);
    multiply(n, ab, c, d);
    uint64_t sum = 0;
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) sum = fold_double(sum, d[i][j]);
    }
    return sum;
}
