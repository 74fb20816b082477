/* Traps: messages, frames with instances and offsets, traps of host functions and of start functions,
   exceptions that pass through C code. */

#include "programs.h"

struct host {
    wasm_store_t *store, *other;
    /* The module's own functions, once it is there. */
    wasm_extern_vec_t exports;
    /* The trap that was returned last. */
    wasm_trap_t *returned;
};

enum { TAG, DIVISION, OUTER, FAIL, THROW, CATCH };

static const wasm_func_t *export_of(const struct host *host, int which) {
    return wasm_extern_as_func(host->exports.data[which]);
}

/* Fails: with its own trap (0), with that of a nested call (1), with an exception (2), with a message
   that is not null-terminated (3), with an empty one (4), with a trap of another store (5). */
static wasm_trap_t *fail(void *env, const wasm_val_vec_t *args, wasm_val_vec_t *results) {
    struct host *host = env;
    int32_t zero = 0;
    wasm_message_t message;
    wasm_val_t result = WASM_INIT_VAL;
    CHECK(results->size == 0);
    switch (args->data[0].of.i32) {
    case 0:
        wasm_name_new_from_string_nt(&message, "the host's own");
        host->returned = wasm_trap_new(host->store, &message);
        break;
    case 1:
        host->returned = call(export_of(host, OUTER), &zero, &result);
        return wasm_trap_copy(host->returned);
    case 2:
        host->returned = call(export_of(host, THROW), &args->data[0].of.i32, NULL);
        return wasm_trap_copy(host->returned);
    case 3:
        wasm_name_new_from_string(&message, "unterminated");
        host->returned = wasm_trap_new(host->store, &message);
        break;
    case 5:
        wasm_name_new_from_string_nt(&message, "the other store's");
        host->returned = wasm_trap_new(host->other, &message);
        break;
    default:
        wasm_name_new_empty(&message);
        host->returned = wasm_trap_new(host->store, &message);
    }
    wasm_byte_vec_delete(&message);
    CHECK(host->returned);
    wasm_trap_set_host_info(host->returned, host);
    return wasm_trap_copy(host->returned);
}

/* Asserts that the frames of a trap are in these functions, all of this instance. */
static void check_frames(const wasm_trap_t *trap, const wasm_instance_t *instance, const uint32_t *functions,
                         size_t count) {
    wasm_frame_vec_t trace;
    wasm_trap_trace(trap, &trace);
    CHECK(trace.size == count);
    wasm_frame_t *origin = wasm_trap_origin(trap);
    CHECK((origin != NULL) == (count > 0));
    for (size_t number = 0; number < count; ++number) {
        const wasm_frame_t *frame = trace.data[number];
        CHECK(wasm_frame_func_index(frame) == functions[number]);
        CHECK(wasm_instance_same(wasm_frame_instance(frame), instance));
        size_t in_function = wasm_frame_func_offset(frame);
        CHECK(in_function > 0 && in_function < wasm_frame_module_offset(frame));
    }
    if (origin) {
        CHECK(wasm_frame_module_offset(origin) == wasm_frame_module_offset(trace.data[0]));
        wasm_frame_t *copy = wasm_frame_copy(origin);
        wasm_frame_delete(origin);
        CHECK(wasm_instance_same(wasm_frame_instance(copy), instance));
        wasm_frame_delete(copy);
    }
    wasm_frame_vec_t copies;
    wasm_frame_vec_copy(&copies, &trace);
    wasm_frame_vec_delete(&trace);
    CHECK(copies.size == count);
    wasm_frame_vec_delete(&copies);
}

static void traps_of_the_program(struct host *host, const wasm_instance_t *instance) {
    int32_t zero = 0, one = 1;
    wasm_val_t result = WASM_INIT_VAL;
    wasm_trap_t *trap = call(export_of(host, OUTER), &zero, &result);
    CHECK(trap && says(trap, "integer divide by zero"));
    CHECK(result.kind == WASM_EXTERNREF);
    check_frames(trap, instance, (uint32_t[]){1, 2}, 2);
    wasm_trap_t *copy = wasm_trap_copy(trap);
    CHECK(wasm_trap_same(copy, trap) && wasm_ref_as_trap(wasm_trap_as_ref(copy)) == copy);
    wasm_trap_delete(copy);
    wasm_trap_t *other = call(export_of(host, OUTER), &zero, &result);
    CHECK(!wasm_trap_same(other, trap));
    wasm_trap_delete(other);
    wasm_trap_delete(trap);
    CHECK(!call(export_of(host, OUTER), &one, &result) && result.of.i32 == 1);
}

