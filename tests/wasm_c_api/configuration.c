/* The settings of wasm_jit.h. */

#include <dirent.h>

#include "programs.h"

static wasm_engine_t *engine_with(wasm_config_t *config) {
    wasm_engine_t *engine = wasm_engine_new_with_config(config);
    CHECK(engine);
    return engine;
}

/* A module of which one function cannot be compiled, and is not called. */
static void lazy(const char *folder) {
    for (int lazy = 0; lazy < 2; ++lazy) {
        wasm_config_t *config = wasm_config_new();
        wasm_jit_config_set_lazy_compilation(config, lazy);
        wasm_engine_t *engine = engine_with(config);
        wasm_store_t *store = wasm_store_new(engine);
        wasm_byte_vec_t bytes;
        read_module(folder, "too_large", &bytes);
        wasm_module_t *module = wasm_module_new(store, &bytes);
        wasm_byte_vec_delete(&bytes);
        CHECK(!module == !lazy);
        if (module) {
            wasm_extern_vec_t imports = WASM_EMPTY_VEC, exports;
            wasm_instance_t *instance = wasm_instance_new(store, module, &imports, NULL);
            CHECK(instance);
            wasm_instance_exports(instance, &exports);
            wasm_val_t result = WASM_INIT_VAL;
            CHECK(!call(wasm_extern_as_func(exports.data[0]), NULL, &result) && result.of.i32 == 42);
            wasm_extern_vec_delete(&exports);
            wasm_instance_delete(instance);
            wasm_module_delete(module);
        }
        wasm_store_delete(store);
        wasm_engine_delete(engine);
    }
}

static int files_in(const char *folder) {
    DIR *listing = opendir(folder);
    CHECK(listing);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(listing));) count += entry->d_name[0] != '.';
    closedir(listing);
    return count;
}

static void cache(const char *folder) {
    char path[4096];
    snprintf(path, sizeof path, "%s/cache", folder);
    for (int round = 0; round < 2; ++round) {
        wasm_config_t *config = wasm_config_new();
        CHECK(wasm_jit_config_set_cache(config, path, 1 << 20));
        wasm_engine_t *engine = engine_with(config);
        wasm_store_t *store = wasm_store_new(engine);
        wasm_module_delete(load(store, folder, "kinds"));
        wasm_store_delete(store);
        wasm_engine_delete(engine);
        CHECK(files_in(path) == 1);
    }
    wasm_config_t *config = wasm_config_new();
    CHECK(!wasm_jit_config_set_cache(config, "/dev/null/cache", 1 << 20));
    CHECK(failed_with("/dev/null/cache"));
    CHECK(!wasm_jit_config_set_cache(config, NULL, 1) && failed_with("null pointer"));
    CHECK(!wasm_jit_config_set_cache(NULL, path, 1) && failed_with("null pointer"));
    wasm_jit_config_set_lazy_compilation(NULL, true);
    wasm_config_delete(config);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    lazy(argv[1]);
    cache(argv[1]);
}
