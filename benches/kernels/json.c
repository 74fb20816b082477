// A tokenizer for 100 kB of JSON, n times: branches on characters, strings, numbers, nesting.
#include "kernel.h"

enum { LENGTH = 100000, DEEPEST = 64 };
static char text[LENGTH + 256];
static int length;

static void append(const char *part) {
    while (*part) text[length++] = *part++;
}

static void append_number(uint32_t number) {
    char backwards[10];
    int count = 0;
    do backwards[count++] = (char)('0' + number % 10); while (number /= 10);
    while (count > 0) text[length++] = backwards[--count];
}

static void make_text(void) {
    uint64_t random = 101;
    length = 0;
    append("[");
    while (length < LENGTH) {
        append("{\"id\": ");
        append_number(next_random(&random));
        append(", \"name\": \"site \\\"");
        append_number(next_random(&random) % 1000);
        append("\\\"\", \"share\": -0.");
        append_number(next_random(&random) % 100000);
        append("e-3, \"tags\": [true, false, null, [\"a\", \"\\u00e9\"]]},\n");
    }
    append("{}]");
    text[length] = 0;
}

enum { FAILED, OPEN, CLOSE, STRING, NUMBER, WORD, MARK, END };

static const char *skip_digits(const char *at) {
    while (*at >= '0' && *at <= '9') at++;
    return at;
}

static int token(const char **from, uint64_t *value) {
    const char *at = *from;
    int kind = FAILED;
    while (*at == ' ' || *at == '\n' || *at == '\t' || *at == '\r') at++;
    *value = (uint8_t)*at;
    switch (*at) {
        case 0: kind = END; break;
        case '{': case '[': kind = OPEN, at++; break;
        case '}': case ']': kind = CLOSE, at++; break;
        case ',': case ':': kind = MARK, at++; break;
        case '"':
            for (at++; *at && *at != '"'; at++) {
                if (*at == '\\') at++;
                *value = *value * 31 + (uint8_t)*at;
            }
            if (*at == '"') kind = STRING, at++;
            break;
        case '-': case '0': case '1': case '2': case '3': case '4': case '5': case '6': case '7': case '8': case '9':
            if (*at == '-') at++;
            for (*value = 0; *at >= '0' && *at <= '9'; at++) *value = *value * 10 + (uint64_t)(*at - '0');
            if (*at == '.') at = skip_digits(at + 1);
            if (*at == 'e' || *at == 'E') at = skip_digits(at[1] == '-' || at[1] == '+' ? at + 2 : at + 1);
            kind = NUMBER;
            break;
        default:
            for (; *at >= 'a' && *at <= 'z'; at++) *value = *value * 31 + (uint8_t)*at;
            if (at > *from) kind = WORD;
    }
    *from = at;
    return kind;
}

uint64_t kernel(int n) {
    make_text();
    uint64_t sum = 0;
    for (int turn = 0; turn < n; turn++) {
        const char *at = text;
        char opened[DEEPEST];
        int depth = 0, kind;
        uint64_t value;
        while ((kind = token(&at, &value)) != END) {
            if (kind == FAILED) __builtin_trap();
            if (kind == OPEN) opened[depth++ % DEEPEST] = (char)value;
            if (kind == CLOSE && opened[--depth % DEEPEST] + 2 != (char)value) __builtin_trap();
            sum = fold(sum, value + (uint64_t)kind);
        }
        if (depth != 0) __builtin_trap();
    }
    return sum;
}
