/*
 * fastinst.h: probes that are toggled in running code, for C and C++.
 *
 * A probe is a point in the program that calls a user's function while it is on. While it is off,
 * it is a NOP or a register load. Probes are the entries and exits of the functions that were
 * compiled with -finstrument-functions (gcc or clang). Toggling a probe rewrites a few bytes of the
 * running code with one atomic store; no thread is stopped, and any number of threads may execute
 * the code at the same time.
 *
 * Link with -lfastinst, or preload libfastinst.so and look up the functions with dlsym. By default,
 * the library profiles the program; with FASTINST_OPTIONS=tool=none, it leaves the probes to the
 * program.
 *
 * Example: count the calls to a function.
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
 *     wordpatch_    patches of any instruction, one or many, synchronous or asynchronous
 *     callpatch_    calls that are toggled and retargeted
 *
 * Conventions
 *
 * - Threads: every function may be called from any thread. "Async-signal-safe" means that a
 *   function may also be called from signal handlers and probe functions; the others must not be.
 * - Results: a function that returns int returns 0 for success and a negative fastinst_error
 *   otherwise, unless documented differently. After an error the code is unchanged, unless
 *   documented differently. errno is not used, and nothing is printed.
 * - Arrays: an array of `count` elements may be null where `count` is 0. `results`, unless null,
 *   receives `count` numbers: the results of the calls for the single elements, in order. The
 *   function itself returns 0, or the first error among the results.
 * - Text: a function with `buffer` and `size` works like snprintf. It writes as much as fits, with
 *   a final NUL, and returns the length of the full text without the NUL; 0 if there is no text.
 *   `buffer` may be null to query the length.
 * - Handles: wordpatch_outstanding, wordpatch_finisher and callpatch_site belong to the caller, who
 *   releases each once. Any number of threads may use a handle at the same time, except for the
 *   call that releases it. A function that fails to make a handle stores a null pointer.
 * - C++ exceptions and longjmp must not leave a probe function or a discovery callback: their
 *   callers are stubs without unwind tables, and code that holds locks.
 * - Times are in ticks of the time-stamp counter (RDTSC); a nanosecond has about 2 to 4 ticks.
 *
 * Visibility: other threads may run the old code for T_max after a change, a time that depends on
 * the processor (wordpatch/README.md has measured values). After wordpatch_serialize_all_cores, all
 * threads run the new code.
 *
 * Loading: the library stays in the process until it ends, even after dlclose. It replaces
 * functions of the C library in programs that are linked with it: sigaction and signal, to hide the
 * profiler's handlers of fatal signals from the program; execve, execv, execvp, execvpe, execl,
 * execlp, execle, fexecve, _exit, _Exit and quick_exit, before which the profiler writes its
 * report. Each calls the C library's function; with tool=none, it does nothing else. A program that
 * loads the library by dlopen still calls the C library's functions: it has probes, but cannot be
 * profiled, and a line on standard error says so.
 *
 * Processes: a child made by fork() gets its own copy of the code, in the state of the parent's
 * code; neither process changes the code of the other. In a child that was made by a raw system
 * call, and in a large profiled program for a few milliseconds after a fork, the code is still
 * shared with the parent: every change fails with FASTINST_ERROR_SHARED_WITH_PARENT until
 * wordpatch_unshare succeeds. The same holds, as long as they are mapped, in a child whose parent
 * has changed code in pages that the program itself had mapped MAP_SHARED: they cannot be
 * separated.
 */

#ifndef FASTINST_H
#define FASTINST_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The version of this header: 1,000,000 * major + 1,000 * minor + patch.
 *
 * Before version 1.0, every minor version may change functions and structures. From then on, only a
 * major version does: error numbers, constants, and the layout and size of structures stay the
 * same. Structures that the library fills have no member for their size: they never grow; additions
 * come as new functions with new structures. New errors may be added at any time. A program that
 * was compiled with the header of one version and runs with the library of another one compares
 * their major and minor numbers:
 *
 *     if (fastinst_version() / 1000 != FASTINST_VERSION / 1000) ...
 */
#define FASTINST_VERSION 1000

/* The version of the library. Async-signal-safe. */
uint32_t fastinst_version(void);

