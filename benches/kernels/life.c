// Conway's game of life on a torus of bytes, n generations.
#include "kernel.h"

enum { SIDE = 256 };
static uint8_t cells[2][SIDE][SIDE];

static void generation(uint8_t from[SIDE][SIDE], uint8_t to[SIDE][SIDE]) {
    for (int i = 0; i < SIDE; i++) {
        const uint8_t *above = from[(i + SIDE - 1) % SIDE], *row = from[i], *below = from[(i + 1) % SIDE];
        for (int j = 0; j < SIDE; j++) {
            int left = (j + SIDE - 1) % SIDE, right = (j + 1) % SIDE;
            int neighbours = above[left] + above[j] + above[right] + row[left] + row[right] + below[left] + below[j] + below[right];
            to[i][j] = neighbours == 3 || (neighbours == 2 && row[j]);
        }
    }
}

uint64_t kernel(int n) {
    uint64_t random = 13;
    for (int i = 0; i < SIDE; i++) {
        for (int j = 0; j < SIDE; j++) cells[0][i][j] = next_random(&random) % 3 == 0;
    }
    for (int step = 0; step < n; step++) generation(cells[step % 2], cells[(step + 1) % 2]);
    uint64_t sum = 0;
    for (int i = 0; i < SIDE; i++) {
        for (int j = 0; j < SIDE; j++) sum = fold(sum, cells[n % 2][i][j]);
    }
    return sum;
}
