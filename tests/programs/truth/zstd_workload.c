/* Compresses generated text with zstd at several levels, with several threads, decompresses and compares it.

   usage: zstd [ROUNDS [THREADS]]      (default 2 4)

   The output depends on ROUNDS alone. */

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zstd.h"

enum { PLAIN_BYTES = 8 << 20 };

static void fail(const char *what) {
    fprintf(stderr, "zstd: %s\n", what);
    exit(1);
}

static uint32_t next_random(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Words of a small vocabulary, numbers, and repetitions of what came a while before. */
static void generate(unsigned round, char *bytes) {
    static const char *const words[] = {"request ", "answer ", "host ", "queue ", "error ", "time ", "user ", "path ",
                                        "\"id\": ", "{", "}, ",  "null ", "true ", "/var/log/", "GET ", "\n"};
    uint32_t state = round * 2654435761u + 1;
    unsigned length = 0;

    while (length < PLAIN_BYTES) {
        const uint32_t choice = next_random(&state);
        if (choice % 23 == 0 && length > 5000) {
            const unsigned from = length - 100 - choice % 4000, bytes_again = 20 + choice % 200;
            for (unsigned i = 0; i < bytes_again && length < PLAIN_BYTES; i++)
                bytes[length++] = bytes[from + i];
        } else if (choice % 7 == 0) {
            bytes[length++] = (char)('0' + choice % 10);
        } else {
            for (const char *letter = words[choice / 64 % 16]; *letter && length < PLAIN_BYTES; letter++)
                bytes[length++] = *letter;
        }
    }
}

static uint64_t checksum(const char *bytes, size_t length) {
    uint64_t sum = 14695981039346656037u;

    for (size_t i = 0; i < length; i++)
        sum = (sum ^ (unsigned char)bytes[i]) * 1099511628211u;
    return sum;
}

int main(int argc, char **argv) {
    static const int levels[] = {1, 3, 7};
    const unsigned rounds = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 2;
    const int threads = argc > 2 ? atoi(argv[2]) : 4;
    const size_t bound = ZSTD_compressBound(PLAIN_BYTES);
    char *plain = malloc(PLAIN_BYTES), *compressed = malloc(bound), *again = malloc(PLAIN_BYTES);
    ZSTD_CCtx *context = ZSTD_createCCtx();

    if (!plain || !compressed || !again || !context)
        fail("out of memory");
    if (ZSTD_isError(ZSTD_CCtx_setParameter(context, ZSTD_c_nbWorkers, threads)) ||
        ZSTD_isError(ZSTD_CCtx_setParameter(context, ZSTD_c_jobSize, 1 << 20)) ||
        ZSTD_isError(ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1)))
        fail("a parameter was refused");
    for (unsigned round = 0; round < rounds; round++) {
        generate(round, plain);
        for (unsigned i = 0; i < sizeof levels / sizeof *levels; i++) {
            ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, levels[i]);
            const size_t bytes = ZSTD_compress2(context, compressed, bound, plain, PLAIN_BYTES);
            if (ZSTD_isError(bytes))
                fail(ZSTD_getErrorName(bytes));
            if (ZSTD_decompress(again, PLAIN_BYTES, compressed, bytes) != PLAIN_BYTES || memcmp(plain, again, PLAIN_BYTES) != 0)
                fail("the text came back changed");
            printf("round %u level %d: %zu bytes, %016" PRIx64 "\n", round, levels[i], bytes, checksum(compressed, bytes));
        }
    }
    ZSTD_freeCCtx(context);
    free(plain);
    free(compressed);
    free(again);
    return 0;
}
