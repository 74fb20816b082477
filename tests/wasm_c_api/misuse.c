/* Null pointers, indices beyond the end, values of wrong types and of other stores: each is an
   error that the caller sees, and nothing has changed. */

#include "programs.h"

static wasm_trap_t *nothing(const wasm_val_vec_t *args, wasm_val_vec_t *results) {
    (void)args, (void)results;
    return NULL;
}

static wasm_trap_t *of_wrong_type(const wasm_val_vec_t *args, wasm_val_vec_t *results) {
    (void)args;
    CHECK(results->size == 1 && results->data[0].kind == WASM_I32);
    wasm_val_t value = WASM_F64_VAL(1);
    results->data[0] = value;
    return NULL;
}

static void nulls(void) {
    wasm_engine_delete(NULL);
    CHECK(failed_with("") && !wasm_store_new(NULL) && failed_with("instead of an engine"));
    wasm_store_delete(NULL);
    CHECK(!wasm_module_new(NULL, NULL) && !wasm_module_validate(NULL, NULL));
    CHECK(!wasm_valtype_new(7) && !wasm_valtype_copy(NULL));
    CHECK(!wasm_functype_params(NULL) && !wasm_globaltype_new(NULL, WASM_VAR));
    CHECK(!wasm_memorytype_new(NULL) && !wasm_tabletype_new(NULL, NULL) && !wasm_tagtype_new(NULL));
    CHECK(!wasm_func_as_ref(NULL) && !wasm_ref_as_func(NULL) && !wasm_extern_as_memory(NULL));
    CHECK(wasm_ref_same(NULL, NULL) && !wasm_ref_get_host_info(NULL));
    CHECK(!wasm_memory_data(NULL) && wasm_memory_size(NULL) == 0 && !wasm_memory_grow(NULL, 1));
    CHECK(!wasm_table_get(NULL, 0) && !wasm_table_set(NULL, 0, NULL));
    CHECK(!wasm_trap_new(NULL, NULL) && !wasm_trap_origin(NULL));
    CHECK(!wasm_frame_instance(NULL) && wasm_frame_func_index(NULL) == 0);
    wasm_val_t value;
    wasm_global_get(NULL, &value);
    CHECK(value.kind == WASM_I32 && value.of.i32 == 0);
    wasm_trap_t *trap;
    CHECK(!wasm_instance_new(NULL, NULL, NULL, &trap) && !trap);
    wasm_extern_vec_t exports;
    wasm_instance_exports(NULL, &exports);
    CHECK(exports.size == 0 && !exports.data);
    wasm_val_vec_t values;
    wasm_val_vec_new(&values, 3, NULL);
    CHECK(values.size == 0);
    wasm_val_vec_copy(NULL, &values);
    wasm_val_vec_delete(&values);
    wasm_val_vec_delete(NULL);
}

/* A failure does not leave the reason of an earlier one. */
static void reasons(wasm_store_t *store) {
    wasm_byte_vec_t bytes = WASM_EMPTY_VEC;
    wasm_limits_t limits = {1, 2};
    wasm_tabletype_t *table_type = wasm_tabletype_new(wasm_valtype_new_funcref(), &limits);
    wasm_table_t *table = wasm_table_new(store, table_type, NULL);
    CHECK(!wasm_module_new(store, NULL) && failed_with("instead of a vector of bytes"));
    CHECK(!wasm_module_new(NULL, &bytes) && failed_with("instead of a store"));
    CHECK(!wasm_module_deserialize(store, NULL) && failed_with("instead of a vector of bytes"));
    CHECK(!wasm_valtype_new(77) && failed_with("no kind 77"));
    CHECK(!wasm_tabletype_new(wasm_valtype_new_i32(), &limits) && failed_with("not of type i32"));
    CHECK(!wasm_table_get(table, 99) && failed_with("the index 99 is beyond the table's 1 elements"));
    CHECK(!wasm_table_get(NULL, 0) && failed_with("instead of a table"));
    CHECK(!wasm_memory_new(store, (wasm_memorytype_t *)table_type) && failed_with("expected the type of a memory"));
    CHECK(!wasm_memory_grow(NULL, 1) && failed_with("instead of a memory"));
    CHECK(!wasm_memory_data((wasm_memory_t *)table) && failed_with("expected a memory, found another object"));
    CHECK(!wasm_func_type(NULL) && failed_with("instead of a function"));
    CHECK(!wasm_global_type(NULL) && failed_with("instead of a global"));
    CHECK(!wasm_trap_origin(NULL) && failed_with("instead of a trap"));
    CHECK(!wasm_functype_params((wasm_functype_t *)table_type) && failed_with("expected the type of a function"));
    CHECK(!wasm_foreign_new(NULL) && failed_with("instead of a store"));
    CHECK(!wasm_module_share(NULL) && failed_with("instead of a module"));
    CHECK(wasm_extern_kind(NULL) == WASM_EXTERN_FUNC && failed_with("instead of a function, global"));
    CHECK(wasm_extern_kind(wasm_table_as_extern(table)) == WASM_EXTERN_TABLE);
    wasm_trap_t *trap;
    CHECK(!wasm_instance_new(store, NULL, NULL, &trap) && says(trap, "instead of a module"));
    CHECK(failed_with("instead of a module"));
    wasm_trap_delete(trap);
    CHECK(!wasm_instance_new(store, (wasm_module_t *)table, NULL, &trap) && says(trap, "expected a module"));
    wasm_trap_delete(trap);
    wasm_table_delete(table);
    wasm_tabletype_delete(table_type);
}

