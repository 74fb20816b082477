// Five bodies that attract each other, n steps.
#include "kernel.h"

enum { BODIES = 5 };
typedef struct {
    double x[3], v[3], mass;
} Body;

static void advance(Body bodies[BODIES], double dt) {
    for (int i = 0; i < BODIES; i++) {
        for (int j = i + 1; j < BODIES; j++) {
            Body *a = &bodies[i], *b = &bodies[j];
            double dx = a->x[0] - b->x[0], dy = a->x[1] - b->x[1], dz = a->x[2] - b->x[2];
            double square = dx * dx + dy * dy + dz * dz + 0.01;
            double pull = dt / (square * __builtin_sqrt(square));
            a->v[0] -= dx * b->mass * pull, b->v[0] += dx * a->mass * pull;
            a->v[1] -= dy * b->mass * pull, b->v[1] += dy * a->mass * pull;
            a->v[2] -= dz * b->mass * pull, b->v[2] += dz * a->mass * pull;
        }
    }
    for (int i = 0; i < BODIES; i++) {
        for (int k = 0; k < 3; k++) bodies[i].x[k] += dt * bodies[i].v[k];
    }
}

uint64_t kernel(int n) {
    Body bodies[BODIES];
    uint64_t random = 83;
    for (int i = 0; i < BODIES; i++) {
        for (int k = 0; k < 3; k++) {
            bodies[i].x[k] = next_uniform(&random) * 10 - 5;
            bodies[i].v[k] = next_uniform(&random) - 0.5;
        }
        bodies[i].mass = 0.1 + next_uniform(&random);
    }
    for (int step = 0; step < n; step++) advance(bodies, 0.001);
    uint64_t sum = 0;
    for (int i = 0; i < BODIES; i++) {
        for (int k = 0; k < 3; k++) sum = fold_double(fold_double(sum, bodies[i].x[k]), bodies[i].v[k]);
    }
    return sum;
}
