// Runs the kernel that it is linked with once, and prints its result. It reads no clock, so that
// all runs execute the same instructions.
#include <inttypes.h>
#include <stdio.h>

#include "kernel.h"

int main(void) {
    printf("%016" PRIx64 "\n", (uint64_t)kernel(ARGUMENT));
    return 0;
}
