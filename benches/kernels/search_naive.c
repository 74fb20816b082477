// String search at each position of the text in turn, n passes over it.
#include "search.h"

static int matches(const uint8_t *at, const uint8_t *pattern) {
    for (int i = 0; i < PATTERN; i++) {
        if (at[i] != pattern[i]) return 0;
    }
    return 1;
}

uint64_t kernel(int n) {
    make_texts(3);
    uint64_t sum = 0;
    for (int pass = 0; pass < n; pass++) {
        const uint8_t *pattern = patterns[pass % PATTERNS];
        for (int at = 0; at <= TEXT - PATTERN; at++) {
            if (matches(text + at, pattern)) sum = fold(sum, (uint64_t)at);
        }
    }
    return sum;
}