/* The results of the functions. */
typedef enum {
    FASTINST_OK = 0,
    /* An argument is null or out of range. */
    FASTINST_ERROR_ARGUMENT = -1,
    /* No probe has this id. */
    FASTINST_ERROR_NO_PROBE = -2,
    /* The probe has an id, but its function is not known before its site has been executed once. */
    FASTINST_ERROR_UNDISCOVERED = -3,
    /* The library that contains the probe was unloaded. If it is loaded again at the same address,
       the id is valid again. */
    FASTINST_ERROR_UNLOADED = -4,
    /* The address does not contain the expected bytes: another tool may have patched this code, or
       there is a debugger's breakpoint. */
    FASTINST_ERROR_FOREIGN_BYTES = -5,
    /* The address is not mapped, or not readable and executable. */
    FASTINST_ERROR_NOT_TEXT = -6,
    /* Another thread is patching the same instruction: try again. Or an earlier patch of the same
       array has bytes in common with this one. */
    FASTINST_ERROR_CONTENDED = -7,
    /* The patch has the wrong layout. A patch replaces 1 to 8 bytes by the same number of bytes, and
       an instruction by one of the same length. It may replace several instructions only if those
       that change are at most 8 bytes in one fetch window. */
    FASTINST_ERROR_LAYOUT = -8,
    /* The target, or free memory for generated code, is out of reach of a 32-bit displacement. */
    FASTINST_ERROR_OUT_OF_REACH = -9,
    /* There is no call that can be toggled at the address. */
    FASTINST_ERROR_NOT_A_CALL = -10,
    /* The instruction crosses a fetch window and cannot be executed out of line, such as a system
       call. */
    FASTINST_ERROR_IMMOVABLE = -11,
    /* A discovery callback has called fastinst_register_callback. */
    FASTINST_ERROR_IN_CALLBACK = -12,
    /* The system refuses a mapping, a change of protection, membarrier, a signal handler or a
       thread, or /proc cannot be read, or a table of the library is full. */
    FASTINST_ERROR_SYSTEM = -13,
    /* A thread has SIGTRAP blocked. */
    FASTINST_ERROR_SIGTRAP_BLOCKED = -14,
    /* In a child process whose code is still shared with its parent: call wordpatch_unshare. */
    FASTINST_ERROR_SHARED_WITH_PARENT = -15,
    /* In a child process: the parent started the patch or the finisher. */
    FASTINST_ERROR_FORKED = -16,
    /* The module that contained the probe is gone, for example code that was compiled at run time
       and freed. The id is not reused before all others have been used. */
    FASTINST_ERROR_RETIRED = -17
} fastinst_error;

/*
 * The text for a result: "success" for 0, "unknown error" for numbers that no function returns.
 * Never null; valid as long as the process. Async-signal-safe.
 */
const char *fastinst_strerror(int error);

/* ---- Probes ---------------------------------------------------------------------------------- */

/*
 * The number of a probe. Permanent probes, which exist as long as the process, are numbered from 0
 * without gaps. The numbers of probes of temporary modules start at FASTINST_FIRST_OF_GROUPS; they
 * are reused only when all others have been used. UINT32_MAX is never the number of a probe.
 */
typedef uint32_t fastinst_probe_id;

#define FASTINST_FIRST_OF_GROUPS ((fastinst_probe_id)1 << 24)

/*
 * The event at which a probe fires. Providers of probes may define further types, from
 * FASTINST_FIRST_OF_PROVIDERS on.
 */
typedef uint32_t fastinst_probe_type;
enum {
    /* The function is entered. */
    FASTINST_ENTRY = 0,
    /* The function returns; in C++ code compiled by gcc, also when an exception leaves it. A
       function has an exit probe for each place where it is left. */
    FASTINST_EXIT = 1,
    FASTINST_FIRST_OF_PROVIDERS = 256
};

/*
 * The description of a probe. The strings are valid as long as the process, except for probes whose
 * number is FASTINST_FIRST_OF_GROUPS or above: strings passed to a callback are then valid until
 * the callback returns, and those from fastinst_metadata until the module is gone.
 */
typedef struct {
    fastinst_probe_id probe_id;
    fastinst_probe_type type;
    /* The function's symbol in the object file (C++ names are mangled), or "[object+0xoffset]" if it
       has none. */
    const char *function_name;
    /* The address of the function. An inlined function has probes at many places, all with this
       address, which may be in another object: a C++ inline function can be defined in a library. */
    const void *function_address;
    /* The address of the instruction that is rewritten. */
    const void *site_address;
    /* The file of the executable or library that defines the function. */
    const char *object_path;
    /* The lowest address of that object in memory: function_address minus this is the same in every
       run. */
    const void *object_base;
    /* The name of the provider: "cyg_profile" for functions that were compiled with
       -finstrument-functions. */
    const char *provider;
    /* 1 for code that is compiled from a module at run time: then the following members are the
       index of the function in the module, the offset of the instruction from the start of the
       function, and its opcode, as the provider represents them; the opcode is UINT32_MAX at an
       entry or exit. Otherwise 0, and these members are 0, too. */
    uint32_t has_module_place;
    uint32_t function_index;
    uint32_t offset;
    uint32_t opcode;
} fastinst_probe_metadata;

/*
 * The function that an active probe calls, on the thread that executes the site, with the probe's
 * id.
 *
 * It runs wherever instrumented functions run, including in signal handlers and in several threads
 * at the same time. It must not be instrumented itself, nor call a function whose active probes
 * call it. It may call async-signal-safe functions, and thus activate and deactivate probes,
 * including the one that called it. It must stay callable for as long as any thread may execute the
 * site.
 */
typedef void (*fastinst_probe_fn)(fastinst_probe_id id);

/*
 * The same, with two more arguments: the return address of the probe's function, which lies in its
 * caller, and the address of the function.
 */
typedef void (*fastinst_caller_probe_fn)(fastinst_probe_id id, const void *return_address, const void *function);

/*
 * The function that is called for each probe. `probe` is valid only during the call; `user_data` is
 * the registered pointer.
 *
 * It may activate and deactivate probes. It must not register callbacks, fork, or wait for another
 * thread that does either. In a process that is being profiled, it has no file descriptors when it
 * is called on a thread of the library.
 */
