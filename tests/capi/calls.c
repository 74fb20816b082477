/* callpatch on pages that the program mapped: calls of every shape at every offset, toggled and
   retargeted by two threads while two more execute them; each burst ends with an exact count. Needs
   no instrumented function. */

#include "capi.h"

#define OFFSETS 64
#define SHAPES 4
#define SITES (SHAPES * OFFSETS)
#define SLOT 256
#define TOGGLERS 2
#define EXECUTORS 2
#define BURST 2000
#define RUNS 20

static __thread unsigned called[2];
static void callee_0(void) { called[0]++; }
static void callee_1(void) { called[1]++; }

/* The callees at addresses that a 32-bit displacement reaches: a jump, and the pointer it uses. */
static struct {
    uint8_t thunk[2][8];
    uint64_t pointer[2];
} *near;

static uint8_t *pages;

HELPER uint8_t *site_of(unsigned site) { return pages + (site + 1) * SLOT + 64 + site % OFFSETS; }
HELPER unsigned shape_of(unsigned site) { return site / OFFSETS; }

/* call rel32, jmp rel32, call *disp32(%rip), jmp *disp32(%rip) */
static const uint8_t opcodes[SHAPES][2] = {{0xe8}, {0xe9}, {0xff, 0x15}, {0xff, 0x25}};
HELPER unsigned opcode_length(unsigned shape) { return shape < 2 ? 1 : 2; }
HELPER int is_jump(unsigned shape) { return shape % 2; }

HELPER uint32_t distance(const void *from, const void *to) { return (uint32_t)((uintptr_t)to - (uintptr_t)from); }

/* The operand of a site that calls a callee. */
HELPER uint32_t operand(unsigned site, unsigned callee) {
    const unsigned shape = shape_of(site);
    const void *target = shape < 2 ? (const void *)near->thunk[callee] : (const void *)&near->pointer[callee];
    return distance(site_of(site) + opcode_length(shape) + 4, target);
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
        uint8_t *at = site_of(site);
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
    *(void **)&function = site_of(site) - (is_jump(shape_of(site)) ? 0 : 4);
    function();
}

HELPER void count(unsigned site, int by) {
    called[0] = called[1] = 0;
    for (int i = 0; i < RUNS; i++)
        run(site);
    for (int callee = 0; callee < 2; callee++)
        CHECK(called[callee] == (callee == by ? RUNS : 0), "shape %u at %u: callee %d was called %u times", shape_of(site),
              site % OFFSETS, callee, called[callee]);
}

/* As in toggle.c: 0, or 1 + 4 * site + by + 1. */
static unsigned orders[EXECUTORS][TOGGLERS], current[TOGGLERS];
static unsigned togglers_left = TOGGLERS;

static void execute(unsigned executor) {
    for (; load(&togglers_left) > 0; sched_yield())
        for (unsigned toggler = 0; toggler < TOGGLERS; toggler++) {
            for (int i = 0; i < 500; i++)
                run(load(&current[toggler]));
            const unsigned order = load(&orders[executor][toggler]);
            if (order) {
                count((order - 1) / 4, (int)((order - 1) % 4) - 1);
                store(&orders[executor][toggler], 0);
            }
        }
}

static void everybody_counts(unsigned toggler, unsigned site, int by) {
    make_visible();
    count(site, by);
    for (int executor = 0; executor < EXECUTORS; executor++)
        store(&orders[executor][toggler], 1 + 4 * site + (unsigned)(by + 1));
    for (int executor = 0; executor < EXECUTORS; executor++)
        while (load(&orders[executor][toggler]))
            sched_yield();
}

static void toggle(unsigned toggler) {
    for (unsigned site = toggler; site < SITES; site += TOGGLERS) {
        store(&current[toggler], site);
        for (int i = 0; i < BURST; i++) {
            GIVES(0, api.callpatch_deactivate_call(site_of(site)));
            GIVES(0, api.callpatch_activate_call(site_of(site), operand(site, 0)));
        }
        everybody_counts(toggler, site, 0);
        GIVES(0, api.callpatch_deactivate_call(site_of(site)));
        GIVES(0, api.callpatch_deactivate_call(site_of(site)));
        everybody_counts(toggler, site, -1);
        for (unsigned callee = 0; callee < 4; callee++) {
            GIVES(0, api.callpatch_activate_call(site_of(site), operand(site, 1 - callee % 2)));
            everybody_counts(toggler, site, (int)(1 - callee % 2));
        }
    }
    __atomic_fetch_sub(&togglers_left, 1, __ATOMIC_RELEASE);
}

static void work(unsigned number) {
    if (number < TOGGLERS)
        toggle(number);
    else
        execute(number - TOGGLERS);
}

/* A NOP inside a window becomes a call, and a NOP again. */
static void nop_becomes_a_call(void) {
    uint8_t *page = map_pages(NULL, 4096);
    memcpy(page, "\x48\x83\xec\x08\x90\x90\x90\x90\x0f\x1f\x44\x00\x00\x48\x83\xc4\x08\xc3", 18);
    memcpy(page + 64, "\xff\x25\x00\x00\x00\x00", 6);
    *(uint64_t *)(void *)(page + 70) = (uintptr_t)callee_1;
    seal(page, 4096);
    void (*function)(void);
    *(void **)&function = page;
    for (int i = 0; i < 10; i++) {
        called[1] = 0;
        GIVES(0, api.callpatch_activate_call(page + 8, distance(page + 13, page + 64)));
        make_visible();
        function();
        CHECK(called[1] == 1, "%u", called[1]);
        GIVES(0, api.callpatch_deactivate_call(page + 8));
        make_visible();
        function();
        CHECK(called[1] == 1 && memcmp(page + 8, "\x0f\x1f\x44\0\0", 5) == 0, "%u", called[1]);
    }
}

int main(void) {
    find_interface();
    nop_becomes_a_call();
    write_pages();
    run_crew(TOGGLERS + EXECUTORS, work);
    puts("done");
    return 0;
}
