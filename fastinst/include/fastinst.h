/*
 * fastinst.h: probes that are switched on and off in running code, for C and C++.
 *
 * A probe is a place in the program that calls a function of yours while it is on, and costs next
 * to nothing while it is off. Probes are the entries and exits of the functions that were compiled
 * with -finstrument-functions (gcc or clang). Switching one rewrites a few bytes of the running
 * code with one atomic store; no thread is stopped, and any number of threads may run through the
 * place meanwhile.
 *
 * Link with -lfastinst, or preload libfastinst.so and look the functions up with dlsym. The library
 * profiles the program by default; FASTINST_OPTIONS=tool=none leaves the probes to the program.
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
 * The header has three parts, one for each layer of the library:
 *
 *     fastinst_     probes with numbers, their discovery, activation
 *     wordpatch_    patches of any instruction, one or many, at once or begun and finished later
 *     callpatch_    calls that are switched on and off, and given other targets
 *
 * Conventions
 *
 * - Threads: every function may be called from any thread. "Async-signal-safe" means that a
 *   function may also be called from signal handlers and probe functions; the others must not be.
 * - Results: a function that returns int returns 0 for success and a negative fastinst_error
 *   otherwise, unless it says more. After an error the code is as it was, unless the function says
 *   something else. errno means nothing, and nothing is printed.
 * - Arrays: an array of `count` elements may be null where `count` is 0. `results`, unless null,
 *   receives `count` numbers: what the call for one element would have returned, in order. The
 *   function itself returns 0, or the first error among the results.
 * - Text: a function with `buffer` and `size` works like snprintf. It writes as much as fits, with
 *   a final NUL, and returns the length of the whole text without it; 0 when there is nothing to
 *   say. `buffer` may be null to ask for the length.
 * - Handles: wordpatch_outstanding, wordpatch_finisher and callpatch_site belong to the caller, who
 *   releases each once. Any number of threads may use one at a time, except for the call that
 *   releases it. A function that fails to make a handle stores a null pointer.
 * - Times: a tick is one of the time-stamp counter (RDTSC), some 2 to 4 of them to a nanosecond.
 *
 * Visibility: another thread sees a change of code a little later, in practice within 1,000 ticks.
 * Until then it may still run the old code. wordpatch_serialize_all_cores ends that time for all
 * threads at once.
 *
 * Processes: a child made by fork() gets code of its own, in the state the parent's was in; neither
 * changes the other's. In a child that was made by a raw system call, and with the profiler in a
 * large program for an epoch after the fork, the code is still shared with the parent: every change
 * is refused with FASTINST_ERROR_SHARED_WITH_PARENT until wordpatch_unshare succeeds.
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
    /* The probe has an id, but its function is not known before its place was executed once. */
    FASTINST_ERROR_UNDISCOVERED = -3,
    /* The library that holds the probe was unloaded. If it is loaded again at the same address, the
       id is valid again. */
    FASTINST_ERROR_UNLOADED = -4,
    /* The address holds other bytes than expected: another tool may have patched this code, or it
       holds a debugger's breakpoint. */
    FASTINST_ERROR_FOREIGN_BYTES = -5,
    /* The address is not mapped, or not readable and executable. */
    FASTINST_ERROR_NOT_TEXT = -6,
    /* Another thread is patching the same instruction: try again. Or an earlier patch of the same
       array has bytes in common with this one. */
    FASTINST_ERROR_CONTENDED = -7,
    /* A patch replaces 1 to 8 bytes by the same number of bytes, and an instruction by one of the
       same length; several instructions only where those that change are at most 8 bytes in one
       fetch window. */
    FASTINST_ERROR_LAYOUT = -8,
    /* The target, or free memory for generated code, is out of reach of a 32-bit displacement. */
    FASTINST_ERROR_OUT_OF_REACH = -9,
    /* The address holds no call that can be switched. */
    FASTINST_ERROR_NOT_A_CALL = -10,
    /* The instruction crosses a fetch window and cannot be run out of line: a system call, for
       example. */
    FASTINST_ERROR_IMMOVABLE = -11,
    /* A discovery callback has called fastinst_register_callback. */
    FASTINST_ERROR_IN_CALLBACK = -12,
    /* The system refused a mapping, a protection, membarrier, a signal handler or a thread, or /proc
       cannot be read; or a table is full. */
    FASTINST_ERROR_SYSTEM = -13,
    /* A thread has SIGTRAP blocked. */
    FASTINST_ERROR_SIGTRAP_BLOCKED = -14,
    /* In a child process whose code is still shared with its parent: call wordpatch_unshare. */
    FASTINST_ERROR_SHARED_WITH_PARENT = -15,
    /* In a child process: the patch was begun, or the finisher started, by the parent. */
    FASTINST_ERROR_FORKED = -16,
    /* The module that held the probe is gone, such as code that was compiled at run time and freed.
       The id is not used again before all others have been. */
    FASTINST_ERROR_RETIRED = -17
} fastinst_error;