typedef void (*fastinst_discovery_callback)(const fastinst_probe_metadata *probe, void *user_data);

/*
 * Registers `callback` to be called once for each probe: for the probes that are already known, on
 * this thread, before the function returns; for those that are discovered later (in libraries
 * loaded by dlopen, or by the first execution of their sites), on a thread of the library, which
 * blocks all signals except SIGTRAP. Calls to callbacks never overlap.
 *
 * Takes a few microseconds and the time of the callbacks; blocks while another thread discovers
 * probes. Does not disturb other threads. Not async-signal-safe.
 *
 * The caller guarantees that `callback` may be called with `user_data` on any thread until the
 * process ends.
 *
 * Errors: FASTINST_ERROR_ARGUMENT (`callback` is null), FASTINST_ERROR_IN_CALLBACK,
 * FASTINST_ERROR_SYSTEM (the thread for later discoveries could not be started; the callback is
 * registered and has been called for the known probes; the next registration tries again).
 */
int fastinst_register_callback(fastinst_discovery_callback callback, void *user_data);

/*
 * Makes the probe call `fn` from now on. If the probe is already active, only a pointer changes,
 * and no code.
 *
 * A few atomic operations, 50 to 200 ticks. Async-signal-safe: never allocates. Blocks and enters
 * the kernel only in two cases, for ten seconds at most (FASTINST_ERROR_CONTENDED): with text
 * access by mprotect (wordpatch_set_text_access), and in a page where a debugger has set a
 * breakpoint, it makes four system calls, after those of other threads that do the same; while the
 * library moves code to other pages, which it may do after a fork, it waits for the end of the
 * move, a millisecond for 4 MB of code. Other threads continue to run; each of them sees either the
 * old or the new code, never a mixture. If several threads activate a probe with different
 * functions at the same time, one of the functions remains.
 *
 * The profiler may override changes to its probes at any time: run the program with tool=none.
 *
 * The caller guarantees the requirements of fastinst_probe_fn, also after the errors of the second
 * group until the probe is deactivated.
 *
 * Errors without an effect: FASTINST_ERROR_ARGUMENT (`fn` is null), FASTINST_ERROR_NO_PROBE,
 * FASTINST_ERROR_UNDISCOVERED, FASTINST_ERROR_RETIRED. Errors after which the code is unchanged,
 * but the request remains, and takes effect when the library is loaded again (fastinst_deactivate
 * withdraws it, even if it returns an error as well): FASTINST_ERROR_UNLOADED,
 * FASTINST_ERROR_FOREIGN_BYTES, FASTINST_ERROR_CONTENDED, FASTINST_ERROR_SHARED_WITH_PARENT,
 * FASTINST_ERROR_NOT_TEXT (with text access by mprotect: the code was found unmapped),
 * FASTINST_ERROR_SYSTEM.
 */
int fastinst_activate(fastinst_probe_id id, fastinst_probe_fn fn);

/* As fastinst_activate, for a function with two additional arguments. */
int fastinst_activate_with_caller(fastinst_probe_id id, fastinst_caller_probe_fn fn);

/*
 * Makes the probe call nothing from now on; succeeds even if it is already off. Otherwise as
 * fastinst_activate. Threads that are just calling the probe function may still enter it.
 *
 * Errors: those of fastinst_activate except FASTINST_ERROR_ARGUMENT.
 */
int fastinst_deactivate(fastinst_probe_id id);

/* A probe and the function that it is to call. */
typedef struct {
    fastinst_probe_id id;
    fastinst_probe_fn fn;
} fastinst_activation;

/*
 * As fastinst_activate and fastinst_deactivate, for `count` probes in order. An error of one probe
 * does not affect the others. Not async-signal-safe, since they allocate.
 *
 * Errors: for each probe, those of the single call. FASTINST_ERROR_ARGUMENT, with nothing done and
 * `results` not written: the array or an `fn` is null.
 */
int fastinst_activate_all(const fastinst_activation *probes, size_t count, int *results);
int fastinst_deactivate_all(const fastinst_probe_id *ids, size_t count, int *results);

/*
 * The number of permanent probes; their ids are below it. Some of them may not be discovered yet,
 * see FASTINST_ERROR_UNDISCOVERED. Async-signal-safe.
 */
size_t fastinst_probe_count(void);

/* The number of times that activating or deactivating a probe has changed code. Async-signal-safe. */
uint64_t fastinst_toggle_count(void);

/*
 * Stores the description of a probe in `metadata`. Async-signal-safe. Also works for probes of
 * unloaded libraries.
 *
 * Errors: FASTINST_ERROR_ARGUMENT (`metadata` is null), FASTINST_ERROR_NO_PROBE,
 * FASTINST_ERROR_UNDISCOVERED, FASTINST_ERROR_RETIRED.
 */
int fastinst_metadata(fastinst_probe_id id, fastinst_probe_metadata *metadata);

/*
 * The calls that could not be turned into probes, with the reasons: one line for each object and
 * reason. Blocks while another thread discovers probes. Not async-signal-safe.
 */
size_t fastinst_notes(char *buffer, size_t size);

