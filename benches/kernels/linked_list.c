// A list that is scattered over memory is reversed and sorted by merging, n times: dependent loads.
#include "kernel.h"

enum { LENGTH = 10000 };
typedef struct Link {
    struct Link *next;
    int32_t value;
} Link;
static Link links[LENGTH];

static Link *merged(Link *a, Link *b) {
    Link *first = 0, **end = &first;
    while (a && b) {
        Link **smaller = a->value <= b->value ? &a : &b;
        *end = *smaller;
        end = &(*smaller)->next;
        *smaller = *end;
    }
    *end = a ? a : b;
    return first;
}

static Link *sorted(Link *list) {
    if (!list || !list->next) return list;
    Link *slow = list;
    for (Link *fast = list->next; fast && fast->next; fast = fast->next->next) slow = slow->next;
    Link *back = slow->next;
    slow->next = 0;
    return merged(sorted(list), sorted(back));
}

static Link *reversed(Link *list) {
    Link *done = 0;
    while (list) {
        Link *next = list->next;
        list->next = done;
        done = list;
        list = next;
    }
    return done;
}

uint64_t kernel(int n) {
    uint64_t random = 79, sum = 0;
    Link *list = 0;
    for (int i = 0; i < LENGTH; i++) {
        // 7919 is a prime: this goes to every link once.
        Link *link = &links[i * 7919 % LENGTH];
        link->value = (int32_t)next_random(&random);
        link->next = list;
        list = link;
    }
    for (int turn = 0; turn < n; turn++) {
        for (Link *link = list; link; link = link->next) link->value = link->value * 1103515245 + turn;
        list = reversed(sorted(list));
    }
    for (Link *link = list; link; link = link->next) sum = fold(sum, (uint64_t)link->value);
    return sum;
}
