/* Objects are deleted in every order, and used after what they came from has been deleted. */

#include <pthread.h>

#include "programs.h"

static int finalized[8];

static void finalize(void *value) { ++finalized[(intptr_t)value]; }

static wasm_trap_t *answer(void *env, const wasm_val_vec_t *args, wasm_val_vec_t *results) {
    CHECK((intptr_t)env == 1 && args->size == 0 && results->size == 1);
    wasm_val_t value = WASM_I32_VAL(42);
    results->data[0] = value;
    return NULL;
}

/* The objects to delete, in the order of `delete_one`. */
enum { ENGINE, STORE, MODULE, HOST, INSTANCE, EXPORTS, KINDS };

struct all {
    wasm_engine_t *engine;
    wasm_store_t *store;
    wasm_module_t *module;
    wasm_func_t *host;
    wasm_instance_t *instance;
    wasm_extern_vec_t exports;
};

static struct all create(const char *folder) {
    struct all all;
    all.engine = wasm_engine_new();
    all.store = wasm_store_new(all.engine);
    all.module = load(all.store, folder, "deletion");
    wasm_functype_t *type = wasm_functype_new_0_1(wasm_valtype_new_i32());
    all.host = wasm_func_new_with_env(all.store, type, answer, (void *)1, finalize);
    wasm_functype_delete(type);
    CHECK(all.host);
    wasm_extern_t *externs[] = {wasm_func_as_extern(all.host)};
    wasm_extern_vec_t imports = WASM_ARRAY_VEC(externs);
    all.instance = wasm_instance_new(all.store, all.module, &imports, NULL);
    CHECK(all.instance);
    wasm_instance_exports(all.instance, &all.exports);
    CHECK(all.exports.size == 4);
    wasm_instance_set_host_info_with_finalizer(all.instance, (void *)2, finalize);
    wasm_module_set_host_info_with_finalizer(all.module, (void *)3, finalize);
    wasm_extern_set_host_info_with_finalizer(all.exports.data[0], (void *)4, finalize);
    return all;
}

static void delete_one(struct all *all, int which) {
    switch (which) {
    case ENGINE: wasm_engine_delete(all->engine); break;
    case STORE: wasm_store_delete(all->store); break;
    case MODULE: wasm_module_delete(all->module); break;
    case HOST: wasm_func_delete(all->host); break;
    case INSTANCE: wasm_instance_delete(all->instance); break;
    case EXPORTS: wasm_extern_vec_delete(&all->exports); break;
    }
}

/* Every object works until it is deleted. */
static void use(struct all *all) {
    wasm_val_t result;
    CHECK(!call(wasm_extern_as_func(all->exports.data[3]), NULL, &result));
    CHECK(result.kind == WASM_I32 && result.of.i32 == 42);
    wasm_global_get(wasm_extern_as_global(all->exports.data[1]), &result);
    CHECK(result.of.i32 == 7);
    wasm_memory_data(wasm_extern_as_memory(all->exports.data[0]))[100] = 1;
    CHECK(wasm_table_size(wasm_extern_as_table(all->exports.data[2])) == 2);
}

static void delete_in_order(const char *folder, const int order[KINDS]) {
    struct all all = create(folder);
    memset(finalized, 0, sizeof finalized);
    bool has_exports = true;
    for (int number = 0; number < KINDS; ++number) {
        delete_one(&all, order[number]);
        if (order[number] == EXPORTS) has_exports = false;
        if (has_exports) use(&all);
    }
    for (int number = 1; number <= 4; ++number) CHECK(finalized[number] == 1);
}

/* All permutations of the objects from `from` on. */
static void permute(const char *folder, int order[KINDS], int from) {
    if (from == KINDS) {
        delete_in_order(folder, order);
        return;
    }
    for (int other = from; other < KINDS; ++other) {
        int first = order[from];
        order[from] = order[other];
        order[other] = first;
        permute(folder, order, from + 1);
        order[other] = order[from];
        order[from] = first;
    }
}

/* The parts of types belong to them, whatever they were made of. */
static void types(void) {
    wasm_valtype_t *params[] = {wasm_valtype_new_i32(), wasm_valtype_new_f64()};
    wasm_valtype_vec_t first, second, third;
    wasm_valtype_vec_new(&first, 2, params);
    wasm_valtype_vec_copy(&second, &first);
    wasm_valtype_vec_new_empty(&third);
    wasm_functype_t *func = wasm_functype_new(&first, &third);
    CHECK(wasm_functype_params(func)->size == 2 && wasm_functype_results(func)->size == 0);
    wasm_externtype_t *copy = wasm_externtype_copy(wasm_functype_as_externtype(func));
    wasm_functype_delete(func);
    CHECK(wasm_valtype_kind(wasm_functype_params(wasm_externtype_as_functype(copy))->data[1]) == WASM_F64);
    CHECK(!wasm_externtype_as_memorytype(copy));
    wasm_name_t module, name;
    wasm_name_new_from_string(&module, "host");
    wasm_name_new_from_string(&name, "f");
    wasm_importtype_t *import = wasm_importtype_new(&module, &name, copy);
    wasm_importtype_t *imports[] = {wasm_importtype_copy(import), import};
    wasm_importtype_vec_t vector;
    wasm_importtype_vec_new(&vector, 2, imports);
    wasm_importtype_vec_delete(&vector);
    /* Deleting an empty vector once more has no effect. */
    wasm_importtype_vec_delete(&vector);
    wasm_valtype_vec_delete(&second);
    /* The elements of an uninitialized vector need not be set. */
    wasm_functype_vec_t none;
    wasm_functype_vec_new_uninitialized(&none, 3);
    CHECK(none.size == 3);
    none.data[1] = wasm_functype_new_0_0();
    wasm_functype_vec_delete(&none);
    /* There is no memory for this. */
    wasm_byte_vec_t bytes;
    wasm_byte_vec_new_uninitialized(&bytes, SIZE_MAX);
    CHECK(bytes.size == 0);
    wasm_byte_vec_delete(&bytes);
}