/* ---- Patches of instructions ----------------------------------------------------------------- */

/*
 * This layer and the next one work on any executable memory of the process, including pages that
 * the caller has mapped and filled; such pages should be mapped read-execute once filled (mmap,
 * write, mprotect). Adjacent anonymous pages are one mapping, even if they were mapped separately:
 * if they are unmapped separately, leave a page of another kind between them. The first patch
 * inside a mapping atomically replaces it by a copy with the same bytes in a memory file (about a
 * millisecond for 4 MB).
 *
 * A fetch window is a naturally aligned block of bytes in which instruction fetch never sees a part
 * of a store. It is a property of the processor. Without a calibration of this machine it is 8
 * bytes: AMD guarantees that; Intel guarantees no window, and 8 bytes are assumed. With a
 * calibration, which tmax-probe measures and writes, it is the value in the file: 8, 16, 32 or 64
 * bytes. wordpatch_fetch_model_in_force reports the values that patches rely on and their source.
 *
 * A wait ensures that all processors see the stored bytes. It is one call to membarrier
 * (wordpatch/README.md has measured times), or lasts T_max ticks if the calibration contains the
 * processor's T_max: the longest time for which it executes stale code.
 */

/*
 * Replaces the `length` (1 to 8) bytes `expected` by `replacement` at the start of the instruction
 * at `address`. Every thread that executes the instruction runs the old or the new one, never a
 * mixture. An instruction that is longer keeps its other bytes.
 *
 * If the complete instruction (up to its eighth byte) lies in one fetch window, regardless of the
 * bytes that are given or differ, this is one atomic store, plus a lock for looking up the address.
 * Otherwise the function blocks for one or two waits. If bytes change on both sides of the
 * boundary, the instruction is an INT3 during this time: a thread that executes it takes a trap of
 * a few thousand ticks and continues in a copy of the old instruction; it does not wait. For this
 * purpose the library handles SIGTRAP; other traps are forwarded to the previous handler. If
 * several threads patch one instruction at the same time, one of them succeeds. Not
 * async-signal-safe.
 *
 * The caller guarantees that
 * 1. an instruction starts at `address`, in memory that stays mapped during the call and is written
 *    only by this library;
 * 2. the new instruction is correct for every thread that executes it;
 * 3. `expected` and `replacement` are `length` readable bytes each;
 * 4. if the instruction crosses a fetch window, no thread that may execute it has SIGTRAP blocked
 *    (wordpatch_check_sigtrap_unblocked), and no code branches into its middle;
 * 5. in that case, the instruction is in no critical section of rseq(2), where the trap is not
 *    recognized, and if it faults or calls, no signal handler and no unwinder needs its address: a
 *    thread may be executing the copy.
 *
 * Errors: FASTINST_ERROR_ARGUMENT (null, or `length` not 1 to 8), FASTINST_ERROR_NOT_TEXT,
 * FASTINST_ERROR_FOREIGN_BYTES (the bytes there are not `expected`), FASTINST_ERROR_LAYOUT (old and
 * new bytes are not instructions of the same length), FASTINST_ERROR_CONTENDED,
 * FASTINST_ERROR_IMMOVABLE, FASTINST_ERROR_OUT_OF_REACH (no memory nearby for the copy),
 * FASTINST_ERROR_SHARED_WITH_PARENT, FASTINST_ERROR_SYSTEM.
 */
int wordpatch_patch(void *address, const uint8_t *expected, const uint8_t *replacement, size_t length);

/* The arguments of a patch: see wordpatch_patch. */
typedef struct {
    void *address;
    const uint8_t *expected;
    const uint8_t *replacement;
    size_t length;
} wordpatch_patch_request;

/*
 * As wordpatch_patch, for `count` patches, which share the waits. A patch that fails leaves its
 * instruction unchanged and does not affect the others. The second of two patches with bytes in
 * common fails with FASTINST_ERROR_CONTENDED.
 *
 * FASTINST_ERROR_ARGUMENT with nothing done and `results` not written: `patches`, or a member of
 * one, is null, or a `length` is not 1 to 8. Otherwise as wordpatch_patch.
 */
int wordpatch_patch_all(const wordpatch_patch_request *patches, size_t count, int *results);

/*
 * Starts a patch as wordpatch_patch does, and returns after its first store. If that is the only
 * store, the patch is complete. Otherwise it is outstanding until wordpatch_finish_patch has
 * returned 1; threads that execute the instruction may take traps until then. Any number of patches
 * may be outstanding, started by any threads. The memory may be unmapped before the patch is
 * finished, unless text access is by mprotect or a debugger has set a breakpoint in the page.
 *
 * The conditions (until the patch is finished) and the errors are those of wordpatch_patch.
 */
int wordpatch_start_patch(void *address, const uint8_t *expected, const uint8_t *replacement, size_t length);

