// Arguments, environment, clocks, random numbers, input, and an exit code.
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static double seconds(struct timespec from, struct timespec to) {
    return (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) * 1e-9;
}

int main(int argc, char **argv) {
    for (int i = 0; i < argc; i++) printf("argument %d: '%s'\n", i, argv[i]);
    for (char **variable = environ; *variable; variable++) printf("variable: %s\n", *variable);
    printf("HOME is %s\n", getenv("HOME") ? "set" : "not set");

    struct timespec before, after, pause = {0, 20000000};
    clock_gettime(CLOCK_MONOTONIC, &before);
    nanosleep(&pause, NULL);
    clock_gettime(CLOCK_MONOTONIC, &after);
    printf("slept long enough: %d\n", seconds(before, after) >= 0.02);
    printf("slept not much longer: %d\n", seconds(before, after) < 10);
    printf("this century: %d\n", time(NULL) > 1577836800);

    unsigned char random[2][32];
    getentropy(random[0], sizeof random[0]);
    getentropy(random[1], sizeof random[1]);
    printf("random: %d\n", memcmp(random[0], random[1], sizeof random[0]) != 0);

    printf("a terminal: %d %d\n", isatty(0), isatty(1));
    struct pollfd ready = {.fd = 0, .events = POLLIN};
    printf("poll: %d\n", poll(&ready, 1, 5000));
    char line[100];
    int lines = 0;
    while (fgets(line, sizeof line, stdin)) printf("input %d: %s", ++lines, line);
    fprintf(stderr, "to standard error\n");
    fflush(stdout);
    exit(argc > 1 ? atoi(argv[1]) : 0);
}
