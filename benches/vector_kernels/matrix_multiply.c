// Products of matrices of 128x128 floats, n times: blocks of four rows and eight columns.
#include "kernel.h"
#include "vector.h"

enum { SIDE = 128 };
static float a[SIDE][SIDE], b[SIDE][SIDE], c[SIDE][SIDE];

#define ROW(r)                          \
    left = f32_all(a[i + r][k]);        \
    c##r##0 += left * b0, c##r##1 += left * b1

#define STORE(r) store(&c[i + r][j], c##r##0), store(&c[i + r][j + 4], c##r##1)

static void multiply(void) {
    for (int i = 0; i < SIDE; i += 4) {
        for (int j = 0; j < SIDE; j += 8) {
            f32x4 c00 = {0}, c01 = {0}, c10 = {0}, c11 = {0}, c20 = {0}, c21 = {0}, c30 = {0}, c31 = {0};
            for (int k = 0; k < SIDE; k++) {
                f32x4 b0 = (f32x4)load(&b[k][j]), b1 = (f32x4)load(&b[k][j + 4]), left;
                ROW(0);
                ROW(1);
                ROW(2);
                ROW(3);
            }
            STORE(0);
            STORE(1);
            STORE(2);
            STORE(3);
        }
    }
}

uint64_t kernel(int n) {
    uint64_t random = 31, sum = 0;
    for (int i = 0; i < SIDE; i++) {
        for (int j = 0; j < SIDE; j++) {
            a[i][j] = (float)next_uniform(&random);
            b[i][j] = (float)next_uniform(&random);
        }
    }
    for (int turn = 0; turn < n; turn++) {
        multiply();
        // A random row of the next left matrix is taken from the product.
        uint32_t row = next_random(&random) % SIDE;
        for (int j = 0; j < SIDE; j++) a[row][j] = c[row][j] / SIDE;
        sum = fold_double(sum, c[turn % SIDE][row]);
    }
    for (int i = 0; i < SIDE; i++) {
        for (int j = 0; j < SIDE; j++) sum = fold_double(sum, c[i][j]);
    }
    return sum;
}