/*
 * Advances the outstanding patch at `address`, regardless of the thread that has started it. A
 * patch is outstanding from the return of wordpatch_start_patch on.
 * Returns 1 if the patch is complete, or no patch is outstanding there; 0 if it is not complete
 * yet, or another thread is advancing it: call again. Never waits for another thread, except for
 * one call to membarrier if T_max is not known. Not async-signal-safe.
 *
 * Not for patches of a batch whose handle has not been released: advance these by
 * wordpatch_try_finish, which keeps their errors for wordpatch_finish_all.
 *
 * Errors, each reported once: FASTINST_ERROR_FOREIGN_BYTES (other code has written the
 * instruction), FASTINST_ERROR_NOT_TEXT (it was unmapped, or other memory was mapped there),
 * FASTINST_ERROR_FORKED (the parent of this process has started it), FASTINST_ERROR_SYSTEM
 * (membarrier was allowed before and is now refused).
 */
int wordpatch_finish_patch(void *address);

/* A handle of a started batch of patches. */
typedef struct wordpatch_outstanding wordpatch_outstanding;

/* The progress of a batch. */
typedef enum {
    /* Instructions that change on both sides of a window's boundary are locked by INT3, and still
       act as the old ones. The others are patched; no other patch can acquire them before the wait
       is over. */
    WORDPATCH_FIRST_WAIT = 0,
    /* Those instructions are still locked and act as the old ones; the bytes after the boundary are
       written. */
    WORDPATCH_SECOND_WAIT = 1,
    /* The batch is complete. */
    WORDPATCH_FINISHED = 2
} wordpatch_state;

/*
 * Starts patches as wordpatch_patch_all does, and returns after the first store of each. Stores a
 * handle of the batch in `batch`, even if patches have failed: wordpatch_finish_all reports the
 * errors. Release the handle by wordpatch_finish_all or wordpatch_detach. The array and its bytes
 * are not needed any more when the function returns.
 *
 * The conditions are those of wordpatch_patch for each, until the batch is finished.
 *
 * Errors: FASTINST_ERROR_ARGUMENT, with nothing done (as wordpatch_patch_all, or `batch` is null).
 */
int wordpatch_start_patch_all(const wordpatch_patch_request *patches, size_t count, wordpatch_outstanding **batch);

/*
 * The wordpatch_state of a batch; does not advance it. Async-signal-safe. FASTINST_ERROR_ARGUMENT:
 * `batch` is null.
 */
int wordpatch_outstanding_state(const wordpatch_outstanding *batch);

/*
 * Advances a batch if its wait is over, and returns the resulting wordpatch_state. Does not block
 * if T_max is known; otherwise blocks for one call to membarrier. Not async-signal-safe.
 *
 * Errors: FASTINST_ERROR_ARGUMENT (null), FASTINST_ERROR_FORKED (the batch is the parent's). Errors
 * of single patches are reported by wordpatch_finish_all.
 */
int wordpatch_try_finish(const wordpatch_outstanding *batch);

/*
 * Advances a batch until it is finished, for at most `nanoseconds` and one wait, and returns the
 * resulting wordpatch_state. UINT64_MAX means no limit. Yields the processor while it waits.
 * Otherwise as wordpatch_try_finish.
 */
int wordpatch_wait(const wordpatch_outstanding *batch, uint64_t nanoseconds);

/*
 * Finishes a batch, reports the result of each patch, and releases the handle. Blocks for at most
 * two waits, and while another thread advances the batch. `results` has room for as many numbers as
 * there are patches.
 *
 * Errors of a patch: those of wordpatch_patch; FASTINST_ERROR_NOT_TEXT (its memory was unmapped
 * before it was finished); FASTINST_ERROR_FORKED (in a child of the process that started it; the
 * child has the old instruction). FASTINST_ERROR_ARGUMENT: `batch` is null; or, for each patch,
 * wordpatch_finish_patch was used on the batch and has reported an error of it.
 */
int wordpatch_finish_all(wordpatch_outstanding *batch, int *results);

/*
 * Releases the handle of a batch. Its patches are finished by wordpatch_finish_patch, or by the
 * finisher that has taken over the batch. Does not block. Null is ignored.
 */
void wordpatch_detach(wordpatch_outstanding *batch);

/* A handle of a finisher: a thread that finishes batches in the background. */
typedef struct wordpatch_finisher wordpatch_finisher;

/*
 * Starts a finisher and stores its handle in `finisher`. Its thread blocks all signals except
 * SIGTRAP, sleeps while it has nothing to do, and makes a single wait for all batches that it has
 * at a time.
 *
 * Errors: FASTINST_ERROR_ARGUMENT (null), FASTINST_ERROR_SYSTEM (no thread).
 */
int wordpatch_start_finisher(wordpatch_finisher **finisher);

/*
 * Hands over a batch to a finisher. The handle of the batch still belongs to the caller, for
 * waiting and for the results, and may be released immediately. Has no effect on a batch that is
 * already finished or handed over. Does not block. Not async-signal-safe.
 *
 * Errors: FASTINST_ERROR_ARGUMENT (null), FASTINST_ERROR_FORKED (in a child of the process that
 * started the finisher, where its thread does not run).
 */
int wordpatch_take_over(wordpatch_finisher *finisher, const wordpatch_outstanding *batch);

/*
 * Lets a finisher finish its batches, ends its thread and releases the handle. Blocks until that is
 * done. In a forked child only the handle is released. Null is ignored.
 */
void wordpatch_stop_finisher(wordpatch_finisher *finisher);

