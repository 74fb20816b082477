/*
 * fastinst.h: probes that are switched on and off in running code, for C and C++.
 *
 * A probe is a place in the program that calls a function of yours while it is on, and costs next to nothing while it is
 * off. Probes are the entries and exits of the functions that were compiled with -finstrument-functions (gcc or clang).
 * Switching one rewrites a few bytes of the running code with one atomic store; no thread is stopped, and any number of
 * threads may run through the place meanwhile.
 *
 * Link with -lfastinst, or preload libfastinst.so and look the functions up with dlsym. The library profiles the
 * program by default; FASTINST_OPTIONS=tool=none leaves the probes to the program.
 *
 * Example: counts the calls of one function.
 *
 *     #include <stdio.h>
 *     #include <string.h>
 *     #include <fastinst.h>
 *
 *     #define UNINSTRUMENTED __attribute__((no_instrument_function))
 *
 *     static fastinst_probe_id entry = UINT32_MAX;
 *     static unsigned calls;
 *
 *     UNINSTRUMENTED static void count(fastinst_probe_id id) { (void)id; calls++; }
 *
 *     UNINSTRUMENTED static void discover(const fastinst_probe_metadata *probe, void *name) {
 *         if (probe->type == FASTINST_ENTRY && strcmp(probe->function_name, name) == 0)
 *             entry = probe->probe_id;
 *     }
 *
 *     void work(void) { __asm__ volatile(""); }
 *
 *     int main(void) {
 *         int error = fastinst_register_callback(discover, "work");
 *         if (error == 0)
 *             error = fastinst_activate(entry, count);
 *         work();
 *         work();
 *         if (error == 0)
 *             error = fastinst_deactivate(entry);
 *         work();
 *         printf("%s: %u calls seen\n", fastinst_strerror(error), calls);
 *         return error != 0;
 *     }
 *
 *     cc -O2 -finstrument-functions example.c -lfastinst && FASTINST_OPTIONS=tool=none ./a.out
 *     success: 2 calls seen
 *
 * Every function may be called from any thread. Those that return int give 0 for success and a negative fastinst_error
 * otherwise; after an error the code is as it was, unless the function says something else. errno means nothing, and
 * nothing is printed.
 *
 * Another thread sees a change of code a little later (in practice within 1,000 ticks of the time-stamp counter): until
 * then it may still run the old code. membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE) ends that time for all
 * threads at once.
 *
 * A child made by fork() gets code of its own, in the state the parent's was in: neither changes the other's. In a child made
 * by a raw system call, and in a large program for an epoch after the fork, every change is refused with
 * FASTINST_ERROR_CONTENDED.
 */

#ifndef FASTINST_H
#define FASTINST_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What the functions return. */
typedef enum {
    FASTINST_OK = 0,
    /* An argument is null or out of range. */
    FASTINST_ERROR_ARGUMENT = -1,
    /* No probe has this id. */
    FASTINST_ERROR_NO_PROBE = -2,
    /* The probe has an id, but which function it belongs to is not known before its place was executed once. */
    FASTINST_ERROR_UNDISCOVERED = -3,
    /* The library that holds the probe was unloaded. If it is loaded again at the same address, the id is good again. */
    FASTINST_ERROR_UNLOADED = -4,
    /* Other bytes than expected stand at the address: another tool may have patched this code, or a debugger's breakpoint
       stands there. */
    FASTINST_ERROR_FOREIGN_BYTES = -5,
    /* The address is not mapped, or not readable and executable. */
    FASTINST_ERROR_NOT_TEXT = -6,
    /* Another thread is patching the same instruction: try again. An earlier patch of the same array has it. In a child that was
       not made by fork(): the code is shared with the parent. In any child: the patch was begun by the parent. */
    FASTINST_ERROR_CONTENDED = -7,
    /* A patch replaces 1 to 8 bytes by as many, and an instruction by one of the same length; of several instructions only
       in one store. */
    FASTINST_ERROR_LAYOUT = -8,
    /* The target, or free memory for a piece of code, is out of reach of a 32-bit displacement. */
    FASTINST_ERROR_OUT_OF_REACH = -9,
    /* No call that can be switched stands at the address. */
    FASTINST_ERROR_NOT_A_CALL = -10,
    /* The instruction crosses a fetch window and cannot be run out of line: a system call, for example. */
    FASTINST_ERROR_IMMOVABLE = -11,
    /* A discovery callback has called fastinst_register_callback. */
    FASTINST_ERROR_IN_CALLBACK = -12,
    /* The system has refused a mapping, a protection, membarrier, a signal handler or a thread; or a table is full. */
    FASTINST_ERROR_SYSTEM = -13
} fastinst_error;

