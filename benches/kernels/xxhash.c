// A hash modelled on XXH64: four lanes of multiply and rotate over 32 bytes at a time; n passes
// over 64 kB.
#include "kernel.h"

enum { LENGTH = 65536 };
static uint8_t text[LENGTH];

static const uint64_t P1 = 11400714785074694791u, P2 = 14029467366897019727u, P3 = 1609587929392839161u,
                      P4 = 9650029242287828579u, P5 = 2870177450012600261u;

static uint64_t rotated(uint64_t x, int by) { return x << by | x >> (64 - by); }

static uint64_t load(const uint8_t *from) {
    uint64_t word;
    memcpy(&word, from, sizeof word);
    return word;
}

static uint64_t round_of(uint64_t lane, uint64_t word) { return rotated(lane + word * P2, 31) * P1; }

static uint64_t hash(const uint8_t *at, int length, uint64_t seed) {
    const uint8_t *end = at + length;
    uint64_t a = seed + P1 + P2, b = seed + P2, c = seed, d = seed - P1;
    for (; end - at >= 32; at += 32) {
        a = round_of(a, load(at));
        b = round_of(b, load(at + 8));
        c = round_of(c, load(at + 16));
        d = round_of(d, load(at + 24));
    }
    uint64_t sum = rotated(a, 1) + rotated(b, 7) + rotated(c, 12) + rotated(d, 18);
    sum = (sum ^ round_of(0, a)) * P1 + P4;
    sum = (sum ^ round_of(0, b)) * P1 + P4;
    sum = (sum ^ round_of(0, c)) * P1 + P4;
    sum = (sum ^ round_of(0, d)) * P1 + P4;
    sum += (uint64_t)length;
    for (; end - at >= 8; at += 8) sum = rotated(sum ^ round_of(0, load(at)), 27) * P1 + P4;
    for (; at < end; at++) sum = rotated(sum ^ *at * P5, 11) * P1;
    sum = (sum ^ sum >> 33) * P2;
    sum = (sum ^ sum >> 29) * P3;
    return sum ^ sum >> 32;
}

uint64_t kernel(int n) {
    uint64_t random = 37;
    for (int i = 0; i < LENGTH; i++) text[i] = (uint8_t)next_random(&random);
    uint64_t sum = 0;
    for (int turn = 0; turn < n; turn++) sum = hash(text, LENGTH - turn % 64, sum);
    return sum;
}