/* ---- The machine, threads and processes ------------------------------------------------------ */

/* The way in which waits are made. */
typedef enum {
    /* By membarrier. The only possibility if T_max is not known. */
    WORDPATCH_WAIT_MEMBARRIER = 1,
    /* Until T_max has passed. */
    WORDPATCH_WAIT_T_MAX = 2,
    /* By both. If the kernel refuses membarrier, patches that need a wait are refused. */
    WORDPATCH_WAIT_BOTH = 3
} wordpatch_wait_policy;

/* The source of a fetch model. */
typedef enum {
    /* Neither measured nor forced: the guarantees of the vendors. */
    WORDPATCH_VENDOR_GUARANTEE = 1,
    /* wordpatch_force_fetch_model. */
    WORDPATCH_FORCED = 2,
    /* The calibration file of this machine. */
    WORDPATCH_CALIBRATED = 3
} wordpatch_source;

/* The properties of the processor that patches rely on. */
typedef struct {
    /* The fetch window in bytes: 8, 16, 32 or 64. 8 without a calibration. */
    uint32_t window;
    /* Whether T_max is known (1) or not (0). 0 without a calibration. */
    int is_t_max_known;
    /* T_max in ticks; 0 if it is not known. */
    uint32_t t_max;
    wordpatch_wait_policy wait;
    wordpatch_source source;
} wordpatch_fetch_model;

/*
 * Stores the fetch model in force in `model`. The first call in a process, like its first patch,
 * reads the calibration file, if there is one; later calls are one load and async-signal-safe.
 *
 * Errors: FASTINST_ERROR_ARGUMENT (null).
 */
int wordpatch_fetch_model_in_force(wordpatch_fetch_model *model);

/*
 * Sets the window (8, 16, 32 or 64 bytes), T_max (in ticks; null if not known) and wait policy that
 * patches rely on from now on. Without a T_max, waits are made by membarrier regardless of `wait`.
 * Calls that were decoded before (callpatch_decode, and probes) keep their window.
 * Async-signal-safe.
 *
 * The caller guarantees that on every processor that runs this process, a store inside an aligned
 * block of `window` bytes is atomic for instruction fetch, and that no processor executes stale
 * code for more than `t_max` ticks. Otherwise threads execute mixtures of instructions.
 *
 * Errors: FASTINST_ERROR_ARGUMENT (not such a window or policy).
 */
int wordpatch_force_fetch_model(uint32_t window, const uint32_t *t_max, wordpatch_wait_policy wait);

/*
 * The path of the calibration file that was found, whether it is used or not; empty if there is
 * none. Not async-signal-safe.
 */
size_t wordpatch_calibration_path(char *buffer, size_t size);

/*
 * One line with the reason why the calibration file that was found is not used, and what to do;
 * empty if it is used, or there is none. Not async-signal-safe.
 */
size_t wordpatch_calibration_warning(char *buffer, size_t size);

/*
 * Returns when no thread of this process can execute code that was replaced before the call. One
 * call to membarrier (wordpatch/README.md has measured times). Async-signal-safe.
 *
 * Errors: FASTINST_ERROR_SYSTEM (membarrier is refused: a seccomp filter, or a kernel before 4.16).
 */
int wordpatch_serialize_all_cores(void);

/*
 * Makes one wait as patches do, by the policy in force. Includes children of fork() that still run
 * the code of this process, which membarrier does not reach.
 *
 * Errors: those of wordpatch_serialize_all_cores, if T_max is not known or if the policy is
 * WORDPATCH_WAIT_BOTH.
 */
int wordpatch_wait_for_visibility(void);

/*
 * Checks that no thread of this process has SIGTRAP blocked: the kernel kills a process when such a
 * thread executes the INT3 of a patch. Reads /proc/self/task, which takes about ten microseconds
 * per thread, and waits up to 200 ms for a thread that seems to block it only for a moment. Threads
 * that block it later are not detected. Not async-signal-safe.
 *
 * Errors: FASTINST_ERROR_SIGTRAP_BLOCKED, with the id of the first such thread (gettid) in
 * `thread`; FASTINST_ERROR_SYSTEM (/proc cannot be read). Otherwise `thread` receives 0. `thread`
 * may be null.
 */
int wordpatch_check_sigtrap_unblocked(int *thread);

/*
 * Gives a child process its own copy of the code, so that patches of parent and child no longer
 * affect each other. Succeeds without effect if nothing is shared: in a child of fork() the library
 * has already done it, except in a large profiled program, where it does so within a few
 * milliseconds. Blocks while the patched mappings are copied (wordpatch_copied_bytes; about 4 MB
 * per millisecond). Not async-signal-safe.
 *
 * Instructions that the parent was patching are the old ones in the child. The child cannot finish
 * a patch that the parent started: FASTINST_ERROR_FORKED. A child that was forked before the
 * parent's first patch across a fetch window has no SIGTRAP handler: it must call this function
 * before the parent makes that patch, or it is killed when it executes the parent's INT3.
 *
 * The caller guarantees that no other thread of the child patches or unmaps code during the call.
 *
 * Errors: FASTINST_ERROR_SYSTEM; FASTINST_ERROR_CONTENDED: the child was made by a raw system call
 * while another thread of the parent was using the library, and can never patch;
 * FASTINST_ERROR_SHARED_WITH_PARENT: the parent has changed code in pages that the program had
 * mapped MAP_SHARED, and that are still mapped. The child executes the parent's code, and must not
 * be forked before the parent's first patch across a fetch window.
 */
