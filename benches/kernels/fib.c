// Fibonacci numbers by recursion: nothing but calls.
#include "kernel.h"

static __attribute__((noinline)) uint32_t fib(uint32_t n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }

uint64_t kernel(int n) { return fib((uint32_t)n); }
