// FNV-1a of n thousand bytes, 32 and 64 bits wide.
#include "kernel.h"

enum { LENGTH = 1000 };
static uint8_t text[LENGTH];

uint64_t kernel(int n) {
    uint64_t random = 31;
    for (int i = 0; i < LENGTH; i++) text[i] = (uint8_t)next_random(&random);
    uint32_t narrow = 2166136261u;
    uint64_t wide = 14695981039346656037u;
    for (int turn = 0; turn < n; turn++) {
        for (int i = 0; i < LENGTH; i++) narrow = (narrow ^ text[i]) * 16777619u;
        for (int i = 0; i < LENGTH; i++) wide = (wide ^ text[i]) * 1099511628211u;
    }
    return fold(wide, narrow);
}
