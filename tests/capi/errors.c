/* Every call with invalid arguments, and the message of every error. */

#include <errno.h>

#include "capi.h"

NOINLINE void work(void) { __asm__ volatile(""); }

static unsigned announced, fired;
static fastinst_probe_id last;

UNINSTRUMENTED static void fire(fastinst_probe_id id) {
    (void)id;
    fired++;
}

UNINSTRUMENTED static void nothing(const fastinst_probe_metadata *probe, void *user_data) {
    (void)probe;
    (void)user_data;
}

UNINSTRUMENTED static void discover(const fastinst_probe_metadata *probe, void *user_data) {
    (void)user_data;
    announced++;
    if (strcmp(probe->function_name, "work") == 0 && probe->type == FASTINST_ENTRY)
        last = probe->probe_id;
    GIVES(FASTINST_ERROR_IN_CALLBACK, api.fastinst_register_callback(nothing, NULL));
    GIVES(0, api.fastinst_activate(probe->probe_id, fire));
    GIVES(0, api.fastinst_deactivate(probe->probe_id));
}

static int refusals;

/* Called by the library instead of the C library's: fails for a while. */
UNINSTRUMENTED int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *),
                                  void *argument) {
    static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    if (refusals > 0) {
        refusals--;
        return EAGAIN;
    }
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
    return real(thread, attributes, start, argument);
}

/* Registrations try to start the thread for later discoveries until one succeeds. */
UNINSTRUMENTED static void registrations_without_thread(void) {
    refusals = 2;
    GIVES(FASTINST_ERROR_SYSTEM, api.fastinst_register_callback(nothing, NULL));
    GIVES(FASTINST_ERROR_SYSTEM, api.fastinst_register_callback(nothing, NULL));
    CHECK(refusals == 0, "%d", refusals);
    GIVES(0, api.fastinst_register_callback(nothing, NULL));
    refusals = 1;
    GIVES(0, api.fastinst_register_callback(nothing, NULL));
    CHECK(refusals == 1, "it was started a second time");
    refusals = 0;
}

UNINSTRUMENTED static void probes(void) {
    GIVES(FASTINST_ERROR_ARGUMENT, api.fastinst_register_callback(NULL, NULL));
    registrations_without_thread();
    GIVES(0, api.fastinst_register_callback(discover, NULL));
    CHECK(announced == api.fastinst_probe_count(), "%u of %zu probes announced", announced, api.fastinst_probe_count());
    const fastinst_probe_id beyond = (fastinst_probe_id)api.fastinst_probe_count();
    const fastinst_probe_id wrong[] = {beyond, beyond + 1, INT32_MAX, (fastinst_probe_id)INT32_MAX + 1, UINT32_MAX};
    for (unsigned i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        GIVES(FASTINST_ERROR_NO_PROBE, api.fastinst_activate(wrong[i], fire));
        GIVES(FASTINST_ERROR_NO_PROBE, api.fastinst_deactivate(wrong[i]));
        GIVES(FASTINST_ERROR_ARGUMENT, api.fastinst_activate(wrong[i], NULL));
    }
    GIVES(FASTINST_ERROR_ARGUMENT, api.fastinst_activate(last, NULL));

    GIVES(0, api.fastinst_deactivate(last));
    GIVES(0, api.fastinst_activate(last, fire));
    GIVES(0, api.fastinst_activate(last, fire));
    make_visible();
    work();
    GIVES(FASTINST_ERROR_ARGUMENT, api.fastinst_activate(last, NULL));
    work();
    CHECK(fired == 2, "%u", fired);
    GIVES(0, api.fastinst_deactivate(last));
    make_visible();
    work();
    CHECK(fired == 2, "%u", fired);
}

