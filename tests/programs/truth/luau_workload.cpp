// Compiles a Luau script to byte code and runs it, several times.
//
// usage: luau SCRIPT [ROUNDS [ARGS...]]      (default 1; ARGS are the script's "...")

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "Luau/BytecodeBuilder.h"
#include "Luau/Compiler.h"
#include "lua.h"
#include "lualib.h"

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: luau SCRIPT [ROUNDS [ARGS...]]\n");
        return 1;
    }
    std::ifstream file(argv[1]);
    std::stringstream text;
    text << file.rdbuf();
    const int rounds = argc > 2 ? atoi(argv[2]) : 1;
    for (int round = 0; round < rounds; round++) {
        lua_State *lua = luaL_newstate();
        luaL_openlibs(lua);
        const std::string code = Luau::compile(text.str());
        int status = luau_load(lua, "=script", code.data(), code.size(), 0);
        if (status == 0) {
            for (int i = 3; i < argc; i++)
                lua_pushstring(lua, argv[i]);
            status = lua_pcall(lua, argc > 3 ? argc - 3 : 0, 0, 0);
        }
        if (status != 0) {
            fprintf(stderr, "luau: %s\n", lua_tostring(lua, -1));
            return 1;
        }
        lua_close(lua);
    }
    return 0;
}