/* Only functions can be called. A null pointer has no store for a trap. */
static void calls_of_no_function(wasm_table_t *table) {
    wasm_val_t values[] = {WASM_INIT_VAL, WASM_INIT_VAL};
    wasm_val_vec_t none = WASM_EMPTY_VEC, results = WASM_ARRAY_VEC(values);
    wasm_trap_t *trap = wasm_func_call((wasm_func_t *)table, &none, &results);
    CHECK(trap && says(trap, "expected a function, found another object"));
    CHECK(values[0].kind == WASM_EXTERNREF);
    wasm_trap_delete(trap);
    CHECK(!wasm_func_call(NULL, &none, &results) && failed_with("instead of a function"));
    CHECK(values[0].kind == WASM_I32 && values[0].of.i32 == 0 && values[1].kind == WASM_I32);
}

static void memory_and_table(wasm_memory_t *memory, wasm_table_t *table, wasm_global_t *other_kind) {
    CHECK(!wasm_memory_grow(memory, 2) && wasm_memory_size(memory) == 1);
    CHECK(failed_with("cannot grow"));
    CHECK(wasm_memory_grow(memory, 1) && !wasm_memory_grow(memory, 1));
    CHECK(!wasm_table_get(table, 2) && !wasm_table_set(table, 2, NULL));
    CHECK(!wasm_table_set(table, 0, wasm_global_as_ref(other_kind)));
    CHECK(failed_with("funcref"));
    CHECK(!wasm_table_grow(table, 2, NULL) && wasm_table_size(table) == 2);
    /* An object of another kind is refused. */
    CHECK(!wasm_memory_data((wasm_memory_t *)table) && wasm_table_size((wasm_table_t *)memory) == 0);
    CHECK(!wasm_ref_as_table(wasm_memory_as_ref(memory)));
}

/* A host value belongs to the store that it was created for. */
static void foreign_of(wasm_store_t *store, wasm_store_t *other) {
    wasm_limits_t limits = {1, 2};
    wasm_tabletype_t *type = wasm_tabletype_new(wasm_valtype_new_externref(), &limits);
    wasm_foreign_t *foreign = wasm_foreign_new(other);
    CHECK(!wasm_table_new(store, type, wasm_foreign_as_ref(foreign)) && failed_with("another store"));
    wasm_table_t *table = wasm_table_new(store, type, NULL);
    CHECK(table && !wasm_table_set(table, 0, wasm_foreign_as_ref(foreign)) && !wasm_table_get(table, 0));
    wasm_table_delete(table);
    wasm_foreign_delete(foreign);
    wasm_tabletype_delete(type);
}

static void globals(wasm_store_t *store, wasm_global_t *constant, wasm_global_t *variable) {
    wasm_val_t number = WASM_I32_VAL(9), value;
    wasm_global_set(constant, &number);
    CHECK(failed_with("constant"));
    wasm_global_get(constant, &value);
    CHECK(value.of.i32 == 7);
    wasm_global_set(variable, &number);
    CHECK(failed_with("i64"));
    wasm_global_get(variable, &value);
    CHECK(value.of.i64 == 8);
    wasm_globaltype_t *type = wasm_globaltype_new(wasm_valtype_new_f32(), WASM_CONST);
    CHECK(!wasm_global_new(store, type, &number) && failed_with("f32"));
    wasm_globaltype_delete(type);
}

