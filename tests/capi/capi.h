/* Shared by the programs in this directory: the C interface, linked or looked up, and checks. Nothing
   here is instrumented. */

#ifndef CAPI_H
#define CAPI_H

#include "../fixtures/fixture.h"

#include <dlfcn.h>
#include <fastinst.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CHECK(ok, ...)                                                                                                 \
    do {                                                                                                               \
        if (!(ok)) {                                                                                                   \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #ok);                                                   \
            fprintf(stderr, __VA_ARGS__);                                                                              \
            fputc('\n', stderr);                                                                                       \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)

/* Every function of the header except the last keeps its own type. */
#define FUNCTIONS(_)                                                                                                   \
    _(fastinst_register_callback)                                                                                      \
    _(fastinst_activate)                                                                                               \
    _(fastinst_activate_with_caller)                                                                                   \
    _(fastinst_deactivate)                                                                                             \
    _(fastinst_activate_all)                                                                                           \
    _(fastinst_deactivate_all)                                                                                         \
    _(fastinst_probe_count)                                                                                            \
    _(fastinst_toggle_count)                                                                                           \
    _(fastinst_metadata)                                                                                               \
    _(fastinst_notes)                                                                                                  \
    _(fastinst_strerror)                                                                                               \
    _(fastinst_version)                                                                                                \
    _(wordpatch_patch)                                                                                                 \
    _(wordpatch_patch_all)                                                                                             \
    _(wordpatch_start_patch)                                                                                           \
    _(wordpatch_finish_patch)                                                                                          \
    _(wordpatch_start_patch_all)                                                                                       \
    _(wordpatch_outstanding_state)                                                                                     \
    _(wordpatch_try_finish)                                                                                            \
    _(wordpatch_wait)                                                                                                  \
    _(wordpatch_finish_all)                                                                                            \
    _(wordpatch_detach)                                                                                                \
    _(wordpatch_start_finisher)                                                                                        \
    _(wordpatch_take_over)                                                                                             \
    _(wordpatch_stop_finisher)                                                                                         \
    _(wordpatch_fetch_model_in_force)                                                                                  \
    _(wordpatch_force_fetch_model)                                                                                     \
    _(wordpatch_calibration_path)                                                                                      \
    _(wordpatch_calibration_warning)                                                                                   \
    _(wordpatch_serialize_all_cores)                                                                                   \
    _(wordpatch_wait_for_visibility)                                                                                   \
    _(wordpatch_check_sigtrap_unblocked)                                                                               \
    _(wordpatch_unshare)                                                                                               \
    _(wordpatch_is_shared_with_parent)                                                                                 \
    _(wordpatch_copied_bytes)                                                                                          \
    _(wordpatch_set_text_access)                                                                                       \
    _(wordpatch_text_access)                                                                                           \
    _(wordpatch_forget_text)                                                                                           \
    _(wordpatch_release_text)                                                                                          \
    _(callpatch_activate_call)                                                                                         \
    _(callpatch_deactivate_call)                                                                                       \
    _(callpatch_decode)                                                                                                \
    _(callpatch_decode_nop)                                                                                            \
    _(callpatch_activate)                                                                                              \
    _(callpatch_deactivate)                                                                                            \
    _(callpatch_state)                                                                                                 \
    _(callpatch_is_stale)                                                                                              \
    _(callpatch_describe)                                                                                              \
    _(callpatch_retarget)                                                                                              \
    _(callpatch_release)

/* The interface: linked with -DLINKED, otherwise looked up by dlsym in a program that has only the
   header. */
static struct {
#define MEMBER(name) __typeof__(&name) name;
    FUNCTIONS(MEMBER)
} api;

HELPER void find_interface(void) {
#ifdef LINKED
#define FIND(name) api.name = name;
#else
#define FIND(name)                                                                                                     \
    *(void **)&api.name = dlsym(RTLD_DEFAULT, #name);                                                                  \
    CHECK(api.name, "not exported: is libfastinst.so preloaded?");
#endif
    FUNCTIONS(FIND)
}

HELPER void check_code(int line, const char *what, int got, int expected) {
    if (got != expected) {
        fprintf(stderr, "line %d: %s returned %d (%s), expected %d (%s)\n", line, what, got, api.fastinst_strerror(got),
                expected, api.fastinst_strerror(expected));
        _exit(1);
    }
}

/* Asserts that a call returns this code. */
#define GIVES(expected, call) check_code(__LINE__, #call, call, expected)

/* Returns when no thread of this process executes code from before the call. */
HELPER void make_visible(void) {
    static int registered;
    if (!__atomic_load_n(&registered, __ATOMIC_ACQUIRE)) {
        require(syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE, 0, 0) == 0, "membarrier");
        __atomic_store_n(&registered, 1, __ATOMIC_RELEASE);
    }
    require(syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE, 0, 0) == 0, "membarrier");
}

HELPER unsigned load(const unsigned *from) { return __atomic_load_n(from, __ATOMIC_ACQUIRE); }
HELPER void store(unsigned *to, unsigned value) { __atomic_store_n(to, value, __ATOMIC_RELEASE); }

/* Read-write pages, to be filled and then sealed. */
HELPER uint8_t *map_pages(void *where, size_t length) {
    void *pages = mmap(where, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (where ? MAP_FIXED : 0), -1, 0);
    require(pages != MAP_FAILED, "mmap");
    memset(pages, 0xcc, length);
    return pages;
}

HELPER void seal(uint8_t *pages, size_t length) {
    require(mprotect(pages, length, PROT_READ | PROT_EXEC) == 0, "mprotect");
}

/* Starts a thread for each number below `count` at the same time, and joins them all. */
struct crew {
    pthread_barrier_t start;
    void (*work)(unsigned number);
};

struct member {
    struct crew *crew;
    unsigned number;
};

HELPER void *run_member(void *argument) {
    const struct member *member = argument;
    pthread_barrier_wait(&member->crew->start);
    member->crew->work(member->number);
    return NULL;
}

HELPER void run_crew(unsigned count, void (*work)(unsigned number)) {
    struct crew crew = {.work = work};
    struct member members[16];
    pthread_t threads[16];

    CHECK(count <= 16, "%u", count);
    pthread_barrier_init(&crew.start, NULL, count);
    for (unsigned i = 0; i < count; i++) {
        members[i] = (struct member){&crew, i};
        require(pthread_create(&threads[i], NULL, run_member, &members[i]) == 0, "pthread_create");
    }
    for (unsigned i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}

#endif
