/* A library that libraries.c loads and unloads. */

#include "../fixtures/fixture.h"

NOINLINE uint32_t plugin_work(uint32_t value) {
    __asm__ volatile("");
    return mix(value);
}
