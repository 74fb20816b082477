/* Additions of the engine wasm-jit to the WebAssembly C API. */

#ifndef WASM_JIT_H
#define WASM_JIT_H

#include <wasm.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Stores into `out` why a function of this thread has failed the last time, null-terminated; an
 * empty text if none has. A function that succeeds does not change it. The caller owns the text.
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
 * Whether a function is compiled when it is first called, instead of with its module: for large
 * modules of which a run uses few functions. Modules are validated completely in either case. The
 * default is false.
 */
WASM_API_EXTERN void wasm_jit_config_set_lazy_compilation(wasm_config_t *config, bool lazy);

/*
 * Modules are loaded from files in `folder` if they were compiled before, by any process of the
 * same user with the same settings, and stored there otherwise. The folder is created if it does
 * not exist; its files are kept within `max_bytes`. The setting for lazy compilation has no effect
 * then. Returns false, and changes nothing, if the folder cannot be created, belongs to another
 * user, or others can write to it: wasm_jit_last_error says which.
 *
 *     wasm_config_t *config = wasm_config_new();
 *     if (!wasm_jit_config_set_cache(config, "/var/cache/app", 1 << 30)) ...
 *     wasm_engine_t *engine = wasm_engine_new_with_config(config);
 */
WASM_API_EXTERN bool wasm_jit_config_set_cache(wasm_config_t *config, const char *folder, uint64_t max_bytes);

#ifdef __cplusplus
}
#endif

#endif
