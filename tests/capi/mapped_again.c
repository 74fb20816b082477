/* Pages that are unmapped and mapped again at the same address, with the same code and with other
   code: a patch applies to the code that is there now. Runtimes that generate code do this. */

#include "capi.h"

#define ROUNDS 8

static unsigned called;
static void callee(void) { called++; }

typedef uint32_t function(void);

static uint8_t *page;

/* At 0 and, crossing windows, at 61: mov eax, value; ret. At 128: sub rsp, 8; call 192; add rsp, 8; ret. */
static void write_page(uint8_t value, unsigned shift) {
    uint8_t *wanted = page;
    page = map_pages(wanted, 4096);
    CHECK(!wanted || page == wanted, "mapped elsewhere");
    const uint8_t mov[] = {0xb8, value, value, value, value, 0xc3};
    memcpy(page, mov, 6);
    memcpy(page + 61, mov, 6);
    const uint8_t call[] = {0x48, 0x83, 0xec, 8, 0xe8, (uint8_t)(192 + shift - 137), 0, 0, 0, 0x48, 0x83, 0xc4, 8, 0xc3};
    memcpy(page + 128, call, sizeof call);
    memcpy(page + 192 + shift, "\xff\x25\x00\x00\x00\x00", 6);
    const uint64_t target = (uintptr_t)callee;
    memcpy(page + 198 + shift, &target, 8);
    seal(page, 4096);
}

static uint32_t run(size_t offset) {
    function *call;
    *(void **)&call = page + offset;
    make_visible();
    return call();
}

static void check_patch(size_t offset, uint8_t from, uint8_t to) {
    const uint8_t old[] = {0xb8, from, from, from, from}, new[] = {0xb8, to, to, to, to};
    CHECK(run(offset) == from * 0x01010101u, "before the patch at %zu", offset);
    GIVES(0, api.wordpatch_patch(page + offset, old, new, 5));
    CHECK(run(offset) == to * 0x01010101u, "the patch of %u at %zu reached other pages", from, offset);
    GIVES(0, api.wordpatch_patch(page + offset, new, old, 5));
    CHECK(run(offset) == from * 0x01010101u, "the patch back at %zu reached other pages", offset);
}

static void check_call(unsigned shift) {
    called = 0;
    run(128);
    CHECK(called == 1, "%u", called);
    GIVES(0, api.callpatch_deactivate_call(page + 132));
    run(128);
    CHECK(called == 1, "deactivate_call reached other pages");
    GIVES(0, api.callpatch_activate_call(page + 132, 192 + shift - 137));
    run(128);
    CHECK(called == 2, "activate_call reached other pages");
}

UNINSTRUMENTED int main(int argc, char **argv) {
    CHECK(argc == 2, "usage: mapped_again patch|call|other");
    const char what = argv[1][0];

    find_interface();
    write_page(1, 0);
    for (uint8_t round = 0; round < ROUNDS; round++) {
        const unsigned shift = what == 'o' ? round * 2u : 0;
        const uint8_t value = what == 'o' ? (uint8_t)(round + 1) : 1;
        if (what != 'c') {
            check_patch(0, value, 99);
            check_patch(61, value, 99);
        }
        if (what != 'p')
            check_call(shift);
        require(munmap(page, 4096) == 0, "munmap");
        write_page(what == 'o' ? (uint8_t)(round + 2) : 1, what == 'o' ? shift + 2 : 0);
    }
    puts("done");
    return 0;
}
