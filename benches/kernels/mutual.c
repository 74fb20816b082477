// A parser by recursive descent that evaluates an expression, n times: calls to functions that call
// each other.
#include "kernel.h"

static const char *at;

static int64_t sum(int depth);

static int64_t atom(int depth) {
    if (*at == '(') {
        at++;
        int64_t value = sum(depth + 1);
        at++;
        return value;
    }
    if (*at == '-') {
        at++;
        return -atom(depth);
    }
    int64_t value = 0;
    while (*at >= '0' && *at <= '9') value = value * 10 + (*at++ - '0');
    return value;
}

static int64_t product(int depth) {
    int64_t value = atom(depth);
    while (*at == '*' || *at == '%') {
        char operation = *at++;
        int64_t right = atom(depth);
        value = operation == '*' ? value * right : right ? value % right : value;
    }
    return value;
}

static int64_t sum(int depth) {
    int64_t value = product(depth);
    while (*at == '+' || *at == '-') {
        char operation = *at++;
        int64_t right = product(depth);
        value = operation == '+' ? value + right : value - right;
    }
    return value + depth;
}

uint64_t kernel(int n) {
    static const char expression[] =
        "((12+34)*(5-(6+7*8)*2)%1009+(9*(8+(7*(6+(5*(4+(3*(2+1)))))))))-((123456*789%1013)*(1+-2*-(3+4))-55)%97+"
        "(((((1+2)*3+4)*5+6)*7+8)*9+10)%65537*(2*(3*(5*(7*(11*13)%17)%19)%23)%29)-(99-(98-(97-(96-(95-94)))))";
    uint64_t total = 0;
    for (int turn = 0; turn < n; turn++) {
        at = expression;
        total = fold(total, (uint64_t)sum(turn % 5));
    }
    return total;
}
