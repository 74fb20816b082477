/* Process-wide functions: the fetch model, waits, threads with SIGTRAP blocked, children created by
   a raw system call, text access, and text that is unmapped. */

#include <signal.h>
#include <sys/wait.h>

#include "capi.h"

/* mov eax, imm32; ret */
static const uint8_t forms[2][6] = {{0xb8, 1, 1, 1, 1, 0xc3}, {0xb8, 2, 2, 2, 2, 0xc3}};
static const uint32_t values[2] = {0x01010101, 0x02020202};

/* Crosses every fetch window. */
#define STRADDLER 62

typedef uint32_t function(void);

HELPER uint32_t call(const uint8_t *site) {
    function *call;
    *(const void **)&call = site;
    return call();
}

/* A page with a function that contains a straddler; the site is at its address plus STRADDLER. */
HELPER uint8_t *code_page(void *where) {
    uint8_t *page = map_pages(where, 4096);
    memcpy(page + STRADDLER, forms[0], 6);
    seal(page, 4096);
    return page;
}

static void fetch_model(void) {
    static const uint32_t t_max = 30000, windows[] = {8, 16, 32, 64}, no_windows[] = {0, 4, 12, 128, 256 + 8};
    wordpatch_fetch_model model;
    memset(&model, 0xff, sizeof model);
    GIVES(FASTINST_ERROR_ARGUMENT, api.wordpatch_fetch_model_in_force(NULL));
    GIVES(0, api.wordpatch_fetch_model_in_force(&model));
    /* The test runs this program without a calibration: the vendors' guarantees apply. */
    CHECK(model.window == 8 && model.source == WORDPATCH_VENDOR_GUARANTEE, "%u from %d", model.window, model.source);
    CHECK(!model.is_t_max_known && model.t_max == 0 && model.wait == WORDPATCH_WAIT_MEMBARRIER, "%u", model.t_max);

    for (unsigned i = 0; i < 4; i++)
        for (int wait = WORDPATCH_WAIT_MEMBARRIER; wait <= WORDPATCH_WAIT_BOTH; wait++) {
            GIVES(0, api.wordpatch_force_fetch_model(windows[i], &t_max, (wordpatch_wait_policy)wait));
            GIVES(0, api.wordpatch_fetch_model_in_force(&model));
            CHECK(model.window == windows[i] && model.is_t_max_known == 1 && model.t_max == t_max, "%u", model.window);
            CHECK((int)model.wait == wait && model.source == WORDPATCH_FORCED, "%d", model.wait);
        }
    for (unsigned i = 0; i < 5; i++)
        GIVES(FASTINST_ERROR_ARGUMENT, api.wordpatch_force_fetch_model(no_windows[i], NULL, WORDPATCH_WAIT_MEMBARRIER));
    GIVES(FASTINST_ERROR_ARGUMENT, api.wordpatch_force_fetch_model(8, NULL, (wordpatch_wait_policy)0));
    GIVES(FASTINST_ERROR_ARGUMENT, api.wordpatch_force_fetch_model(8, NULL, (wordpatch_wait_policy)4));
    GIVES(0, api.wordpatch_fetch_model_in_force(&model));
    CHECK(model.window == 64 && model.wait == WORDPATCH_WAIT_BOTH, "an error has changed the model: %u", model.window);

    /* Without T_max only one policy is possible. */
    GIVES(0, api.wordpatch_force_fetch_model(8, NULL, WORDPATCH_WAIT_T_MAX));
    GIVES(0, api.wordpatch_fetch_model_in_force(&model));
    CHECK(model.window == 8 && !model.is_t_max_known && model.wait == WORDPATCH_WAIT_MEMBARRIER, "%d", model.wait);

    GIVES(0, api.wordpatch_serialize_all_cores());
    GIVES(0, api.wordpatch_wait_for_visibility());
    GIVES(0, api.wordpatch_force_fetch_model(8, &t_max, WORDPATCH_WAIT_T_MAX));
    const uint64_t start = ticks();
    GIVES(0, api.wordpatch_wait_for_visibility());
    CHECK(ticks() - start >= t_max, "it waits for T_max");
    GIVES(0, api.wordpatch_force_fetch_model(8, NULL, WORDPATCH_WAIT_MEMBARRIER));
}