static pthread_key_t store_of_thread;

/* Runs after the library's thread-local variables are gone. */
static void end(void *store) {
    wasm_byte_vec_t bytes = {4, "none"};
    for (int round = 0; round < 2; ++round) {
        CHECK(!wasm_module_new(store, &bytes));
        wasm_message_t reason;
        wasm_jit_last_error(&reason);
        CHECK(reason.size > 0);
        wasm_byte_vec_delete(&reason);
    }
    wasm_store_delete(store);
}

static void *thread(void *engine) {
    wasm_store_t *store = wasm_store_new(engine);
    wasm_byte_vec_t bytes = {4, "none"};
    CHECK(!wasm_module_new(store, &bytes) && failed_with("invalid module"));
    CHECK(pthread_setspecific(store_of_thread, store) == 0);
    return NULL;
}

/* A thread uses the library to its end. */
static void threads(void) {
    wasm_engine_t *engine = wasm_engine_new();
    CHECK(pthread_key_create(&store_of_thread, end) == 0);
    pthread_t other;
    CHECK(pthread_create(&other, NULL, thread, engine) == 0 && pthread_join(other, NULL) == 0);
    wasm_engine_delete(engine);
}

struct module_of_other_store {
    wasm_engine_t *engine;
    const wasm_module_t *module;
};

static void *instances(void *of_other_store) {
    struct module_of_other_store *other = of_other_store;
    wasm_extern_vec_t none = WASM_EMPTY_VEC;
    for (int round = 0; round < 100; ++round) {
        wasm_store_t *store = wasm_store_new(other->engine);
        wasm_instance_t *instance = wasm_instance_new(store, other->module, &none, NULL);
        CHECK(instance);
        wasm_instance_delete(instance);
        wasm_store_delete(store);
    }
    return NULL;
}

/* Threads instantiate the module of another thread's store at the same time: it is used as long as it
   is not deleted, and freed then. */
static void module_of_other_store(const char *folder) {
    enum { THREADS = 4 };
    wasm_engine_t *engine = wasm_engine_new();
    wasm_store_t *store = wasm_store_new(engine);
    wasm_module_t *module = load(store, folder, "vector");
    memset(finalized, 0, sizeof finalized);
    wasm_module_set_host_info_with_finalizer(module, (void *)3, finalize);
    struct module_of_other_store other = {engine, module};
    pthread_t threads[THREADS];
    for (int number = 0; number < THREADS; ++number)
        CHECK(pthread_create(&threads[number], NULL, instances, &other) == 0);
    for (int number = 0; number < THREADS; ++number) CHECK(pthread_join(threads[number], NULL) == 0);
    CHECK(!finalized[3]);
    wasm_module_delete(module);
    CHECK(finalized[3] == 1);
    wasm_store_delete(store);
    wasm_engine_delete(engine);
}

static wasm_module_t *started;

static wasm_trap_t *delete_started(const wasm_val_vec_t *args, wasm_val_vec_t *results) {
    (void)args, (void)results;
    wasm_module_delete(started);
    CHECK(finalized[3] == 1);
    return NULL;
}

/* The module's object has no other owner while it is instantiated: their number is not atomic, and the
   object may be another thread's. */
static void module_deleted_by_its_start_function(const char *folder) {
    wasm_engine_t *engine = wasm_engine_new();
    wasm_store_t *store = wasm_store_new(engine);
    started = load(store, folder, "starts_host");
    memset(finalized, 0, sizeof finalized);
    wasm_module_set_host_info_with_finalizer(started, (void *)3, finalize);
    wasm_functype_t *type = wasm_functype_new_0_0();
    wasm_func_t *host = wasm_func_new(store, type, delete_started);
    wasm_functype_delete(type);
    wasm_extern_t *externs[] = {wasm_func_as_extern(host)};
    wasm_extern_vec_t imports = WASM_ARRAY_VEC(externs);
    wasm_instance_t *instance = wasm_instance_new(store, started, &imports, NULL);
    CHECK(instance && finalized[3] == 1);
    wasm_instance_delete(instance);
    wasm_func_delete(host);
    wasm_store_delete(store);
    wasm_engine_delete(engine);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    int order[KINDS] = {ENGINE, STORE, MODULE, HOST, INSTANCE, EXPORTS};
    types();
    threads();
    module_of_other_store(argv[1]);
    module_deleted_by_its_start_function(argv[1]);
    permute(argv[1], order, 0);
    return 0;
}
