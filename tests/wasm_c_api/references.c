/* References: null, foreign objects and their identity, functions and other objects as values of the
   host, references of kinds that the header has no names for, and when finalizers run. */

#include "programs.h"

enum { EXTERNS, FUNCS, ANY, PASS, TO_ANY, TO_EXTERN, I31, NEEDS_FUNCTION, SEVEN, EXCEPTION, KEEP_EXCEPTION };

static int finalized;
static wasm_table_t *table_of_finalizer;
static wasm_ref_t *first_element;

/* A finalizer may use the store, which is not in the middle of what has made the finalizer due: the
   table has its new element. */
static void finalize(void *value) {
    CHECK((intptr_t)value == 5);
    ++finalized;
    if (table_of_finalizer) {
        wasm_ref_t *element = wasm_table_get(table_of_finalizer, 0);
        CHECK(wasm_ref_same(element, first_element));
        wasm_ref_delete(element);
    }
}

static wasm_trap_t *swap(const wasm_val_vec_t *args, wasm_val_vec_t *results) {
    CHECK(args->size == 2 && results->size == 2);
    CHECK(results->data[0].kind == WASM_FUNCREF && !results->data[0].of.ref);
    CHECK(results->data[1].kind == WASM_EXTERNREF && !results->data[1].of.ref);
    wasm_val_copy(&results->data[0], &args->data[1]);
    wasm_val_copy(&results->data[1], &args->data[0]);
    return NULL;
}

static wasm_func_t *func_of(const wasm_extern_vec_t *exports, int which) {
    return wasm_extern_as_func(exports->data[which]);
}

/* Passes a reference through a function; the result is the caller's. */
static wasm_val_t through(const wasm_func_t *func, wasm_valkind_t kind, wasm_ref_t *reference) {
    wasm_val_t arg = {.kind = kind, .of = {.ref = reference}}, result = WASM_INIT_VAL;
    wasm_val_vec_t args = {1, &arg}, results = {1, &result};
    CHECK(!wasm_func_call(func, &args, &results));
    return result;
}

static void pass(const wasm_extern_vec_t *exports, wasm_ref_t *host, wasm_ref_t *func) {
    wasm_val_t values[] = {WASM_REF_VAL(host), {.kind = WASM_FUNCREF, .of = {.ref = func}}};
    wasm_val_t passed[] = {WASM_INIT_VAL, WASM_INIT_VAL};
    wasm_val_vec_t args = WASM_ARRAY_VEC(values), results = WASM_ARRAY_VEC(passed);
    CHECK(!wasm_func_call(func_of(exports, PASS), &args, &results));
    CHECK(passed[0].kind == WASM_FUNCREF && passed[1].kind == WASM_EXTERNREF);
    CHECK(wasm_ref_same(passed[0].of.ref, func) && wasm_ref_same(passed[1].of.ref, host));
    wasm_val_delete(&passed[0]);
    wasm_val_delete(&passed[1]);
    wasm_val_delete(&passed[1]);
}

static void pass_all(wasm_store_t *store, const wasm_extern_vec_t *exports) {
    wasm_ref_t *foreign = wasm_foreign_as_ref(wasm_foreign_new(store));
    wasm_ref_t *func = wasm_func_as_ref(func_of(exports, SEVEN));
    wasm_ref_set_host_info(foreign, &finalized);
    pass(exports, NULL, NULL);
    pass(exports, foreign, NULL);
    pass(exports, NULL, func);
    pass(exports, foreign, func);
    /* Every object is also a host value. */
    pass(exports, func, func);
    pass(exports, wasm_extern_as_ref(exports->data[EXTERNS]), func);
    wasm_table_t *table = wasm_extern_as_table(exports->data[EXTERNS]);
    CHECK(wasm_table_set(table, 3, foreign) && wasm_table_set(table, 4, func));
    wasm_ref_t *element = wasm_table_get(table, 3);
    CHECK(wasm_ref_same(element, foreign) && wasm_ref_get_host_info(element) == &finalized);
    CHECK(wasm_ref_as_foreign(element) && !wasm_ref_as_func(element) && !wasm_ref_as_extern(element));
    wasm_ref_delete(element);
    element = wasm_table_get(table, 4);
    wasm_val_t result = WASM_INIT_VAL;
    CHECK(!call(wasm_ref_as_func(element), NULL, &result) && result.of.i32 == 7);
    wasm_ref_delete(element);
    /* A table of functions accepts no other elements. */
    table = wasm_extern_as_table(exports->data[FUNCS]);
    CHECK(!wasm_table_set(table, 0, foreign) && wasm_table_set(table, 0, func) && wasm_table_set(table, 0, NULL));
    CHECK(!wasm_table_grow(table, 1, foreign));
    wasm_ref_delete(foreign);
}

