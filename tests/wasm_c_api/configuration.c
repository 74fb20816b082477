/* The settings of wasm_jit.h, interrupts and fuel. */

#include <dirent.h>
#include <pthread.h>

#include "programs.h"

static wasm_engine_t *engine_with(wasm_config_t *config) {
    wasm_engine_t *engine = wasm_engine_new_with_config(config);
    CHECK(engine);
    return engine;
}

/* A module with a function that cannot be compiled and is not called. */
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

/* An instance of the module with endless functions. */
struct endless {
    wasm_engine_t *engine;
    wasm_store_t *store;
    wasm_instance_t *instance;
    wasm_extern_vec_t exports;
};

enum { LOOP, RECURSE, DEPTH, HOST };

static wasm_trap_t *in_host(void *env, const wasm_val_vec_t *args, wasm_val_vec_t *results) {
    wasm_store_t *store = *(wasm_store_t **)env;
    (void)args, (void)results;
    CHECK(!wasm_jit_interrupt_handle_new(store) && failed_with("before the store's program runs"));
    uint64_t fuel;
    if (wasm_jit_store_get_fuel(store, &fuel)) CHECK(wasm_jit_store_set_fuel(store, fuel + 1000));
    return NULL;
}

static void start(struct endless *endless, const char *folder, wasm_config_t *config) {
    endless->engine = engine_with(config);
    endless->store = wasm_store_new(endless->engine);
    wasm_functype_t *type = wasm_functype_new_0_0();
    wasm_func_t *host = wasm_func_new_with_env(endless->store, type, in_host, &endless->store, NULL);
    wasm_functype_delete(type);
    wasm_extern_t *externs[] = {wasm_func_as_extern(host)};
    endless->instance = instantiate(endless->store, folder, "configuration", externs, 1);
    wasm_func_delete(host);
    wasm_instance_exports(endless->instance, &endless->exports);
    CHECK(endless->exports.size == 4);
}

static void end(struct endless *endless) {
    wasm_extern_vec_delete(&endless->exports);
    wasm_instance_delete(endless->instance);
    wasm_store_delete(endless->store);
    wasm_engine_delete(endless->engine);
}

/* A call to an export ends by a trap with this text in its message; if null, without a trap. */
static void ends(struct endless *endless, int which, const char *reason) {
    wasm_trap_t *trap = call(wasm_extern_as_func(endless->exports.data[which]), NULL, NULL);
    CHECK((trap != NULL) == (reason != NULL));
    CHECK(!trap || says(trap, reason));
    wasm_trap_delete(trap);
}

static void *interrupt(void *handle) {
    wasm_jit_interrupt(handle);
    return NULL;
}

static void interrupts(const char *folder) {
    struct endless endless;
    start(&endless, folder, NULL);
    wasm_jit_interrupt_handle_t *handle = wasm_jit_interrupt_handle_new(endless.store);
    CHECK(handle);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, interrupt, handle) == 0);
    /* Stopped there, or before the call begins. */
    ends(&endless, LOOP, "interrupt");
    CHECK(pthread_join(thread, NULL) == 0);
    ends(&endless, HOST, NULL);
    end(&endless);
    wasm_jit_interrupt(handle);
    wasm_jit_interrupt_handle_delete(handle);
    CHECK(!wasm_jit_interrupt_handle_new(NULL) && failed_with("instead of a store"));
    wasm_jit_interrupt(NULL);
    wasm_jit_interrupt_handle_delete(NULL);
}

static void fuel(const char *folder) {
    struct endless endless;
    uint64_t left = 1;
    wasm_config_t *config = wasm_config_new();
    wasm_jit_config_set_consume_fuel(config, true);
    start(&endless, folder, config);
    ends(&endless, LOOP, "fuel");
    CHECK(wasm_jit_store_set_fuel(endless.store, 1000));
    ends(&endless, LOOP, "fuel");
    CHECK(wasm_jit_store_get_fuel(endless.store, &left) && left == 0);
    CHECK(wasm_jit_store_set_fuel(endless.store, 1000));
    ends(&endless, HOST, NULL);
    CHECK(wasm_jit_store_get_fuel(endless.store, &left) && left > 1900 && left < 2000);
    end(&endless);
    start(&endless, folder, NULL);
    CHECK(!wasm_jit_store_set_fuel(endless.store, 1) && failed_with("fuel"));
    CHECK(!wasm_jit_store_get_fuel(endless.store, &left) && left == 0);
    end(&endless);
    CHECK(!wasm_jit_store_set_fuel(NULL, 1) && !wasm_jit_store_get_fuel(NULL, NULL));
    wasm_jit_config_set_consume_fuel(NULL, true);
}

static void max_wasm_stack(const char *folder) {
    int32_t depths[2];
    for (int small = 0; small < 2; ++small) {
        struct endless endless;
        wasm_config_t *config = wasm_config_new();
        if (small) wasm_jit_config_set_max_wasm_stack(config, 64 << 10);
        start(&endless, folder, config);
        ends(&endless, RECURSE, "stack");
        wasm_val_t depth;
        wasm_global_get(wasm_extern_as_global(endless.exports.data[DEPTH]), &depth);
        depths[small] = depth.of.i32;
        end(&endless);
    }
    CHECK(depths[1] > 0 && depths[1] < depths[0] / 8);
    wasm_jit_config_set_max_wasm_stack(NULL, 1);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    lazy(argv[1]);
    cache(argv[1]);
    interrupts(argv[1]);
    fuel(argv[1]);
    max_wasm_stack(argv[1]);
    CHECK(wasm_jit_version() == WASM_JIT_VERSION);
}
