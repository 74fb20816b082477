/* Runs a Lua script: an interpreter made of very many small functions.

   usage: lua SCRIPT [ARGS...]      (ARGS are the script's "...") */

#include <stdio.h>

#include "lauxlib.h"
#include "lua.h"
#include "lualib.h"

int main(int argc, char **argv) {
    lua_State *lua = luaL_newstate();
    int status = 0;

    if (lua == NULL || argc < 2) {
        fprintf(stderr, lua ? "usage: lua SCRIPT [ARGS...]\n" : "lua: out of memory\n");
        return 1;
    }
    luaL_openlibs(lua);
    if (luaL_loadfile(lua, argv[1]) == LUA_OK) {
        for (int i = 2; i < argc; i++)
            lua_pushstring(lua, argv[i]);
        status = lua_pcall(lua, argc - 2, 0, 0);
    } else {
        status = 1;
    }
    if (status != 0)
        fprintf(stderr, "lua: %s\n", lua_tostring(lua, -1));
    lua_close(lua);
    return status != 0;
}