static void traps_of_the_host(struct host *host, const wasm_instance_t *instance) {
    const struct { const char *message; uint32_t functions[3]; size_t frames; } cases[] = {
        {"the host's own", {3}, 1},
        {"integer divide by zero", {1, 2, 3}, 3},
        {"uncaught exception", {4, 3}, 2},
        {"unterminated", {3}, 1},
        {"", {3}, 1},
    };
    for (int32_t number = 0; number < 5; ++number) {
        wasm_trap_t *trap = call(export_of(host, FAIL), &number, NULL);
        CHECK(trap && says(trap, cases[number].message));
        check_frames(trap, instance, cases[number].functions, cases[number].frames);
        if (number != 2) {
            CHECK(wasm_trap_same(trap, host->returned));
            CHECK(wasm_trap_get_host_info(trap) == (number == 1 ? NULL : host));
        }
        wasm_trap_delete(trap);
        wasm_trap_delete(host->returned);
    }
}

/* Another thread may use that store and its traps: the caller gets a separate trap. */
static void trap_of_another_store(struct host *host) {
    int32_t number = 5;
    wasm_trap_t *trap = call(export_of(host, FAIL), &number, NULL);
    CHECK(trap && says(trap, "the other store's"));
    CHECK(!wasm_trap_same(trap, host->returned) && !wasm_trap_get_host_info(trap));
    CHECK(!wasm_trap_origin(trap));
    wasm_trap_delete(trap);
    CHECK(wasm_trap_get_host_info(host->returned) == host);
    wasm_trap_delete(host->returned);
}

/* An exception that is not caught has the frames that it was thrown in. One that C code has got as a
   trap, and returns, is caught by the program. */
static void exceptions(struct host *host, const wasm_instance_t *instance) {
    int32_t number = 9;
    wasm_trap_t *trap = call(export_of(host, THROW), &number, NULL);
    CHECK(trap && says(trap, "uncaught exception"));
    check_frames(trap, instance, (uint32_t[]){4}, 1);
    wasm_trap_delete(trap);
    int32_t with_exception = 2;
    wasm_val_t result = WASM_INIT_VAL;
    CHECK(!call(export_of(host, CATCH), &with_exception, &result));
    CHECK(result.kind == WASM_I32 && result.of.i32 == 2);
    wasm_trap_delete(host->returned);
    CHECK(wasm_extern_kind(host->exports.data[TAG]) == WASM_EXTERN_TAG);
    wasm_externtype_t *type = wasm_extern_type(host->exports.data[TAG]);
    const wasm_functype_t *func = wasm_tagtype_functype(wasm_externtype_as_tagtype_const(type));
    CHECK(wasm_functype_params(func)->size == 1 && wasm_functype_results(func)->size == 0);
    wasm_externtype_delete(type);
}

static void start_function(wasm_store_t *store, const char *folder) {
    wasm_module_t *module = load(store, folder, "start");
    wasm_trap_t *trap;
    wasm_extern_vec_t none = WASM_EMPTY_VEC;
    CHECK(!wasm_instance_new(store, module, &none, &trap));
    CHECK(trap && says(trap, "unreachable"));
    wasm_frame_t *origin = wasm_trap_origin(trap);
    CHECK(origin && wasm_frame_instance(origin) && wasm_frame_func_index(origin) == 0);
    wasm_frame_delete(origin);
    wasm_trap_delete(trap);
    wasm_module_delete(module);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    wasm_engine_t *engine = wasm_engine_new();
    struct host host = {wasm_store_new(engine), wasm_store_new(engine), WASM_EMPTY_VEC, NULL};
    wasm_functype_t *type = wasm_functype_new_1_0(wasm_valtype_new_i32());
    wasm_func_t *func = wasm_func_new_with_env(host.store, type, fail, &host, NULL);
    wasm_functype_delete(type);
    wasm_extern_t *externs[] = {wasm_func_as_extern(func)};
    /* Two instances of one module: frames tell which one it was. */
    wasm_instance_t *first = instantiate(host.store, argv[1], "traps", externs, 1);
    wasm_instance_t *instance = instantiate(host.store, argv[1], "traps", externs, 1);
    CHECK(!wasm_instance_same(first, instance));
    wasm_func_delete(func);
    wasm_instance_exports(instance, &host.exports);
    CHECK(host.exports.size == 6);
    traps_of_the_program(&host, instance);
    traps_of_the_host(&host, instance);
    trap_of_another_store(&host);
    exceptions(&host, instance);
    start_function(host.store, argv[1]);
    wasm_extern_vec_delete(&host.exports);
    wasm_instance_delete(first);
    wasm_instance_delete(instance);
    wasm_store_delete(host.store);
    wasm_store_delete(host.other);
    wasm_engine_delete(engine);
    return 0;
}
