/* A program toggles its own probes: four threads, each with its own two functions, while two
   more run all of them. After each burst of toggles, every thread counts exactly which probes fire.

   usage: toggle [BURSTS OF EACH THREAD] */

#include "capi.h"

#include <stdlib.h>

#define FUNCTIONS_OF_OURS 8
#define TOGGLERS 4
#define EXECUTORS 2
#define BURST 99
#define RUNS 20
#define MAX_PROBES 512

/* The functions, at different distances from the boundaries of fetch windows, with and without
   tail-call exits. */
#define PROCEDURE(n, pad)                                                                                              \
    NOINLINE void procedure_##n(uint32_t *value) {                                                                     \
        __asm__ volatile(".skip " #pad ", 0x90");                                                                      \
        *value = mix(*value + n);                                                                                      \
    }
#define VALUE(n, pad)                                                                                                  \
    NOINLINE uint32_t value_##n(uint32_t value) {                                                                      \
        __asm__ volatile(".skip " #pad ", 0x90");                                                                      \
        if (value % 3 == 0)                                                                                            \
            return value + n;                                                                                          \
        return mix(value) ^ n;                                                                                         \
    }

PROCEDURE(0, 1)
PROCEDURE(1, 2)
PROCEDURE(2, 3)
PROCEDURE(3, 4)
VALUE(4, 5)
VALUE(5, 6)
VALUE(6, 7)
VALUE(7, 8)

static const char *const names[FUNCTIONS_OF_OURS] = {"procedure_0", "procedure_1", "procedure_2", "procedure_3",
                                                     "value_4",     "value_5",     "value_6",     "value_7"};
static const void *const addresses[FUNCTIONS_OF_OURS] = {procedure_0, procedure_1, procedure_2, procedure_3,
                                                         value_4,     value_5,     value_6,     value_7};

/* Runs one of them. The result must not depend on the probes. */
UNINSTRUMENTED static void run(unsigned function) {
    uint32_t value = function * 77 + 1, expected = value;
    switch (function) {
    case 0: procedure_0(&value), expected = mix(expected + 0); break;
    case 1: procedure_1(&value), expected = mix(expected + 1); break;
    case 2: procedure_2(&value), expected = mix(expected + 2); break;
    case 3: procedure_3(&value), expected = mix(expected + 3); break;
    case 4: value = value_4(value), expected = expected % 3 == 0 ? expected + 4 : mix(expected) ^ 4; break;
    case 5: value = value_5(value), expected = expected % 3 == 0 ? expected + 5 : mix(expected) ^ 5; break;
    case 6: value = value_6(value), expected = expected % 3 == 0 ? expected + 6 : mix(expected) ^ 6; break;
    default: value = value_7(value), expected = expected % 3 == 0 ? expected + 7 : mix(expected) ^ 7; break;
    }
    CHECK(value == expected, "%s computed %u, not %u", names[function], value, expected);
}

/* Reported by discovery. */
static struct {
    fastinst_probe_type type;
    int function; /* index above, or -1 */
    unsigned announced;
    const uint8_t *site;
} probes[MAX_PROBES];

static unsigned checked_rounds = 1000;

static char executable[4096];

UNINSTRUMENTED static void discover(const fastinst_probe_metadata *probe, void *user_data) {
    Dl_info place;

    CHECK(user_data == probes, "user data %p", user_data);
    CHECK(probe->probe_id < MAX_PROBES, "id %u", probe->probe_id);
    CHECK(probe->type == FASTINST_ENTRY || probe->type == FASTINST_EXIT, "type %d", (int)probe->type);
    CHECK(probe->function_name && *probe->function_name, "a probe without a name");
    CHECK(strcmp(probe->object_path, executable) == 0, "in %s, not in %s", probe->object_path, executable);
    CHECK(dladdr(probe->site_address, &place) && place.dli_fbase, "site %p is in no object", probe->site_address);
    probes[probe->probe_id].type = probe->type;
    probes[probe->probe_id].site = probe->site_address;
    probes[probe->probe_id].function = -1;
    for (int i = 0; i < FUNCTIONS_OF_OURS; i++)
        if (strcmp(probe->function_name, names[i]) == 0) {
            CHECK(probe->function_address == addresses[i], "%s is at %p, not at %p", names[i], addresses[i],
                  probe->function_address);
            probes[probe->probe_id].function = i;
        }
    __atomic_fetch_add(&probes[probe->probe_id].announced, 1, __ATOMIC_RELEASE);
}