static void no_calibration(void) {
    char text[4] = "abc";
    CHECK(api.wordpatch_calibration_warning(text, sizeof text) == 0 && text[0] == 0, "%s", text);
    CHECK(api.wordpatch_calibration_path(NULL, 0) == 0, "a path");
}

static pthread_barrier_t turn;
static pid_t blocking;

static void *block(void *unused) {
    sigset_t trap;
    sigemptyset(&trap);
    sigaddset(&trap, SIGTRAP);
    pthread_sigmask(SIG_BLOCK, &trap, NULL);
    blocking = (pid_t)syscall(SYS_gettid);
    pthread_barrier_wait(&turn);
    pthread_barrier_wait(&turn);
    return unused;
}

static void sigtrap(void) {
    pthread_t thread;
    int found = -1;
    GIVES(0, api.wordpatch_check_sigtrap_unblocked(&found));
    CHECK(found == 0, "%d", found);
    GIVES(0, api.wordpatch_check_sigtrap_unblocked(NULL));
    pthread_barrier_init(&turn, NULL, 2);
    require(pthread_create(&thread, NULL, block, NULL) == 0, "pthread_create");
    pthread_barrier_wait(&turn);
    GIVES(FASTINST_ERROR_SIGTRAP_BLOCKED, api.wordpatch_check_sigtrap_unblocked(&found));
    CHECK(found == blocking, "thread %d, not %d", found, blocking);
    GIVES(FASTINST_ERROR_SIGTRAP_BLOCKED, api.wordpatch_check_sigtrap_unblocked(NULL));
    pthread_barrier_wait(&turn);
    pthread_join(thread, NULL);
    /* A joined thread may remain visible for a short time. */
    int code;
    while ((code = api.wordpatch_check_sigtrap_unblocked(&found)) == FASTINST_ERROR_SIGTRAP_BLOCKED)
        CHECK(found == blocking, "thread %d, not %d", found, blocking);
    GIVES(0, code);
    CHECK(found == 0, "%d", found);
}

/* A child that no fork() handler has prepared. */
static void raw_child(void) {
    uint8_t *page = code_page(NULL), *site = page + STRADDLER;
    GIVES(0, api.wordpatch_is_shared_with_parent());
    GIVES(0, api.wordpatch_unshare());
    GIVES(0, api.wordpatch_patch(site, forms[0], forms[1], 5));
    CHECK(api.wordpatch_copied_bytes() >= 4096, "%zu", api.wordpatch_copied_bytes());
    const pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    require(child >= 0, "clone");
    if (child == 0) {
        GIVES(1, api.wordpatch_is_shared_with_parent());
        GIVES(FASTINST_ERROR_SHARED_WITH_PARENT, api.wordpatch_patch(site, forms[1], forms[0], 5));
        CHECK(call(site) == values[1], "the parent's code");
        GIVES(0, api.wordpatch_unshare());
        GIVES(0, api.wordpatch_is_shared_with_parent());
        GIVES(0, api.wordpatch_unshare());
        GIVES(0, api.wordpatch_patch(site, forms[1], forms[0], 5));
        CHECK(call(site) == values[0], "%#x", call(site));
        _exit(0);
    }
    int status;
    require(waitpid(child, &status, 0) == child, "waitpid");
    CHECK(status == 0, "the child ended with %#x", (unsigned)status);
    CHECK(call(site) == values[1], "the child has patched its parent: %#x", call(site));

    /* The library prepares children of fork(). */
    const pid_t forked = fork();
    require(forked >= 0, "fork");
    if (forked == 0) {
        GIVES(0, api.wordpatch_is_shared_with_parent());
        GIVES(0, api.wordpatch_patch(site, forms[1], forms[0], 5));
        _exit(0);
    }
    require(waitpid(forked, &status, 0) == forked && status == 0, "the forked child");
    CHECK(call(site) == values[1], "%#x", call(site));
}

