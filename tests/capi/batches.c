/* Batches that are started, then finished through their handle, by address, or by a finisher, while
   another thread executes the instructions; batches that are rejected; and operations of a forked
   child on its parent's batches. */

#include <sys/wait.h>

#include "capi.h"

#define SITES 64
#define SLOT 128
#define ROUNDS 60

/* mov eax, imm32; ret */
static const uint8_t forms[2][5] = {{0xb8, 1, 1, 1, 1}, {0xb8, 2, 2, 2, 2}};
static const uint8_t other[] = {0xb8, 7, 7, 7, 7};
static const uint32_t values[2] = {0x01010101, 0x02020202};

/* Crosses every fetch window. */
#define STRADDLER 62

static uint8_t *pages;
static unsigned done;
static wordpatch_finisher *finisher;

typedef uint32_t function(void);

HELPER uint8_t *site_of(unsigned number) { return pages + number * SLOT + number; }

HELPER uint32_t call(unsigned number) {
    function *call;
    *(void **)&call = site_of(number);
    return call();
}

HELPER wordpatch_outstanding *start(unsigned to) {
    wordpatch_outstanding *batch = NULL;
    wordpatch_patch_request requests[SITES];
    for (unsigned i = 0; i < SITES; i++)
        requests[i] = (wordpatch_patch_request){site_of(i), forms[!to], forms[to], 5};
    GIVES(0, api.wordpatch_start_patch_all(requests, SITES, &batch));
    /* The batch keeps no reference to these. */
    memset(requests, 0xff, sizeof requests);
    CHECK(batch, "no handle");
    return batch;
}

HELPER void finish_all(wordpatch_outstanding *batch) {
    int results[SITES];
    memset(results, 0xff, sizeof results);
    GIVES(0, api.wordpatch_finish_all(batch, results));
    for (unsigned i = 0; i < SITES; i++)
        CHECK(results[i] == 0, "%u: %d", i, results[i]);
}

HELPER void finish_by_address(unsigned number) {
    int state;
    while ((state = api.wordpatch_finish_patch(site_of(number))) == 0)
        sched_yield();
    CHECK(state == 1, "%u: %d", number, state);
}

/* One membarrier ends a wait, so each poll is a step. */
static void step_by_step(void) {
    for (unsigned round = 0; round < 2; round++) {
        wordpatch_outstanding *batch = start(!round);
        GIVES(WORDPATCH_FIRST_WAIT, api.wordpatch_outstanding_state(batch));
        GIVES(WORDPATCH_SECOND_WAIT, api.wordpatch_try_finish(batch));
        CHECK(call(STRADDLER) == values[round], "the old instruction");
        GIVES(WORDPATCH_FINISHED, api.wordpatch_try_finish(batch));
        finish_all(batch);
    }
}

static void by_looking(unsigned to) {
    wordpatch_outstanding *batch = start(to);
    GIVES(WORDPATCH_FIRST_WAIT, api.wordpatch_outstanding_state(batch));
    for (int last = 0, state = 0; state != WORDPATCH_FINISHED; last = state) {
        state = api.wordpatch_try_finish(batch);
        CHECK(state >= last && state <= WORDPATCH_FINISHED, "%d after %d", state, last);
        GIVES(state, api.wordpatch_outstanding_state(batch));
    }
    GIVES(WORDPATCH_FINISHED, api.wordpatch_try_finish(batch));
    finish_all(batch);
}

static void by_waiting(unsigned to) {
    wordpatch_outstanding *batch = start(to);
    const int soon = api.wordpatch_wait(batch, 0);
    CHECK(soon >= 0 && soon <= WORDPATCH_FINISHED, "%d", soon);
    GIVES(WORDPATCH_FINISHED, api.wordpatch_wait(batch, UINT64_MAX));
    GIVES(WORDPATCH_FINISHED, api.wordpatch_wait(batch, 0));
    finish_all(batch);
}

static void at_once(unsigned to) { finish_all(start(to)); }

static void detached(unsigned to) {
    wordpatch_outstanding *batch = start(to);
    api.wordpatch_detach(batch);
    GIVES(FASTINST_ERROR_CONTENDED, api.wordpatch_patch(site_of(STRADDLER), forms[!to], other, 5));
    for (unsigned i = 0; i < SITES; i++)
        finish_by_address(i);
}

static void by_finisher(unsigned to) {
    wordpatch_outstanding *batch = start(to);
    GIVES(0, api.wordpatch_take_over(finisher, batch));
    GIVES(0, api.wordpatch_take_over(finisher, batch));
    while (api.wordpatch_outstanding_state(batch) != WORDPATCH_FINISHED)
        sched_yield();
    finish_all(batch);
}

