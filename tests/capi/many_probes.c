/* Probes that are toggled together, their metadata, and probe functions that receive the caller. */

#include "capi.h"

#define MANY 8

NOINLINE void work_0(void) { __asm__ volatile(""); }
NOINLINE void work_1(void) { __asm__ volatile(""); }
NOINLINE void work_2(void) { __asm__ volatile(""); }
NOINLINE void work_3(void) { __asm__ volatile(""); }

static void (*const works[])(void) = {work_0, work_1, work_2, work_3};
#define WORKS (sizeof works / sizeof *works)

static fastinst_probe_metadata entries[WORKS];
static unsigned fired[MANY], fired_by_caller;
static const void *seen_return, *seen_function;

UNINSTRUMENTED static void fire(fastinst_probe_id id) {
    for (unsigned i = 0; i < WORKS; i++)
        fired[i] += entries[i].probe_id == id;
}

UNINSTRUMENTED static void fire_by_caller(fastinst_probe_id id, const void *return_address, const void *function) {
    CHECK(id == entries[0].probe_id, "%u", id);
    seen_return = return_address;
    seen_function = function;
    fired_by_caller++;
}

UNINSTRUMENTED static void discover(const fastinst_probe_metadata *probe, void *user_data) {
    CHECK(user_data == entries, "user data");
    for (unsigned i = 0; i < WORKS; i++)
        if (probe->type == FASTINST_ENTRY && probe->function_address == (const void *)works[i])
            entries[i] = *probe;
}

UNINSTRUMENTED static void run_all(unsigned expected) {
    make_visible();
    memset(fired, 0, sizeof fired);
    for (unsigned i = 0; i < WORKS; i++)
        works[i]();
    for (unsigned i = 0; i < WORKS; i++)
        CHECK(fired[i] == expected, "work_%u fired %u times", i, fired[i]);
}

UNINSTRUMENTED static void together(void) {
    fastinst_activation on[WORKS + 1];
    fastinst_probe_id off[WORKS + 1];
    int results[WORKS + 1];
    const fastinst_probe_id wrong = (fastinst_probe_id)api.fastinst_probe_count();
    for (unsigned i = 0; i < WORKS; i++) {
        on[i] = (fastinst_activation){entries[i].probe_id, fire};
        off[i] = entries[i].probe_id;
    }
    const uint64_t toggles = api.fastinst_toggle_count();
    GIVES(0, api.fastinst_activate_all(on, WORKS, results));
    for (unsigned i = 0; i < WORKS; i++)
        GIVES(0, results[i]);
    CHECK(api.fastinst_toggle_count() == toggles + WORKS, "%u toggles", (unsigned)(api.fastinst_toggle_count() - toggles));
    run_all(1);
    GIVES(0, api.fastinst_activate_all(on, WORKS, NULL));
    CHECK(api.fastinst_toggle_count() == toggles + WORKS, "they were on");
    GIVES(0, api.fastinst_deactivate_all(off, WORKS, results));
    CHECK(api.fastinst_toggle_count() == toggles + 2 * WORKS, "all are off");
    run_all(0);

    /* One in the middle that is rejected. */
    on[WORKS] = on[1];
    on[1] = (fastinst_activation){wrong, fire};
    off[WORKS] = off[1];
    off[1] = wrong;
    GIVES(FASTINST_ERROR_NO_PROBE, api.fastinst_activate_all(on, WORKS + 1, results));
    for (unsigned i = 0; i <= WORKS; i++)
        GIVES(i == 1 ? FASTINST_ERROR_NO_PROBE : 0, results[i]);
    run_all(1);
    GIVES(FASTINST_ERROR_NO_PROBE, api.fastinst_deactivate_all(off, WORKS + 1, NULL));
    run_all(0);

    on[2].fn = NULL;
    results[0] = 77;
    GIVES(FASTINST_ERROR_ARGUMENT, api.fastinst_activate_all(on, WORKS, results));
    CHECK(results[0] == 77, "written: %d", results[0]);
    run_all(0);
    GIVES(FASTINST_ERROR_ARGUMENT, api.fastinst_activate_all(NULL, 1, NULL));
    GIVES(FASTINST_ERROR_ARGUMENT, api.fastinst_deactivate_all(NULL, 1, NULL));
    GIVES(0, api.fastinst_activate_all(NULL, 0, NULL));
    GIVES(0, api.fastinst_deactivate_all(NULL, 0, NULL));
}

UNINSTRUMENTED static void metadata(void) {
    fastinst_probe_metadata found;
    for (unsigned i = 0; i < WORKS; i++) {
        memset(&found, 0, sizeof found);
        GIVES(0, api.fastinst_metadata(entries[i].probe_id, &found));
        CHECK(memcmp(&found, &entries[i], sizeof found) == 0, "%s differs from what its callback received", found.function_name);
        Dl_info object;
        CHECK(dladdr(found.function_address, &object) && found.object_base == object.dli_fbase, "base %p, not %p",
              found.object_base, object.dli_fbase);
    }
    GIVES(FASTINST_ERROR_ARGUMENT, api.fastinst_metadata(entries[0].probe_id, NULL));
    GIVES(FASTINST_ERROR_NO_PROBE, api.fastinst_metadata((fastinst_probe_id)api.fastinst_probe_count(), &found));
    GIVES(FASTINST_ERROR_NO_PROBE, api.fastinst_metadata(UINT32_MAX, &found));
}

/* The return address is between here and the function's end. */
NOINLINE UNINSTRUMENTED static const void *call_work_0(void) {
    const void *start = NULL;
    __asm__ volatile("lea 0f(%%rip), %0\n0:" : "=r"(start));
    work_0();
    __asm__ volatile("" ::: "memory");
    return start;
}

UNINSTRUMENTED static void callers(void) {
    GIVES(FASTINST_ERROR_ARGUMENT, api.fastinst_activate_with_caller(entries[0].probe_id, NULL));
    GIVES(FASTINST_ERROR_NO_PROBE, api.fastinst_activate_with_caller(UINT32_MAX, fire_by_caller));
    GIVES(0, api.fastinst_activate_with_caller(entries[0].probe_id, fire_by_caller));
    make_visible();
    const uintptr_t from = (uintptr_t)call_work_0();
    CHECK(fired_by_caller == 1 && seen_function == (const void *)work_0, "%u, %p", fired_by_caller, seen_function);
    CHECK((uintptr_t)seen_return - from < 64, "returns to %p, called from %#lx", seen_return, (unsigned long)from);
    GIVES(0, api.fastinst_deactivate(entries[0].probe_id));
}

UNINSTRUMENTED int main(void) {
    char note[16] = "###";
    find_interface();
    GIVES(0, api.fastinst_register_callback(discover, entries));
    for (unsigned i = 0; i < WORKS; i++)
        CHECK(entries[i].function_name, "work_%u has no entry probe", i);
    together();
    metadata();
    callers();
    CHECK(api.fastinst_notes(note, sizeof note) == 0 && note[0] == 0, "%s", note);
    puts("done");
    return 0;
}
