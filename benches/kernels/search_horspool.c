// String search by Boyer, Moore and Horspool, with a table of shifts; n passes over the text.
#include "search.h"

uint64_t kernel(int n) {
    make_texts(6);
    uint64_t sum = 0;
    for (int pass = 0; pass < n; pass++) {
        const uint8_t *pattern = patterns[pass % PATTERNS];
        int skip[256];
        for (int i = 0; i < 256; i++) skip[i] = PATTERN;
        for (int i = 0; i < PATTERN - 1; i++) skip[pattern[i]] = PATTERN - 1 - i;
        for (int at = 0; at <= TEXT - PATTERN; at += skip[text[at + PATTERN - 1]]) {
            int i = PATTERN - 1;
            while (i >= 0 && text[at + i] == pattern[i]) i--;
            if (i < 0) sum = fold(sum, (uint64_t)at);
        }
    }
    return sum;
}
