/* Runs a JavaScript script.

   usage: quickjs SCRIPT [SIZE]      (the script's `size`, default 1) */

#include <stdio.h>
#include <stdlib.h>

#include "quickjs.h"

static JSValue print(JSContext *context, JSValueConst this, int count, JSValueConst *arguments) {
    (void)this;
    for (int i = 0; i < count; i++) {
        const char *text = JS_ToCString(context, arguments[i]);
        if (text == NULL)
            return JS_EXCEPTION;
        printf(i == 0 ? "%s" : " %s", text);
        JS_FreeCString(context, text);
    }
    putchar('\n');
    return JS_UNDEFINED;
}

static char *read_all(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "rb");
    char *text = malloc(1 << 20);

    if (file == NULL || text == NULL) {
        perror(path);
        exit(1);
    }
    *bytes = fread(text, 1, (1 << 20) - 1, file);
    text[*bytes] = 0;
    fclose(file);
    return text;
}

int main(int argc, char **argv) {
    JSRuntime *runtime = JS_NewRuntime();
    JSContext *context = runtime ? JS_NewContext(runtime) : NULL;
    size_t bytes;
    int status = 0;

    if (context == NULL || argc < 2) {
        fprintf(stderr, "usage: quickjs SCRIPT [SIZE]\n");
        return 1;
    }
    char *script = read_all(argv[1], &bytes);
    JSValue global = JS_GetGlobalObject(context);
    JS_SetPropertyStr(context, global, "print", JS_NewCFunction(context, print, "print", 1));
    JS_SetPropertyStr(context, global, "size", JS_NewInt32(context, argc > 2 ? atoi(argv[2]) : 1));
    JS_FreeValue(context, global);
    JSValue value = JS_Eval(context, script, bytes, argv[1], JS_EVAL_TYPE_GLOBAL);
    if (JS_IsException(value)) {
        JSValue exception = JS_GetException(context);
        const char *text = JS_ToCString(context, exception);
        fprintf(stderr, "quickjs: %s\n", text);
        JS_FreeCString(context, text);
        JS_FreeValue(context, exception);
        status = 1;
    }
    JS_FreeValue(context, value);
    JS_FreeContext(context);
    JS_FreeRuntime(runtime);
    free(script);
    return status;
}