int wordpatch_unshare(void);

/* 1 in a child process whose code is still shared with its parent, else 0. Async-signal-safe. */
int wordpatch_is_shared_with_parent(void);

/* The number of bytes that wordpatch_unshare would copy in a child forked now. Does not block. */
size_t wordpatch_copied_bytes(void);

/* The way in which code is written. */
typedef enum {
    /* Through a second, writable mapping of the same pages, which are mapped shared where they are
       executed: a debugger cannot set breakpoints there. */
    WORDPATCH_ALIAS = 0,
    /* By making the page writable and executable during each store, by four system calls, or five
       if the code may be unmapped: async-signal-safe functions also enter the kernel then. For
       systems that refuse memory files. */
    WORDPATCH_MPROTECT = 1,
    /* Through a second, writable mapping of the same pages, which are mapped privately where they
       are executed: a debugger can set breakpoints. A store to a page in which it has done so makes
       four additional system calls. The default. */
    WORDPATCH_PRIVATE = 2
} wordpatch_access;

/*
 * Chooses how code is written in mappings that have not been patched yet. The option `text` of
 * FASTINST_OPTIONS sets it for the entire process, including the probes, which are prepared before
 * main. Async-signal-safe. Errors: FASTINST_ERROR_ARGUMENT (not a wordpatch_access).
 */
int wordpatch_set_text_access(wordpatch_access access);

/* The wordpatch_access in force for mappings that have not been patched yet. Async-signal-safe. */
int wordpatch_text_access(void);

/*
 * Drops the library's data about the mappings that overlap the `length` bytes at `address`, after
 * the code there was unmapped or replaced; patches of the code that is mapped there now start with
 * new data. Patches usually detect such changes by themselves; this function makes sure. Not
 * async-signal-safe. Errors: FASTINST_ERROR_ARGUMENT (null, no bytes, or beyond the end of the
 * address space).
 */
int wordpatch_forget_text(const void *address, size_t length);

/*
 * As wordpatch_forget_text, and frees the memory of the library's copies. The caller guarantees
 * that no part of these mappings is mapped at its old address any more. Data about code that was
 * mapped there since is kept.
 */
int wordpatch_release_text(const void *address, size_t length);

/* ---- Calls ----------------------------------------------------------------------------------- */

/*
 * A call that can be toggled is one of
 *
 *     e8 rel32       call rel32              ff 15 disp32   call *disp32(%rip)
 *     e9 rel32       jmp rel32               ff 25 disp32   jmp *disp32(%rip)       (tail calls)
 *
 * When a call is off, execution continues after it; when a tail call is off, the function that
 * contains it returns to its caller. Only bytes in one fetch window change: there is no INT3, and
 * threads that execute the call are not disturbed.
 *
 * A call can be identified by its address, which needs a table and a lock in the library, or by a
 * handle (callpatch_site), which needs neither. Use only one of them for a call.
 */

/*
 * Activates the call at `address`. The instruction is a call as above, or one that was deactivated
 * by callpatch_deactivate_call, or the NOP 0f 1f 44 00 00 inside one fetch window, which becomes
 * call rel32. `offset` is the operand, in two's complement: the distance from the end of the
 * instruction to the callee, or to the eight bytes with the callee's address.
 *
 * If the operand is that of the call, this is one atomic store, plus a lock for looking up the
 * address. Otherwise the call is first switched off (and stays off after an error), and the
 * function may block for two waits. Not async-signal-safe.
 *
 * The caller guarantees that
 * 1. an instruction starts at `address`, in memory that stays mapped during the call and is written
 *    only by this library;
 * 2. the program is correct with a call to that target, and without it;
 * 3. no code branches into the middle of the instruction.
 *
 * Errors: FASTINST_ERROR_ARGUMENT (`address` is null), FASTINST_ERROR_NOT_TEXT,
 * FASTINST_ERROR_NOT_A_CALL (also a NOP that crosses a fetch window), FASTINST_ERROR_FOREIGN_BYTES,
 * FASTINST_ERROR_OUT_OF_REACH, FASTINST_ERROR_CONTENDED, FASTINST_ERROR_SHARED_WITH_PARENT,
 * FASTINST_ERROR_SYSTEM.
 */
int callpatch_activate_call(void *address, uint32_t offset);

/*
 * Deactivates the call at `address`: it is skipped, and no register changes. One atomic store and a
 * lock; succeeds even if the call is already off. Otherwise as callpatch_activate_call, with the
 * same conditions and errors; FASTINST_ERROR_NOT_A_CALL for a NOP that was never a call.
 */
int callpatch_deactivate_call(void *address);

/* A handle of a call that was decoded and verified. */
typedef struct callpatch_site callpatch_site;

