/* setjmp and longjmp for wasm32-wasi, which clang's -wasm-enable-sjlj turns into exceptions; runtime.c is the other half. */
#ifndef SETJMP_H
#define SETJMP_H

typedef struct {
    /* The value that longjmp throws: a pointer to both. */
    void *target;
    int value;
} jmp_buf[1];

int setjmp(jmp_buf) __attribute__((__returns_twice__));
_Noreturn void longjmp(jmp_buf, int);

#endif
