/*
 * Patches an instruction of the program while a thread executes it: synchronously, and in a batch
 * that a finisher completes.
 *
 * Run by
 *
 *     cargo build --release
 *     gcc -O2 -pthread -I fastinst/include fastinst/examples/patch.c \
 *         -L target/release -lfastinst -Wl,-rpath,$PWD/target/release -o patch
 *     FASTINST_OPTIONS=tool=none ./patch
 *
 * Prints:
 *
 *     at once: limit() is 2000000
 *     by the finisher: limit() is 3000000
 *     the thread saw 1000000, 2000000, 3000000 and nothing else
 */

#include <fastinst.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>

/* A function that returns a constant. The instruction crosses a cache line, and the patches change bytes on both sides: the
   hardest case. */
unsigned limit(void);
extern uint8_t limit_site[];
__asm__(".text\n.balign 64\n.skip 62, 0xcc\n"
        "limit:\n"
        "limit_site:\n"
        "    movl $1000000, %eax\n"
        "    ret\n");

static atomic_uint last_seen, is_done, mixtures;

static void *execute(void *unused) {
    while (!is_done) {
        const unsigned value = limit();
        if (value != 1000000 && value != 2000000 && value != 3000000)
            mixtures++;
        last_seen = value;
    }
    return unused;
}

static void wait_until_seen(unsigned value) {
    while (last_seen != value)
        sched_yield();
}

/* movl $value, %eax */
#define MOV(value) {0xb8, (value) & 255, (value) >> 8 & 255, (value) >> 16 & 255, (value) >> 24}
static const uint8_t first[] = MOV(1000000), second[] = MOV(2000000), third[] = MOV(3000000);

static int patch(void) {
    int thread, error;
    wordpatch_finisher *finisher;
    wordpatch_outstanding *batch;
    const wordpatch_patch_request to_third = {limit_site, second, third, 5};

    wait_until_seen(1000000);
    /* While it is being patched, the instruction may be a breakpoint, so no thread may have SIGTRAP blocked. */
    error = wordpatch_check_sigtrap_unblocked(&thread);
    if (error != 0) {
        fprintf(stderr, "thread %d: ", thread);
        return error;
    }
    if ((error = wordpatch_patch(limit_site, first, second, 5)) != 0)
        return error;
    wait_until_seen(2000000);
    printf("at once: limit() is %u\n", limit());

    if ((error = wordpatch_start_finisher(&finisher)) != 0)
        return error;
    if ((error = wordpatch_start_patch_all(&to_third, 1, &batch)) != 0)
        return error;
    if ((error = wordpatch_take_over(finisher, batch)) != 0)
        return error;
    /* The batch is completed in the background; no thread needs to wait for it. */
    wait_until_seen(3000000);
    error = wordpatch_finish_all(batch, NULL);
    wordpatch_stop_finisher(finisher);
    printf("by the finisher: limit() is %u\n", limit());
    return error;
}

int main(void) {
    pthread_t executor;
    if (pthread_create(&executor, NULL, execute, NULL) != 0)
        return 1;
    const int error = patch();
    is_done = 1;
    pthread_join(executor, NULL);
    if (error != 0) {
        fprintf(stderr, "%s\n", fastinst_strerror(error));
        return 1;
    }
    if (mixtures == 0)
        printf("the thread saw 1000000, 2000000, 3000000 and nothing else\n");
    return mixtures != 0;
}
