// The Mandelbrot set on n x n points, four at a time.
#include "kernel.h"
#include "vector.h"

enum { MAX_N = 4096, MOST = 50 };

static i32x4 escape(f32x4 cx, f32x4 cy) {
    f32x4 x = cx, y = cy;
    i32x4 counts = {0};
    for (int i = 0; i < MOST; i++) {
        f32x4 xx = x * x, yy = y * y;
        i32x4 inside = (i32x4)(xx + yy <= f32_all(4));
        if (!any_true((u8x16)inside)) break;
        counts -= inside;
        y = (x + x) * y + cy;
        x = xx - yy + cx;
    }
    return counts;
}

uint64_t kernel(int n) {
    limit(n, MAX_N);
    uint64_t sum = 0;
    f32x4 lane = {0, 1, 2, 3};
    for (int row = 0; row < n; row++) {
        f32x4 y = f32_all(2.0f * (float)row / (float)n - 1.0f);
        for (int column = 0; column < n; column += 4) {
            f32x4 x = (f32_all((float)column) + lane) * f32_all(3.0f / (float)n) - f32_all(2);
            i32x4 counts = escape(x, y);
            sum = fold(sum, (uint64_t)counts[0] << 32 | (uint64_t)counts[1]);
            sum = fold(sum, (uint64_t)counts[2] << 32 | (uint64_t)counts[3]);
        }
    }
    return sum;
}