static void text_access(void) {
    GIVES(WORDPATCH_PRIVATE, api.wordpatch_text_access());
    GIVES(FASTINST_ERROR_ARGUMENT, api.wordpatch_set_text_access((wordpatch_access)3));
    GIVES(WORDPATCH_PRIVATE, api.wordpatch_text_access());
    GIVES(0, api.wordpatch_set_text_access(WORDPATCH_ALIAS));
    GIVES(WORDPATCH_ALIAS, api.wordpatch_text_access());
    GIVES(0, api.wordpatch_set_text_access(WORDPATCH_MPROTECT));
    GIVES(WORDPATCH_MPROTECT, api.wordpatch_text_access());
    const size_t before = api.wordpatch_copied_bytes();
    uint8_t *site = code_page(NULL) + STRADDLER;
    GIVES(0, api.wordpatch_patch(site, forms[0], forms[1], 5));
    CHECK(call(site) == values[1], "%#x", call(site));
    CHECK(api.wordpatch_copied_bytes() == before, "nothing is copied: %zu", api.wordpatch_copied_bytes());
    GIVES(0, api.wordpatch_set_text_access(WORDPATCH_PRIVATE));
}

/* How much memory the process's memory files hold, which a release frees. */
HELPER long shared_pages(void) {
    long total = 0, resident = 0, shared = 0;
    FILE *statm = fopen("/proc/self/statm", "r");
    require(statm && fscanf(statm, "%ld %ld %ld", &total, &resident, &shared) == 3, "statm");
    fclose(statm);
    return shared;
}

static void text_that_goes_away(void) {
    const size_t length = 4096 * 64, before = api.wordpatch_copied_bytes();
    uint8_t *pages = map_pages(NULL, length), *site = pages + STRADDLER;
    memcpy(site, forms[0], 6);
    seal(pages, length);
    GIVES(0, api.wordpatch_patch(site, forms[0], forms[1], 5));
    CHECK(api.wordpatch_copied_bytes() == before + length, "%zu", api.wordpatch_copied_bytes());
    GIVES(0, api.wordpatch_forget_text(pages, length));
    CHECK(api.wordpatch_copied_bytes() == before, "%zu", api.wordpatch_copied_bytes());
    require(munmap(pages, length) == 0, "munmap");

    /* The same address, other text. */
    require(map_pages(pages, length) == pages, "mmap");
    memcpy(site, forms[0], 6);
    seal(pages, length);
    GIVES(0, api.wordpatch_patch(site, forms[0], forms[1], 5));
    CHECK(call(site) == values[1], "%#x", call(site));
    require(munmap(pages, length) == 0, "munmap");
    const long held = shared_pages();
    GIVES(0, api.wordpatch_release_text(site, 1));
    CHECK(api.wordpatch_copied_bytes() == before, "%zu", api.wordpatch_copied_bytes());
    CHECK(shared_pages() < held, "all of %ld pages are still held", held);

    GIVES(FASTINST_ERROR_ARGUMENT, api.wordpatch_forget_text(NULL, 1));
    GIVES(FASTINST_ERROR_ARGUMENT, api.wordpatch_forget_text(pages, 0));
    GIVES(FASTINST_ERROR_ARGUMENT, api.wordpatch_forget_text(pages, SIZE_MAX));
    GIVES(FASTINST_ERROR_ARGUMENT, api.wordpatch_release_text(NULL, 1));
    GIVES(FASTINST_ERROR_ARGUMENT, api.wordpatch_release_text(pages, 0));
    GIVES(FASTINST_ERROR_ARGUMENT, api.wordpatch_release_text(pages, SIZE_MAX));
}

int main(void) {
    find_interface();
    fetch_model();
    no_calibration();
    sigtrap();
    raw_child();
    text_access();
    text_that_goes_away();
    puts("done");
    return 0;
}
