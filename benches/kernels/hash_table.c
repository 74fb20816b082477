// A hash table with open addressing: n times, words are counted, half of them removed, and all
// looked up.
#include "kernel.h"

enum { WORDS = 40000, SLOTS = 1 << 17 };
typedef struct {
    uint64_t key;
    uint32_t count, used;
} Slot;
static Slot slots[SLOTS];

static uint32_t place_of(uint64_t key) { return (uint32_t)(key * 0x9e3779b97f4a7c15u >> 47); }

static Slot *find(uint64_t key) {
    uint32_t at = place_of(key);
    while (slots[at].used && slots[at].key != key) at = (at + 1) % SLOTS;
    return &slots[at];
}

// Moves back entries that would not be found after the gap.
static void take_out(Slot *slot) {
    uint32_t gap = (uint32_t)(slot - slots), at = gap;
    for (;;) {
        at = (at + 1) % SLOTS;
        if (!slots[at].used) break;
        uint32_t from_home = (at - place_of(slots[at].key)) % SLOTS, from_gap = (at - gap) % SLOTS;
        if (from_home >= from_gap) {
            slots[gap] = slots[at];
            gap = at;
        }
    }
    slots[gap].used = 0;
}

static uint64_t key_of(uint32_t word) { return (uint64_t)word * 2654435761u; }

static uint64_t count_words(uint64_t *random) {
    memset(slots, 0, sizeof slots);
    for (int i = 0; i < 2 * WORDS; i++) {
        uint64_t key = key_of(next_random(random) % WORDS);
        Slot *slot = find(key);
        slot->key = key;
        slot->used = 1;
        slot->count++;
    }
    for (uint32_t word = 0; word < WORDS; word += 2) {
        Slot *slot = find(key_of(word));
        if (slot->used) take_out(slot);
    }
    uint64_t sum = 0;
    for (uint32_t word = 0; word < WORDS; word++) {
        const Slot *slot = find(key_of(word));
        sum = fold(sum, slot->used ? slot->count : 0);
    }
    return sum;
}

uint64_t kernel(int n) {
    uint64_t random = 73, sum = 0;
    for (int turn = 0; turn < n; turn++) sum = fold(sum, count_words(&random));
    return sum;
}
