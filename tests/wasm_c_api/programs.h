/* Shared by the programs in this directory. Each gets the directory of its modules as its argument, and
   prints nothing if everything is as it should be. */

#ifndef PROGRAMS_H
#define PROGRAMS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wasm.h>
#include <wasm_jit.h>

#define CHECK(condition)                                                        \
    do {                                                                        \
        if (!(condition)) {                                                     \
            printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);      \
            exit(1);                                                            \
        }                                                                       \
    } while (0)

#define UNUSED __attribute__((unused))

/* The bytes of FOLDER/NAME.wasm. */
UNUSED static void read_module(const char *folder, const char *name, wasm_byte_vec_t *bytes) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.wasm", folder, name);
    FILE *file = fopen(path, "rb");
    CHECK(file);
    CHECK(fseek(file, 0, SEEK_END) == 0);
    long size = ftell(file);
    CHECK(size > 0);
    rewind(file);
    wasm_byte_vec_new_uninitialized(bytes, (size_t)size);
    CHECK(fread(bytes->data, 1, bytes->size, file) == bytes->size);
    fclose(file);
}

UNUSED static wasm_module_t *load(wasm_store_t *store, const char *folder, const char *name) {
    wasm_byte_vec_t bytes;
    read_module(folder, name, &bytes);
    wasm_module_t *module = wasm_module_new(store, &bytes);
    wasm_byte_vec_delete(&bytes);
    CHECK(module);
    return module;
}

/* An instance of a module with these imports, which the caller keeps. */
UNUSED static wasm_instance_t *instantiate(wasm_store_t *store, const char *folder, const char *name,
                                           wasm_extern_t **externs, size_t count) {
    wasm_module_t *module = load(store, folder, name);
    wasm_extern_vec_t imports = {count, externs};
    wasm_trap_t *trap;
    wasm_instance_t *instance = wasm_instance_new(store, module, &imports, &trap);
    CHECK(instance && !trap);
    wasm_module_delete(module);
    return instance;
}

/* Asserts that the message of a trap contains this text. */
UNUSED static bool says(const wasm_trap_t *trap, const char *text) {
    wasm_message_t message;
    wasm_trap_message(trap, &message);
    CHECK(message.size > 0 && message.data[message.size - 1] == 0);
    bool found = strstr(message.data, text) != NULL;
    if (!found) printf("the message is: %s\n", message.data);
    wasm_byte_vec_delete(&message);
    return found;
}

/* Asserts that the reason for the last failure contains this text. */
UNUSED static bool failed_with(const char *text) {
    wasm_message_t reason;
    wasm_jit_last_error(&reason);
    CHECK(reason.size > 0 && reason.data[reason.size - 1] == 0);
    bool found = strstr(reason.data, text) != NULL;
    if (!found) printf("the reason is: %s\n", reason.data);
    wasm_byte_vec_delete(&reason);
    return found;
}

/* Calls a function with at most one argument, an i32, and at most one result. */
UNUSED static wasm_trap_t *call(const wasm_func_t *func, const int32_t *arg, wasm_val_t *result) {
    wasm_val_t values[] = {WASM_I32_VAL(arg ? *arg : 0)};
    wasm_val_vec_t args = {arg ? 1 : 0, values};
    wasm_val_vec_t results = {result ? 1 : 0, result};
    return wasm_func_call(func, &args, &results);
}

#endif
