// Compression of 256 kB of text by back references found with a hash table, and decompression; n
// texts.
#include "kernel.h"

enum { LENGTH = 256 * 1024, TABLE = 1 << 13 };
static uint8_t text[LENGTH], packed[LENGTH + LENGTH / 64], unpacked[LENGTH];
static int last_seen[TABLE];

static void make_text(uint64_t random) {
    static const char *const words[] = {"the ", "probe ", "of ", "a ", "function ", "is ", "patched ", "while ", "threads ", "run ",
                                        "through ", "it ", "and ", "none ", "waits. ", "\n"};
    for (int i = 0; i < LENGTH;) {
        uint32_t choice = next_random(&random);
        for (const char *letter = words[choice % 16]; *letter && i < LENGTH; letter++) text[i++] = (uint8_t)*letter;
        if (choice % 5 == 0 && i < LENGTH) text[i++] = (uint8_t)('0' + choice / 16 % 10);
    }
}

static uint32_t four_bytes(const uint8_t *at) {
    uint32_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

// A token is 0 to 127: as many literal bytes and one more follow; or 128 and more: 4 bytes and up
// of what stood a distance of two bytes before.
static int compress(void) {
    int to = 0, literals = 0;
    memset(last_seen, 0xff, sizeof last_seen);
    for (int i = 0; i < LENGTH;) {
        int matched = 0, before = -1;
        if (i + 4 <= LENGTH) {
            uint32_t slot = four_bytes(text + i) * 2654435761u >> 19;
            before = last_seen[slot];
            last_seen[slot] = i;
            if (before >= 0 && i - before < 65536 && four_bytes(text + before) == four_bytes(text + i)) {
                int most = LENGTH - i < 131 ? LENGTH - i : 131;
                for (matched = 4; matched < most && text[before + matched] == text[i + matched];) matched++;
            }
        }
        if (matched) {
            int distance = i - before;
            packed[to++] = (uint8_t)(128 + matched - 4);
            packed[to++] = (uint8_t)distance;
            packed[to++] = (uint8_t)(distance >> 8);
            i += matched;
            literals = 0;
        } else {
            if (literals == 0 || literals == 128) {
                packed[to++] = 0;
                literals = 1;
            } else {
                packed[to - literals - 1]++;
                literals++;
            }
            packed[to++] = text[i++];
        }
    }
    return to;
}

static int decompress(int length) {
    int to = 0;
    for (int i = 0; i < length;) {
        int token = packed[i++];
        if (token < 128) {
            for (int end = i + token + 1; i < end;) unpacked[to++] = packed[i++];
        } else {
            int from = to - (packed[i] | packed[i + 1] << 8);
            i += 2;
            for (int end = to + token - 128 + 4; to < end;) unpacked[to++] = unpacked[from++];
        }
    }
    return to;
}

uint64_t kernel(int n) {
    uint64_t sum = 0;
    for (int turn = 0; turn < n; turn++) {
        make_text((uint64_t)turn);
        int compressed = compress();
        if (decompress(compressed) != LENGTH || memcmp(text, unpacked, LENGTH) != 0) __builtin_trap();
        for (int i = 0; i < compressed; i += 16) sum = fold(sum, packed[i]);
        sum = fold(sum, (uint64_t)compressed);
    }
    return sum;
}
