// Dot products of 4,096 floats, n times, in four sums.
#include "kernel.h"
#include "vector.h"

enum { LENGTH = 4096 };
static float a[LENGTH], b[LENGTH];

static float dot_product(void) {
    f32x4 s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
    for (int i = 0; i < LENGTH; i += 16) {
        s0 += (f32x4)load(a + i) * (f32x4)load(b + i);
        s1 += (f32x4)load(a + i + 4) * (f32x4)load(b + i + 4);
        s2 += (f32x4)load(a + i + 8) * (f32x4)load(b + i + 8);
        s3 += (f32x4)load(a + i + 12) * (f32x4)load(b + i + 12);
    }
    f32x4 sum = (s0 + s1) + (s2 + s3);
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

uint64_t kernel(int n) {
    uint64_t random = 3, sum = 0;
    for (int i = 0; i < LENGTH; i++) {
        a[i] = (float)next_uniform(&random);
        b[i] = (float)next_uniform(&random);
    }
    for (int turn = 0; turn < n; turn++) {
        sum = fold_double(sum, dot_product());
        a[turn % LENGTH] = (float)next_uniform(&random);
    }
    return sum;
}
