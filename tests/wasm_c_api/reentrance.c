/* Host functions that use the store that runs: calls in calls, growing, instantiating, and deleting
   everything that is needed to return. */

#include "programs.h"

struct host {
    const char *folder;
    wasm_store_t *store;
    wasm_func_t *func, *run;
    wasm_memory_t *memory;
    bool deletes;
    int calls;
};

static wasm_trap_t *callback(void *env, const wasm_val_vec_t *args, wasm_val_vec_t *results) {
    struct host *host = env;
    int32_t depth = args->data[0].of.i32;
    wasm_val_t result = WASM_I32_VAL(0);
    ++host->calls;
    if (depth > 0) {
        CHECK(wasm_memory_grow(host->memory, 1));
        wasm_memory_data(host->memory)[wasm_memory_data_size(host->memory) - 1] = 1;
        depth -= 1;
        CHECK(!call(host->run, &depth, &result));
    } else {
        wasm_extern_t *externs[] = {wasm_func_as_extern(host->func)};
        wasm_instance_t *other = instantiate(host->store, host->folder, "reentrance", externs, 1);
        wasm_instance_delete(other);
        if (host->deletes) {
            wasm_func_delete(host->run);
            wasm_func_delete(host->func);
            wasm_memory_delete(host->memory);
            wasm_store_delete(host->store);
        }
    }
    results->data[0] = result;
    return NULL;
}

static int finalized;

static void finalize(void *env) {
    CHECK(((struct host *)env)->calls > 0);
    ++finalized;
}

static void run(const char *folder, bool deletes, int32_t depth) {
    wasm_engine_t *engine = wasm_engine_new();
    struct host host = {.folder = folder, .store = wasm_store_new(engine), .deletes = deletes};
    wasm_engine_delete(engine);
    wasm_functype_t *type = wasm_functype_new_1_1(wasm_valtype_new_i32(), wasm_valtype_new_i32());
    host.func = wasm_func_new_with_env(host.store, type, callback, &host, finalize);
    wasm_functype_delete(type);
    wasm_extern_t *externs[] = {wasm_func_as_extern(host.func)};
    wasm_instance_t *instance = instantiate(host.store, folder, "reentrance", externs, 1);
    wasm_extern_vec_t exports;
    wasm_instance_exports(instance, &exports);
    wasm_instance_delete(instance);
    host.memory = wasm_memory_copy(wasm_extern_as_memory(exports.data[0]));
    host.run = wasm_func_copy(wasm_extern_as_func(exports.data[1]));
    wasm_extern_vec_delete(&exports);
    finalized = 0;
    wasm_val_t result = WASM_INIT_VAL;
    CHECK(!call(host.run, &depth, &result));
    /* Each call adds the number of pages at its end. */
    CHECK(result.of.i32 == (depth + 1) * (depth + 1) && host.calls == depth + 1);
    if (!deletes) {
        CHECK(finalized == 0);
        wasm_store_delete(host.store);
        wasm_memory_delete(host.memory);
        wasm_func_delete(host.func);
        wasm_func_delete(host.run);
    }
    CHECK(finalized == 1);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    for (int32_t depth = 0; depth < 20; ++depth) {
        run(argv[1], false, depth);
        run(argv[1], true, depth);
    }
    return 0;
}