/*
 * The text for what a function has returned: "success" for 0, "unknown error" for numbers that none
 * of them returns. Never null; lives as long as the process. Async-signal-safe.
 */
const char *fastinst_strerror(int error);

/* ---- Probes ---------------------------------------------------------------------------------- */

/*
 * The number of a probe. Probes that stay as long as the process have the numbers from 0 on,
 * without gaps. Those of modules that come and go begin at FASTINST_FIRST_OF_GROUPS; such a number
 * is used again only when all others have been. UINT32_MAX is no probe's.
 */
typedef uint32_t fastinst_probe_id;

#define FASTINST_FIRST_OF_GROUPS ((fastinst_probe_id)1 << 24)

/*
 * When a probe fires. Providers of probes may have other types, from FASTINST_FIRST_OF_PROVIDERS
 * on, with meanings of their own.
 */
typedef uint32_t fastinst_probe_type;
enum {
    /* When its function is entered. */
    FASTINST_ENTRY = 0,
    /* When its function returns; in C++ compiled by gcc also when an exception leaves it. A function
       has an exit probe for each place where it is left. */
    FASTINST_EXIT = 1,
    FASTINST_FIRST_OF_PROVIDERS = 256
};

/*
 * What is known about a probe. The strings live as long as the process; those of a probe that is
 * numbered FASTINST_FIRST_OF_GROUPS or above live until the callback returns, or, from
 * fastinst_metadata, until the module is gone.
 */
typedef struct {
    fastinst_probe_id probe_id;
    fastinst_probe_type type;
    /* The function's symbol as the linker knows it (C++ names are mangled), or "[object+0xoffset]"
       without one. */
    const char *function_name;
    /* Where the function starts. A function that was inlined has probes at many places, all with this
       address. */
    const void *function_address;
    /* Where the instruction starts that is rewritten. */
    const void *site_address;
    /* The file of the executable or library that holds the place. */
    const char *object_path;
    /* The lowest address of that object in memory: function_address minus this is the same in every
       run. */
    const void *object_base;
    /* What has made the probe: "cyg_profile" for functions that were compiled with
       -finstrument-functions. */
    const char *provider;
} fastinst_probe_metadata;

/*
 * What an active probe calls, on the thread that runs through it, with the probe's id.
 *
 * It runs wherever instrumented functions do, also in signal handlers and in several threads at
 * once, and must not be instrumented itself, nor call a function whose active probes call it. It
 * may call what is async-signal-safe, so it may activate and deactivate probes, also the one that
 * has called it. It must stay callable for as long as any thread may run through the place.
 */
typedef void (*fastinst_probe_fn)(fastinst_probe_id id);

/*
 * The same, with two more arguments: the address that the probe's function returns to, which lies
 * in its caller, and the address of the function.
 */
typedef void (*fastinst_caller_probe_fn)(fastinst_probe_id id, const void *return_address, const void *function);

/*
 * What is called for each probe. `probe` is valid during the call only,
 * `user_data` is what was registered.
 *
 * It may activate and deactivate probes. It must not register callbacks, fork, or wait for another
 * thread that does either.
 */
typedef void (*fastinst_discovery_callback)(const fastinst_probe_metadata *probe, void *user_data);

/*
 * Registers `callback` to be called once for every probe: for those that are known now on this
 * thread, before the function returns, and for those that are discovered later (in libraries loaded
 * by dlopen, or by the first execution of their place) on a thread of the library's own, which has
 * all signals blocked except SIGTRAP. Calls of callbacks never overlap.
 *
 * Takes some microseconds and the time of the callbacks; blocks while another thread discovers
 * probes. Does not disturb other threads. Not async-signal-safe.
 *
 * The caller guarantees that `callback` may be called with `user_data` on any thread until the
 * process ends.
 *
 * Errors: FASTINST_ERROR_ARGUMENT (`callback` is null), FASTINST_ERROR_IN_CALLBACK,
 * FASTINST_ERROR_SYSTEM (the thread for later discoveries was refused; the callback is registered
 * and was called for what is known now).
 */
int fastinst_register_callback(fastinst_discovery_callback callback, void *user_data);