/* How often each probe has fired on this thread, by function. */
static __thread unsigned fired[2][MAX_PROBES];
UNINSTRUMENTED static void first(fastinst_probe_id id) { fired[0][id]++; }
UNINSTRUMENTED static void second(fastinst_probe_id id) { fired[1][id]++; }

static const fastinst_probe_fn probe_functions[2] = {first, second};

UNINSTRUMENTED static void forget(int function) {
    for (unsigned id = 0; id < MAX_PROBES; id++)
        if (probes[id].function == function)
            fired[0][id] = fired[1][id] = 0;
}

/* Asserts what fired on this thread in `runs` runs: `by` is the active probe function, or -1. */
UNINSTRUMENTED static void check_fired(int function, int by, unsigned runs) {
    for (int which = 0; which < 2; which++) {
        unsigned counted[2] = {0, 0};
        for (unsigned id = 0; id < MAX_PROBES; id++)
            if (probes[id].function == function)
                counted[probes[id].type] += fired[which][id];
        for (int type = 0; type < 2; type++)
            CHECK(counted[type] == (which == by ? runs : 0), "%s, probe function %d, type %d: %u of %u", names[function],
                  which, type, counted[type], which == by ? runs : 0);
    }
}

/* A toggler asks each executor to run a function RUNS times and to check what fires. 0, or 1 + 8 * (by + 1) + function. */
static unsigned orders[EXECUTORS][TOGGLERS];
static unsigned togglers_left = TOGGLERS;

UNINSTRUMENTED static void execute(unsigned executor) {
    for (; load(&togglers_left) > 0; sched_yield()) {
        for (unsigned i = 0; i < 100 * FUNCTIONS_OF_OURS; i++)
            run(i % FUNCTIONS_OF_OURS);
        for (unsigned toggler = 0; toggler < TOGGLERS; toggler++) {
            const unsigned order = load(&orders[executor][toggler]);
            if (order) {
                const int function = (int)(order - 1) % 8, by = (int)(order - 1) / 8 - 1;
                forget(function);
                for (int i = 0; i < RUNS; i++)
                    run((unsigned)function);
                check_fired(function, by, RUNS);
                store(&orders[executor][toggler], 0);
            }
        }
    }
}

UNINSTRUMENTED static void everybody_checks(unsigned toggler, int function, int by) {
    make_visible();
    forget(function);
    for (int i = 0; i < RUNS; i++)
        run((unsigned)function);
    check_fired(function, by, RUNS);
    for (int executor = 0; executor < EXECUTORS; executor++)
        store(&orders[executor][toggler], 1 + 8 * (unsigned)(by + 1) + (unsigned)function);
    for (int executor = 0; executor < EXECUTORS; executor++)
        while (load(&orders[executor][toggler]))
            sched_yield();
}

UNINSTRUMENTED static void switch_function(int function, int by) {
    for (unsigned id = 0; id < MAX_PROBES; id++)
        if (probes[id].announced && probes[id].function == function) {
            if (by < 0)
                GIVES(0, api.fastinst_deactivate(id));
            else
                GIVES(0, api.fastinst_activate(id, probe_functions[by]));
        }
}

