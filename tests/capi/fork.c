/* usage: fork PLUGIN. A parent and its forked child each toggle the same probe: neither affects the
   other. The child also loads a library, whose probes are announced to it. */

#include <sys/wait.h>
#include <unistd.h>

#include "capi.h"

#define ROUNDS 2000

NOINLINE void work(uint32_t *value) { *value = mix(*value + 1); }

static fastinst_probe_id entry = UINT32_MAX;
static unsigned fired;
static unsigned loaded; /* id plus one of the library's entry probe */

UNINSTRUMENTED static void count(fastinst_probe_id id) {
    CHECK(id == entry, "probe %u fired as %u", entry, id);
    fired++;
}

UNINSTRUMENTED static void discover(const fastinst_probe_metadata *probe, void *user_data) {
    (void)user_data;
    if (probe->type == FASTINST_ENTRY && probe->function_address == (const void *)work)
        entry = probe->probe_id;
    if (probe->type == FASTINST_ENTRY && strcmp(probe->function_name, "plugin_work") == 0)
        store(&loaded, probe->probe_id + 1);
}

UNINSTRUMENTED static void ignore(const fastinst_probe_metadata *probe, void *user_data) {
    (void)probe;
    (void)user_data;
}

/* Loads the library in a child: its probe is announced by the child's own service thread. */
UNINSTRUMENTED static void load_library(const char *plugin) {
    uint32_t (*work)(uint32_t);
    void *library = dlopen(plugin, RTLD_NOW | RTLD_LOCAL);
    CHECK(library, "%s", dlerror());
    *(void **)&work = dlsym(library, "plugin_work");
    CHECK(work, "%s", dlerror());
    /* A child whose library is never announced must not wait forever. */
    alarm(60);
    while (!load(&loaded))
        sched_yield();
    alarm(0);
    entry = load(&loaded) - 1;
    GIVES(0, api.fastinst_activate(entry, count));
    make_visible();
    fired = 0;
    work(1);
    CHECK(fired == 1, "the library's probe fired %u times", fired);
    GIVES(0, api.fastinst_register_callback(ignore, NULL));
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

UNINSTRUMENTED int main(int argc, char **argv) {
    find_interface();
    CHECK(argc == 2, "usage: fork PLUGIN");
    GIVES(0, api.fastinst_register_callback(discover, NULL));
    CHECK(entry != UINT32_MAX, "work has no entry probe");
    for (unsigned generation = 0; generation < 5; generation++) {
        GIVES(0, api.fastinst_activate(entry, count));
        pid_t child = fork();
        CHECK(child >= 0, "fork failed");
        toggle(child == 0 ? 1 : 2);
        if (child == 0) {
            load_library(argv[1]);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0, "the child ended with %d", status);
    }
    puts("parent and child toggled independently");
    return 0;
}
