/* The routines that clang calls for setjmp and longjmp with -wasm-enable-sjlj (LLVM 14).

   A call of setjmp marks its jmp_buf with a fresh number and notes it, with the number of the call site, in a table of the running
   function. longjmp throws a pointer to the jmp_buf and the value. A function that catches it looks for the jmp_buf's mark in its own
   table: it continues after that call site, or rethrows. */

#include <stdint.h>
#include <stdlib.h>

/* The head of a jmp_buf. */
struct target {
    uint32_t mark;
};

/* A row of a function's table; after the last comes one of mark 0. The first table, made by the function, has room for 4. */
struct row {
    uint32_t mark, site;
};

struct thrown {
    struct target *target;
    int value;
};

/* The tag's number for the builtin; every object defines the tag. */
enum { TAG_LONGJMP = 1 };

static uint32_t last_mark;
static uint32_t second_result;
static struct thrown thrown;

uint32_t getTempRet0(void) { return second_result; }

void setTempRet0(uint32_t value) { second_result = value; }

/* Returns the table, which may have moved, and its size as the second result. */
struct row *saveSetjmp(struct target *target, uint32_t site, struct row *table, uint32_t size) {
    uint32_t used = 0;

    target->mark = ++last_mark;
    while (used < size && table[used].mark != 0)
        used++;
    if (used + 1 >= size) {
        size *= 2;
        table = realloc(table, (size + 1) * sizeof *table);
        if (table == NULL)
            abort();
    }
    table[used] = (struct row){target->mark, site};
    table[used + 1].mark = 0;
    setTempRet0(size);
    return table;
}

/* The call site that noted this mark, or 0. */
uint32_t testSetjmp(uint32_t mark, const struct row *table, uint32_t size) {
    for (uint32_t i = 0; i < size && table[i].mark != 0; i++)
        if (table[i].mark == mark)
            return table[i].site;
    return 0;
}

_Noreturn void __wasm_longjmp(struct target *target, int value) {
    thrown = (struct thrown){target, value ? value : 1};
    __builtin_wasm_throw(TAG_LONGJMP, &thrown);
}