UNINSTRUMENTED static void toggle(unsigned toggler) {
    for (unsigned round = 0; round < checked_rounds; round++) {
        const int function = (int)(toggler + TOGGLERS * (round % 2));
        for (int i = 0; i < BURST; i++)
            switch_function(function, i % 3 - 1);
        for (int by = 1; by >= -1; by--) {
            switch_function(function, by);
            everybody_checks(toggler, function, by);
        }
    }
    __atomic_fetch_sub(&togglers_left, 1, __ATOMIC_RELEASE);
}

UNINSTRUMENTED static void work(unsigned number) {
    if (number < TOGGLERS)
        toggle(number);
    else
        execute(number - TOGGLERS);
}

/* Replacing the function of an active probe leaves the code unchanged, byte for byte. */
UNINSTRUMENTED static void change_probe_functions(void) {
    enum { CODE = 6 };
    for (unsigned id = 0; id < MAX_PROBES; id++) {
        if (!probes[id].announced || probes[id].function < 0)
            continue;
        uint8_t off[CODE], before[CODE];
        memcpy(off, probes[id].site, CODE);
        GIVES(0, api.fastinst_activate(id, first));
        memcpy(before, probes[id].site, CODE);
        CHECK(memcmp(off, before, CODE) != 0, "probe %u: the code does not change when it is activated", id);
        GIVES(0, api.fastinst_activate(id, second));
        CHECK(memcmp(probes[id].site, before, CODE) == 0, "probe %u: the code changed with the function", id);
        GIVES(0, api.fastinst_deactivate(id));
        CHECK(memcmp(probes[id].site, off, CODE) == 0, "probe %u: the code differs from its inactive form", id);
    }
}

/* A probe that deactivates itself, as the profiler's do. */
UNINSTRUMENTED static void once(fastinst_probe_id id) {
    fired[0][id]++;
    GIVES(0, api.fastinst_deactivate(id));
}

UNINSTRUMENTED static void probes_switch_themselves_off(void) {
    for (int function = 0; function < FUNCTIONS_OF_OURS; function++) {
        for (unsigned id = 0; id < MAX_PROBES; id++)
            if (probes[id].announced && probes[id].function == function)
                GIVES(0, api.fastinst_activate(id, once));
        forget(function);
        make_visible();
        run((unsigned)function);
        make_visible();
        run((unsigned)function);
        check_fired(function, 0, 1);
        switch_function(function, -1);
    }
}

UNINSTRUMENTED int main(int argc, char **argv) {
    if (argc > 1)
        checked_rounds = (unsigned)strtoul(argv[1], NULL, 10);
    find_interface();
    const ssize_t length = readlink("/proc/self/exe", executable, sizeof executable - 1);
    require(length > 0, "/proc/self/exe");

    /* Inactive from the start. */
    for (unsigned function = 0; function < FUNCTIONS_OF_OURS; function++)
        run(function);

    GIVES(0, api.fastinst_register_callback(discover, probes));
    const size_t count = api.fastinst_probe_count();
    CHECK(count > 0 && count <= MAX_PROBES, "%zu probes", count);
    unsigned found[FUNCTIONS_OF_OURS][2] = {{0}};
    for (unsigned id = 0; id < MAX_PROBES; id++) {
        CHECK(probes[id].announced == (id < count), "%zu probes; probe %u was reported %u times", count, id, probes[id].announced);
        if (id >= count)
            probes[id].function = -1;
        else if (probes[id].function >= 0)
            found[probes[id].function][probes[id].type]++;
    }
    for (int i = 0; i < FUNCTIONS_OF_OURS; i++)
        CHECK(found[i][FASTINST_ENTRY] == 1 && found[i][FASTINST_EXIT] >= 1, "%s: %u entries, %u exits", names[i],
              found[i][FASTINST_ENTRY], found[i][FASTINST_EXIT]);

    change_probe_functions();
    probes_switch_themselves_off();
    run_crew(TOGGLERS + EXECUTORS, work);
    puts("done");
    return 0;
}