/*
 * Makes the probe call `fn` from now on. For a probe that is active already, only a pointer
 * changes, no code.
 *
 * Two atomic stores, 50 to 200 ticks. Async-signal-safe: does not block, lock, allocate or enter
 * the kernel, except with text access by mprotect (wordpatch_set_text_access), and in a page where
 * a debugger has set a breakpoint: there it makes two system calls. Other threads go on running;
 * each of them sees the old or the new code, never a mixture. When threads activate one probe with
 * different functions at the same time, one of these stays.
 *
 * The profiler takes its probes back at its next epoch: start the program with tool=none.
 *
 * The caller guarantees what fastinst_probe_fn asks for.
 *
 * Errors: FASTINST_ERROR_ARGUMENT (`fn` is null), FASTINST_ERROR_NO_PROBE,
 * FASTINST_ERROR_UNDISCOVERED, FASTINST_ERROR_UNLOADED, FASTINST_ERROR_RETIRED,
 * FASTINST_ERROR_FOREIGN_BYTES, FASTINST_ERROR_CONTENDED, FASTINST_ERROR_SHARED_WITH_PARENT,
 * FASTINST_ERROR_SYSTEM.
 */
int fastinst_activate(fastinst_probe_id id, fastinst_probe_fn fn);

/* fastinst_activate for a function that takes the caller's address as well. */
int fastinst_activate_with_caller(fastinst_probe_id id, fastinst_caller_probe_fn fn);

/*
 * Makes the probe call nothing from now on; success also for one that is off. One atomic store;
 * otherwise as fastinst_activate. Threads that are on their way into the probe function may still
 * enter it.
 *
 * Errors: those of fastinst_activate except FASTINST_ERROR_ARGUMENT.
 */
int fastinst_deactivate(fastinst_probe_id id);

/* A probe and what it is to call. */
typedef struct {
    fastinst_probe_id id;
    fastinst_probe_fn fn;
} fastinst_activation;

/*
 * Does what fastinst_activate and fastinst_deactivate do for `count` probes, one after the other. A
 * probe that is refused leaves the others switched. Not async-signal-safe, since they allocate.
 *
 * Errors: those of the single call for each. FASTINST_ERROR_ARGUMENT with nothing done and
 * `results` not written: the array or an `fn` is null.
 */
int fastinst_activate_all(const fastinst_activation *probes, size_t count, int *results);
int fastinst_deactivate_all(const fastinst_probe_id *ids, size_t count, int *results);

/*
 * The number of ids given out to probes that stay as long as the process: each of these ids is
 * below it. Some of these probes may not be discovered yet, see FASTINST_ERROR_UNDISCOVERED.
 * Async-signal-safe.
 */
size_t fastinst_probe_count(void);

/* How many times code was changed by activating and deactivating probes. Async-signal-safe. */
uint64_t fastinst_toggle_count(void);

/*
 * Stores what is known about a probe in `metadata`. Async-signal-safe. A library that was unloaded
 * keeps its metadata.
 *
 * Errors: FASTINST_ERROR_ARGUMENT (`metadata` is null), FASTINST_ERROR_NO_PROBE,
 * FASTINST_ERROR_UNDISCOVERED, FASTINST_ERROR_RETIRED.
 */
int fastinst_metadata(fastinst_probe_id id, fastinst_probe_metadata *metadata);

/*
 * What could not be made probes and why, one line for each object and reason. Blocks while another
 * thread discovers probes. Not async-signal-safe.
 */
size_t fastinst_notes(char *buffer, size_t size);

/* ---- Patches of instructions ----------------------------------------------------------------- */

/*
 * This layer and the next one work on any executable memory of the process, also on pages that the
 * caller has mapped and filled; such pages are best mapped read-execute once filled (mmap, write,
 * mprotect). Anonymous pages that touch each other are one mapping, whoever has mapped them: where
 * their owners map and unmap them apart, keep a page of something else in between. The first patch
 * inside a mapping replaces it by a copy in a memory file, in one step and with the same bytes
 * (about a millisecond for 4 MB).
 *
 * A fetch window is a naturally aligned block of bytes inside which one store is never seen in part
 * by instruction fetch. It is a property of the processor. Without a calibration of this machine it
 * is 8 bytes: AMD guarantees that; Intel guarantees no window, and there 8 bytes are assumed. With
 * a calibration, which tmax-probe measures and writes, it is what the file says: 8, 16, 32 or 64
 * bytes. wordpatch_fetch_model_in_force reports what patches rely on and where it comes from.
 *
 * A wait lets all processors see what was stored. It is one call of membarrier (1,000 to 40,000
 * ticks; each running thread loses a few hundred), or lasts T_max ticks where the calibration
 * knows the processor's T_max: the longest time for which it executes stale code.
 */