static void references_without_null(const wasm_extern_vec_t *exports) {
    wasm_val_t arg = {.kind = WASM_FUNCREF, .of = {.ref = NULL}};
    wasm_val_vec_t args = {1, &arg}, none = WASM_EMPTY_VEC;
    wasm_trap_t *trap = wasm_func_call(func_of(exports, NEEDS_FUNCTION), &args, &none);
    CHECK(trap && says(trap, "(ref func)"));
    wasm_trap_delete(trap);
    arg.of.ref = wasm_func_as_ref(func_of(exports, SEVEN));
    CHECK(!wasm_func_call(func_of(exports, NEEDS_FUNCTION), &args, &none));
}

/* A host value that goes through `anyref` is the same, and so is an integer that goes through
   `externref`. */
static void other_kinds(wasm_store_t *store, const wasm_extern_vec_t *exports) {
    wasm_ref_t *foreign = wasm_foreign_as_ref(wasm_foreign_new(store));
    wasm_val_t any = through(func_of(exports, TO_ANY), WASM_EXTERNREF, foreign);
    CHECK(any.kind == 130 && wasm_valkind_is_ref(any.kind) && wasm_ref_same(any.of.ref, foreign));
    wasm_val_t back = through(func_of(exports, TO_EXTERN), any.kind, any.of.ref);
    CHECK(back.kind == WASM_EXTERNREF && wasm_ref_same(back.of.ref, foreign));
    wasm_val_delete(&back);
    wasm_val_delete(&any);
    wasm_ref_delete(foreign);

    int32_t number = 5;
    wasm_val_t i31, same, global;
    CHECK(!call(func_of(exports, I31), &number, &i31) && i31.kind == 130 && i31.of.ref);
    wasm_global_set(wasm_extern_as_global(exports->data[ANY]), &i31);
    wasm_global_get(wasm_extern_as_global(exports->data[ANY]), &global);
    CHECK(global.kind == 130 && wasm_ref_same(global.of.ref, i31.of.ref));
    back = through(func_of(exports, TO_EXTERN), i31.kind, i31.of.ref);
    same = through(func_of(exports, TO_ANY), back.kind, back.of.ref);
    CHECK(wasm_ref_same(same.of.ref, i31.of.ref) && !wasm_ref_as_foreign(same.of.ref));
    wasm_val_delete(&same);
    wasm_val_delete(&back);
    wasm_val_delete(&global);
    wasm_val_delete(&i31);
}

/* References to one exception are the same, but what is attached to one is not the other's. */
static void exceptions(const wasm_extern_vec_t *exports) {
    const wasm_global_t *global = wasm_extern_as_global(exports->data[EXCEPTION]);
    wasm_val_t first, second, later;
    CHECK(!call(func_of(exports, KEEP_EXCEPTION), NULL, NULL));
    wasm_global_get(global, &first);
    wasm_global_get(global, &second);
    CHECK(first.kind == 131 && first.of.ref && wasm_ref_same(first.of.ref, second.of.ref));
    wasm_ref_t *copy = wasm_ref_copy(first.of.ref);
    wasm_ref_set_host_info(first.of.ref, &finalized);
    CHECK(wasm_ref_get_host_info(copy) == &finalized && !wasm_ref_get_host_info(second.of.ref));
    CHECK(!call(func_of(exports, KEEP_EXCEPTION), NULL, NULL));
    wasm_global_get(global, &later);
    CHECK(later.of.ref && !wasm_ref_same(first.of.ref, later.of.ref));
    wasm_ref_delete(copy);
    wasm_val_delete(&first);
    wasm_val_delete(&second);
    wasm_val_delete(&later);
}

/* Foreign objects that only the program has had are finalized while the store lives; replaced values
   at once; those in its table with the store. */
