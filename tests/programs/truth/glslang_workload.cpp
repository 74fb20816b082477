// Compiles the shaders in a directory, in the order of their names.
//
// usage: glslang FOLDER [STEP [ROUNDS]]      (default 1 1: each shader once; STEP 3 takes one in three)

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "glslang/Include/glslang_c_interface.h"
#include "glslang/Public/resource_limits_c.h"

static const std::map<std::string, glslang_stage_t> stages = {
    {".vert", GLSLANG_STAGE_VERTEX},   {".frag", GLSLANG_STAGE_FRAGMENT},       {".geom", GLSLANG_STAGE_GEOMETRY},
    {".comp", GLSLANG_STAGE_COMPUTE},  {".tesc", GLSLANG_STAGE_TESSCONTROL},    {".tese", GLSLANG_STAGE_TESSEVALUATION},
};

static uint64_t checksum(uint64_t sum, const void *bytes, size_t length) {
    for (size_t i = 0; i < length; i++)
        sum = (sum ^ static_cast<const unsigned char *>(bytes)[i]) * 1099511628211u;
    return sum;
}

// The number of words of SPIR-V, 0 for a shader with errors: many of them have some on purpose.
static size_t compile(glslang_source_t language, glslang_stage_t stage, const std::string &text, uint64_t &sum) {
    glslang_input_t input = {};
    size_t words = 0;

    input.language = language;
    input.stage = stage;
    input.client = GLSLANG_CLIENT_VULKAN;
    input.client_version = GLSLANG_TARGET_VULKAN_1_3;
    input.target_language = GLSLANG_TARGET_SPV;
    input.target_language_version = GLSLANG_TARGET_SPV_1_6;
    input.code = text.c_str();
    input.default_version = 450;
    input.default_profile = GLSLANG_NO_PROFILE;
    input.messages = GLSLANG_MSG_DEFAULT_BIT;
    input.resource = glslang_default_resource();
    glslang_shader_t *shader = glslang_shader_create(&input);
    if (glslang_shader_preprocess(shader, &input) && glslang_shader_parse(shader, &input)) {
        glslang_program_t *program = glslang_program_create();
        glslang_program_add_shader(program, shader);
        if (glslang_program_link(program, GLSLANG_MSG_SPV_RULES_BIT | GLSLANG_MSG_VULKAN_RULES_BIT)) {
            glslang_program_SPIRV_generate(program, stage);
            words = glslang_program_SPIRV_get_size(program);
            sum = checksum(sum, glslang_program_SPIRV_get_ptr(program), words * sizeof(unsigned));
        }
        glslang_program_delete(program);
    }
    glslang_shader_delete(shader);
    return words;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: glslang FOLDER [STEP [ROUNDS]]\n");
        return 1;
    }
    const size_t step = argc > 2 ? strtoul(argv[2], nullptr, 10) : 1, rounds = argc > 3 ? strtoul(argv[3], nullptr, 10) : 1;
    std::vector<std::filesystem::path> files;
    for (const auto &entry : std::filesystem::directory_iterator(argv[1]))
        if (stages.count(entry.path().extension().string()) != 0)
            files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    glslang_initialize_process();
    uint64_t sum = 14695981039346656037u;
    size_t compiled = 0, words = 0;
    for (size_t round = 0; round < rounds; round++)
        for (size_t i = 0; i < files.size(); i += step) {
            std::ifstream file(files[i]);
            std::stringstream text;
            text << file.rdbuf();
            const bool hlsl = files[i].filename().string().rfind("hlsl", 0) == 0;
            const size_t size = compile(hlsl ? GLSLANG_SOURCE_HLSL : GLSLANG_SOURCE_GLSL, stages.at(files[i].extension().string()), text.str(), sum);
            compiled += size != 0;
            words += size;
        }
    glslang_finalize_process();
    printf("%zu shaders, %zu words, %016lx\n", compiled, words, (unsigned long)sum);
    return 0;
}