/*
 * Replaces the `length` (1 to 8) bytes `expected` by `replacement` at the start of the instruction
 * at `address`. Every thread that executes the instruction runs the old or the new one, never a
 * mixture. An instruction that is longer keeps its other bytes.
 *
 * Where the whole instruction (up to its eighth byte) lies in one fetch window, whichever bytes are
 * given or differ, this is one atomic store and a lock for looking the address up. Otherwise the
 * function blocks for one or two waits, and the instruction is an INT3 meanwhile where bytes change
 * on both sides of the boundary: a thread that meets it takes a trap of some 6,000 ticks and goes
 * on through a copy of the old instruction; it does not wait. For this the library handles SIGTRAP;
 * traps that are not its own go to the handler that was there before. Of several threads that patch
 * one instruction at the same time, one succeeds. Not async-signal-safe.
 *
 * The caller guarantees that
 * 1. an instruction starts at `address`, in memory that stays mapped during the call and is written
 *    by this library only;
 * 2. the new instruction is right for every thread that executes it;
 * 3. `expected` and `replacement` are `length` readable bytes each;
 * 4. where the instruction crosses a fetch window, no thread that may execute it has SIGTRAP
 *    blocked (wordpatch_check_sigtrap_unblocked), and nothing jumps into its middle.
 *
 * Errors: FASTINST_ERROR_ARGUMENT (null, or `length` not 1 to 8), FASTINST_ERROR_NOT_TEXT,
 * FASTINST_ERROR_FOREIGN_BYTES (the bytes there are not `expected`), FASTINST_ERROR_LAYOUT (old and
 * new bytes are no instructions of the same length), FASTINST_ERROR_CONTENDED,
 * FASTINST_ERROR_IMMOVABLE, FASTINST_ERROR_OUT_OF_REACH (no room near by for the copy),
 * FASTINST_ERROR_SHARED_WITH_PARENT, FASTINST_ERROR_SYSTEM.
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
 * Does what wordpatch_patch does for `count` patches, and pays for its waits once. A patch that is
 * refused leaves the others done and its own instruction as it was. The second of two patches that
 * have bytes in common is FASTINST_ERROR_CONTENDED.
 *
 * FASTINST_ERROR_ARGUMENT with nothing done and `results` not written: `patches`, or a member of
 * one, is null, or a `length` is not 1 to 8. Otherwise as wordpatch_patch.
 */
int wordpatch_patch_all(const wordpatch_patch_request *patches, size_t count, int *results);

/*
 * Begins what wordpatch_patch does, and returns after the first store: at the end where one store
 * is all there is. Otherwise the patch is outstanding until wordpatch_finish_patch has returned 1;
 * a thread that executes the instruction may take traps until then. Any number of patches may be
 * outstanding, from any threads. The memory may be unmapped meanwhile, unless text access is by
 * mprotect or a debugger has set a breakpoint in the page.
 *
 * Conditions (until the patch is finished) and errors are those of wordpatch_patch.
 */
int wordpatch_start_patch(void *address, const uint8_t *expected, const uint8_t *replacement, size_t length);

/*
 * Advances the outstanding patch of `address`, whichever thread began it. Returns 1 when nothing is
 * left to be done, also when no patch is outstanding there; 0 when it is not finished yet, or
 * another thread is advancing it: call again. Never waits for another thread, except for one call
 * of membarrier where T_max is not known. Not async-signal-safe.
 *
 * Not for patches of a batch whose handle is not released: advance these by wordpatch_try_finish,
 * which keeps their errors for wordpatch_finish_all.
 *
 * Errors, each reported once: FASTINST_ERROR_FOREIGN_BYTES (other code has written the
 * instruction), FASTINST_ERROR_NOT_TEXT (it was unmapped, or other memory mapped there),
 * FASTINST_ERROR_FORKED (it was begun by the parent of this process), FASTINST_ERROR_SYSTEM
 * (membarrier was allowed and is not any more).
 */
int wordpatch_finish_patch(void *address);

/* A batch of patches that was begun: a handle. */
typedef struct wordpatch_outstanding wordpatch_outstanding;

/* How far a batch has come. */
typedef enum {
    /* Instructions that change on both sides of a window's boundary are locked by INT3, and the old
       ones are in force. The others are patched; no other patch gets them before the wait is over. */
    WORDPATCH_FIRST_WAIT = 0,
    /* Still locked, and the old ones in force; the bytes after the boundary are written. */
    WORDPATCH_SECOND_WAIT = 1,
    /* Nothing is left to be done. */
    WORDPATCH_FINISHED = 2
} wordpatch_state;

