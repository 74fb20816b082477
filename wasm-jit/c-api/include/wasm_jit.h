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

#ifdef __cplusplus
}
#endif

#endif
