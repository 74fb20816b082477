// Conjugate gradients on a sparse matrix in compressed rows: the five-point Laplacian of a grid; 60
// steps for each of n right-hand sides.
#include "kernel.h"

enum { SIDE = 64, ROWS = SIDE * SIDE, MAX_ENTRIES = 5 * ROWS };
static int row_begin[ROWS + 1], column[MAX_ENTRIES];
static double value[MAX_ENTRIES], x[ROWS], residual[ROWS], direction[ROWS], image[ROWS];

static int append(int count, int to, double entry) {
    column[count] = to;
    value[count] = entry;
    return count + 1;
}

static void assemble(void) {
    int count = 0;
    for (int row = 0; row < ROWS; row++) {
        int i = row / SIDE, j = row % SIDE;
        row_begin[row] = count;
        if (i > 0) count = append(count, row - SIDE, -1.0);
        if (j > 0) count = append(count, row - 1, -1.0);
        count = append(count, row, 4.0);
        if (j < SIDE - 1) count = append(count, row + 1, -1.0);
        if (i < SIDE - 1) count = append(count, row + SIDE, -1.0);
    }
    row_begin[ROWS] = count;
}

static double dot(const double *left, const double *right) {
    double sum = 0;
    for (int i = 0; i < ROWS; i++) sum += left[i] * right[i];
    return sum;
}

static void solve(uint64_t *random) {
    for (int i = 0; i < ROWS; i++) {
        x[i] = 0;
        residual[i] = direction[i] = next_uniform(random) - 0.5;
    }
    double square = dot(residual, residual);
    for (int step = 0; step < 60; step++) {
        for (int row = 0; row < ROWS; row++) {
            double sum = 0;
            for (int k = row_begin[row]; k < row_begin[row + 1]; k++) sum += value[k] * direction[column[k]];
            image[row] = sum;
        }
        double alpha = square / dot(direction, image);
        for (int i = 0; i < ROWS; i++) {
            x[i] += alpha * direction[i];
            residual[i] -= alpha * image[i];
        }
        double next = dot(residual, residual);
        for (int i = 0; i < ROWS; i++) direction[i] = residual[i] + next / square * direction[i];
        square = next;
    }
}

uint64_t kernel(int n) {
    assemble();
    uint64_t random = 11, sum = 0;
    for (int side = 0; side < n; side++) {
        solve(&random);
        sum = fold_double(sum, x[side % ROWS]);
    }
    return sum;
}