/*
 * Begins what wordpatch_patch_all does, and returns after the first store of each patch. Stores a
 * handle of the batch in `batch`, also where patches were refused: wordpatch_finish_all reports
 * them. Release the handle by wordpatch_finish_all or wordpatch_detach. The array and its bytes are
 * not needed any more when the function returns.
 *
 * Conditions are those of wordpatch_patch for each, until the batch is finished.
 *
 * Errors: FASTINST_ERROR_ARGUMENT, with nothing done (as wordpatch_patch_all, or `batch` is null).
 */
int wordpatch_start_patch_all(const wordpatch_patch_request *patches, size_t count, wordpatch_outstanding **batch);

/*
 * The wordpatch_state of a batch; does not advance it. Async-signal-safe. FASTINST_ERROR_ARGUMENT:
 * it is null.
 */
int wordpatch_outstanding_state(const wordpatch_outstanding *batch);

/*
 * Advances a batch if its wait is over, and returns its wordpatch_state then. Does not block where
 * T_max is known; otherwise for one call of membarrier. Not async-signal-safe.
 *
 * Errors: FASTINST_ERROR_ARGUMENT (null), FASTINST_ERROR_FORKED (the batch is the parent's). Errors
 * of single patches are reported by wordpatch_finish_all.
 */
int wordpatch_try_finish(const wordpatch_outstanding *batch);

/*
 * Advances a batch until it is finished, for at most `nanoseconds` and one wait, and returns its
 * wordpatch_state then. UINT64_MAX stands for ever. Yields the processor meanwhile. Otherwise as
 * wordpatch_try_finish.
 */
int wordpatch_wait(const wordpatch_outstanding *batch, uint64_t nanoseconds);

/*
 * Finishes a batch, reports what became of each patch, and releases the handle. Blocks for two
 * waits at most, and while another thread advances the batch. `results` has room for as many
 * numbers as there were patches.
 *
 * Errors of a patch: those of wordpatch_patch; FASTINST_ERROR_NOT_TEXT (its memory was unmapped
 * meanwhile); FASTINST_ERROR_FORKED (in a child of the process that began it, which has the old
 * instruction). FASTINST_ERROR_ARGUMENT: `batch` is null; or, for each patch,
 * wordpatch_finish_patch was used on the batch and has reported an error of it.
 */
int wordpatch_finish_all(wordpatch_outstanding *batch, int *results);

/*
 * Releases the handle of a batch and leaves the patches to wordpatch_finish_patch, or to the
 * finisher that has taken the batch over. Does not block. Null is ignored.
 */
void wordpatch_detach(wordpatch_outstanding *batch);

/* A thread that finishes batches in the background: a handle. */
typedef struct wordpatch_finisher wordpatch_finisher;

/*
 * Starts a finisher and stores its handle in `finisher`. Its thread blocks all signals except
 * SIGTRAP, sleeps while it has nothing to do, and pays one wait for all batches that it has at a
 * time.
 *
 * Errors: FASTINST_ERROR_ARGUMENT (null), FASTINST_ERROR_SYSTEM (no thread).
 */
int wordpatch_start_finisher(wordpatch_finisher **finisher);

/*
 * Hands a batch over to a finisher. The batch's handle remains the caller's, for waiting and for
 * the results, and may be released at once. A batch that is finished or handed over already stays
 * as it is. Does not block. Not async-signal-safe.
 *
 * Errors: FASTINST_ERROR_ARGUMENT (null), FASTINST_ERROR_FORKED (in a child of the process that
 * started the finisher, where its thread does not run).
 */
int wordpatch_take_over(wordpatch_finisher *finisher, const wordpatch_outstanding *batch);

/*
 * Lets a finisher finish what it has, ends its thread and releases the handle. Blocks for that
 * time. In a forked child only the handle is released. Null is ignored.
 */
void wordpatch_stop_finisher(wordpatch_finisher *finisher);

/* ---- The machine, threads and processes ------------------------------------------------------ */

/* How waits are made. */
typedef enum {
    /* By membarrier. The only way where T_max is not known. */
    WORDPATCH_WAIT_MEMBARRIER = 1,
    /* Until T_max has passed. */
    WORDPATCH_WAIT_T_MAX = 2,
    /* By both. */
    WORDPATCH_WAIT_BOTH = 3
} wordpatch_wait_policy;

/* Where a fetch model comes from. */
typedef enum {
    /* Neither measured nor forced: what the vendors guarantee. */
    WORDPATCH_VENDOR_GUARANTEE = 1,
    /* wordpatch_force_fetch_model. */
    WORDPATCH_FORCED = 2,
    /* The calibration file of this machine. */
    WORDPATCH_CALIBRATED = 3
} wordpatch_source;

