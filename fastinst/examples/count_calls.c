/*
 * Counts the calls of one of its own functions through fastinst.h.
 *
 * Run by
 *
 *     cargo build --release
 *     gcc -O2 -finstrument-functions -I fastinst/include fastinst/examples/count_calls.c \
 *         -L target/release -lfastinst -Wl,-rpath,$PWD/target/release -o count_calls
 *     FASTINST_OPTIONS=tool=none ./count_calls
 *
 * Prints:
 *
 *     entry of work: probe known
 *     on: 3 calls
 *     off: 0 calls
 */

#include <fastinst.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

/* For functions that a probe calls: they must have no probes themselves. */
#define UNINSTRUMENTED __attribute__((no_instrument_function))

static fastinst_probe_id entry = UINT32_MAX;
static atomic_uint calls;

/* Runs whenever the probe fires. */
UNINSTRUMENTED static void count(fastinst_probe_id id) {
    (void)id;
    calls++;
}

/* Called once for each probe. */
UNINSTRUMENTED static void discover(const fastinst_probe_metadata *probe, void *name) {
    if (probe->type == FASTINST_ENTRY && strcmp(probe->function_name, name) == 0)
        entry = probe->probe_id;
}

/* Not inlined: an inlined function has probes at every place where it is used. */
__attribute__((noinline)) void work(void) { __asm__ volatile(""); }

static int check(int error) {
    if (error != 0)
        fprintf(stderr, "%s\n", fastinst_strerror(error));
    return error;
}

int main(void) {
    if (check(fastinst_register_callback(discover, "work")) || check(fastinst_activate(entry, count)))
        return 1;
    printf("entry of work: probe known\n");
    for (int i = 0; i < 3; i++)
        work();
    printf("on: %u calls\n", atomic_exchange(&calls, 0));

    /* One store; from now on, the call is skipped. */
    if (check(fastinst_deactivate(entry)))
        return 1;
    for (int i = 0; i < 3; i++)
        work();
    printf("off: %u calls\n", atomic_exchange(&calls, 0));
    return 0;
}
