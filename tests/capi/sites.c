/* Calls by their handles: every shape at every offset, toggled by a thread and by its signal
   handler, and retargeted, while another thread executes them. */

#include <signal.h>

#include "capi.h"

#define OFFSETS 64
#define SHAPES 4
#define SITES (SHAPES * OFFSETS)
#define SLOT 256
#define BURST 200
#define RUNS 20

static __thread unsigned called[2];
static void callee_0(void) { called[0]++; }
static void callee_1(void) { called[1]++; }

/* The callees as the pages reach them: a jump, and the pointer that it uses. */
static struct {
    uint8_t thunk[2][8];
    uint64_t pointer[2];
} *near;

static uint8_t *pages;
static callpatch_site *sites[SITES];
static unsigned done;

HELPER uint8_t *address_of(unsigned site) { return pages + (site + 1) * SLOT + 64 + site % OFFSETS; }
HELPER unsigned shape_of(unsigned site) { return site / OFFSETS; }

/* call rel32, jmp rel32, call *disp32(%rip), jmp *disp32(%rip): in the order of callpatch_shape */
static const uint8_t opcodes[SHAPES][2] = {{0xe8}, {0xe9}, {0xff, 0x15}, {0xff, 0x25}};
HELPER unsigned opcode_length(unsigned shape) { return shape < 2 ? 1 : 2; }
HELPER int is_jump(unsigned shape) { return shape % 2; }

HELPER uint32_t distance(const void *from, const void *to) { return (uint32_t)((uintptr_t)to - (uintptr_t)from); }

HELPER const void *target(unsigned site, unsigned callee) {
    return shape_of(site) < 2 ? (const void *)near->thunk[callee] : (const void *)&near->pointer[callee];
}

HELPER uint32_t operand(unsigned site, unsigned callee) {
    return distance(address_of(site) + opcode_length(shape_of(site)) + 4, target(site, callee));
}

static void write_pages(void) {
    const size_t length = (SITES + 2) * SLOT;
    pages = map_pages(NULL, length);
    near = (void *)pages;
    for (int i = 0; i < 2; i++) {
        near->pointer[i] = (uintptr_t)(i ? callee_1 : callee_0);
        const uint32_t to_pointer = distance(near->thunk[i] + 6, &near->pointer[i]);
        memcpy(near->thunk[i], "\xff\x25", 2);
        memcpy(near->thunk[i] + 2, &to_pointer, 4);
    }
    for (unsigned site = 0; site < SITES; site++) {
        const unsigned shape = shape_of(site);
        uint8_t *at = address_of(site);
        const uint32_t leads_to = operand(site, 0);
        if (!is_jump(shape))
            memcpy(at - 4, "\x48\x83\xec\x08", 4); /* sub rsp, 8 */
        memcpy(at, opcodes[shape], opcode_length(shape));
        at += opcode_length(shape);
        memcpy(at, &leads_to, 4);
        if (!is_jump(shape))
            memcpy(at + 4, "\x48\x83\xc4\x08\xc3", 5); /* add rsp, 8; ret */
    }
    seal(pages, length);
}

HELPER void run(unsigned site) {
    void (*function)(void);
    *(void **)&function = address_of(site) - (is_jump(shape_of(site)) ? 0 : 4);
    function();
}

/* Asserts that every run calls this callee and no other; -1 means none. */
HELPER void count(unsigned site, int by) {
    make_visible();
    called[0] = called[1] = 0;
    for (int i = 0; i < RUNS; i++)
        run(site);
    for (int callee = 0; callee < 2; callee++)
        CHECK(called[callee] == (callee == by ? RUNS : 0), "shape %u at %u: callee %d was called %u times", shape_of(site),
              site % OFFSETS, callee, called[callee]);
    GIVES(by >= 0, api.callpatch_state(sites[site]));
}

static unsigned current;

static void toggle_from_handler(int signal) {
    (void)signal;
    GIVES(0, api.callpatch_state(sites[current]) ? api.callpatch_deactivate(sites[current])
                                                 : api.callpatch_activate(sites[current]));
}

