// A three-point average over a line, n times.
#include "kernel.h"

enum { LENGTH = 2000 };
static double a[LENGTH], b[LENGTH];

static void average(const double *from, double *to) {
    for (int i = 1; i < LENGTH - 1; i++) to[i] = 0.33333 * (from[i - 1] + from[i] + from[i + 1]);
}

uint64_t kernel(int n) {
    for (int i = 0; i < LENGTH; i++) a[i] = b[i] = (double)(i % 100) / 100.0;
    for (int step = 0; step < n; step++) {
        average(a, b);
        average(b, a);
    }
    uint64_t sum = 0;
    for (int i = 0; i < LENGTH; i++) sum = fold_double(sum, a[i]);
    return sum;
}
