// Runs the kernel that it is linked with, and times it by itself: neither start-up nor compilation
// is in the figure.
//
// usage: KERNEL N REPETITIONS        prints "CHECKSUM NANOSECONDS" of the fastest repetition
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "kernel.h"

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fputs("usage: KERNEL N REPETITIONS\n", stderr);
        return 2;
    }
    int n = atoi(argv[1]), repetitions = atoi(argv[2]);
    uint64_t checksum = 0, least = UINT64_MAX;
    for (int i = 0; i < repetitions; i++) {
        uint64_t begin = now_ns();
        uint64_t result = kernel(n);
        uint64_t taken = now_ns() - begin;
        if (i > 0 && result != checksum) {
            fputs("two repetitions have different results\n", stderr);
            return 1;
        }
        checksum = result;
        if (taken < least) least = taken;
    }
    printf("%016" PRIx64 " %" PRIu64 "\n", checksum, least);
    return 0;
}
