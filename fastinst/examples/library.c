/* A library whose functions have probes, for the other examples here: compiled with -finstrument-functions. */

int is_even(int number) { return number % 2 == 0; }

/* The number of steps of the Collatz sequence from `number` to 1. */
int collatz(int number) {
    int steps = 0;
    for (; number != 1; steps++)
        number = is_even(number) ? number / 2 : 3 * number + 1;
    return steps;
}