static void finalizers(wasm_store_t *store, const wasm_extern_vec_t *exports) {
    enum { COUNT = 10000 };
    wasm_table_t *table = wasm_extern_as_table(exports->data[EXTERNS]);
    finalized = 0;
    table_of_finalizer = table;
    for (int number = 0; number < COUNT; ++number) {
        wasm_foreign_t *foreign = wasm_foreign_new(store);
        wasm_foreign_set_host_info_with_finalizer(foreign, (void *)5, finalize);
        first_element = wasm_foreign_as_ref(foreign);
        CHECK(wasm_table_set(table, 0, first_element));
        wasm_foreign_delete(foreign);
    }
    table_of_finalizer = NULL;
    CHECK(finalized > 0 && finalized < COUNT);
    int before = finalized;
    wasm_foreign_t *foreign = wasm_foreign_new(store);
    wasm_foreign_set_host_info_with_finalizer(foreign, (void *)5, finalize);
    wasm_foreign_t *copy = wasm_foreign_copy(foreign);
    wasm_foreign_delete(foreign);
    CHECK(finalized == before);
    wasm_foreign_set_host_info_with_finalizer(copy, (void *)5, finalize);
    CHECK(finalized == before + 1);
    wasm_foreign_set_host_info(copy, store);
    CHECK(finalized == before + 2 && wasm_foreign_get_host_info(copy) == store);
    wasm_foreign_delete(copy);
    /* The same for an object that lives as long as its store. */
    wasm_func_t *func = func_of(exports, SEVEN);
    wasm_func_set_host_info_with_finalizer(func, (void *)5, finalize);
    wasm_func_set_host_info_with_finalizer(func, (void *)5, finalize);
    CHECK(finalized == before + 3 && (intptr_t)wasm_func_get_host_info(func) == 5);
    /* Without an object, the finalizer runs at once. */
    wasm_func_set_host_info_with_finalizer(NULL, (void *)5, finalize);
    CHECK(finalized == before + 4);
    finalized -= 4;
}

static wasm_table_t *used_table;
static wasm_global_t *used_global;

static void delete_used(void *value) {
    (void)value;
    wasm_table_delete(used_table);
    wasm_global_delete(used_global);
    used_table = NULL;
    used_global = NULL;
}

/* Finalizers run in a function that reads an element or a global, and delete the object through which
   it does so. */
static void deleting_finalizers(wasm_store_t *store, const wasm_extern_vec_t *exports) {
    enum { COUNT = 5000 };
    wasm_table_t *table = wasm_extern_as_table(exports->data[EXTERNS]);
    wasm_global_t *global = wasm_extern_as_global(exports->data[ANY]);
    int deleted[2] = {0, 0};
    for (int number = 0; number < 2 * COUNT; ++number) {
        bool reads_global = number >= COUNT;
        wasm_foreign_t *foreign = wasm_foreign_new(store);
        wasm_foreign_set_host_info_with_finalizer(foreign, NULL, delete_used);
        CHECK(wasm_table_set(table, 0, wasm_foreign_as_ref(foreign)));
        used_table = wasm_table_copy(table);
        used_global = wasm_global_copy(global);
        if (reads_global) {
            wasm_val_t value;
            wasm_global_get(used_global, &value);
            CHECK(value.kind == 130 && value.of.ref);
            wasm_val_delete(&value);
        } else {
            wasm_ref_t *element = wasm_table_get(used_table, 0);
            CHECK(wasm_ref_same(element, wasm_foreign_as_ref(foreign)));
            wasm_ref_delete(element);
        }
        deleted[reads_global] += !used_table;
        delete_used(NULL);
        wasm_foreign_delete(foreign);
    }
    CHECK(deleted[0] > 0 && deleted[1] > 0);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    wasm_engine_t *engine = wasm_engine_new();
    wasm_store_t *store = wasm_store_new(engine);
    wasm_valtype_t *params[] = {wasm_valtype_new_externref(), wasm_valtype_new_funcref()};
    wasm_valtype_t *results[] = {wasm_valtype_new_funcref(), wasm_valtype_new_externref()};
    wasm_valtype_vec_t in, out;
    wasm_valtype_vec_new(&in, 2, params);
    wasm_valtype_vec_new(&out, 2, results);
    wasm_functype_t *type = wasm_functype_new(&in, &out);
    wasm_func_t *func = wasm_func_new(store, type, swap);
    wasm_functype_delete(type);
    wasm_extern_t *externs[] = {wasm_func_as_extern(func)};
    wasm_instance_t *instance = instantiate(store, argv[1], "references", externs, 1);
    wasm_func_delete(func);
    wasm_extern_vec_t exports;
    wasm_instance_exports(instance, &exports);
    CHECK(exports.size == 11);
    wasm_instance_delete(instance);
    pass_all(store, &exports);
    references_without_null(&exports);
    other_kinds(store, &exports);
    exceptions(&exports);
    finalizers(store, &exports);
    deleting_finalizers(store, &exports);
    wasm_extern_vec_delete(&exports);
    wasm_store_delete(store);
    /* Those that were attached to foreign objects, and the function's last one. */
    CHECK(finalized == 10000 + 1);
    wasm_engine_delete(engine);
    return 0;
}
