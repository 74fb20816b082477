/* usage: libraries PLUGIN. The probes of a library that is loaded later, unloaded, and loaded
   again, also between two discoveries. */

#include "capi.h"

#define ROUNDS 10
#define THREADS 6
#define MAX_PROBES 512

static unsigned discovered[2]; /* id plus one, by type */
static char plugin_path[4096];
static unsigned fired[MAX_PROBES];
static void *library;
static fastinst_probe_id ids[2];
static int is_written_in_place; /* text=mprotect: stores to unmapped text are refused */

UNINSTRUMENTED static void discover(const fastinst_probe_metadata *probe, void *user_data) {
    (void)user_data;
    if (strcmp(probe->function_name, "plugin_work") == 0) {
        CHECK(strcmp(probe->object_path, plugin_path) == 0, "in %s", probe->object_path);
        store(&discovered[probe->type], probe->probe_id + 1);
    }
}

UNINSTRUMENTED static void fire(fastinst_probe_id id) { fired[id]++; }

/* Repeats a call while it returns `while_it_gives`; returns the first other result. */
#define UNTIL_NOT(while_it_gives, call)                                                                                \
    __extension__({                                                                                                    \
        int code;                                                                                                      \
        while ((code = (call)) == (while_it_gives))                                                                    \
            sched_yield();                                                                                             \
        code;                                                                                                          \
    })

/* One thread unloads the library while it and the others deactivate the library's probes, until
   they are known to be gone. */
UNINSTRUMENTED static void unload(unsigned number) {
    int code;

    if (number == 0)
        dlclose(library);
    for (int type = 0; type < 2; type++) {
        /* Without a pause, so that the discovery that finds the library unloaded runs during a call. */
        do
            code = api.fastinst_deactivate(ids[type]);
        while (code == 0 || (is_written_in_place && code == FASTINST_ERROR_NOT_TEXT));
        GIVES(FASTINST_ERROR_UNLOADED, code);
    }
}

/* Unloads the library and loads it again at once. Its probes work again as soon as that was found. */
UNINSTRUMENTED static void reload(uint32_t (**work)(uint32_t)) {
    const void *before = *(void **)work;

    dlclose(library);
    library = dlopen(plugin_path, RTLD_NOW | RTLD_LOCAL);
    CHECK(library, "%s", dlerror());
    *(void **)work = dlsym(library, "plugin_work");
    /* At another address, the library has new probes. */
    if (*(void **)work != before)
        return;
    alarm(60);
    for (int type = 0; type < 2; type++) {
        for (fired[ids[type]] = 0; fired[ids[type]] == 0; (*work)(1)) {
            api.fastinst_activate(ids[type], fire);
            sched_yield();
        }
    }
    alarm(0);
    for (int type = 0; type < 2; type++)
        GIVES(0, api.fastinst_deactivate(ids[type]));
}

UNINSTRUMENTED int main(int argc, char **argv) {
    void *first_address = NULL;

    find_interface();
    is_written_in_place = api.wordpatch_text_access() == WORDPATCH_MPROTECT;
    CHECK(argc == 2 && realpath(argv[1], plugin_path), "usage: libraries PLUGIN");
    GIVES(0, api.fastinst_register_callback(discover, NULL));
    for (int round = 0; round < ROUNDS; round++) {
        library = dlopen(plugin_path, RTLD_NOW | RTLD_LOCAL);
        CHECK(library, "%s", dlerror());
        uint32_t (*work)(uint32_t);
        *(void **)&work = dlsym(library, "plugin_work");
        CHECK(work, "%s", dlerror());
        if (round == 0)
            *(void **)&first_address = dlsym(library, "plugin_work");
        /* Loaded at another address, the library has new probes. */
        const int is_back = round > 0 && *(void **)&work == first_address;
        if (!is_back)
            first_address = *(void **)&work;
        for (int type = 0; type < 2; type++) {
            while (!is_back && load(&discovered[type]) == (round ? ids[type] + 1 : 0))
                sched_yield();
            ids[type] = load(&discovered[type]) - 1;
            CHECK(ids[type] < MAX_PROBES && ids[type] < api.fastinst_probe_count(), "id %u", ids[type]);
            GIVES(0, UNTIL_NOT(FASTINST_ERROR_UNLOADED, api.fastinst_activate(ids[type], fire)));
            fired[ids[type]] = 0;
        }
        make_visible();
        for (uint32_t i = 0; i < 10; i++)
            CHECK(work(i) == mix(i), "a wrong result");
        for (int type = 0; type < 2; type++)
            CHECK(fired[ids[type]] == 10, "round %d, type %d: %u", round, type, fired[ids[type]]);
        for (int type = 0; type < 2; type++)
            GIVES(0, api.fastinst_deactivate(ids[type]));
        make_visible();
        work(1);
        for (int type = 0; type < 2; type++)
            CHECK(fired[ids[type]] == 10, "round %d, type %d: %u after it was off", round, type, fired[ids[type]]);
        reload(&work);
        run_crew(THREADS, unload);
    }
    puts("done");
    return 0;
}
