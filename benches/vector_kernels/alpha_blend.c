// 8,192 pixels, whose colours contain their alpha, over others, n times: four at a time.
#include "kernel.h"
#include "vector.h"

enum { PIXELS = 8192 };
static uint8_t source[4 * PIXELS], target[4 * PIXELS];

// Divided by 255 and rounded, of at most 255 times 255.
static inline u16x8 by_255(u16x8 x) {
    x += u16_all(128);
    return (x + (x >> 8)) >> 8;
}

static void blend(void) {
    const u8x16 alphas = {3, 3, 3, 3, 7, 7, 7, 7, 11, 11, 11, 11, 15, 15, 15, 15};
    for (int i = 0; i < 4 * PIXELS; i += 16) {
        u8x16 over = (u8x16)load(source + i), under = (u8x16)load(target + i);
        u8x16 rest = ~swizzle(over, alphas);
        u16x8 low = by_255(u16_low(under) * u16_low(rest));
        u16x8 high = by_255(u16_high(under) * u16_high(rest));
        store(target + i, u8_add_sat(over, u8_narrow((i16x8)low, (i16x8)high)));
    }
}

uint64_t kernel(int n) {
    uint64_t random = 43, sum = 0;
    for (int i = 0; i < 4 * PIXELS; i += 4) {
        uint32_t alpha = next_random(&random) % 256;
        for (int k = 0; k < 3; k++) source[i + k] = (uint8_t)(next_random(&random) % 256 * alpha / 255);
        source[i + 3] = (uint8_t)alpha;
        for (int k = 0; k < 4; k++) target[i + k] = (uint8_t)next_random(&random);
    }
    for (int turn = 0; turn < n; turn++) {
        blend();
        target[turn % (4 * PIXELS)] = (uint8_t)next_random(&random);
    }
    for (int i = 0; i < 4 * PIXELS; i++) sum = fold(sum, target[i]);
    return sum;
}
