// Edit distance and longest common subsequence of two random strings of length n.
#include "kernel.h"

enum { MAX_N = 5000 };
static char a[MAX_N], b[MAX_N];
static int row[MAX_N + 1];

static int least(int x, int y) { return x < y ? x : y; }

static int edit_distance(int n) {
    for (int j = 0; j <= n; j++) row[j] = j;
    for (int i = 1; i <= n; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int replaced = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            row[j] = least(replaced, least(row[j], row[j - 1]) + 1);
        }
    }
    return row[n];
}

static int common_subsequence(int n) {
    for (int j = 0; j <= n; j++) row[j] = 0;
    for (int i = 1; i <= n; i++) {
        int diagonal = 0;
        for (int j = 1; j <= n; j++) {
            int above = row[j];
            if (a[i - 1] == b[j - 1]) {
                row[j] = diagonal + 1;
            } else if (row[j - 1] > above) {
                row[j] = row[j - 1];
            }
            diagonal = above;
        }
    }
    return row[n];
}

uint64_t kernel(int n) {
    limit(n, MAX_N);
    uint64_t random = 17;
    for (int i = 0; i < n; i++) {
        a[i] = (char)('a' + next_random(&random) % 4);
        b[i] = (char)('a' + next_random(&random) % 4);
    }
    return fold((uint64_t)edit_distance(n), (uint64_t)common_subsequence(n));
}
