// Quicksort of n random numbers; short sections are sorted by insertion.
#include "kernel.h"

enum { MAX_N = 1000000 };
static int32_t numbers[MAX_N];

static void insertion_sort(int32_t *from, int length) {
    for (int i = 1; i < length; i++) {
        int32_t number = from[i];
        int j = i;
        for (; j > 0 && from[j - 1] > number; j--) from[j] = from[j - 1];
        from[j] = number;
    }
}

static void swap(int32_t *a, int32_t *b) {
    int32_t kept = *a;
    *a = *b;
    *b = kept;
}

static void quicksort(int32_t *from, int length) {
    while (length > 16) {
        // The median of three goes to the front as the pivot.
        int32_t *middle = from + length / 2, *last = from + length - 1;
        if (*middle < *from) swap(middle, from);
        if (*last < *from) swap(last, from);
        if (*last < *middle) swap(last, middle);
        int32_t pivot = *middle;
        int i = 0, j = length - 1;
        while (i <= j) {
            while (from[i] < pivot) i++;
            while (from[j] > pivot) j--;
            if (i <= j) swap(&from[i++], &from[j--]);
        }
        quicksort(from, j + 1);
        from += i;
        length -= i;
    }
    insertion_sort(from, length);
}

uint64_t kernel(int n) {
    limit(n, MAX_N);
    uint64_t random = 47;
    for (int i = 0; i < n; i++) numbers[i] = (int32_t)next_random(&random) - (1 << 30);
    quicksort(numbers, n);
    uint64_t sum = 0;
    for (int i = 0; i < n; i++) {
        if (i > 0 && numbers[i - 1] > numbers[i]) __builtin_trap();
        sum = fold(sum, (uint64_t)numbers[i]);
    }
    return sum;
}
