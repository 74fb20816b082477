/* Functions that wasm-jit provides in addition to the WebAssembly C API. */

#ifndef WASM_JIT_H
#define WASM_JIT_H

#include <wasm.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The version of this header: 1,000,000 * major + 1,000 * minor + patch.
 *
 * Before version 1.0, every minor version may change the functions of this header, and their types;
 * those of wasm.h do not change. A program that was compiled with the header of one version and
 * runs with the library of another one compares their major and minor numbers:
 *
 *     if (wasm_jit_version() / 1000 != WASM_JIT_VERSION / 1000) ...
 */
#define WASM_JIT_VERSION 1000

/* The version of the library. */
WASM_API_EXTERN uint32_t wasm_jit_version(void);

/*
 * Stores in `out` the reason for the last failure of a function on this thread, null-terminated; an
 * empty text if there was none. A function that succeeds does not change the reason, nor does a
 * call that returns a trap, which has a message. The caller owns the text.
 *
 *     wasm_module_t *module = wasm_module_new(store, &binary);
 *     if (!module) {
 *         wasm_message_t reason;
 *         wasm_jit_last_error(&reason);
 *         fprintf(stderr, "%s\n", reason.data);
 *         wasm_byte_vec_delete(&reason);
 *     }
 */
WASM_API_EXTERN void wasm_jit_last_error(wasm_message_t *out);

/*
 * Sets whether functions are compiled when they are first called, instead of with their module: for
 * large modules of which a run uses few functions. Modules are validated completely in either case.
 * The default is false.
 */
WASM_API_EXTERN void wasm_jit_config_set_lazy_compilation(wasm_config_t *config, bool lazy);

/*
 * Sets the directory of a cache: a module that any process of the same user has compiled with the
 * same settings is loaded from a file in `directory`; other modules are compiled and stored there.
 * The directory is created if it does not exist; its files take at most `max_bytes`. With a cache,
 * the setting for lazy compilation has no effect. Returns false, and changes nothing, if the
 * directory cannot be created, belongs to another user, or others can write to it:
 * wasm_jit_last_error has the reason.
 *
 *     wasm_config_t *config = wasm_config_new();
 *     if (!wasm_jit_config_set_cache(config, "/var/cache/app", 1 << 30)) ...
 *     wasm_engine_t *engine = wasm_engine_new_with_config(config);
 */
WASM_API_EXTERN bool wasm_jit_config_set_cache(wasm_config_t *config, const char *directory, uint64_t max_bytes);

/*
 * Sets the number of bytes of the thread's stack that WebAssembly may use before it traps. The
 * default is 1 MiB. The limit is lower if the thread's stack is too small: 256 KiB of the stack are
 * reserved for host functions and the library. On a thread with a smaller stack, every call traps.
 */
WASM_API_EXTERN void wasm_jit_config_set_max_wasm_stack(wasm_config_t *config, size_t bytes);

/*
 * Sets whether programs consume fuel: each instruction costs 1, and a program traps when none is
 * left. The default is false. A new store has no fuel. The instruction at which the trap occurs
 * depends only on the program, its input and the amount of fuel. An interrupt, in contrast, may
 * stop a program at any instruction; it needs no fuel.
 */
WASM_API_EXTERN void wasm_jit_config_set_consume_fuel(wasm_config_t *config, bool consume);

/*
 * Set or get the fuel that is left; may also be called in a host function of the store. They return
 * false, and get 0, if the engine's programs consume no fuel.
 */
WASM_API_EXTERN bool wasm_jit_store_set_fuel(wasm_store_t *store, uint64_t fuel);
WASM_API_EXTERN bool wasm_jit_store_get_fuel(const wasm_store_t *store, uint64_t *out);

/*
 * A handle to stop the program of a store from another thread. The caller owns the handle, and may
 * delete it before or after the store. wasm_jit_interrupt_handle_new returns null in a host
 * function of the store: create the handle before the program runs.
 */
typedef struct wasm_jit_interrupt_handle_t wasm_jit_interrupt_handle_t;
WASM_API_EXTERN wasm_jit_interrupt_handle_t *wasm_jit_interrupt_handle_new(wasm_store_t *store);
WASM_API_EXTERN void wasm_jit_interrupt_handle_delete(wasm_jit_interrupt_handle_t *handle);

/*
 * Stops the program of the handle's store: the call that runs it returns a trap, and so do the
 * enclosing calls, if host functions have called the program in turn. If nothing runs in the store,
 * the next call returns the trap. The store remains usable. A host function continues, and the
 * program stops when it returns; a system call in which it waits fails with EINTR. Does not wait.
 * Any number of threads may call this at the same time, while none deletes the handle; signal
 * handlers must not. The library uses the signal SIGURG for this; that of other senders is passed
 * to the handler that was installed before the first interrupt handle was made.
 */
WASM_API_EXTERN void wasm_jit_interrupt(const wasm_jit_interrupt_handle_t *handle);

#ifdef __cplusplus
}
#endif

#endif
