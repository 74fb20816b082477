// Drives jsonnet, a C++ interpreter that reports every mistake of its input by throwing through
// many frames of its lexer, parser and evaluator.
//
// usage: jsonnet_workload [ROUNDS]      (default 1)
//
// Every round evaluates all snippets below; all but the first are wrong, each in a different way.
// The first round prints what came back, later rounds must get the same. The output depends on
// ROUNDS alone.

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

extern "C" {
#include "libjsonnet.h"
}

namespace {

struct Snippet {
    const char *name;
    const char *source;
};

// Every evaluation parses jsonnet's standard library first, which makes it expensive: few snippets,
// each with much in it.
const Snippet snippets[] = {
    {"values", "local fib(n) = if n <= 1 then n else fib(n - 1) + fib(n - 2);"
               "local base = {name: 'base', size:: 3, area: self.size * self.size};"
               "{squares: [x * x for x in std.range(1, 40) if x % 3 == 1],"
               " objects: {[k]: base {name: k, size: std.length(k)} for k in ['a', 'bcd', 'efghi']},"
               " fib: fib(12), upper: std.join('-', std.map(std.asciiUpper, std.stringChars('instrument'))),"
               " sorted: std.sort([std.mod(i * 7919, 257) for i in std.range(1, 60)]),"
               " digest: std.foldl(function(a, b) std.md5(a + b), std.range(1, 5), ''),"
               " manifest: std.manifestJsonEx({a: [1, 2, {b: null}], c: 'text \\u00e9'}, '  ')}"},
    {"unterminated string", "local x = 'no end; x"},
    {"unexpected token", "{a: 1, b: ]}"},
    {"unknown variable", "local a = 1; a + missing"},
    {"division by zero", "local f(x) = 1 / x; [f(i) for i in std.range(-3, 3)]"},
    {"thrown deep inside", "local f(n) = if n == 0 then error 'the bottom' else 1 + f(n - 1); f(40)"},
    {"failed assertion", "{assert self.size > 10 : 'too small', size: 3}"},
    {"endless recursion", "local f(n) = f(n + 1) + 1; f(0)"},
    {"no such import", "import 'nowhere.libsonnet'"},
};

// What our own code throws and catches around jsonnet's.
class EvaluationError : public std::runtime_error {
  public:
    explicit EvaluationError(const std::string &message) : std::runtime_error(message) {}
};

std::string take(JsonnetVm *vm, char *text) {
    std::string copy(text);
    jsonnet_realloc(vm, text, 0);
    return copy;
}

// Every import fails: there is one snippet that tries.
char *refuse_import(void *context, const char *, const char *name, char **, int *success) {
    const std::string message = std::string("import refused: ") + name;
    char *buffer = jsonnet_realloc(static_cast<JsonnetVm *>(context), nullptr, message.size() + 1);
    message.copy(buffer, message.size());
    buffer[message.size()] = '\0';
    *success = 0;
    return buffer;
}

class Interpreter {
  public:
    Interpreter() : vm_(jsonnet_make()) {
        jsonnet_max_stack(vm_, 200);
        jsonnet_import_callback(vm_, refuse_import, vm_);
    }
    ~Interpreter() { jsonnet_destroy(vm_); }
    Interpreter(const Interpreter &) = delete;
    Interpreter &operator=(const Interpreter &) = delete;

    std::string evaluate(const Snippet &snippet) {
        int error = 0;
        const std::string text = take(vm_, jsonnet_evaluate_snippet(vm_, snippet.name, snippet.source, &error));
        if (error)
            throw EvaluationError(text);
        return text;
    }

  private:
    JsonnetVm *vm_;
};

std::string outcome(const Snippet &snippet) {
    try {
        Interpreter interpreter;
        return "result: " + interpreter.evaluate(snippet);
    } catch (const EvaluationError &error) {
        return std::string("error: ") + error.what();
    }
}

} // namespace

int main(int argc, char **argv) {
    const unsigned long rounds = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 1;
    std::vector<std::string> first;

    for (unsigned long round = 0; round < rounds; round++) {
        std::size_t index = 0;
        for (const Snippet &snippet : snippets) {
            const std::string text = outcome(snippet);
            if (round == 0) {
                std::printf("== %s\n%s", snippet.name, text.c_str());
                first.push_back(text);
            } else if (first[index] != text) {
                std::printf("round %lu: %s changed:\n%s", round, snippet.name, text.c_str());
                return 1;
            }
            index++;
        }
    }
    std::printf("%lu rounds of %zu snippets\n", rounds, sizeof snippets / sizeof *snippets);
    return 0;
}
