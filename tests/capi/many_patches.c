/* wordpatch_patch_all, wordpatch_start_patch and wordpatch_finish_patch on instructions at every offset of a cache line, while
   another thread executes them. */

#include "capi.h"

#define SITES 64
#define SLOT 128
#define ROUNDS 100

/* mov eax, imm32; ret */
static const uint8_t forms[2][5] = {{0xb8, 1, 1, 1, 1}, {0xb8, 2, 2, 2, 2}};
static const uint32_t values[2] = {0x01010101, 0x02020202};

static uint8_t *pages;
static unsigned done;

typedef uint32_t function(void);

HELPER uint8_t *site_of(unsigned number) { return pages + number * SLOT + number; }

HELPER uint32_t call(unsigned number) {
    function *call;
    *(void **)&call = site_of(number);
    return call();
}

static void together(unsigned to) {
    wordpatch_patch_request requests[SITES];
    int results[SITES];
    for (unsigned i = 0; i < SITES; i++)
        requests[i] = (wordpatch_patch_request){site_of(i), forms[!to], forms[to], 5};
    GIVES(0, api.wordpatch_patch_all(requests, SITES, results));
    for (unsigned i = 0; i < SITES; i++)
        CHECK(results[i] == 0, "%u: %d", i, results[i]);
}

static void asynchronously(unsigned to) {
    for (unsigned i = 0; i < SITES; i++)
        GIVES(0, api.wordpatch_start_patch(site_of(i), forms[!to], forms[to], 5));
    for (unsigned left = SITES; left > 0;) {
        left = 0;
        for (unsigned i = 0; i < SITES; i++) {
            int state = api.wordpatch_finish_patch(site_of(i));
            CHECK(state == 0 || state == 1, "%u: %d", i, state);
            left += state == 0;
        }
    }
}

static void work(unsigned number) {
    if (number > 0) {
        while (!load(&done))
            for (unsigned i = 0; i < SITES; i++) {
                uint32_t value = call(i);
                CHECK(value == values[0] || value == values[1], "%u: a mixture, %#x", i, value);
            }
        return;
    }
    for (unsigned round = 0; round < ROUNDS; round++) {
        together(1);
        asynchronously(0);
    }
    make_visible();
    for (unsigned i = 0; i < SITES; i++)
        CHECK(call(i) == values[0], "%u: %#x", i, call(i));
    store(&done, 1);
}

/* Each rejected patch has its own error; the others are made. */
static void refusals(void) {
    static const uint8_t other[] = {0xb8, 7, 7, 7, 7}, shorter[] = {0x90, 0x90, 0x90, 0x90, 0x90};
    const wordpatch_patch_request requests[] = {
        {site_of(0), forms[0], forms[1], 5}, {site_of(1), other, forms[1], 5},   {site_of(2), forms[0], shorter, 5},
        {site_of(0), forms[0], forms[1], 5}, {site_of(61), forms[0], forms[1], 5},
    };
    const int expected[] = {0, FASTINST_ERROR_FOREIGN_BYTES, FASTINST_ERROR_LAYOUT, FASTINST_ERROR_CONTENDED, 0};
    int results[5];
    GIVES(FASTINST_ERROR_FOREIGN_BYTES, api.wordpatch_patch_all(requests, 5, results));
    for (unsigned i = 0; i < 5; i++)
        CHECK(results[i] == expected[i], "%u: %d", i, results[i]);
    CHECK(call(0) == values[1] && call(1) == values[0] && call(61) == values[1], "what was done");

    const wordpatch_patch_request nothing = {site_of(2), NULL, forms[1], 5}, nine = {site_of(2), forms[0], forms[1], 9};
    GIVES(FASTINST_ERROR_ARGUMENT, api.wordpatch_patch_all(NULL, 1, NULL));
    GIVES(FASTINST_ERROR_ARGUMENT, api.wordpatch_patch_all(&nothing, 1, NULL));
    GIVES(FASTINST_ERROR_ARGUMENT, api.wordpatch_patch_all(&nine, 1, NULL));
    GIVES(0, api.wordpatch_patch_all(&nine, 0, NULL));
    GIVES(FASTINST_ERROR_ARGUMENT, api.wordpatch_start_patch(NULL, forms[0], forms[1], 5));
    GIVES(FASTINST_ERROR_FOREIGN_BYTES, api.wordpatch_start_patch(site_of(0), forms[0], forms[1], 5));
    CHECK(api.wordpatch_finish_patch(site_of(0)) == 1, "there is none");

    /* While the patch is outstanding, other patches of the site are rejected, and the site still
       runs. */
    GIVES(0, api.wordpatch_start_patch(site_of(61), forms[1], forms[0], 5));
    GIVES(FASTINST_ERROR_CONTENDED, api.wordpatch_patch(site_of(61), forms[1], other, 5));
    CHECK(call(61) == values[1], "the old instruction");
    while (api.wordpatch_finish_patch(site_of(61)) == 0)
        ;
    CHECK(call(61) == values[0], "the new instruction");
}

int main(void) {
    find_interface();
    pages = map_pages(NULL, (SITES + 1) * SLOT);
    for (unsigned i = 0; i < SITES; i++) {
        memcpy(site_of(i), forms[0], 5);
        site_of(i)[5] = 0xc3;
    }
    seal(pages, (SITES + 1) * SLOT);
    run_crew(2, work);
    refusals();
    puts("done");
    return 0;
}