/* No handle is kept; the finisher has completed all patches when it is stopped. */
static void by_finisher_alone(unsigned to) {
    wordpatch_finisher *own;
    GIVES(0, api.wordpatch_start_finisher(&own));
    wordpatch_outstanding *batch = start(to);
    GIVES(0, api.wordpatch_take_over(own, batch));
    api.wordpatch_detach(batch);
    api.wordpatch_stop_finisher(own);
    for (unsigned i = 0; i < SITES; i++)
        CHECK(memcmp(site_of(i), forms[to], 5) == 0, "%u is not finished", i);
}

static void (*const ways[])(unsigned to) = {by_looking, by_waiting, at_once, detached, by_finisher, by_finisher_alone};

static void work(unsigned number) {
    if (number > 0) {
        while (!load(&done))
            for (unsigned i = 0; i < SITES; i++) {
                const uint32_t value = call(i);
                CHECK(value == values[0] || value == values[1], "%u: a mixture, %#x", i, value);
            }
        return;
    }
    unsigned to = 0;
    for (unsigned round = 0; round < ROUNDS; round++)
        for (unsigned way = 0; way < sizeof ways / sizeof *ways; way++) {
            to = !to;
            ways[way](to);
            GIVES(0, api.wordpatch_serialize_all_cores());
            for (unsigned i = 0; i < SITES; i++)
                CHECK(call(i) == values[to], "way %u, site %u: %#x", way, i, call(i));
        }
    CHECK(to == 0, "an even number of patches");
    store(&done, 1);
}

static void every_way_while_executing(void) {
    GIVES(0, api.wordpatch_start_finisher(&finisher));
    store(&done, 0);
    run_crew(2, work);
}

static void refusals(void) {
    static const uint8_t shorter[] = {0x90, 0x90, 0x90, 0x90, 0x90};
    const wordpatch_patch_request requests[] = {
        {site_of(0), forms[0], forms[1], 5}, {site_of(1), other, forms[1], 5},           {site_of(2), forms[0], shorter, 5},
        {site_of(0), forms[0], forms[1], 5}, {site_of(STRADDLER), forms[0], forms[1], 5},
    };
    const int expected[] = {0, FASTINST_ERROR_FOREIGN_BYTES, FASTINST_ERROR_LAYOUT, FASTINST_ERROR_CONTENDED, 0};
    int results[5];
    wordpatch_outstanding *batch = NULL, *second = NULL;
    GIVES(0, api.wordpatch_start_patch_all(requests, 5, &batch));

    /* Outstanding: the site belongs to the batch, and still executes the old instruction. */
    GIVES(FASTINST_ERROR_CONTENDED, api.wordpatch_patch(site_of(STRADDLER), forms[0], other, 5));
    GIVES(0, api.wordpatch_start_patch_all(&requests[4], 1, &second));
    GIVES(WORDPATCH_FINISHED, api.wordpatch_outstanding_state(second));
    GIVES(FASTINST_ERROR_CONTENDED, api.wordpatch_finish_all(second, NULL));
    CHECK(call(STRADDLER) == values[0], "the old instruction");

    GIVES(FASTINST_ERROR_FOREIGN_BYTES, api.wordpatch_finish_all(batch, results));
    for (unsigned i = 0; i < 5; i++)
        CHECK(results[i] == expected[i], "%u: %d", i, results[i]);
    CHECK(call(0) == values[1] && call(1) == values[0] && call(STRADDLER) == values[1], "what was done");
    GIVES(0, api.wordpatch_patch(site_of(0), forms[1], forms[0], 5));
    GIVES(0, api.wordpatch_patch(site_of(STRADDLER), forms[1], forms[0], 5));
}

static void wrong_arguments(void) {
    const wordpatch_patch_request nothing = {site_of(2), NULL, forms[1], 5}, nine = {site_of(2), forms[0], forms[1], 9};
    wordpatch_outstanding *batch = (wordpatch_outstanding *)pages;
    GIVES(FASTINST_ERROR_ARGUMENT, api.wordpatch_start_patch_all(NULL, 1, &batch));
    CHECK(!batch, "a handle after an error");
    GIVES(FASTINST_ERROR_ARGUMENT, api.wordpatch_start_patch_all(&nothing, 1, &batch));
    GIVES(FASTINST_ERROR_ARGUMENT, api.wordpatch_start_patch_all(&nine, 1, &batch));
    GIVES(FASTINST_ERROR_ARGUMENT, api.wordpatch_start_patch_all(&nine, 0, NULL));
    GIVES(FASTINST_ERROR_ARGUMENT, api.wordpatch_outstanding_state(NULL));
    GIVES(FASTINST_ERROR_ARGUMENT, api.wordpatch_try_finish(NULL));
    GIVES(FASTINST_ERROR_ARGUMENT, api.wordpatch_wait(NULL, 0));
    GIVES(FASTINST_ERROR_ARGUMENT, api.wordpatch_finish_all(NULL, NULL));
    GIVES(FASTINST_ERROR_ARGUMENT, api.wordpatch_start_finisher(NULL));
    GIVES(FASTINST_ERROR_ARGUMENT, api.wordpatch_take_over(finisher, NULL));
    api.wordpatch_detach(NULL);
    api.wordpatch_stop_finisher(NULL);

    /* An empty batch is finished. */
    GIVES(0, api.wordpatch_start_patch_all(NULL, 0, &batch));
    GIVES(WORDPATCH_FINISHED, api.wordpatch_outstanding_state(batch));
    GIVES(FASTINST_ERROR_ARGUMENT, api.wordpatch_take_over(NULL, batch));
    GIVES(0, api.wordpatch_finish_all(batch, NULL));
}

