// A filter of 32 taps on 8,192 samples of 16 bits, n times: two taps in each multiplication.
#include "kernel.h"
#include "vector.h"

enum { SAMPLES = 8192, TAPS = 32 };
static int16_t samples[SAMPLES + TAPS], filtered[SAMPLES], taps[TAPS];

static void filter(void) {
    for (int i = 0; i < SAMPLES; i += 8) {
        i32x4 low = i32_all(1 << 14), high = low;
        for (int k = 0; k < TAPS; k += 2) {
            int32_t both;
            memcpy(&both, taps + k, sizeof both);
            i16x8 pair = (i16x8)i32_all(both);
            i16x8 first = (i16x8)load(samples + i + k), second = (i16x8)load(samples + i + k + 1);
            low += i16_dot(INTERLEAVE_LOW16(first, second), pair);
            high += i16_dot(INTERLEAVE_HIGH16(first, second), pair);
        }
        store(filtered + i, i16_narrow(low >> 15, high >> 15));
    }
}

uint64_t kernel(int n) {
    uint64_t random = 5, sum = 0;
    for (int i = 0; i < SAMPLES + TAPS; i++) samples[i] = (int16_t)next_random(&random);
    for (int k = 0; k < TAPS; k++) taps[k] = (int16_t)(next_random(&random) % 8192) - 4096;
    for (int turn = 0; turn < n; turn++) {
        filter();
        memcpy(samples, filtered, sizeof filtered);
        samples[turn % SAMPLES] = (int16_t)next_random(&random);
    }
    for (int i = 0; i < SAMPLES; i++) sum = fold(sum, (uint16_t)samples[i]);
    return sum;
}