/* The number of a probe. The first is 0, there are no gaps, and a number is never given twice. */
typedef uint32_t fastinst_probe_id;

/* When a probe fires. */
typedef enum {
    /* When its function is entered. */
    FASTINST_ENTRY = 0,
    /* When its function returns; in C++ compiled by gcc also when an exception leaves it. A function has an exit probe
       for each place where it is left. */
    FASTINST_EXIT = 1
} fastinst_probe_type;

/* What is known about a probe. The strings live as long as the process. */
typedef struct {
    fastinst_probe_id probe_id;
    fastinst_probe_type type;
    /* The function's symbol as the linker knows it (C++ names are mangled), or "[object+0xoffset]" without one. */
    const char *function_name;
    /* Where the function starts. A function that was inlined has probes at many places, all with this address. */
    const void *function_address;
    /* Where the instruction starts that is rewritten. */
    const void *site_address;
    /* The file of the executable or library that holds the place. */
    const char *object_path;
} fastinst_probe_metadata;

/*
 * What an active probe calls, on the thread that runs through it, with the probe's id.
 *
 * It runs wherever instrumented functions do, also in signal handlers and in several threads at once, and must not be
 * instrumented itself, nor call a function whose active probes call it. It may activate and deactivate probes, also the
 * one that has called it. It must stay callable for as long as any thread may run through the place.
 */
typedef void (*fastinst_probe_fn)(fastinst_probe_id id);

/*
 * What is told about probes. `probe` is valid during the call only (its strings are valid for ever), `user_data` is what
 * was registered.
 *
 * It may activate and deactivate probes. It must not register callbacks, fork, or wait for another thread that
 * does either.
 */
typedef void (*fastinst_discovery_callback)(const fastinst_probe_metadata *probe, void *user_data);

/*
 * Has `callback` called once for every probe: for those that are known now on this thread, before the function returns,
 * and for those that are discovered later (in libraries loaded by dlopen, or by the first execution of their place)
 * on a thread of the library's own, which has all signals blocked. Calls of callbacks never overlap.
 *
 * Takes some microseconds and the time of the callbacks; blocks while another thread discovers probes. Not to be called
 * from a signal handler or a probe function. Other threads are not disturbed.
 *
 * The caller guarantees that `callback` may be called with `user_data` on any thread until the process ends.
 *
 * Errors: FASTINST_ERROR_ARGUMENT (`callback` is null), FASTINST_ERROR_IN_CALLBACK, FASTINST_ERROR_SYSTEM (the thread for
 * later discoveries was refused; the callback is registered and was told what is known now).
 */
int fastinst_register_callback(fastinst_discovery_callback callback, void *user_data);

/*
 * Has the probe call `fn` from now on. For a probe that is active already, only a pointer changes, no code.
 *
 * Two atomic stores, 50 to 200 ticks: does not block, lock, allocate or enter the kernel (but with the option
 * text=mprotect), and may be called from signal handlers, probe functions and discovery callbacks. Other threads go on
 * running; each of them sees the new code as a whole or not at all. Threads that activate one probe with different
 * functions at the same time leave it with one of these.
 *
 * Probes that the profiler uses are taken from it only until its next epoch: start the program with tool=none.
 *
 * The caller guarantees what fastinst_probe_fn asks for.
 *
 * Errors: FASTINST_ERROR_ARGUMENT (`fn` is null), FASTINST_ERROR_NO_PROBE, FASTINST_ERROR_UNDISCOVERED,
 * FASTINST_ERROR_UNLOADED, FASTINST_ERROR_FOREIGN_BYTES, FASTINST_ERROR_CONTENDED, FASTINST_ERROR_SYSTEM.
 */