/* The memory is unmapped while its patch is outstanding. */
static void unmapped(void) {
    uint8_t *page = map_pages(NULL, 4096), *site = page + STRADDLER;
    memcpy(site, forms[0], 5);
    seal(page, 4096);
    const wordpatch_patch_request requests[] = {
        {site, forms[0], forms[1], 5},
        {site_of(STRADDLER), forms[0], forms[1], 5},
    };
    int results[2];
    wordpatch_outstanding *batch;
    GIVES(0, api.wordpatch_start_patch_all(requests, 2, &batch));
    GIVES(WORDPATCH_FIRST_WAIT, api.wordpatch_outstanding_state(batch));
    require(munmap(page, 4096) == 0, "munmap");
    GIVES(FASTINST_ERROR_NOT_TEXT, api.wordpatch_finish_all(batch, results));
    CHECK(results[0] == FASTINST_ERROR_NOT_TEXT && results[1] == 0, "%d, %d", results[0], results[1]);
    GIVES(0, api.wordpatch_patch(site_of(STRADDLER), forms[1], forms[0], 5));
}

/* A forked child owns neither the parent's batch nor its finisher, but owns its code. */
static void in_child(wordpatch_outstanding *batch) {
    const wordpatch_patch_request request = {site_of(STRADDLER), forms[0], forms[1], 5};
    int results[SITES];
    GIVES(FASTINST_ERROR_FORKED, api.wordpatch_try_finish(batch));
    GIVES(FASTINST_ERROR_FORKED, api.wordpatch_wait(batch, UINT64_MAX));
    GIVES(FASTINST_ERROR_FORKED, api.wordpatch_take_over(finisher, batch));
    GIVES(FASTINST_ERROR_FORKED, api.wordpatch_finish_all(batch, results));
    for (unsigned i = 0; i < SITES; i++)
        CHECK(results[i] == FASTINST_ERROR_FORKED, "%u: %d", i, results[i]);
    api.wordpatch_stop_finisher(finisher);
    CHECK(call(STRADDLER) == values[0], "the child has the old instruction, not %#x", call(STRADDLER));

    GIVES(0, api.wordpatch_start_patch_all(&request, 1, &batch));
    GIVES(0, api.wordpatch_start_finisher(&finisher));
    GIVES(0, api.wordpatch_take_over(finisher, batch));
    GIVES(WORDPATCH_FINISHED, api.wordpatch_wait(batch, UINT64_MAX));
    GIVES(0, api.wordpatch_finish_all(batch, NULL));
    api.wordpatch_stop_finisher(finisher);
    CHECK(call(STRADDLER) == values[1], "the child patches its own code");
}

static void forked(void) {
    wordpatch_outstanding *batch = start(1);
    int status;
    const pid_t child = fork();
    require(child >= 0, "fork");
    if (child == 0) {
        in_child(batch);
        _exit(0);
    }
    require(waitpid(child, &status, 0) == child, "waitpid");
    CHECK(status == 0, "the child ended with %#x", (unsigned)status);
    CHECK(call(STRADDLER) == values[0], "the parent still has the old instruction");
    finish_all(batch);
    CHECK(call(STRADDLER) == values[1], "the parent's batch is finished");
    finish_all(start(0));
}

int main(void) {
    static const uint32_t t_max = 30000; /* ten times the longest measured T_max */
    find_interface();
    pages = map_pages(NULL, (SITES + 1) * SLOT);
    for (unsigned i = 0; i < SITES; i++) {
        memcpy(site_of(i), forms[0], 5);
        site_of(i)[5] = 0xc3;
    }
    seal(pages, (SITES + 1) * SLOT);
    GIVES(0, api.wordpatch_force_fetch_model(8, NULL, WORDPATCH_WAIT_MEMBARRIER));
    step_by_step();
    every_way_while_executing();
    refusals();
    wrong_arguments();
    unmapped();
    forked();
    api.wordpatch_stop_finisher(finisher);
    GIVES(0, api.wordpatch_force_fetch_model(8, &t_max, WORDPATCH_WAIT_T_MAX));
    every_way_while_executing();
    refusals();
    unmapped();
    forked();
    api.wordpatch_stop_finisher(finisher);
    puts("done");
    return 0;
}
