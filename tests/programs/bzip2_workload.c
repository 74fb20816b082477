/* Drives libbz2 from several threads, as a parallel compressor does: blocks are handed out one by one, compressed,
   decompressed and compared by whichever thread is free, and reported in order.

   usage: bzip2_workload [BLOCKS [THREADS]]      (default 16 4)

   The output depends on BLOCKS alone: not on the number of threads, nor on which thread got which block. */

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bzlib.h"

enum { BLOCK_BYTES = 300000, COMPRESSED_BYTES = BLOCK_BYTES + BLOCK_BYTES / 100 + 600, MOST_THREADS = 64 };

struct block {
    unsigned compressed_bytes;
    uint32_t crc, compressed_crc;
};

static struct block *blocks;
static unsigned block_count;
static atomic_uint next_block;

static void fail(const char *what) {
    fprintf(stderr, "bzip2_workload: %s\n", what);
    exit(1);
}

/* libbz2 calls this when it meets an inconsistency and was built without stdio. */
void bz_internal_error(int code) {
    fprintf(stderr, "bzip2_workload: libbz2 internal error %d\n", code);
    abort();
}

static uint32_t next_random(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Words of a small vocabulary with some noise: compresses about as well as a log file. */
static void generate(unsigned index, char *bytes) {
    static const char *const words[] = {"probe ", "site ", "island ", "window ", "latency ", "sample ", "entry ", "exit ",
                                        "the ",   "of ",   "a ",      "over ",   "under ",   "to ",     "once ",  "\n"};
    uint32_t state = index * 2654435761u + 1;
    unsigned length = 0;

    while (length < BLOCK_BYTES) {
        const uint32_t choice = next_random(&state);
        if (choice % 11 == 0) {
            bytes[length++] = (char)('0' + choice % 10);
            continue;
        }
        for (const char *letter = words[choice % 16]; *letter && length < BLOCK_BYTES; letter++)
            bytes[length++] = *letter;
    }
}

static uint32_t crc32_of(const char *bytes, unsigned length) {
    uint32_t crc = UINT32_MAX;

    for (unsigned i = 0; i < length; i++) {
        crc ^= (unsigned char)bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    return ~crc;
}

static void process(unsigned index, char *plain, char *compressed, char *again) {
    struct block *block = &blocks[index];
    unsigned again_bytes = BLOCK_BYTES;

    generate(index, plain);
    block->compressed_bytes = COMPRESSED_BYTES;
    if (BZ2_bzBuffToBuffCompress(compressed, &block->compressed_bytes, plain, BLOCK_BYTES, 9, 0, 30) != BZ_OK)
        fail("compression failed");
    if (BZ2_bzBuffToBuffDecompress(again, &again_bytes, compressed, block->compressed_bytes, 0, 0) != BZ_OK)
        fail("decompression failed");
    if (again_bytes != BLOCK_BYTES || memcmp(plain, again, BLOCK_BYTES) != 0)
        fail("a block came back changed");
    block->crc = crc32_of(plain, BLOCK_BYTES);
    block->compressed_crc = crc32_of(compressed, block->compressed_bytes);
}

static void *worker(void *unused) {
    char *plain = malloc(BLOCK_BYTES), *compressed = malloc(COMPRESSED_BYTES), *again = malloc(BLOCK_BYTES);
    unsigned index;

    if (!plain || !compressed || !again)
        fail("out of memory");
    while ((index = atomic_fetch_add(&next_block, 1)) < block_count)
        process(index, plain, compressed, again);
    free(plain);
    free(compressed);
    free(again);
    return unused;
}

int main(int argc, char **argv) {
    const unsigned threads = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 4;
    pthread_t ids[MOST_THREADS];
    uint64_t total = 0;

    block_count = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 16;
    blocks = calloc(block_count, sizeof *blocks);
    if (!blocks || threads == 0 || threads > MOST_THREADS)
        fail("usage: bzip2_workload [BLOCKS [THREADS]]");
    for (unsigned i = 0; i < threads; i++)
        if (pthread_create(&ids[i], NULL, worker, NULL) != 0)
            fail("cannot start a thread");
    for (unsigned i = 0; i < threads; i++)
        pthread_join(ids[i], NULL);
    for (unsigned i = 0; i < block_count; i++) {
        printf("block %u: %u bytes, crc %08" PRIx32 ", plain crc %08" PRIx32 "\n", i, blocks[i].compressed_bytes,
               blocks[i].compressed_crc, blocks[i].crc);
        total += blocks[i].compressed_bytes;
    }
    printf("%u blocks of %d bytes became %" PRIu64 " bytes\n", block_count, BLOCK_BYTES, total);
    free(blocks);
    return 0;
}