/* What patches rely on. */
typedef struct {
    /* The fetch window in bytes: 8, 16, 32 or 64. 8 without a calibration. */
    uint32_t window;
    /* Whether T_max is known (1) or not (0). 0 without a calibration. */
    int is_t_max_known;
    /* T_max in ticks; 0 where it is not known. */
    uint32_t t_max;
    wordpatch_wait_policy wait;
    wordpatch_source source;
} wordpatch_fetch_model;

/*
 * Stores the fetch model in force in `model`. The first call of a process, like its first patch,
 * reads the calibration file, if there is one; later calls are one load and async-signal-safe.
 *
 * Errors: FASTINST_ERROR_ARGUMENT (null).
 */
int wordpatch_fetch_model_in_force(wordpatch_fetch_model *model);

/*
 * Makes patches rely on another window (8, 16, 32 or 64 bytes), T_max (in ticks; null stands for
 * not known) and wait from now on. Without a T_max, waits are membarrier's whatever `wait` says.
 * Calls that were decoded before (callpatch_decode, and probes) keep their window.
 * Async-signal-safe.
 *
 * The caller guarantees that on every processor that runs this process, a store inside an aligned
 * block of `window` bytes is atomic for instruction fetch, and that none executes code that is
 * stale for more than `t_max` ticks. If that is wrong, threads execute mixtures of instructions.
 *
 * Errors: FASTINST_ERROR_ARGUMENT (not such a window or policy).
 */
int wordpatch_force_fetch_model(uint32_t window, const uint32_t *t_max, wordpatch_wait_policy wait);

/*
 * The path of the calibration file that was found, whether it is used or not; empty where there is
 * none. Not async-signal-safe.
 */
size_t wordpatch_calibration_path(char *buffer, size_t size);

/*
 * One line that says why the calibration file that was found is not used, and what to do; empty
 * where it is used, or there is none. Not async-signal-safe.
 */
size_t wordpatch_calibration_warning(char *buffer, size_t size);

/*
 * Returns when no thread of this process can execute code as it was before the call. One call of
 * membarrier: 1,000 to 40,000 ticks; each running thread loses a few hundred. Async-signal-safe.
 *
 * Errors: FASTINST_ERROR_SYSTEM (membarrier is refused: a seccomp filter, or a kernel before 4.16).
 */
int wordpatch_serialize_all_cores(void);

/*
 * Makes one wait as patches do, by the policy in force. Covers children of fork() that still run
 * the code of this process, which membarrier does not reach.
 *
 * Errors: those of wordpatch_serialize_all_cores, where T_max is not known.
 */
int wordpatch_wait_for_visibility(void);

/*
 * Checks that no thread of this process has SIGTRAP blocked: the kernel kills a process when such a
 * thread meets the INT3 of a patch. Reads /proc/self/task, some ten microseconds for each thread,
 * and waits up to 200 ms for a thread that seems to block it only for a moment. What a thread
 * blocks later is not seen. Not async-signal-safe.
 *
 * Errors: FASTINST_ERROR_SIGTRAP_BLOCKED, with the id of the first such thread (gettid) in
 * `thread`; FASTINST_ERROR_SYSTEM (/proc cannot be read). Otherwise `thread` receives 0. `thread`
 * may be null.
 */
int wordpatch_check_sigtrap_unblocked(int *thread);

/*
 * Gives a child process code of its own, so that patches of parent and child no longer reach each
 * other. Success with nothing done where nothing is shared: in a child of fork() the library has
 * done it, except with the profiler in a large program, where it does so within an epoch. Blocks
 * for a copy of the patched mappings (wordpatch_copied_bytes; about 4 MB a millisecond). Not
 * async-signal-safe.
 *
 * Instructions that the parent was patching are the old ones in the child. A patch that the parent
 * had begun is not the child's to finish: FASTINST_ERROR_FORKED. A child that was forked before the
 * parent's first patch across a fetch window has no SIGTRAP handler: it must call this before the
 * parent makes that patch, or is killed when it executes the parent's INT3.
 *
 * The caller guarantees that no other thread of the child patches or unmaps code during the call.
 *
 * Errors: FASTINST_ERROR_SYSTEM; FASTINST_ERROR_CONTENDED: the child was made by a raw system call
 * while another thread of the parent was using the library, and can never patch.
 */
int wordpatch_unshare(void);

/* 1 in a child process whose code is still shared with its parent, else 0. Async-signal-safe. */
int wordpatch_is_shared_with_parent(void);

/* The number of bytes that wordpatch_unshare would copy in a child forked now. Does not block. */
size_t wordpatch_copied_bytes(void);

