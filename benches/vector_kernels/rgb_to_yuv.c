// 16,384 pixels of four bytes to luma and chroma in planes, n times: 16 at a time.
#include "kernel.h"
#include "vector.h"

enum { PIXELS = 16 * 1024 };
static uint8_t pixels[4 * PIXELS], luma[PIXELS], blue[PIXELS], red[PIXELS];

// The planes of 16 pixels: red, green, blue, and the unused one.
static inline void planes_of(const uint8_t *from, u32x4 planes[4]) {
    const u8x16 by_plane = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) planes[i] = (u32x4)swizzle((u8x16)load(from + 16 * i), by_plane);
    transpose(planes);
}

static inline u16x8 luma_of(u16x8 r, u16x8 g, u16x8 b) {
    return ((r * u16_all(66) + g * u16_all(129) + b * u16_all(25) + u16_all(128)) >> 8) + u16_all(16);
}

static inline i16x8 chroma_of(i16x8 more, i16x8 less, i16x8 least, int16_t by_less, int16_t by_least) {
    i16x8 sum = more * i16_all(112) - less * i16_all(by_less) - least * i16_all(by_least);
    return ((sum + i16_all(128)) >> 8) + i16_all(128);
}

static void convert(void) {
    for (int i = 0; i < PIXELS; i += 16) {
        u32x4 planes[4];
        planes_of(pixels + 4 * i, planes);
        u8x16 r = (u8x16)planes[0], g = (u8x16)planes[1], b = (u8x16)planes[2];
        u16x8 r0 = u16_low(r), r1 = u16_high(r), g0 = u16_low(g), g1 = u16_high(g);
        u16x8 b0 = u16_low(b), b1 = u16_high(b);
        store(luma + i, u8_narrow((i16x8)luma_of(r0, g0, b0), (i16x8)luma_of(r1, g1, b1)));
        store(blue + i, u8_narrow(chroma_of((i16x8)b0, (i16x8)g0, (i16x8)r0, 74, 38),
                                  chroma_of((i16x8)b1, (i16x8)g1, (i16x8)r1, 74, 38)));
        store(red + i, u8_narrow(chroma_of((i16x8)r0, (i16x8)g0, (i16x8)b0, 94, 18),
                                 chroma_of((i16x8)r1, (i16x8)g1, (i16x8)b1, 94, 18)));
    }
}

uint64_t kernel(int n) {
    uint64_t random = 67, sum = 0;
    for (int i = 0; i < 4 * PIXELS; i++) pixels[i] = (uint8_t)next_random(&random);
    for (int turn = 0; turn < n; turn++) {
        convert();
        uint32_t at = next_random(&random) % PIXELS;
        sum = fold(sum, (uint64_t)luma[at] << 16 | (uint64_t)blue[at] << 8 | red[at]);
        pixels[at] = (uint8_t)sum;
    }
    return sum;
}