static void describe(unsigned site, unsigned callee, unsigned clobbers) {
    callpatch_site_description found;
    memset(&found, 0xff, sizeof found);
    GIVES(0, api.callpatch_describe(sites[site], &found));
    CHECK(found.address == address_of(site) && found.target == target(site, callee), "%p, %p", found.address, found.target);
    CHECK((uint32_t)found.displacement == operand(site, callee), "%#x", (unsigned)found.displacement);
    CHECK((unsigned)found.shape == shape_of(site), "%d", found.shape);
    const unsigned length = opcode_length(shape_of(site)) + 4, room = 8 - site % OFFSETS % 8;
    const callpatch_strategy expected = is_jump(shape_of(site)) ? CALLPATCH_RET
                                        : length <= room        ? CALLPATCH_NOP
                                        : clobbers              ? CALLPATCH_LOAD
                                        : room == 1             ? CALLPATCH_RET_ISLAND
                                                                : CALLPATCH_SKIP;
    CHECK(found.strategy == expected, "shape %u at %u: %d, not %d", shape_of(site), site % OFFSETS, found.strategy, expected);
}

/* Both targets alternately, for all sites in one call. */
static void retarget_all(unsigned callee) {
    callpatch_retarget_request requests[SITES];
    int results[SITES];
    for (unsigned site = 0; site < SITES; site++)
        requests[site] = (callpatch_retarget_request){sites[site], target(site, callee)};
    memset(results, 0xff, sizeof results);
    GIVES(0, api.callpatch_retarget(requests, SITES, results));
    for (unsigned site = 0; site < SITES; site++)
        CHECK(results[site] == 0, "%u: %d", site, results[site]);
}

static void toggle(unsigned clobbers) {
    for (unsigned site = 0; site < SITES; site++) {
        GIVES(0, api.callpatch_decode(address_of(site), clobbers, &sites[site]));
        describe(site, 0, clobbers);
        count(site, 0);
        for (int i = 0; i < BURST; i++) {
            GIVES(0, api.callpatch_deactivate(sites[site]));
            GIVES(0, api.callpatch_activate(sites[site]));
        }
        count(site, 0);
        current = site;
        raise(SIGUSR1);
        count(site, -1);
        GIVES(0, api.callpatch_deactivate(sites[site]));
        GIVES(0, api.callpatch_is_stale(sites[site]));
    }
    for (unsigned round = 0; round < 4; round++) {
        const unsigned callee = 1 - round % 2;
        retarget_all(callee);
        for (unsigned site = 0; site < SITES; site++) {
            describe(site, callee, clobbers);
            count(site, -1);
            GIVES(0, api.callpatch_activate(sites[site]));
            count(site, (int)callee);
        }
    }
    for (unsigned site = 0; site < SITES; site++)
        api.callpatch_release(sites[site]);
}

static void work(unsigned number) {
    if (number == 0) {
        toggle(CALLPATCH_CLOBBERS_NOTHING);
        toggle(CALLPATCH_CLOBBERS_CALLER_SAVED);
        store(&done, 1);
    }
    while (!load(&done))
        for (unsigned site = 0; site < SITES; site++)
            run(site);
}

/* A NOP inside a window is an inactive call. */
static void nops(void) {
    callpatch_site *site;
    uint8_t *page = map_pages(NULL, 4096);
    memcpy(page + 4, "\x48\x83\xec\x08\x0f\x1f\x44\x00\x00\x48\x83\xc4\x08\xc3", 14);
    memcpy(page + 61, "\x0f\x1f\x44\x00\x00", 5);
    memcpy(page + 128, "\xff\x25\x00\x00\x00\x00", 6);
    *(uint64_t *)(void *)(page + 134) = (uintptr_t)callee_1;
    seal(page, 4096);
    void (*function)(void);
    *(void **)&function = page + 4;

    GIVES(FASTINST_ERROR_NOT_A_CALL, api.callpatch_decode(page + 8, CALLPATCH_CLOBBERS_NOTHING, &site));
    GIVES(FASTINST_ERROR_NOT_A_CALL, api.callpatch_decode_nop(page + 61, page + 128, &site));
    GIVES(FASTINST_ERROR_NOT_A_CALL, api.callpatch_decode_nop(page + 4, page + 128, &site));
    GIVES(FASTINST_ERROR_OUT_OF_REACH, api.callpatch_decode_nop(page + 8, (void *)((uintptr_t)page + (UINT64_C(1) << 40)), &site));
    CHECK(!site, "a handle after an error");
    GIVES(0, api.callpatch_decode_nop(page + 8, page + 128, &site));
    GIVES(0, api.callpatch_state(site));
    for (unsigned i = 0; i < 4; i++) {
        GIVES(0, i % 2 ? api.callpatch_deactivate(site) : api.callpatch_activate(site));
        make_visible();
        called[1] = 0;
        function();
        CHECK(called[1] == !(i % 2), "%u: %u", i, called[1]);
    }

    /* Other code at the site's address. */
    require(map_pages(page, 4096) == page, "mmap");
    GIVES(1, api.callpatch_is_stale(site));
    api.callpatch_release(site);
}

