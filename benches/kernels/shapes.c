// Objects with tables of methods: floats in arguments and results of indirect calls; n passes over
// a thousand objects.
#include "kernel.h"

typedef struct Shape Shape;
typedef struct {
    double (*area)(const Shape *);
    void (*scale)(Shape *, double);
    int (*corners)(const Shape *);
} Methods;
struct Shape {
    const Methods *methods;
    double a, b, c;
};

static double circle_area(const Shape *shape) { return 3.25 * shape->a * shape->a; }
static double rectangle_area(const Shape *shape) { return shape->a * shape->b; }
static double triangle_area(const Shape *shape) {
    double half = (shape->a + shape->b + shape->c) / 2;
    double square = half * (half - shape->a) * (half - shape->b) * (half - shape->c);
    return square > 0 ? __builtin_sqrt(square) : 0;
}
static void scale_one(Shape *shape, double by) { shape->a *= by; }
static void scale_two(Shape *shape, double by) { shape->a *= by, shape->b *= by; }
static void scale_three(Shape *shape, double by) { shape->a *= by, shape->b *= by, shape->c *= by; }
static int no_corners(const Shape *shape) { return shape->a > 1000; }
static int four_corners(const Shape *shape) { return shape->a > shape->b ? 4 : 5; }
static int three_corners(const Shape *shape) { return shape->a > shape->c ? 3 : 2; }

static const Methods methods[] = {
    {circle_area, scale_one, no_corners},
    {rectangle_area, scale_two, four_corners},
    {triangle_area, scale_three, three_corners},
};

uint64_t kernel(int n) {
    enum { SHAPES = 1000 };
    static Shape shapes[SHAPES];
    uint64_t random = 71;
    for (int i = 0; i < SHAPES; i++) {
        shapes[i].methods = &methods[i / 8 % 3];
        shapes[i].a = 1 + next_uniform(&random);
        shapes[i].b = 1 + next_uniform(&random);
        shapes[i].c = 1 + next_uniform(&random);
    }
    double area = 0;
    uint64_t corners = 0;
    for (int turn = 0; turn < n; turn++) {
        double by = turn % 2 ? 1.25 : 0.8;
        for (int i = 0; i < SHAPES; i++) {
            Shape *shape = &shapes[i];
            shape->methods->scale(shape, by);
            area += shape->methods->area(shape);
            corners += (uint64_t)shape->methods->corners(shape);
        }
    }
    return fold_double(corners, area);
}