int fastinst_activate(fastinst_probe_id id, fastinst_probe_fn fn);

/*
 * Has the probe call nothing from now on; success also for one that is off. One atomic store; otherwise as
 * fastinst_activate. Threads that are on their way into the probe function may still enter it.
 *
 * Errors: those of fastinst_activate but FASTINST_ERROR_ARGUMENT.
 */
int fastinst_deactivate(fastinst_probe_id id);

/*
 * How many ids were given out: every id is below this number. Callbacks may not have been told of all of them, see
 * FASTINST_ERROR_UNDISCOVERED. One load: may be called anywhere.
 */
size_t fastinst_probe_count(void);

/*
 * The text for what a function has returned: "success" for 0, "unknown error" for numbers that none of them returns. The
 * text is never null and lives as long as the process. May be called anywhere.
 */
const char *fastinst_strerror(int error);

/*
 * The two layers below probes. They work on any executable memory of the process, also on pages that the caller has mapped
 * and filled; such pages are best mapped read-execute once filled (mmap, write, mprotect). Anonymous pages that touch each other are
 * one mapping, whoever has mapped them: where their owners map and unmap them apart, keep a page of something else in between. The first patch inside a
 * mapping replaces it by a copy in a memory file, in one step and with the same bytes (about a millisecond for 4 MB).
 *
 * A fetch window is the block of bytes that the processor's instruction fetch is sure to read at once: 8 bytes, aligned.
 */

/*
 * Replaces the `length` (1 to 8) bytes `expected` by `replacement` at the start of the instruction at `address`. Every
 * thread that executes the instruction runs the old or the new one, never a mixture. An instruction that is longer
 * keeps its other bytes.
 *
 * Where the bytes that differ lie in one fetch window, this is one atomic store, and a lock for looking the address up.
 * Otherwise the function blocks for two calls of membarrier (1,000 to 25,000 ticks each), and the instruction is an INT3
 * meanwhile: a thread that meets it takes a trap of some 6,000 ticks and goes on through a copy of the old instruction; it
 * does not wait. For this the library takes SIGTRAP over; traps that are not its own go to the handler that was
 * there before. Of several threads that patch one instruction at the same time, one succeeds.
 *
 * Not to be called from a signal handler or a probe function.
 *
 * The caller guarantees that
 * 1. an instruction starts at `address`, in memory that stays mapped during the call and is written by this library only;
 * 2. the new instruction is right for every thread that executes it;
 * 3. `expected` and `replacement` are `length` readable bytes each;
 * 4. where the patch crosses a fetch window, no thread that may execute the instruction has SIGTRAP blocked, and nothing
 *    jumps into its middle.
 *
 * Errors: FASTINST_ERROR_ARGUMENT (null, or `length` not 1 to 8), FASTINST_ERROR_NOT_TEXT, FASTINST_ERROR_FOREIGN_BYTES
 * (not `expected` stands there), FASTINST_ERROR_LAYOUT (old and new bytes are no instructions of the same length),
 * FASTINST_ERROR_CONTENDED, FASTINST_ERROR_IMMOVABLE, FASTINST_ERROR_OUT_OF_REACH (no room near by for the copy),
 * FASTINST_ERROR_SYSTEM.
 */
int wordpatch_patch(void *address, const uint8_t *expected, const uint8_t *replacement, size_t length);

/* One patch of many: see wordpatch_patch. */
typedef struct {
    void *address;
    const uint8_t *expected;
    const uint8_t *replacement;
    size_t length;
} wordpatch_patch_request;

