// Mergesort of n records with comparators that are passed as function pointers.
#include "kernel.h"

enum { MAX_N = 200000 };
typedef struct {
    uint32_t key, number;
    double weight;
} Record;
typedef int (*Comparator)(const Record *, const Record *);
static Record records[MAX_N], spare[MAX_N];

static int by_key(const Record *a, const Record *b) { return (a->key > b->key) - (a->key < b->key); }

static int by_weight(const Record *a, const Record *b) { return (a->weight > b->weight) - (a->weight < b->weight); }

static int by_number(const Record *a, const Record *b) { return (a->number > b->number) - (a->number < b->number); }

static void merge_sort(Record *from, Record *room, int length, Comparator compare) {
    if (length < 2) return;
    int half = length / 2;
    merge_sort(from, room, half, compare);
    merge_sort(from + half, room, length - half, compare);
    memcpy(room, from, (size_t)half * sizeof *room);
    for (int i = 0, j = half, to = 0; i < half; to++) {
        from[to] = j < length && compare(&from[j], &room[i]) < 0 ? from[j++] : room[i++];
    }
}

uint64_t kernel(int n) {
    limit(n, MAX_N);
    static const Comparator comparators[] = {by_key, by_weight, by_number};
    uint64_t random = 59, sum = 0;
    for (int i = 0; i < n; i++) {
        records[i].number = (uint32_t)i;
        records[i].key = next_random(&random) % 1000;
        records[i].weight = next_uniform(&random);
    }
    for (int which = 0; which < 3; which++) {
        merge_sort(records, spare, n, comparators[which]);
        for (int i = 0; i < n; i++) sum = fold(sum, records[i].number);
    }
    return sum;
}
