// The Mandelbrot set on n by n points.
#include "kernel.h"

uint64_t kernel(int n) {
    uint64_t sum = 0;
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) {
            double re = 3.0 * j / n - 2.25, im = 3.0 * i / n - 1.5, x = 0, y = 0;
            int steps = 0;
            while (steps < 200 && x * x + y * y <= 4.0) {
                double next = x * x - y * y + re;
                y = 2.0 * x * y + im;
                x = next;
                steps++;
            }
            sum = fold(sum, (uint64_t)steps);
        }
    }
    return sum;
}