/* The registers that a call may change while it is off. */
typedef enum {
    /* None. Correct for any call. */
    CALLPATCH_CLOBBERS_NOTHING = 0,
    /* EAX and EDX. Correct if the call follows the System V calling convention and its result is not
       used; faster if the call crosses a fetch window. */
    CALLPATCH_CLOBBERS_CALLER_SAVED = 1
} callpatch_clobbers;

/*
 * Decodes the active call at `address` and stores a handle in `site`. Writes no code, but makes the
 * mapping writable for the library. Takes locks and allocates: not async-signal-safe.
 *
 * The conditions are those of callpatch_activate_call, for as long as the handle is used; in
 * addition, the program is correct if the registers that `clobbers` names change while the call is
 * off.
 *
 * Errors: FASTINST_ERROR_ARGUMENT (null, or unknown `clobbers`), FASTINST_ERROR_NOT_TEXT,
 * FASTINST_ERROR_NOT_A_CALL, FASTINST_ERROR_OUT_OF_REACH (no memory nearby for the RET that the
 * call is directed to while it is off), FASTINST_ERROR_SYSTEM.
 */
int callpatch_decode(void *address, callpatch_clobbers clobbers, callpatch_site **site);

/*
 * Decodes the NOP 0f 1f 44 00 00 at `address` as a call to `target` that is off. Otherwise as
 * callpatch_decode. FASTINST_ERROR_NOT_A_CALL also if the NOP crosses a fetch window.
 */
int callpatch_decode_nop(void *address, const void *target, callpatch_site **site);

/*
 * Activate or deactivate the call of `site`; succeed even if it is already in that state. One
 * atomic store. Async-signal-safe: they never allocate, and block and enter the kernel only in the
 * cases of fastinst_activate.
 *
 * Errors: FASTINST_ERROR_ARGUMENT (null), FASTINST_ERROR_FOREIGN_BYTES,
 * FASTINST_ERROR_SHARED_WITH_PARENT, FASTINST_ERROR_CONTENDED; with text access by mprotect
 * FASTINST_ERROR_NOT_TEXT (the code was found unmapped) and FASTINST_ERROR_SYSTEM.
 */
int callpatch_activate(const callpatch_site *site);
int callpatch_deactivate(const callpatch_site *site);

/*
 * 1 if the call of `site` is active, 0 if it is not. Async-signal-safe. Errors as for
 * callpatch_activate.
 */
int callpatch_state(const callpatch_site *site);

/*
 * 1 if other memory has been mapped over the call since it was decoded, so that the handle can no
 * longer be used; else 0. Async-signal-safe. The caller guarantees that its address is mapped and
 * readable. FASTINST_ERROR_ARGUMENT: `site` is null.
 */
int callpatch_is_stale(const callpatch_site *site);

/* The kind of instruction of a call. */
typedef enum {
    CALLPATCH_CALL = 0,
    CALLPATCH_JUMP = 1,
    CALLPATCH_INDIRECT_CALL = 2,
    CALLPATCH_INDIRECT_JUMP = 3
} callpatch_shape;

/* The way in which a call is made inactive. */
typedef enum {
    /* The complete instruction becomes a NOP. */
    CALLPATCH_NOP = 0,
    /* Its first two bytes become a jump over the rest. */
    CALLPATCH_SKIP = 1,
    /* Its operand is directed to a RET. */
    CALLPATCH_RET_ISLAND = 2,
    /* Its first byte becomes the opcode of a load of a constant into EAX or EDX. */
    CALLPATCH_LOAD = 3,
    /* Its first byte becomes RET. */
    CALLPATCH_RET = 4
} callpatch_strategy;

/* The description of a call. */
typedef struct {
    /* The address of the instruction. */
    const void *address;
    /* The callee, or the eight bytes with its address. */
    const void *target;
    /* The operand of the active call: the distance from the end of the instruction to the target. */
    int32_t displacement;
    callpatch_shape shape;
    callpatch_strategy strategy;
} callpatch_site_description;

/*
 * Stores the description of a call in `description`. Async-signal-safe.
 *
 * Errors: FASTINST_ERROR_ARGUMENT (null).
 */
int callpatch_describe(const callpatch_site *site, callpatch_site_description *description);

/* A call, and its new target: a function, or the eight bytes with its address. */
typedef struct {
    callpatch_site *site;
    const void *target;
} callpatch_retarget_request;

/*
 * Switches off `count` calls and gives them new targets; their handles then represent the new
 * calls, which are off. Blocks for two waits if any call crosses a fetch window, regardless of
 * their number. A call that fails keeps its old target, and may be off. Not async-signal-safe.
 *
 * The caller guarantees that no other thread uses these handles during the call, that no call
 * occurs twice, and that the program is correct with each new target.
 *
 * Errors: those of callpatch_activate; FASTINST_ERROR_OUT_OF_REACH; FASTINST_ERROR_SYSTEM.
 * FASTINST_ERROR_ARGUMENT with nothing done and `results` not written: the array, or a member of
 * one, is null.
 */
int callpatch_retarget(const callpatch_retarget_request *calls, size_t count, int *results);

/* Releases a handle; the call is unchanged. Null is ignored. */
void callpatch_release(callpatch_site *site);

#ifdef __cplusplus
}
#endif

#endif