/* How code is written. */
typedef enum {
    /* Through a second, writable mapping of the same pages, which are mapped shared where they are
       executed: a debugger cannot set breakpoints there. */
    WORDPATCH_ALIAS = 0,
    /* By making the page writable and executable during each store: two system calls, so what is
       async-signal-safe no longer avoids the kernel. For systems that refuse memory files. */
    WORDPATCH_MPROTECT = 1,
    /* Through a second, writable mapping of the same pages, which are mapped privately where they
       are executed: a debugger can set breakpoints. A store to a page in which it has done so costs
       two system calls more. The default. */
    WORDPATCH_PRIVATE = 2
} wordpatch_access;

/*
 * Chooses how code is written in mappings that were not patched before. The option `text` of
 * FASTINST_OPTIONS chooses it for the whole process, including the probes, which are prepared
 * before main. Async-signal-safe. Errors: FASTINST_ERROR_ARGUMENT (not a wordpatch_access).
 */
int wordpatch_set_text_access(wordpatch_access access);

/* The wordpatch_access in force for mappings that were not patched before. Async-signal-safe. */
int wordpatch_text_access(void);

/*
 * Drops what the library knows about the mappings that have bytes in `length` bytes from `address`,
 * after the code there was unmapped or replaced; a patch of what is mapped there now finds it anew.
 * Patches usually notice by themselves; this makes sure. Not async-signal-safe. Errors:
 * FASTINST_ERROR_ARGUMENT (null, no bytes, or beyond the end of the address space).
 */
int wordpatch_forget_text(const void *address, size_t length);

/*
 * Does what wordpatch_forget_text does, and gives the memory of the library's copies back. The
 * caller guarantees that nothing of these mappings is mapped at its old address any more.
 */
int wordpatch_release_text(const void *address, size_t length);

/* ---- Calls ----------------------------------------------------------------------------------- */

/*
 * A call that can be switched is one of
 *
 *     e8 rel32       call rel32              ff 15 disp32   call *disp32(%rip)
 *     e9 rel32       jmp rel32               ff 25 disp32   jmp *disp32(%rip)       (tail calls)
 *
 * Switched off, a call continues after itself, and a tail call returns to the caller of the
 * function that holds it. Only bytes in one fetch window change: no INT3, and threads that execute
 * the call are not disturbed.
 *
 * There are two ways to name a call: by address, with a table and a lock in the library, or by a
 * handle (callpatch_site), with neither. Use one of them for a call.
 */

/*
 * Makes the call at `address` be made from now on. The instruction is a call as above, or what
 * callpatch_deactivate_call has made of one, or the NOP 0f 1f 44 00 00 inside one fetch window,
 * which becomes call rel32. `offset` is the operand, in two's complement: the distance from the end
 * of the instruction to the callee, or to the eight bytes that hold the callee's address.
 *
 * With the operand that the call has, this is one atomic store and a lock for looking the address
 * up. With another one, the call is first switched off (and stays off after an error), and the
 * function may block for two waits. Not async-signal-safe.
 *
 * The caller guarantees that
 * 1. an instruction starts at `address`, in memory that stays mapped during the call and is written
 *    by this library only;
 * 2. the program is right with the call of that target, and without it;
 * 3. nothing jumps into the middle of the instruction.
 *
 * Errors: FASTINST_ERROR_ARGUMENT (`address` is null), FASTINST_ERROR_NOT_TEXT,
 * FASTINST_ERROR_NOT_A_CALL (also a NOP that crosses a fetch window), FASTINST_ERROR_FOREIGN_BYTES,
 * FASTINST_ERROR_OUT_OF_REACH, FASTINST_ERROR_CONTENDED, FASTINST_ERROR_SHARED_WITH_PARENT,
 * FASTINST_ERROR_SYSTEM.
 */
int callpatch_activate_call(void *address, uint32_t offset);

/*
 * Makes the call at `address` be skipped from now on. No register changes. One atomic store and a
 * lock; success also for a call that is off. Otherwise as callpatch_activate_call, whose conditions
 * and errors it has; a NOP that was never a call is FASTINST_ERROR_NOT_A_CALL.
 */
int callpatch_deactivate_call(void *address);

/* A call that was decoded and checked once: a handle. */
typedef struct callpatch_site callpatch_site;

/* What a call that is off may change. */
typedef enum {
    /* No register. Right for any call. */
    CALLPATCH_CLOBBERS_NOTHING = 0,
    /* EAX and EDX. Right where the call follows the System V convention and its result is not used;
       cheaper where the call crosses a fetch window. */
    CALLPATCH_CLOBBERS_CALLER_SAVED = 1
} callpatch_clobbers;

