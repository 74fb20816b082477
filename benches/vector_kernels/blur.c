// A 3x3 binomial filter on an image of 256x256 bytes, n times, 16 pixels at a time.
#include "kernel.h"
#include "vector.h"

enum { SIDE = 256, EDGE = 16, STRIDE = SIDE + 2 * EDGE };
static uint8_t image[SIDE + 2][STRIDE], blurred[SIDE + 2][STRIDE];

typedef struct {
    u16x8 low, high;
} sums;

// 1, 2, 1 times three neighbours.
static inline sums row(const uint8_t *at) {
    u8x16 left = (u8x16)load(at - 1), here = (u8x16)load(at), right = (u8x16)load(at + 1);
    return (sums){u16_low(left) + (u16_low(here) << 1) + u16_low(right),
                  u16_high(left) + (u16_high(here) << 1) + u16_high(right)};
}

static inline u16x8 weighted(u16x8 above, u16x8 here, u16x8 below) {
    return (above + (here << 1) + below + u16_all(8)) >> 4;
}

static void blur(void) {
    for (int y = 1; y <= SIDE; y++) {
        for (int x = EDGE; x < EDGE + SIDE; x += 16) {
            sums above = row(&image[y - 1][x]), here = row(&image[y][x]), below = row(&image[y + 1][x]);
            u16x8 low = weighted(above.low, here.low, below.low);
            u16x8 high = weighted(above.high, here.high, below.high);
            store(&blurred[y][x], u8_narrow((i16x8)low, (i16x8)high));
        }
    }
}

uint64_t kernel(int n) {
    uint64_t random = 29, sum = 0;
    memset(image, 0, sizeof image);
    memset(blurred, 0, sizeof blurred);
    for (int turn = 0; turn < n; turn++) {
        for (int i = 0; i < 64; i++) {
            image[1 + next_random(&random) % SIDE][EDGE + next_random(&random) % SIDE] = 255;
        }
        blur();
        memcpy(image, blurred, sizeof image);
    }
    for (int y = 1; y <= SIDE; y++) {
        for (int x = EDGE; x < EDGE + SIDE; x++) sum = fold(sum, image[y][x]);
    }
    return sum;
}
