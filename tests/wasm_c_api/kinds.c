/* Features that the header cannot express: 128-bit values, references of other kinds, memories and
   tables of 64 bits, shared memories. Types describe these features, and are accepted where they came from. */

#include "programs.h"

enum { V128 = 4, ANYREF = 130, EXNREF = 131 };

static wasm_trap_t *ignore(const wasm_val_vec_t *args, wasm_val_vec_t *results) {
    (void)args, (void)results;
    return NULL;
}

static wasm_valkind_t param(const wasm_functype_t *type, size_t index) {
    return wasm_valtype_kind(wasm_functype_params(type)->data[index]);
}

/* The module's imports can be created with the types that it names, except vectors. */
static void imports(wasm_store_t *store, wasm_module_t *module, wasm_extern_t *externs[5]) {
    wasm_importtype_vec_t types;
    wasm_module_imports(module, &types);
    CHECK(types.size == 5);
    const wasm_name_t *name = wasm_importtype_name(types.data[0]);
    CHECK(name->size == 6 && memcmp(name->data, "vector", 6) == 0);
    const wasm_externtype_t *type[5];
    for (int number = 0; number < 5; ++number) type[number] = wasm_importtype_type(types.data[number]);
    const wasm_functype_t *vector = wasm_externtype_as_functype_const(type[0]);
    CHECK(param(vector, 0) == V128 && wasm_valkind_is_num(V128));
    externs[0] = wasm_func_as_extern(wasm_func_new(store, vector, ignore));
    CHECK(!externs[0] && failed_with("v128"));
    const wasm_memorytype_t *memory = wasm_externtype_as_memorytype_const(type[1]);
    CHECK(wasm_memorytype_limits(memory)->min == 1 && wasm_memorytype_limits(memory)->max == 5);
    externs[1] = wasm_memory_as_extern(wasm_memory_new(store, memory));
    externs[2] = wasm_memory_as_extern(wasm_memory_new(store, wasm_externtype_as_memorytype_const(type[2])));
    CHECK(param(wasm_externtype_as_functype_const(type[3]), 0) == WASM_FUNCREF);
    externs[3] = wasm_func_as_extern(wasm_func_new(store, wasm_externtype_as_functype_const(type[3]), ignore));
    const wasm_tabletype_t *table = wasm_externtype_as_tabletype_const(type[4]);
    CHECK(wasm_tabletype_limits(table)->max == wasm_limits_max_default);
    externs[4] = wasm_table_as_extern(wasm_table_new(store, table, NULL));
    CHECK(externs[1] && externs[2] && externs[3] && externs[4]);
    wasm_importtype_vec_delete(&types);
}

/* A module with the function that C code cannot define. */
static wasm_extern_t *vector_function(wasm_store_t *store, const char *folder) {
    wasm_instance_t *instance = instantiate(store, folder, "vector", NULL, 0);
    wasm_extern_vec_t exports;
    wasm_instance_exports(instance, &exports);
    wasm_extern_t *copy = wasm_extern_copy(exports.data[0]);
    wasm_extern_vec_delete(&exports);
    wasm_instance_delete(instance);
    return copy;
}

