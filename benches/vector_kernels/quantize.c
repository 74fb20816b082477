// 8,192 floats to bytes by their largest magnitude, and back, n times.
#include "kernel.h"
#include "vector.h"

enum { LENGTH = 8192 };
static float values[LENGTH];
static int8_t bytes[LENGTH];

static float largest(void) {
    f32x4 low = {0}, high = {0};
    for (int i = 0; i < LENGTH; i += 4) {
        f32x4 x = (f32x4)load(values + i);
        low = f32_min(low, x);
        high = f32_max(high, x);
    }
    high = f32_max(high, -low);
    high = f32_max(high, __builtin_shufflevector(high, high, 2, 3, 0, 1));
    high = f32_max(high, __builtin_shufflevector(high, high, 1, 0, 3, 2));
    return high[0];
}

static inline i32x4 scaled(const float *from, f32x4 by) {
    return i32_trunc(f32_nearest((f32x4)load(from) * by));
}

static void quantize(float by) {
    f32x4 factor = f32_all(by);
    for (int i = 0; i < LENGTH; i += 16) {
        i16x8 low = i16_narrow(scaled(values + i, factor), scaled(values + i + 4, factor));
        i16x8 high = i16_narrow(scaled(values + i + 8, factor), scaled(values + i + 12, factor));
        store(bytes + i, i8_narrow(low, high));
    }
}

// The lower and the upper half of 16-bit lanes, wider. Not `i32_low` and `i32_high`: if these are
// converted to floats, clang 14 converts each lane by itself.
static inline f32x4 converted_low(i16x8 x) {
    return f32_convert((i32x4)INTERLEAVE_LOW16(x, x) >> 16);
}
static inline f32x4 converted_high(i16x8 x) {
    return f32_convert((i32x4)INTERLEAVE_HIGH16(x, x) >> 16);
}

static void restore(float by) {
    f32x4 factor = f32_all(by);
    for (int i = 0; i < LENGTH; i += 16) {
        i8x16 all = (i8x16)load(bytes + i);
        i16x8 low = i16_low(all), high = i16_high(all);
        store(values + i, converted_low(low) * factor);
        store(values + i + 4, converted_high(low) * factor);
        store(values + i + 8, converted_low(high) * factor);
        store(values + i + 12, converted_high(high) * factor);
    }
}

uint64_t kernel(int n) {
    uint64_t random = 73, sum = 0;
    for (int i = 0; i < LENGTH; i++) values[i] = (float)(2 * next_uniform(&random) - 1);
    for (int turn = 0; turn < n; turn++) {
        float most = largest();
        quantize(127 / most);
        restore(most / 127);
        uint32_t at = next_random(&random) % LENGTH;
        sum = fold_double(sum, values[at]);
        values[at] = (float)(2 * next_uniform(&random) - 1);
    }
    for (int i = 0; i < LENGTH; i++) sum = fold(sum, (uint8_t)bytes[i]);
    return sum;
}