UNINSTRUMENTED static void patches(void) {
    static const uint8_t mov_1[] = {0xb8, 1, 1, 1, 1}, mov_2[] = {0xb8, 2, 2, 2, 2}, nine[9] = {0x90};
    static const uint8_t nop[] = {0x0f, 0x1f, 0x44, 0, 0}, short_nops[] = {0x90, 0x90, 0x90, 0x90, 0x90};
    static const uint8_t bad[] = {0x06, 0x06, 0x06, 0x06, 0x06};
    static const uint8_t syscall_code[] = {0x0f, 0x05}, nop_2[] = {0x66, 0x90};
    uint8_t *pages = map_pages(NULL, 4096);
    memcpy(pages, mov_1, 5);
    memcpy(pages + 127, syscall_code, 2); /* these two cross every fetch window */
    memcpy(pages + 61, nop, 5);
    memcpy(pages + 40, mov_1, 5);
    memcpy(pages + 48, bad, 5);
    seal(pages, 4096);

    GIVES(FASTINST_ERROR_ARGUMENT, api.wordpatch_patch(NULL, mov_1, mov_2, 5));
    GIVES(FASTINST_ERROR_ARGUMENT, api.wordpatch_patch(pages, NULL, mov_2, 5));
    GIVES(FASTINST_ERROR_ARGUMENT, api.wordpatch_patch(pages, mov_1, NULL, 5));
    GIVES(FASTINST_ERROR_ARGUMENT, api.wordpatch_patch(pages, mov_1, mov_2, 0));
    GIVES(FASTINST_ERROR_ARGUMENT, api.wordpatch_patch(pages, nine, nine, 9));
    GIVES(FASTINST_ERROR_ARGUMENT, api.wordpatch_patch(pages, nine, nine, SIZE_MAX));
    GIVES(FASTINST_ERROR_FOREIGN_BYTES, api.wordpatch_patch(pages, mov_2, mov_1, 5));
    GIVES(FASTINST_ERROR_LAYOUT, api.wordpatch_patch(pages, mov_1, short_nops, 5));
    GIVES(FASTINST_ERROR_LAYOUT, api.wordpatch_patch(pages, mov_1, bad, 5));
    GIVES(FASTINST_ERROR_LAYOUT, api.wordpatch_patch(pages + 48, bad, mov_1, 5));
    GIVES(FASTINST_ERROR_IMMOVABLE, api.wordpatch_patch(pages + 127, syscall_code, nop_2, 2));
    CHECK(memcmp(pages, mov_1, 5) == 0 && memcmp(pages + 127, syscall_code, 2) == 0, "an error has changed the code");

    GIVES(FASTINST_ERROR_ARGUMENT, api.callpatch_activate_call(NULL, 0));
    GIVES(FASTINST_ERROR_ARGUMENT, api.callpatch_deactivate_call(NULL));
    GIVES(FASTINST_ERROR_NOT_A_CALL, api.callpatch_activate_call(pages + 40, 0));
    GIVES(FASTINST_ERROR_NOT_A_CALL, api.callpatch_deactivate_call(pages + 40));
    GIVES(FASTINST_ERROR_NOT_A_CALL, api.callpatch_activate_call(pages + 61, 0));
    GIVES(FASTINST_ERROR_NOT_A_CALL, api.callpatch_deactivate_call(pages + 61));

    /* A handle that cannot be made is a null pointer. */
    callpatch_site *const none = (callpatch_site *)pages;
    callpatch_site *site = none;
    GIVES(FASTINST_ERROR_ARGUMENT, api.callpatch_decode(NULL, CALLPATCH_CLOBBERS_NOTHING, &site));
    CHECK(!site, "%p", (void *)site);
    site = none;
    GIVES(FASTINST_ERROR_ARGUMENT, api.callpatch_decode(pages, (callpatch_clobbers)7, &site));
    CHECK(!site, "%p", (void *)site);
    site = none;
    GIVES(FASTINST_ERROR_ARGUMENT, api.callpatch_decode_nop(pages, NULL, &site));
    CHECK(!site, "%p", (void *)site);
    site = none;
    GIVES(FASTINST_ERROR_NOT_A_CALL, api.callpatch_decode(pages, CALLPATCH_CLOBBERS_NOTHING, &site));
    CHECK(!site, "%p", (void *)site);
    GIVES(FASTINST_ERROR_ARGUMENT, api.callpatch_decode(pages, CALLPATCH_CLOBBERS_NOTHING, NULL));
    GIVES(FASTINST_ERROR_ARGUMENT, api.callpatch_decode_nop(pages + 61, pages, NULL));

    static uint8_t data[] = {0xb8, 1, 1, 1, 1};
    GIVES(FASTINST_ERROR_NOT_TEXT, api.wordpatch_patch(data, mov_1, mov_2, 5));
    GIVES(FASTINST_ERROR_NOT_TEXT, api.callpatch_activate_call(data, 0));
    GIVES(FASTINST_ERROR_NOT_TEXT, api.callpatch_deactivate_call(data));
    /* The first page is never mapped. */
    GIVES(FASTINST_ERROR_NOT_TEXT, api.wordpatch_patch((void *)64, mov_1, mov_2, 5));
    GIVES(FASTINST_ERROR_NOT_TEXT, api.callpatch_activate_call((void *)64, 0));
    GIVES(FASTINST_ERROR_NOT_TEXT, api.callpatch_deactivate_call((void *)64));
}

UNINSTRUMENTED int main(void) {
    find_interface();
    CHECK(api.fastinst_version() == FASTINST_VERSION, "%u", api.fastinst_version());
    probes();
    patches();
    const int codes[] = {FASTINST_OK,
                         FASTINST_ERROR_ARGUMENT,
                         FASTINST_ERROR_NO_PROBE,
                         FASTINST_ERROR_UNDISCOVERED,
                         FASTINST_ERROR_UNLOADED,
                         FASTINST_ERROR_FOREIGN_BYTES,
                         FASTINST_ERROR_NOT_TEXT,
                         FASTINST_ERROR_CONTENDED,
                         FASTINST_ERROR_LAYOUT,
                         FASTINST_ERROR_OUT_OF_REACH,
                         FASTINST_ERROR_NOT_A_CALL,
                         FASTINST_ERROR_IMMOVABLE,
                         FASTINST_ERROR_IN_CALLBACK,
                         FASTINST_ERROR_SYSTEM,
                         FASTINST_ERROR_SIGTRAP_BLOCKED,
                         FASTINST_ERROR_SHARED_WITH_PARENT,
                         FASTINST_ERROR_FORKED,
                         FASTINST_ERROR_RETIRED,
                         1,
                         FASTINST_ERROR_RETIRED - 1,
                         INT32_MIN};
    for (unsigned i = 0; i < sizeof codes / sizeof *codes; i++)
        printf("%d %s\n", codes[i], api.fastinst_strerror(codes[i]));
    return 0;
}
