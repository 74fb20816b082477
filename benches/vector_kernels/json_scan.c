// The positions of the punctuation of 32 kB of JSON outside of strings, n times: 64 bytes become
// masks of 64 bits.
#include "kernel.h"
#include "vector.h"

enum { LENGTH = 32 * 1024 };
static char text[LENGTH + 64];
static uint32_t positions[LENGTH];

static inline uint64_t mask(u8x16 a, u8x16 b, u8x16 c, u8x16 d) {
    return (uint64_t)bitmask8(a) | (uint64_t)bitmask8(b) << 16 | (uint64_t)bitmask8(c) << 32 |
           (uint64_t)bitmask8(d) << 48;
}

static inline u8x16 is(u8x16 bytes, char what) {
    return (u8x16)(bytes == u8_all((uint8_t)what));
}

// Brackets and braces differ in one bit.
static inline u8x16 is_punctuation(u8x16 bytes) {
    u8x16 brace = bytes | u8_all(0x20);
    return is(brace, '{') | is(brace, '}') | is(bytes, ',') | is(bytes, ':');
}

// The characters after backslashes that are not escaped themselves.
static inline uint64_t escaped(uint64_t backslashes, uint64_t *first) {
    uint64_t found = *first;
    backslashes &= ~found;
    *first = 0;
    while (backslashes) {
        uint64_t lowest = backslashes & -backslashes;
        if (lowest >> 63) *first = 1;
        found |= lowest << 1;
        backslashes &= ~(lowest | lowest << 1);
    }
    return found;
}

// Every bit: whether the number of ones up to it is odd.
static inline uint64_t parity(uint64_t bits) {
    for (int by = 1; by < 64; by *= 2) bits ^= bits << by;
    return bits;
}

static int scan(void) {
    uint32_t *to = positions;
    uint64_t in_string = 0, first = 0;
    for (int i = 0; i < LENGTH; i += 64) {
        u8x16 a = (u8x16)load(text + i), b = (u8x16)load(text + i + 16);
        u8x16 c = (u8x16)load(text + i + 32), d = (u8x16)load(text + i + 48);
        uint64_t backslashes = mask(is(a, '\\'), is(b, '\\'), is(c, '\\'), is(d, '\\'));
        uint64_t quotes = mask(is(a, '"'), is(b, '"'), is(c, '"'), is(d, '"'));
        if (backslashes | first) quotes &= ~escaped(backslashes, &first);
        uint64_t strings = parity(quotes) ^ in_string;
        in_string = (uint64_t)((int64_t)strings >> 63);
        uint64_t found = mask(is_punctuation(a), is_punctuation(b), is_punctuation(c), is_punctuation(d));
        for (found &= ~strings; found; found &= found - 1) *to++ = (uint32_t)(i + __builtin_ctzll(found));
    }
    return (int)(to - positions);
}

static void make_text(uint64_t *random) {
    static const char *const parts[] = {
        "{\"name\": \"item\", ", "\"list\": [1, 2, 3.25, true], ", "\"text\": \"a \\\"quoted\\\" word, {here}\", ",
        "\"a longer key than others\": null, ", "\"path\": \"C:\\\\folder\\\\\"}, ",
    };
    for (int at = 0; at < LENGTH;) {
        const char *part = parts[next_random(random) % 5];
        for (; *part && at < LENGTH; at++) text[at] = *part++;
    }
}

uint64_t kernel(int n) {
    uint64_t random = 11, sum = 0;
    make_text(&random);
    for (int turn = 0; turn < n; turn++) {
        int count = scan();
        sum = fold(sum, (uint64_t)count);
        sum = fold(sum, positions[next_random(&random) % (uint32_t)count]);
        text[next_random(&random) % LENGTH] = ' ';
    }
    return sum;
}
