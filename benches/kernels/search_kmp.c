// String search by Knuth, Morris and Pratt: an automaton that never moves backward in the text; n
// passes over it.
#include "search.h"

uint64_t kernel(int n) {
    make_texts(2);
    uint64_t sum = 0;
    for (int pass = 0; pass < n; pass++) {
        const uint8_t *pattern = patterns[pass % PATTERNS];
        int border[PATTERN + 1];
        border[0] = -1;
        for (int i = 0, j = -1; i < PATTERN; border[++i] = ++j) {
            while (j >= 0 && pattern[i] != pattern[j]) j = border[j];
        }
        for (int at = 0, matched = 0; at < TEXT; at++) {
            while (matched >= 0 && (matched == PATTERN || text[at] != pattern[matched])) matched = border[matched];
            if (++matched == PATTERN) sum = fold(sum, (uint64_t)at);
        }
    }
    return sum;
}