static void use(const wasm_extern_vec_t *exports) {
    CHECK(exports->size == 5);
    wasm_val_t value, result = WASM_INIT_VAL, numbers[] = {WASM_I64_VAL(1), WASM_I32_VAL(2)};
    wasm_global_t *global = wasm_extern_as_global(exports->data[0]);
    wasm_global_get(global, &value);
    CHECK(value.kind == V128);
    wasm_global_set(global, &value);
    CHECK(failed_with("v128"));
    wasm_val_vec_t args = WASM_ARRAY_VEC(numbers), none = WASM_EMPTY_VEC, results = {1, &result};
    wasm_trap_t *trap = wasm_func_call(wasm_extern_as_func(exports->data[1]), &args, &none);
    CHECK(trap && says(trap, "wasm.h has no values of type v128"));
    wasm_trap_delete(trap);
    trap = wasm_func_call(wasm_extern_as_func(exports->data[2]), &none, &results);
    CHECK(trap && says(trap, "v128") && result.kind == WASM_EXTERNREF);
    wasm_trap_delete(trap);
    CHECK(!wasm_func_call(wasm_extern_as_func(exports->data[3]), &none, &results));
    CHECK(result.kind == EXNREF && !result.of.ref);
    wasm_externtype_t *tag = wasm_extern_type(exports->data[4]);
    const wasm_functype_t *type = wasm_tagtype_functype(wasm_externtype_as_tagtype(tag));
    CHECK(param(type, 0) == WASM_I32 && param(type, 1) == EXNREF);
    wasm_tagtype_t *own = wasm_tagtype_new(wasm_functype_copy(type));
    CHECK(wasm_externtype_kind(wasm_tagtype_as_externtype(own)) == WASM_EXTERN_TAG);
    wasm_tagtype_delete(own);
    wasm_externtype_delete(tag);
}

static int finalized;

static void finalize(void *value) {
    (void)value;
    ++finalized;
}

/* A shared memory lives as long as its store, without any object, and so does what is attached to it:
   another one does not get its address. */
static void shared_memory_without_object(wasm_store_t *store, const wasm_memory_t *shared) {
    wasm_memorytype_t *type = wasm_memory_type(shared);
    wasm_memory_t *first = wasm_memory_new(store, type);
    byte_t *data = wasm_memory_data(first);
    wasm_memory_set_host_info_with_finalizer(first, &finalized, finalize);
    wasm_memory_delete(first);
    data[0] = 7;
    wasm_memory_t *second = wasm_memory_new(store, type);
    CHECK(second && !wasm_memory_get_host_info(second));
    CHECK(wasm_memory_data(second) != data && data[0] == 7 && !finalized);
    wasm_memory_delete(second);
    wasm_memorytype_delete(type);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    for (int kind = 0; kind < 256; ++kind) {
        wasm_valtype_t *type = wasm_valtype_new((wasm_valkind_t)kind);
        CHECK((type != NULL) == (kind <= V128 || (kind >= WASM_EXTERNREF && kind <= EXNREF)));
        CHECK(!type || wasm_valtype_kind(type) == kind);
        wasm_valtype_delete(type);
    }
    wasm_engine_t *engine = wasm_engine_new();
    wasm_store_t *store = wasm_store_new(engine);
    wasm_module_t *module = load(store, argv[1], "kinds");
    wasm_extern_t *externs[5];
    imports(store, module, externs);
    externs[0] = vector_function(store, argv[1]);
    wasm_extern_vec_t all = WASM_ARRAY_VEC(externs), exports;
    wasm_trap_t *trap;
    wasm_instance_t *instance = wasm_instance_new(store, module, &all, &trap);
    CHECK(instance && !trap);
    CHECK(wasm_memory_size(wasm_extern_as_memory(externs[2])) == 1);
    CHECK(wasm_memory_grow(wasm_extern_as_memory(externs[2]), 2));
    CHECK(wasm_memory_data_size(wasm_extern_as_memory(externs[2])) == 3 * MEMORY_PAGE_SIZE);
    wasm_memory_data(wasm_extern_as_memory(externs[2]))[3 * MEMORY_PAGE_SIZE - 1] = 1;
    wasm_memorytype_t *type = wasm_memory_type(wasm_extern_as_memory(externs[2]));
    CHECK(wasm_memorytype_limits(type)->min == 3 && wasm_memorytype_limits(type)->max == 3);
    wasm_memorytype_delete(type);
    wasm_instance_exports(instance, &exports);
    use(&exports);
    shared_memory_without_object(store, wasm_extern_as_memory(externs[2]));
    wasm_extern_vec_delete(&exports);
    for (int number = 0; number < 5; ++number) wasm_extern_delete(externs[number]);
    wasm_instance_delete(instance);
    wasm_module_delete(module);
    wasm_store_delete(store);
    CHECK(finalized == 1);
    wasm_engine_delete(engine);
    return 0;
}
