// Sorting 16,384 integers, n times: runs of four by a network and a transposition, then merges by a
// bitonic network of eight.
#include "kernel.h"
#include "vector.h"

enum { LENGTH = 16 * 1024 };
static int32_t numbers[LENGTH], first[LENGTH + 4], second[LENGTH + 4];

#define EXCHANGE(a, b)               \
    do {                             \
        i32x4 least = i32_min(a, b); \
        b = i32_max(a, b);           \
        a = least;                   \
    } while (0)

static void runs_of_four(int32_t *to) {
    for (int i = 0; i < LENGTH; i += 16) {
        i32x4 a = (i32x4)load(numbers + i), b = (i32x4)load(numbers + i + 4);
        i32x4 c = (i32x4)load(numbers + i + 8), d = (i32x4)load(numbers + i + 12);
        EXCHANGE(a, b);
        EXCHANGE(c, d);
        EXCHANGE(a, c);
        EXCHANGE(b, d);
        EXCHANGE(b, c);
        u32x4 rows[4] = {(u32x4)a, (u32x4)b, (u32x4)c, (u32x4)d};
        transpose(rows);
        for (int k = 0; k < 4; k++) store(to + i + 4 * k, rows[k]);
    }
}

// Two sorted vectors become one of eight numbers: `low`, then `high`.
#define MERGE(low, high)                                               \
    do {                                                               \
        i32x4 turned = __builtin_shufflevector(high, high, 3, 2, 1, 0); \
        i32x4 l = i32_min(low, turned), h = i32_max(low, turned);      \
        i32x4 p = __builtin_shufflevector(l, h, 0, 1, 4, 5);           \
        i32x4 q = __builtin_shufflevector(l, h, 2, 3, 6, 7);           \
        l = i32_min(p, q), h = i32_max(p, q);                          \
        p = __builtin_shufflevector(l, h, 0, 4, 2, 6);                 \
        q = __builtin_shufflevector(l, h, 1, 5, 3, 7);                 \
        l = i32_min(p, q), h = i32_max(p, q);                          \
        low = __builtin_shufflevector(l, h, 0, 4, 1, 5);               \
        high = __builtin_shufflevector(l, h, 2, 6, 3, 7);              \
    } while (0)

static void merge(const int32_t *a, const int32_t *b, int length, int32_t *to) {
    const int32_t *a_end = a + length, *b_end = b + length;
    i32x4 low = (i32x4)load(a), high = (i32x4)load(b);
    a += 4, b += 4;
    for (;;) {
        MERGE(low, high);
        store(to, low);
        to += 4;
        if (a == a_end && b == b_end) break;
        int takes_a = b == b_end || (a != a_end && *a <= *b);
        low = (i32x4)load(takes_a ? a : b);
        if (takes_a) a += 4;
        else b += 4;
    }
    store(to, high);
}

static int32_t *sort(void) {
    int32_t *from = first, *to = second;
    runs_of_four(from);
    for (int length = 4; length < LENGTH; length *= 2) {
        for (int i = 0; i < LENGTH; i += 2 * length) merge(from + i, from + i + length, length, to + i);
        int32_t *kept = from;
        from = to, to = kept;
    }
    return from;
}

uint64_t kernel(int n) {
    uint64_t random = 59, sum = 0;
    for (int turn = 0; turn < n; turn++) {
        for (int i = 0; i < LENGTH; i++) numbers[i] = (int32_t)(next_random(&random) << 1);
        const int32_t *sorted = sort();
        for (int i = 1; i < LENGTH; i++) {
            if (sorted[i - 1] > sorted[i]) __builtin_trap();
        }
        sum = fold(sum, (uint32_t)sorted[next_random(&random) % LENGTH]);
    }
    return sum;
}
