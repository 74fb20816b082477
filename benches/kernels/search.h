// A text of few letters with many near misses, and patterns from it and from elsewhere: for the
// string searches.
#ifndef SEARCH_H
#define SEARCH_H

#include "kernel.h"

enum { TEXT = 200000, PATTERN = 24, PATTERNS = 8 };
static uint8_t text[TEXT], patterns[PATTERNS][PATTERN];

static void make_texts(uint32_t letters) {
    uint64_t random = 61;
    for (int i = 0; i < TEXT; i++) text[i] = (uint8_t)('a' + next_random(&random) % letters);
    for (int i = 0; i < PATTERNS; i++) {
        int from = (int)(next_random(&random) % (TEXT - PATTERN));
        memcpy(patterns[i], text + from, PATTERN);
        // Every other one differs in a letter near its end.
        if (i % 2) patterns[i][PATTERN - 3] ^= 1;
    }
}

#endif
