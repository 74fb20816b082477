// A virtual machine with a stack, whose loop is a switch; it runs a program that counts the primes
// below n.
#include "kernel.h"

enum Operation { PUSH, LOAD, STORE, DUPLICATE, ADD, MULTIPLY, REMAINDER, LESS, JUMP, JUMP_IF, JUMP_IF_ZERO, HALT };
enum Variable { CANDIDATE, DIVISOR, COUNT, LIMIT, VARIABLES };
typedef struct {
    enum Operation operation;
    int operand;
} Instruction;

static const Instruction program[] = {
    {PUSH, 2}, {STORE, CANDIDATE},
    // 2: while the candidate is below the limit
    {LOAD, CANDIDATE}, {LOAD, LIMIT}, {LESS, 0}, {JUMP_IF_ZERO, 32}, {PUSH, 2}, {STORE, DIVISOR},
    // 8: while the divisor is not too large
    {LOAD, CANDIDATE}, {LOAD, DIVISOR}, {DUPLICATE, 0}, {MULTIPLY, 0}, {LESS, 0}, {JUMP_IF, 23},
    {LOAD, CANDIDATE}, {LOAD, DIVISOR}, {REMAINDER, 0}, {JUMP_IF_ZERO, 27},
    {LOAD, DIVISOR}, {PUSH, 1}, {ADD, 0}, {STORE, DIVISOR}, {JUMP, 8},
    // 23: a prime
    {LOAD, COUNT}, {PUSH, 1}, {ADD, 0}, {STORE, COUNT},
    // 27: the next candidate
    {LOAD, CANDIDATE}, {PUSH, 1}, {ADD, 0}, {STORE, CANDIDATE}, {JUMP, 2},
    // 32
    {HALT, 0},
};

static int run(const Instruction *code, int limit_value) {
    int stack[16], variables[VARIABLES] = {0};
    int *top = stack;
    const Instruction *next = code;
    variables[LIMIT] = limit_value;
    for (;;) {
        Instruction now = *next++;
        switch (now.operation) {
            case PUSH: *top++ = now.operand; break;
            case LOAD: *top++ = variables[now.operand]; break;
            case STORE: variables[now.operand] = *--top; break;
            case DUPLICATE: *top = top[-1], top++; break;
            case ADD: top--, top[-1] += *top; break;
            case MULTIPLY: top--, top[-1] *= *top; break;
            case REMAINDER: top--, top[-1] %= *top; break;
            case LESS: top--, top[-1] = top[-1] < *top; break;
            case JUMP: next = code + now.operand; break;
            case JUMP_IF: if (*--top) next = code + now.operand; break;
            case JUMP_IF_ZERO: if (!*--top) next = code + now.operand; break;
            case HALT: return variables[COUNT];
        }
    }
}

uint64_t kernel(int n) { return (uint64_t)run(program, n); }
