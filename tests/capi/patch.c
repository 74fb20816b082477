/* wordpatch_patch on pages that the program mapped: instructions of 2 to 8 bytes at every offset, patched by two threads while
   two more execute them. Needs no instrumented function. */

#include "capi.h"

#define OFFSETS 64
#define SLOT 128 /* one function at each offset */
#define KINDS 5
#define PATCHERS 2
#define EXECUTORS 2
#define ROUNDS 40

/* An instruction in two variants, and the result of each with 0 in EDI. */
struct kind {
    uint8_t length, code[2][8];
    uint64_t result[2];
};

static const struct kind kinds[KINDS] = {
    {2, {{0xb0, 0x11}, {0xb0, 0x22}}, {0x11, 0x22}},                                               /* mov al, imm8 */
    {5, {{0xb8, 1, 1, 1, 1}, {0xb8, 2, 2, 2, 2}}, {0x01010101, 0x02020202}},                       /* mov eax, imm32 */
    {6, {{0x8d, 0x87, 1, 1, 1, 1}, {0x8d, 0x87, 2, 2, 2, 2}}, {0x01010101, 0x02020202}},           /* lea eax, [rdi+disp32] */
    {7, {{0x48, 0xc7, 0xc0, 1, 1, 1, 1}, {0x48, 0xc7, 0xc0, 2, 2, 2, 2}}, {0x01010101, 0x02020202}}, /* mov rax, imm32 */
    /* lea rax, [rdi+disp32], with a SIB byte; and a NOP */
    {8, {{0x48, 0x8d, 0x84, 0x27, 1, 1, 1, 1}, {0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0}}, {0x01010101, 0}},
};

/* For kind k and offset o, a function in slot o of pages k: xor eax, eax; the instruction at offset o; ret. */
static uint8_t *pages[KINDS];
/* The variant that is in force; used by its patching thread only. */
static uint8_t variant[KINDS][OFFSETS];
static unsigned patchers_left = PATCHERS;

typedef uint64_t function(uint64_t zero);

HELPER uint8_t *site_of(int kind, int offset) { return pages[kind] + offset * SLOT + 64 + offset; }

HELPER uint64_t call(int kind, int offset) {
    function *call;
    *(void **)&call = site_of(kind, offset) - 2;
    /* The stack must look the same to every variant. */
    return call(0);
}

static void patch_all(unsigned patcher) {
    for (int round = 0; round < ROUNDS; round++)
        for (int offset = (int)patcher; offset < OFFSETS; offset += PATCHERS)
            for (int kind = 0; kind < KINDS; kind++) {
                const struct kind *it = &kinds[kind];
                uint8_t *now = &variant[kind][offset];
                GIVES(0, api.wordpatch_patch(site_of(kind, offset), it->code[*now], it->code[!*now], it->length));
                *now = !*now;
                GIVES(FASTINST_ERROR_FOREIGN_BYTES,
                      api.wordpatch_patch(site_of(kind, offset), it->code[!*now], it->code[*now], it->length));
                if (round == ROUNDS - 1) {
                    make_visible();
                    const uint64_t result = call(kind, offset);
                    CHECK(result == it->result[*now], "kind %d at %d: %#lx", kind, offset, (unsigned long)result);
                }
            }
    __atomic_fetch_sub(&patchers_left, 1, __ATOMIC_RELEASE);
}

static void execute_all(void) {
    while (load(&patchers_left) > 0)
        for (int offset = 0; offset < OFFSETS; offset++)
            for (int kind = 0; kind < KINDS; kind++) {
                const uint64_t result = call(kind, offset);
                CHECK(result == kinds[kind].result[0] || result == kinds[kind].result[1],
                      "kind %d at %d: a mixture, %#lx", kind, offset, (unsigned long)result);
            }
}

static void work(unsigned number) {
    if (number < PATCHERS)
        patch_all(number);
    else
        execute_all();
}

static void every_offset_while_executing(void) {
    for (int kind = 0; kind < KINDS; kind++) {
        pages[kind] = map_pages(NULL, (OFFSETS + 1) * SLOT);
        for (int offset = 0; offset < OFFSETS; offset++) {
            uint8_t *site = site_of(kind, offset);
            memcpy(site - 2, "\x31\xc0", 2);
            memcpy(site, kinds[kind].code[0], kinds[kind].length);
            site[kinds[kind].length] = 0xc3;
        }
        seal(pages[kind], (OFFSETS + 1) * SLOT);
    }
    run_crew(PATCHERS + EXECUTORS, work);
}

/* Neighbours five bytes apart, each patched by another thread: no update is lost. */
#define NEIGHBOURS 3
static uint8_t *line;

static void patch_neighbour(unsigned number) {
    uint8_t forms[2][5] = {{0xb8, 1, 1, 1, 1}, {0xb8, 2, 2, 2, 2}};
    for (int round = 0; round < 20000; round++)
        GIVES(0, api.wordpatch_patch(line + 5 * number, forms[round % 2], forms[(round + 1) % 2], 5));
}

/* Offsets 1, 6 and 11: the second straddles every window of eight bytes. */
static void neighbours_lose_no_update(void) {
    line = map_pages(NULL, 4096) + 1;
    for (int i = 0; i < NEIGHBOURS; i++)
        memcpy(line + 5 * i, "\xb8\1\1\1\1", 5);
    seal(line - 1, 4096);
    run_crew(NEIGHBOURS, patch_neighbour);
    for (int i = 0; i < NEIGHBOURS; i++)
        CHECK(memcmp(line + 5 * i, "\xb8\1\1\1\1", 5) == 0, "neighbour %d", i);
}

/* Threads that patch one straddler concurrently: every success is one step from one form to the
   next. */
#define RIVALS 3
#define FORMS 5
static uint8_t *contended;
static unsigned successes[FORMS], refusals;

static void rival(unsigned number) {
    for (unsigned try = 0; try < 3000; try++) {
        const uint8_t from = (uint8_t)((try + number) % FORMS), to = (uint8_t)((from + 1) % FORMS);
        const uint8_t old[] = {0xb8, from, from, from, from}, new[] = {0xb8, to, to, to, to};
        const int code = api.wordpatch_patch(contended, old, new, 5);
        if (code == 0) {
            __atomic_fetch_add(&successes[from], 1, __ATOMIC_RELAXED);
        } else {
            CHECK(code == FASTINST_ERROR_CONTENDED || code == FASTINST_ERROR_FOREIGN_BYTES, "%d", code);
            __atomic_fetch_add(&refusals, 1, __ATOMIC_RELAXED);
        }
    }
}

static void rivals_take_turns(void) {
    uint8_t *page = map_pages(NULL, 4096);
    contended = page + 61;
    memcpy(contended, "\xb8\0\0\0\0", 5);
    seal(page, 4096);
    run_crew(RIVALS, rival);
    unsigned total = 0, at = contended[1];
    for (unsigned form = 0; form < FORMS; form++)
        total += successes[form];
    CHECK(total > 0 && total + refusals == RIVALS * 3000, "%u and %u", total, refusals);
    CHECK(total % FORMS == at, "%u steps lead to %u", total, at);
    for (unsigned form = 0; form < FORMS; form++)
        CHECK(successes[form] == total / FORMS + (form < at), "%u steps from %u, %u in all", successes[form], form, total);
    CHECK(contended[1] == contended[2] && contended[2] == contended[3] && contended[3] == contended[4], "a mixture");
}

int main(void) {
    find_interface();
    neighbours_lose_no_update();
    rivals_take_turns();
    every_offset_while_executing();
    puts("done");
    return 0;
}