/*
 * Decodes the active call at `address` and stores a handle of it in `site`. Writes no code; makes
 * its mapping writable to the library. Takes locks and allocates: not async-signal-safe.
 *
 * The conditions are those of callpatch_activate_call, for as long as the handle is used; and the
 * registers that `clobbers` names may change while the call is off.
 *
 * Errors: FASTINST_ERROR_ARGUMENT (null, or unknown `clobbers`), FASTINST_ERROR_NOT_TEXT,
 * FASTINST_ERROR_NOT_A_CALL, FASTINST_ERROR_OUT_OF_REACH (no memory near by for what the call is
 * led to while it is off), FASTINST_ERROR_SYSTEM.
 */
int callpatch_decode(void *address, callpatch_clobbers clobbers, callpatch_site **site);

/*
 * Decodes the NOP 0f 1f 44 00 00 at `address` as a call of `target` that is off. Otherwise as
 * callpatch_decode. FASTINST_ERROR_NOT_A_CALL also where the NOP crosses a fetch window.
 */
int callpatch_decode_nop(void *address, const void *target, callpatch_site **site);

/*
 * Make the call of `site` be made, or skipped, from now on; success also where it is so already.
 * One atomic store. Async-signal-safe: they do not block, lock, allocate or enter the kernel,
 * except with text access by mprotect, and in a page where a debugger has set a breakpoint.
 *
 * Errors: FASTINST_ERROR_ARGUMENT (null), FASTINST_ERROR_FOREIGN_BYTES,
 * FASTINST_ERROR_SHARED_WITH_PARENT; with text access by mprotect FASTINST_ERROR_CONTENDED and
 * FASTINST_ERROR_SYSTEM.
 */
int callpatch_activate(const callpatch_site *site);
int callpatch_deactivate(const callpatch_site *site);

/*
 * 1 while the call of `site` is made, 0 while it is skipped. Async-signal-safe. Errors as
 * callpatch_activate.
 */
int callpatch_state(const callpatch_site *site);

/*
 * 1 when something else was mapped over the call since it was decoded, so that the handle is of no
 * more use; else 0. Async-signal-safe. The caller guarantees that its address is mapped readable.
 * FASTINST_ERROR_ARGUMENT: `site` is null.
 */
int callpatch_is_stale(const callpatch_site *site);

/* The instruction of a call. */
typedef enum {
    CALLPATCH_CALL = 0,
    CALLPATCH_JUMP = 1,
    CALLPATCH_INDIRECT_CALL = 2,
    CALLPATCH_INDIRECT_JUMP = 3
} callpatch_shape;

/* What makes a call inactive. */
typedef enum {
    /* The whole instruction becomes a NOP. */
    CALLPATCH_NOP = 0,
    /* Its first two bytes become a jump over the rest. */
    CALLPATCH_SKIP = 1,
    /* Its operand leads to a RET. */
    CALLPATCH_RET_ISLAND = 2,
    /* Its first byte makes it load a constant into EAX or EDX. */
    CALLPATCH_LOAD = 3,
    /* Its first byte becomes RET. */
    CALLPATCH_RET = 4
} callpatch_strategy;

/* What is known about a call. */
typedef struct {
    /* Where the instruction starts. */
    const void *address;
    /* The callee, or the eight bytes that hold its address. */
    const void *target;
    /* The operand of the active call: the distance from the end of the instruction to the target. */
    int32_t displacement;
    callpatch_shape shape;
    callpatch_strategy strategy;
} callpatch_site_description;

/*
 * Stores what is known about a call in `description`. Async-signal-safe.
 *
 * Errors: FASTINST_ERROR_ARGUMENT (null).
 */
int callpatch_describe(const callpatch_site *site, callpatch_site_description *description);

/* A call, and what it is to call: a function, or the eight bytes that hold its address. */
typedef struct {
    callpatch_site *site;
    const void *target;
} callpatch_retarget_request;

/*
 * Switches `count` calls off and gives them other targets; their handles then stand for the new
 * calls, which are off. Blocks for two waits where any call crosses a fetch window, whatever their
 * number. A call that is refused keeps its old target, and may be off. Not async-signal-safe.
 *
 * The caller guarantees that nobody else uses these handles during the call, that no call is named
 * twice, and that the program is right with each new target.
 *
 * Errors: those of callpatch_activate; FASTINST_ERROR_OUT_OF_REACH; FASTINST_ERROR_SYSTEM.
 * FASTINST_ERROR_ARGUMENT with nothing done and `results` not written: the array, or a member of
 * one, is null.
 */
int callpatch_retarget(const callpatch_retarget_request *calls, size_t count, int *results);

/* Releases a handle; the call stays as it is. Null is ignored. */
void callpatch_release(callpatch_site *site);

#ifdef __cplusplus
}
#endif

#endif