static void calls(wasm_store_t *store, wasm_func_t *identity, wasm_func_t *takes_function, wasm_func_t *foreign) {
    wasm_val_t numbers[] = {WASM_I32_VAL(1), WASM_I32_VAL(2)}, wide = WASM_I64_VAL(1), result = WASM_INIT_VAL;
    wasm_val_vec_t none = WASM_EMPTY_VEC, two = WASM_ARRAY_VEC(numbers), one = {1, numbers};
    wasm_val_vec_t wrong = {1, &wide}, results = {1, &result};
    struct { const wasm_val_vec_t *args; wasm_val_vec_t *results; const char *message; } cases[] = {
        {&none, &results, "expected 1 arguments, found 0"},
        {NULL, &results, "expected 1 arguments, found 0"},
        {&two, &results, "expected 1 arguments, found 2"},
        {&wrong, &results, "expected a value of type i32"},
    };
    for (size_t number = 0; number < sizeof cases / sizeof *cases; ++number) {
        wasm_trap_t *trap = wasm_func_call(identity, cases[number].args, cases[number].results);
        CHECK(trap && says(trap, cases[number].message));
        wasm_trap_delete(trap);
        CHECK(result.kind == WASM_EXTERNREF && !result.of.ref);
    }
    CHECK(!wasm_func_call(identity, &one, &results) && result.of.i32 == 1);
    /* Results for which there is no room are dropped. */
    CHECK(!wasm_func_call(identity, &one, &none) && !wasm_func_call(identity, &one, NULL));

    wasm_val_t function = {.kind = WASM_FUNCREF, .of = {.ref = wasm_func_as_ref(foreign)}};
    wasm_val_vec_t functions = {1, &function};
    wasm_trap_t *trap = wasm_func_call(takes_function, &functions, &none);
    CHECK(trap && says(trap, "another store"));
    wasm_trap_delete(trap);

    wasm_functype_t *type = wasm_functype_new_0_1(wasm_valtype_new_i32());
    wasm_func_t *host = wasm_func_new(store, type, of_wrong_type);
    trap = wasm_func_call(host, &none, &results);
    CHECK(trap && says(trap, "expected a value of type i32"));
    wasm_trap_delete(trap);
    wasm_func_delete(host);
    CHECK(!wasm_func_new(store, type, NULL));
    wasm_functype_delete(type);
}

static void modules(wasm_engine_t *engine, wasm_store_t *store, const char *folder, wasm_func_t *foreign) {
    wasm_byte_vec_t bytes;
    wasm_name_new_from_string(&bytes, "(module)");
    CHECK(!wasm_module_new(store, &bytes) && !wasm_module_validate(store, &bytes));
    CHECK(failed_with("invalid module"));
    CHECK(!wasm_module_deserialize(store, &bytes));
    wasm_byte_vec_delete(&bytes);
    read_module(folder, "misuse", &bytes);
    CHECK(wasm_module_validate(store, &bytes));
    wasm_byte_vec_delete(&bytes);

    wasm_module_t *module = load(store, folder, "deletion");
    wasm_trap_t *trap;
    wasm_extern_vec_t none = WASM_EMPTY_VEC;
    CHECK(!wasm_instance_new(store, module, &none, &trap) && says(trap, "expected 1 imports, found 0"));
    wasm_trap_delete(trap);
    CHECK(!wasm_instance_new(store, module, NULL, NULL));
    wasm_extern_t *null[] = {NULL}, *of_other_store[] = {wasm_func_as_extern(foreign)};
    wasm_extern_vec_t nulls = WASM_ARRAY_VEC(null), foreigns = WASM_ARRAY_VEC(of_other_store);
    CHECK(!wasm_instance_new(store, module, &nulls, &trap) && says(trap, "null"));
    wasm_trap_delete(trap);
    CHECK(!wasm_instance_new(store, module, &foreigns, &trap) && says(trap, "another store"));
    wasm_trap_delete(trap);

    wasm_shared_module_t *shared = wasm_module_share(module);
    wasm_engine_t *other_engine = wasm_engine_new();
    wasm_store_t *other = wasm_store_new(other_engine), *same = wasm_store_new(engine);
    CHECK(!wasm_module_obtain(other, shared) && failed_with("another engine"));
    CHECK(!wasm_instance_new(other, module, &none, &trap) && says(trap, "another engine"));
    wasm_trap_delete(trap);
    wasm_module_t *obtained = wasm_module_obtain(same, shared);
    CHECK(obtained && !wasm_module_same(obtained, module));
    wasm_module_delete(obtained);
    wasm_shared_module_delete(shared);
    wasm_store_delete(same);
    wasm_store_delete(other);
    wasm_engine_delete(other_engine);
    wasm_module_delete(module);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    nulls();
    wasm_engine_t *engine = wasm_engine_new();
    wasm_store_t *store = wasm_store_new(engine), *other = wasm_store_new(engine);
    wasm_functype_t *type = wasm_functype_new_0_0();
    wasm_func_t *foreign = wasm_func_new(other, type, nothing);
    wasm_functype_delete(type);
    wasm_instance_t *instance = instantiate(store, argv[1], "misuse", NULL, 0);
    wasm_extern_vec_t exports;
    wasm_instance_exports(instance, &exports);
    CHECK(exports.size == 6);
    wasm_global_t *constant = wasm_extern_as_global(exports.data[1]);
    reasons(store);
    calls_of_no_function(wasm_extern_as_table(exports.data[3]));
    memory_and_table(wasm_extern_as_memory(exports.data[0]), wasm_extern_as_table(exports.data[3]), constant);
    foreign_of(store, other);
    globals(store, constant, wasm_extern_as_global(exports.data[2]));
    calls(store, wasm_extern_as_func(exports.data[4]), wasm_extern_as_func(exports.data[5]), foreign);
    modules(engine, store, argv[1], foreign);
    wasm_func_delete(foreign);
    wasm_extern_vec_delete(&exports);
    wasm_instance_delete(instance);
    wasm_store_delete(other);
    wasm_store_delete(store);
    wasm_engine_delete(engine);
    return 0;
}
