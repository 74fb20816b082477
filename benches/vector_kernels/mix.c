// Two signals of 16,384 samples of 16 bits mixed, each with its own volume, n times; and the peaks.
#include "kernel.h"
#include "vector.h"

enum { SAMPLES = 16 * 1024 };
static int16_t first[SAMPLES], second[SAMPLES], mixed[SAMPLES];

// The sum, and how many samples are louder than a limit.
static uint32_t mix(int16_t of_first, int16_t of_second) {
    i16x8 a = i16_all(of_first), b = i16_all(of_second), limit = i16_all(30000);
    i16x8 loud = {0};
    for (int i = 0; i < SAMPLES; i += 8) {
        i16x8 x = i16_mul_q15((i16x8)load(first + i), a), y = i16_mul_q15((i16x8)load(second + i), b);
        i16x8 sum = i16_add_sat(x, y);
        store(mixed + i, sum);
        loud -= (i16x8)((sum > limit) | (sum < -limit));
    }
    i32x4 counts = i16_dot(loud, i16_all(1));
    return (uint32_t)(counts[0] + counts[1] + counts[2] + counts[3]);
}

uint64_t kernel(int n) {
    uint64_t random = 79, sum = 0;
    for (int i = 0; i < SAMPLES; i++) {
        first[i] = (int16_t)(next_random(&random) >> 3);
        second[i] = (int16_t)(next_random(&random) >> 3);
    }
    for (int turn = 0; turn < n; turn++) {
        int16_t volume = (int16_t)(next_random(&random) % 32768);
        sum = fold(sum, mix(volume, (int16_t)(32767 - volume / 2)));
        uint32_t at = next_random(&random) % SAMPLES;
        first[at] = mixed[turn % SAMPLES];
    }
    for (int i = 0; i < SAMPLES; i++) sum = fold(sum, (uint16_t)mixed[i]);
    return sum;
}
