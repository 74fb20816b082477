/* Prints the fetch model in force, and the path and warning of the calibration file, each requested
   with buffers of every size. */

#include "capi.h"

static void print(const char *what, size_t (*text)(char *buffer, size_t size)) {
    const size_t length = text(NULL, 0);
    char *whole = malloc(length + 1);
    CHECK(text(whole, length + 1) == length && strlen(whole) == length, "%s", whole);
    for (size_t size = 0; size <= length + 1; size++) {
        char *buffer = malloc(length + 2);
        memset(buffer, '#', length + 2);
        CHECK(text(buffer, size) == length, "size %zu", size);
        if (size > 0)
            CHECK(strlen(buffer) == size - 1 && strncmp(buffer, whole, size - 1) == 0, "size %zu: %s", size, buffer);
        CHECK(buffer[size] == '#', "size %zu: written beyond", size);
        free(buffer);
    }
    printf("%s: %s\n", what, whole);
    free(whole);
}

int main(void) {
    wordpatch_fetch_model model;
    find_interface();
    print("path", api.wordpatch_calibration_path);
    print("warning", api.wordpatch_calibration_warning);
    GIVES(0, api.wordpatch_fetch_model_in_force(&model));
    printf("window %u, source %d\n", model.window, model.source);
    return 0;
}
