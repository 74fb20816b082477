/* If the kernel refuses membarrier, operations that need a wait return FASTINST_ERROR_SYSTEM and
   change nothing, until T_max is known. */

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

#include "capi.h"

/* From now on, membarrier fails with EPERM. */
HELPER void refuse_membarrier(void) {
    struct sock_filter filter[] = {
        /* The system call's number is the first word of seccomp_data. */
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    require(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no_new_privs");
    require(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0, "seccomp");
}

static const uint8_t forms[2][5] = {{0xb8, 1, 1, 1, 1}, {0xb8, 2, 2, 2, 2}};

/* mov eax, imm32 inside every fetch window, and one that crosses every window; a call that crosses a window of 8 bytes. */
#define INSIDE 8
#define STRADDLER 62
#define CALL 132

static void patches(uint8_t *page) {
    const wordpatch_patch_request requests[] = {
        {page + STRADDLER, forms[0], forms[1], 5},
        {page + INSIDE, forms[1], forms[0], 5},
    };
    int results[2];
    wordpatch_outstanding *batch;
    GIVES(0, api.wordpatch_patch(page + INSIDE, forms[0], forms[1], 5));
    GIVES(FASTINST_ERROR_SYSTEM, api.wordpatch_patch(page + STRADDLER, forms[0], forms[1], 5));
    GIVES(FASTINST_ERROR_SYSTEM, api.wordpatch_start_patch(page + STRADDLER, forms[0], forms[1], 5));
    GIVES(1, api.wordpatch_finish_patch(page + STRADDLER));
    GIVES(0, api.wordpatch_start_patch_all(requests, 2, &batch));
    GIVES(WORDPATCH_FINISHED, api.wordpatch_outstanding_state(batch));
    GIVES(FASTINST_ERROR_SYSTEM, api.wordpatch_finish_all(batch, results));
    CHECK(results[0] == FASTINST_ERROR_SYSTEM && results[1] == 0, "%d, %d", results[0], results[1]);
    CHECK(memcmp(page + STRADDLER, forms[0], 5) == 0, "an error has changed the code");
    CHECK(memcmp(page + INSIDE, forms[0], 5) == 0, "one store needs no wait");
}

/* A call that keeps its target, and can still be toggled. */
static void calls(uint8_t *page) {
    callpatch_site *site;
    callpatch_site_description before, after;
    int result;
    GIVES(0, api.callpatch_decode(page + CALL, CALLPATCH_CLOBBERS_NOTHING, &site));
    GIVES(0, api.callpatch_describe(site, &before));
    CHECK(before.strategy == CALLPATCH_SKIP, "%d", before.strategy);
    const callpatch_retarget_request request = {site, page};
    GIVES(FASTINST_ERROR_SYSTEM, api.callpatch_retarget(&request, 1, &result));
    GIVES(FASTINST_ERROR_SYSTEM, result);
    GIVES(0, api.callpatch_describe(site, &after));
    CHECK(after.target == before.target, "%p", after.target);
    GIVES(0, api.callpatch_activate(site));
    GIVES(1, api.callpatch_state(site));
    api.callpatch_release(site);
}

int main(void) {
    static const uint32_t t_max = 30000;
    find_interface();
    refuse_membarrier();
    uint8_t *page = map_pages(NULL, 4096);
    memcpy(page + INSIDE, forms[0], 5);
    memcpy(page + STRADDLER, forms[0], 5);
    memcpy(page + CALL, "\xe8\0\0\0\0", 5);
    seal(page, 4096);
    GIVES(0, api.wordpatch_force_fetch_model(8, NULL, WORDPATCH_WAIT_MEMBARRIER));
    GIVES(FASTINST_ERROR_SYSTEM, api.wordpatch_serialize_all_cores());
    GIVES(FASTINST_ERROR_SYSTEM, api.wordpatch_wait_for_visibility());
    patches(page);
    calls(page);

    /* T_max replaces it. */
    GIVES(0, api.wordpatch_force_fetch_model(8, &t_max, WORDPATCH_WAIT_MEMBARRIER));
    GIVES(FASTINST_ERROR_SYSTEM, api.wordpatch_serialize_all_cores());
    GIVES(0, api.wordpatch_wait_for_visibility());
    GIVES(0, api.wordpatch_patch(page + STRADDLER, forms[0], forms[1], 5));
    CHECK(memcmp(page + STRADDLER, forms[1], 5) == 0, "the new instruction");
    puts("done");
    return 0;
}
