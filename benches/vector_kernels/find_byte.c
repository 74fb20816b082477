// The lengths of the lines of 32 kB of text, n times: a search for the next end of a line, 16 bytes
// at a time, from any position.
#include "kernel.h"
#include "vector.h"

enum { LENGTH = 32 * 1024 };
static uint8_t text[LENGTH + 16];

// The text has the byte.
static inline const uint8_t *find(const uint8_t *from, uint8_t what) {
    for (u8x16 all = u8_all(what);; from += 16) {
        uint32_t found = bitmask8((u8x16)((u8x16)load(from) == all));
        if (found) return from + __builtin_ctz(found);
    }
}

static uint32_t lines(void) {
    uint32_t longest = 0, count = 0;
    for (const uint8_t *at = text; at < text + LENGTH; count++) {
        const uint8_t *end = find(at, '\n');
        uint32_t length = (uint32_t)(end - at);
        if (length > longest) longest = length;
        at = end + 1;
    }
    return count << 16 | longest;
}

uint64_t kernel(int n) {
    uint64_t random = 47, sum = 0;
    for (int i = 0; i < LENGTH; i++) text[i] = 'a' + (uint8_t)(next_random(&random) % 26);
    for (int at = 0; at < LENGTH; at += 1 + (int)(next_random(&random) % 160)) text[at] = '\n';
    text[LENGTH] = '\n';
    for (int turn = 0; turn < n; turn++) {
        sum = fold(sum, lines());
        text[next_random(&random) % LENGTH] = turn % 2 ? '\n' : ' ';
    }
    return sum;
}