static void errors(void) {
    callpatch_site *site = (callpatch_site *)pages;
    callpatch_site_description description;
    static uint8_t data[] = {0xe8, 1, 1, 1, 1};
    int result = 77;
    uint8_t *at = address_of(0);

    GIVES(FASTINST_ERROR_ARGUMENT, api.callpatch_decode(NULL, CALLPATCH_CLOBBERS_NOTHING, &site));
    GIVES(FASTINST_ERROR_ARGUMENT, api.callpatch_decode(at, CALLPATCH_CLOBBERS_NOTHING, NULL));
    GIVES(FASTINST_ERROR_ARGUMENT, api.callpatch_decode(at, (callpatch_clobbers)2, &site));
    GIVES(FASTINST_ERROR_NOT_TEXT, api.callpatch_decode(data, CALLPATCH_CLOBBERS_NOTHING, &site));
    CHECK(!site, "a handle after an error");
    GIVES(FASTINST_ERROR_NOT_A_CALL, api.callpatch_decode(at - 4, CALLPATCH_CLOBBERS_NOTHING, &site));
    GIVES(FASTINST_ERROR_ARGUMENT, api.callpatch_decode_nop(NULL, at, &site));
    GIVES(FASTINST_ERROR_ARGUMENT, api.callpatch_decode_nop(at, NULL, &site));
    GIVES(FASTINST_ERROR_ARGUMENT, api.callpatch_decode_nop(at, at, NULL));
    GIVES(FASTINST_ERROR_ARGUMENT, api.callpatch_activate(NULL));
    GIVES(FASTINST_ERROR_ARGUMENT, api.callpatch_deactivate(NULL));
    GIVES(FASTINST_ERROR_ARGUMENT, api.callpatch_state(NULL));
    GIVES(FASTINST_ERROR_ARGUMENT, api.callpatch_is_stale(NULL));
    GIVES(FASTINST_ERROR_ARGUMENT, api.callpatch_describe(NULL, &description));
    api.callpatch_release(NULL);

    GIVES(0, api.callpatch_decode(at, CALLPATCH_CLOBBERS_NOTHING, &site));
    const callpatch_retarget_request no_target = {site, NULL}, no_site = {NULL, at};
    const callpatch_retarget_request far[] = {{site, (void *)((uintptr_t)at + (UINT64_C(1) << 40))}};
    GIVES(FASTINST_ERROR_ARGUMENT, api.callpatch_describe(site, NULL));
    GIVES(FASTINST_ERROR_ARGUMENT, api.callpatch_retarget(NULL, 1, &result));
    GIVES(FASTINST_ERROR_ARGUMENT, api.callpatch_retarget(&no_target, 1, &result));
    GIVES(FASTINST_ERROR_ARGUMENT, api.callpatch_retarget(&no_site, 1, &result));
    CHECK(result == 77, "written: %d", result);
    GIVES(0, api.callpatch_retarget(NULL, 0, NULL));
    GIVES(FASTINST_ERROR_OUT_OF_REACH, api.callpatch_retarget(far, 1, &result));
    CHECK(result == FASTINST_ERROR_OUT_OF_REACH, "%d", result);
    GIVES(0, api.callpatch_describe(site, &description));
    CHECK(description.target == target(0, 0), "the old target is kept");

    /* Foreign bytes. */
    static const uint8_t nop[] = {0x66, 0x66, 0x66, 0x66, 0x90};
    uint8_t call[5];
    memcpy(call, at, 5);
    GIVES(0, api.wordpatch_patch(at, call, nop, 5));
    GIVES(FASTINST_ERROR_FOREIGN_BYTES, api.callpatch_activate(site));
    GIVES(FASTINST_ERROR_FOREIGN_BYTES, api.callpatch_deactivate(site));
    GIVES(FASTINST_ERROR_FOREIGN_BYTES, api.callpatch_state(site));
    GIVES(0, api.wordpatch_patch(at, nop, call, 5));
    GIVES(1, api.callpatch_state(site));
    api.callpatch_release(site);
}

int main(void) {
    find_interface();
    /* Handles keep the window that was in force when they are created. */
    GIVES(0, api.wordpatch_force_fetch_model(8, NULL, WORDPATCH_WAIT_MEMBARRIER));
    signal(SIGUSR1, toggle_from_handler);
    nops();
    write_pages();
    run_crew(2, work);
    errors();
    puts("done");
    return 0;
}
