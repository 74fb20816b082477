/* A parent and its forked child each toggle the same probe: neither affects the other. */

#include <sys/wait.h>
#include <unistd.h>

#include "capi.h"

#define ROUNDS 2000

NOINLINE void work(uint32_t *value) { *value = mix(*value + 1); }

static fastinst_probe_id entry = UINT32_MAX;
static unsigned fired;

UNINSTRUMENTED static void count(fastinst_probe_id id) {
    CHECK(id == entry, "probe %u fired as %u", entry, id);
    fired++;
}

UNINSTRUMENTED static void discover(const fastinst_probe_metadata *probe, void *user_data) {
    (void)user_data;
    if (probe->type == FASTINST_ENTRY && probe->function_address == (const void *)work)
        entry = probe->probe_id;
}

/* Toggles and checks every state, while the other process does the same out of step. */
UNINSTRUMENTED static void toggle(unsigned seed) {
    uint32_t value = seed;
    for (unsigned round = 0; round < ROUNDS; round++) {
        int active = mix(round + seed) & 1;
        GIVES(0, active ? api.fastinst_activate(entry, count) : api.fastinst_deactivate(entry));
        fired = 0;
        for (unsigned run = 0; run < 10; run++)
            work(&value);
        CHECK(fired == (active ? 10u : 0u), "round %u: fired %u times while %d", round, fired, active);
    }
}

UNINSTRUMENTED int main(void) {
    find_interface();
    GIVES(0, api.fastinst_register_callback(discover, NULL));
    CHECK(entry != UINT32_MAX, "work has no entry probe");
    for (unsigned generation = 0; generation < 5; generation++) {
        GIVES(0, api.fastinst_activate(entry, count));
        pid_t child = fork();
        CHECK(child >= 0, "fork failed");
        toggle(child == 0 ? 1 : 2);
        if (child == 0)
            _exit(0);
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0, "the child ended with %d", status);
    }
    puts("parent and child toggled independently");
    return 0;
}
