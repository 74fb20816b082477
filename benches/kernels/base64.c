// 48 kB to base64 and back, n times.
#include "kernel.h"

enum { LENGTH = 48 * 1024 };
static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
static uint8_t bytes[LENGTH], back[LENGTH], value_of[256];
static char encoded[LENGTH / 3 * 4];

static void encode(void) {
    char *to = encoded;
    for (int i = 0; i < LENGTH; i += 3) {
        uint32_t three = (uint32_t)bytes[i] << 16 | (uint32_t)bytes[i + 1] << 8 | bytes[i + 2];
        *to++ = digits[three >> 18];
        *to++ = digits[three >> 12 & 63];
        *to++ = digits[three >> 6 & 63];
        *to++ = digits[three & 63];
    }
}

static int decode(void) {
    uint8_t *to = back;
    for (int i = 0; i < LENGTH / 3 * 4; i += 4) {
        uint32_t three = 0;
        for (int k = 0; k < 4; k++) {
            uint8_t value = value_of[(uint8_t)encoded[i + k]];
            if (value == 255) return 0;
            three = three << 6 | value;
        }
        *to++ = (uint8_t)(three >> 16);
        *to++ = (uint8_t)(three >> 8);
        *to++ = (uint8_t)three;
    }
    return 1;
}

uint64_t kernel(int n) {
    uint64_t random = 97, sum = 0;
    memset(value_of, 255, sizeof value_of);
    for (int i = 0; i < 64; i++) value_of[(uint8_t)digits[i]] = (uint8_t)i;
    for (int i = 0; i < LENGTH; i++) bytes[i] = (uint8_t)next_random(&random);
    for (int turn = 0; turn < n; turn++) {
        encode();
        if (!decode()) __builtin_trap();
        // The next round depends on all of the result.
        for (int i = 0; i < LENGTH; i++) bytes[i] = (uint8_t)(back[i] + 1);
    }
    for (int i = 0; i < LENGTH; i++) sum = fold(sum, bytes[i]);
    return sum;
}
