// The sines of 4,096 doubles, n times: reduced to an eighth of a turn, then a polynomial.
#include "kernel.h"
#include "vector.h"

enum { LENGTH = 4096 };
static double angles[LENGTH], sines[LENGTH];

// Taylor's polynomial, of an angle of at most half of pi.
static inline f64x2 sine(f64x2 x) {
    const f64x2 pi_upper = f64_all(3.14159265358979312), pi_lower = f64_all(1.22464679914735321e-16);
    f64x2 turns = f64_nearest(x * f64_all(0.318309886183790672));
    x = x - turns * pi_upper - turns * pi_lower;
    f64x2 xx = x * x, sum = f64_all(1.0 / 355687428096000);
    sum = sum * xx - f64_all(1.0 / 1307674368000);
    sum = sum * xx + f64_all(1.0 / 6227020800);
    sum = sum * xx - f64_all(1.0 / 39916800);
    sum = sum * xx + f64_all(1.0 / 362880);
    sum = sum * xx - f64_all(1.0 / 5040);
    sum = sum * xx + f64_all(1.0 / 120);
    sum = sum * xx - f64_all(1.0 / 6);
    f64x2 result = x + x * xx * sum;
    // An odd number of half turns changes the sign.
    f64x2 half = turns * f64_all(0.5);
    return (f64x2)select(f64_nearest(half) == half, result, -result);
}

uint64_t kernel(int n) {
    uint64_t random = 71, sum = 0;
    for (int i = 0; i < LENGTH; i++) angles[i] = 40 * next_uniform(&random) - 20;
    for (int turn = 0; turn < n; turn++) {
        for (int i = 0; i < LENGTH; i += 2) store(sines + i, sine((f64x2)load(angles + i)));
        uint32_t at = next_random(&random) % LENGTH;
        sum = fold_double(sum, sines[at]);
        angles[at] += sines[turn % LENGTH];
    }
    return sum;
}
