// D = A B C by two matrix products with inner products innermost: columns are read with a stride.
#include "kernel.h"

enum { MOST = 450 };
static float a[MOST][MOST], b[MOST][MOST], c[MOST][MOST], ab[MOST][MOST], d[MOST][MOST];

static void multiply(int n, float left[MOST][MOST], float right[MOST][MOST], float product[MOST][MOST]) {
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) {
            float sum = 0;
            for (int k = 0; k < n; k++) sum += left[i][k] * right[k][j];
            product[i][j] = sum;
        }
    }
}

uint64_t kernel(int n) {
    limit(n, MOST);
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
