// Rays that are cast at spheres, in single precision: an image of n by n points with shadows.
#include "kernel.h"

enum { SPHERES = 12 };
typedef struct {
    float x, y, z;
} Vector;
typedef struct {
    Vector centre;
    float radius, shade;
} Sphere;
static Sphere spheres[SPHERES];

static float dot(Vector a, Vector b) { return a.x * b.x + a.y * b.y + a.z * b.z; }
static Vector minus(Vector a, Vector b) { return (Vector){a.x - b.x, a.y - b.y, a.z - b.z}; }
static Vector along(Vector from, Vector way, float by) {
    return (Vector){from.x + way.x * by, from.y + way.y * by, from.z + way.z * by};
}
static Vector unit(Vector a) {
    float by = 1.0f / __builtin_sqrtf(dot(a, a));
    return (Vector){a.x * by, a.y * by, a.z * by};
}

// How far the nearest sphere is, or a negative number; `which` gets its index.
static float nearest(Vector from, Vector way, int *which) {
    float best = -1.0f;
    for (int i = 0; i < SPHERES; i++) {
        Vector to = minus(spheres[i].centre, from);
        float middle = dot(to, way);
        float square = middle * middle - dot(to, to) + spheres[i].radius * spheres[i].radius;
        if (square < 0.0f) continue;
        float distance = middle - __builtin_sqrtf(square);
        if (distance > 0.001f && (best < 0.0f || distance < best)) {
            best = distance;
            *which = i;
        }
    }
    return best;
}

static float brightness(Vector from, Vector way, Vector light) {
    int hit = 0, blocker = 0;
    float distance = nearest(from, way, &hit);
    if (distance < 0.0f) return 0.1f;
    Vector place = along(from, way, distance);
    float facing = dot(unit(minus(place, spheres[hit].centre)), light);
    if (facing <= 0.0f || nearest(place, light, &blocker) >= 0.0f) return 0.2f * spheres[hit].shade;
    return spheres[hit].shade * (0.2f + 0.8f * facing);
}

uint64_t kernel(int n) {
    uint64_t random = 127, sum = 0;
    for (int i = 0; i < SPHERES; i++) {
        Vector centre = {(float)next_uniform(&random) * 4 - 2, (float)next_uniform(&random) * 4 - 2, 3 + (float)next_uniform(&random) * 4};
        spheres[i] = (Sphere){centre, 0.3f + 0.5f * (float)next_uniform(&random), 0.5f + 0.5f * (float)next_uniform(&random)};
    }
    Vector light = unit((Vector){0.5f, 0.8f, -0.6f}), eye = {0, 0, -1};
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) {
            Vector way = unit((Vector){2.0f * (float)j / (float)n - 1.0f, 1.0f - 2.0f * (float)i / (float)n, 1.5f});
            sum = fold(sum, (uint64_t)(int)(brightness(eye, way, light) * 255.0f));
        }
    }
    return sum;
}
