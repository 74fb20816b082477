// A Fourier transform of 1,024 points and its inverse, n times: real and imaginary parts in arrays
// of floats, butterflies in vectors except for the first two stages.
#include <math.h>

#include "kernel.h"
#include "vector.h"

enum { LOG = 10, LENGTH = 1 << LOG };
static float re[LENGTH], im[LENGTH];
// The roots of the stage with butterflies over `half` points begin at `half`.
static float root_re[LENGTH], root_im[LENGTH];

// From square roots only, whose result is the same everywhere.
static void make_roots(void) {
    double c = -1, s = 0;  // of half a turn, then of a quarter and so on
    for (int half = 1; half < LENGTH; half *= 2) {
        double x = 1, y = 0;
        for (int i = 0; i < half; i++) {
            root_re[half + i] = (float)x, root_im[half + i] = (float)-y;
            double turned = x * c - y * s;
            y = x * s + y * c, x = turned;
        }
        s = sqrt((1 - c) / 2), c = sqrt((1 + c) / 2);
    }
}

static void reverse_bits(void) {
    for (int i = 1, j = 0; i < LENGTH; i++) {
        int bit = LENGTH >> 1;
        for (; j & bit; bit >>= 1) j ^= bit;
        j ^= bit;
        if (i < j) {
            float x = re[i], y = im[i];
            re[i] = re[j], im[i] = im[j];
            re[j] = x, im[j] = y;
        }
    }
}

static void small_stage(int half) {
    for (int from = 0; from < LENGTH; from += 2 * half) {
        for (int i = 0; i < half; i++) {
            int p = from + i, q = p + half;
            float c = root_re[half + i], s = root_im[half + i];
            float x = re[q] * c - im[q] * s, y = re[q] * s + im[q] * c;
            re[q] = re[p] - x, im[q] = im[p] - y;
            re[p] += x, im[p] += y;
        }
    }
}

static void stage(int half) {
    for (int from = 0; from < LENGTH; from += 2 * half) {
        for (int i = 0; i < half; i += 4) {
            float *pr = re + from + i, *pi = im + from + i, *qr = pr + half, *qi = pi + half;
            f32x4 c = (f32x4)load(root_re + half + i), s = (f32x4)load(root_im + half + i);
            f32x4 r = (f32x4)load(qr), m = (f32x4)load(qi);
            f32x4 x = r * c - m * s, y = r * s + m * c;
            f32x4 upper_re = (f32x4)load(pr), upper_im = (f32x4)load(pi);
            store(qr, upper_re - x);
            store(qi, upper_im - y);
            store(pr, upper_re + x);
            store(pi, upper_im + y);
        }
    }
}

static void transform(void) {
    reverse_bits();
    small_stage(1);
    small_stage(2);
    for (int half = 4; half < LENGTH; half *= 2) stage(half);
}

// Exchanging the parts before and after makes a transform its inverse.
static void exchange(float by) {
    f32x4 factor = f32_all(by);
    for (int i = 0; i < LENGTH; i += 4) {
        f32x4 x = (f32x4)load(re + i) * factor, y = (f32x4)load(im + i) * factor;
        store(re + i, y);
        store(im + i, x);
    }
}

uint64_t kernel(int n) {
    uint64_t random = 37, sum = 0;
    make_roots();
    for (int i = 0; i < LENGTH; i++) {
        re[i] = (float)next_uniform(&random);
        im[i] = (float)next_uniform(&random);
    }
    for (int turn = 0; turn < n; turn++) {
        transform();
        sum = fold_double(sum, re[turn % LENGTH]);
        exchange(1);
        transform();
        exchange(1.0f / LENGTH);
    }
    for (int i = 0; i < LENGTH; i++) sum = fold_double(fold_double(sum, re[i]), im[i]);
    return sum;
}