/*
 * Does what wordpatch_patch does for `count` patches, and pays for its two waits once. `results`, unless null, receives what
 * wordpatch_patch would have returned for each. A patch that is refused leaves the others done and its own instruction as it
 * was. The second of two patches that have bytes in common is FASTINST_ERROR_CONTENDED.
 *
 * Gives 0, or the first error among the results. FASTINST_ERROR_ARGUMENT with nothing done: `patches`, or a member of
 * one, is null, or a `length` is not 1 to 8. Otherwise as wordpatch_patch.
 */
int wordpatch_patch_all(const wordpatch_patch_request *patches, size_t count, int *results);

/*
 * Begins what wordpatch_patch does, and returns after the first store: at the end where the bytes that differ lie in one
 * fetch window. Otherwise the instruction is an INT3 until wordpatch_finish_patch has been called often enough; any number of
 * patches may be outstanding, from any threads. The memory may be unmapped meanwhile.
 *
 * Conditions and errors are those of wordpatch_patch.
 */
int wordpatch_start_patch(void *address, const uint8_t *expected, const uint8_t *replacement, size_t length);

/*
 * Furthers the patch of `address` that was begun, by whichever thread. Gives 1 when nothing is left of it to be done, also
 * when there is none; 0 when it is not finished yet, or another thread is at it: call again. Waits for no other thread, but
 * for one call of membarrier.
 *
 * Errors, each told once: FASTINST_ERROR_FOREIGN_BYTES (somebody else has written the instruction), FASTINST_ERROR_NOT_TEXT (it
 * was unmapped, or other memory mapped there), FASTINST_ERROR_CONTENDED (it was begun by the parent of this forked child),
 * FASTINST_ERROR_SYSTEM (membarrier was allowed and is not any more).
 */
int wordpatch_finish_patch(void *address);

/*
 * Has the call at `address` be made from now on. The site is one of
 *
 *     e8 rel32       call rel32              ff 15 disp32   call *disp32(%rip)
 *     e9 rel32       jmp rel32               ff 25 disp32   jmp *disp32(%rip)       (tail calls)
 *     0f 1f 44 00 00 a NOP inside one fetch window, which becomes call rel32
 *
 * or what callpatch_deactivate_call has made of one. `offset` is the operand, in two's complement: the distance from the
 * end of the instruction to the callee, or to the eight bytes that hold the callee's address.
 *
 * With the operand that the site has, this is one atomic store and a lock for looking the address up. With another one,
 * the call is first switched off (and stays off after an error), and the function may block for two calls of membarrier.
 * No INT3 either way: threads that execute the site are not disturbed. Not to be called from a signal handler or a probe
 * function.
 *
 * The caller guarantees that
 * 1. an instruction starts at `address`, in memory that stays mapped during the call and is written by this library only;
 * 2. the program is right with the call of that target, and without it;
 * 3. nothing jumps into the middle of the instruction.
 *
 * Errors: FASTINST_ERROR_ARGUMENT (`address` is null), FASTINST_ERROR_NOT_TEXT, FASTINST_ERROR_NOT_A_CALL (also a NOP
 * that crosses a fetch window), FASTINST_ERROR_FOREIGN_BYTES, FASTINST_ERROR_OUT_OF_REACH, FASTINST_ERROR_CONTENDED,
 * FASTINST_ERROR_SYSTEM.
 */
int callpatch_activate_call(void *address, uint32_t offset);

/*
 * Has the call at `address` be skipped from now on: a call goes on behind itself, a tail call returns to the caller of
 * the function that holds it. No register changes. One atomic store and a lock; success also for a call that is off.
 * Otherwise as callpatch_activate_call, whose conditions and errors it has; a NOP that was never a call is
 * FASTINST_ERROR_NOT_A_CALL.
 */
int callpatch_deactivate_call(void *address);

#ifdef __cplusplus
}
#endif

#endif
