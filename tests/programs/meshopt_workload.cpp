/* Compresses a mesh with meshoptimizer and decompresses it, as a loader of 3D scenes does: vertices and indices in all
   versions and levels of their encodings, and the filters for normals, rotations, floats and colours. The decoders are
   written with 128-bit vectors, for SSE and for WebAssembly.

   usage: meshopt_workload [ROUNDS]      (default 3)

   The output depends on ROUNDS alone: sizes, and checksums of what was encoded and decoded. */

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "meshoptimizer.h"

#if defined(__wasm__) && !defined(__wasm_simd128__)
#error "the program is a test of vectors"
#endif

/* The library takes its memory by these; there is no C++ library for WebAssembly here. */
void *operator new(size_t bytes) {
    void *memory = malloc(bytes);
    if (!memory) abort();
    return memory;
}
void operator delete(void *memory) noexcept { free(memory); }
void operator delete(void *memory, size_t) noexcept { free(memory); }

namespace {

enum { COLUMNS = 160, ROWS = 120, VERTICES = COLUMNS * ROWS, INDICES = 6 * (COLUMNS - 1) * (ROWS - 1) };

struct Vertex {
    float position[3];
    float colour;
};

/* As a file has it. */
struct Packed {
    uint16_t position[4];
    uint8_t colour[4];
    uint16_t texture[2];
};

Vertex vertices[VERTICES], moved[VERTICES];
Packed packed[VERTICES];
unsigned indices[INDICES], ordered[INDICES];
float floats[4 * VERTICES];
/* Also for encodings, which may be larger than what they encode. */
unsigned char encoded[VERTICES * 64 + 65536], decoded[VERTICES * 64], filtered[VERTICES * 16];

void fail(const char *what) {
    fprintf(stderr, "meshopt_workload: %s\n", what);
    exit(1);
}

uint32_t random_state;

uint32_t next_random() {
    random_state = random_state * 1664525 + 1013904223;
    return random_state >> 8;
}

/* From -1 to 1. */
float next_float() { return (float)(int)(next_random() & 0xffff) / 32768.0f - 1.0f; }

/* FNV-1a. */
uint32_t checksum(const void *data, size_t bytes) {
    const unsigned char *at = (const unsigned char *)data;
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ at[i]) * 16777619u;
    return hash;
}

/* A surface with hills, of which some are flat, and its triangles in a random order. */
void make_mesh() {
    for (int row = 0; row < ROWS; row++) {
        for (int column = 0; column < COLUMNS; column++) {
            float x = (float)column / COLUMNS, y = (float)row / ROWS;
            float hill = 4 * x * (1 - x) * y * (1 - y);
            Vertex *vertex = &vertices[row * COLUMNS + column];
            vertex->position[0] = x;
            vertex->position[1] = hill > 0.2f ? 0.2f : hill + 0.002f * next_float();
            vertex->position[2] = y;
            vertex->colour = hill;
        }
    }
    unsigned *next = indices;
    for (unsigned row = 0; row + 1 < ROWS; row++) {
        for (unsigned column = 0; column + 1 < COLUMNS; column++) {
            unsigned at = row * COLUMNS + column;
            const unsigned square[6] = {at, at + COLUMNS, at + 1, at + 1, at + COLUMNS, at + COLUMNS + 1};
            memcpy(next, square, sizeof square);
            next += 6;
        }
    }
    for (unsigned triangle = INDICES / 3 - 1; triangle > 0; triangle--) {
        unsigned other = next_random() % (triangle + 1), swapped[3];
        memcpy(swapped, &indices[3 * triangle], sizeof swapped);
        memcpy(&indices[3 * triangle], &indices[3 * other], sizeof swapped);
        memcpy(&indices[3 * other], swapped, sizeof swapped);
    }
}

void order() {
    meshopt_optimizeVertexCache(ordered, indices, INDICES, VERTICES);
    size_t used = meshopt_optimizeVertexFetch(moved, ordered, INDICES, vertices, VERTICES, sizeof(Vertex));
    printf("ordered: %u vertices, %08x %08x\n", (unsigned)used, checksum(ordered, sizeof ordered), checksum(moved, sizeof moved));
    static unsigned simple[INDICES];
    size_t count =
        meshopt_simplify(simple, ordered, INDICES, moved[0].position, VERTICES, sizeof(Vertex), INDICES / 5, 0.01f, 0, NULL);
    printf("simplified: %u triangles, %08x\n", (unsigned)count / 3, checksum(simple, count * sizeof *simple));
}

void encode_indices() {
    for (int version = 0; version < 2; version++) {
        meshopt_encodeIndexVersion(version);
        size_t size = meshopt_encodeIndexBuffer(encoded, sizeof encoded, ordered, INDICES);
        if (!size || meshopt_decodeIndexBuffer(decoded, INDICES, 4, encoded, size)) fail("indices");
        printf("indices %d: %u bytes, %08x %08x\n", version, (unsigned)size, checksum(encoded, size), checksum(decoded, sizeof ordered));
    }
}

/* What the encoded vertices are decoded to; damaged, they must be refused or decoded to something. */
void encode_vertices(const char *what, const void *data, size_t stride) {
    for (int level = -1; level < 4; level++) {
        int version = level < 0 ? 0 : 1;
        size_t size = meshopt_encodeVertexBufferLevel(encoded, sizeof encoded, data, VERTICES, stride, level < 0 ? 2 : level, version);
        memset(decoded, 0xaa, sizeof decoded);
        if (!size || meshopt_decodeVertexBuffer(decoded, VERTICES, stride, encoded, size)) fail(what);
        if (memcmp(decoded, data, VERTICES * stride)) fail("decoded vertices differ");
        printf("%s %d.%d: %u bytes, %08x\n", what, version, level, (unsigned)size, checksum(encoded, size));
    }
    if (!meshopt_decodeVertexBuffer(decoded, VERTICES, stride, encoded, 1000)) fail("a truncated buffer is decoded");
}

void pack() {
    for (int i = 0; i < VERTICES; i++) {
        for (int k = 0; k < 3; k++) packed[i].position[k] = (uint16_t)meshopt_quantizeUnorm(moved[i].position[k], 14);
        for (int k = 0; k < 4; k++) packed[i].colour[k] = (uint8_t)meshopt_quantizeUnorm(moved[i].colour * (float)(k + 1) / 4, 8);
        for (int k = 0; k < 2; k++) packed[i].texture[k] = meshopt_quantizeHalf(moved[i].position[2 * k]);
    }
}

/* Unit vectors, rotations and colours. */
void make_floats(int components, int positive) {
    for (int i = 0; i < VERTICES; i++) {
        float *at = &floats[4 * i], sum = 0;
        for (int k = 0; k < 4; k++) at[k] = k < components ? next_float() : 0;
        for (int k = 0; k < 4; k++) sum += at[k] * at[k];
        for (int k = 0; k < 4 && sum > 0; k++) at[k] = positive ? fabsf(at[k]) : at[k] / sqrtf(sum);
    }
}

/* Decodes what `filtered` has, by way of the encoding of vertices. */
void decode_filtered(const char *what, int bits, size_t stride, void (*filter)(void *, size_t, size_t)) {
    size_t size = meshopt_encodeVertexBuffer(encoded, sizeof encoded, filtered, VERTICES, stride);
    if (!size || meshopt_decodeVertexBuffer(decoded, VERTICES, stride, encoded, size)) fail(what);
    filter(decoded, VERTICES, stride);
    printf("%s %d: %u bytes, %08x %08x\n", what, bits, (unsigned)size, checksum(filtered, VERTICES * stride),
           checksum(decoded, VERTICES * stride));
}

void filters() {
    for (int bits = 4; bits <= 16; bits += 4) {
        size_t stride = bits <= 8 ? 4 : 8;
        make_floats(3, 0);
        meshopt_encodeFilterOct(filtered, VERTICES, stride, bits, floats);
        decode_filtered("normals", bits, stride, meshopt_decodeFilterOct);
        make_floats(4, 0);
        meshopt_encodeFilterQuat(filtered, VERTICES, 8, bits, floats);
        decode_filtered("rotations", bits, 8, meshopt_decodeFilterQuat);
        make_floats(4, 1);
        meshopt_encodeFilterColor(filtered, VERTICES, stride, bits, floats);
        decode_filtered("colours", bits, stride, meshopt_decodeFilterColor);
        make_floats(4, 0);
        meshopt_encodeFilterExp(filtered, VERTICES, 16, bits + 4, floats, (meshopt_EncodeExpMode)(bits / 4 - 1));
        decode_filtered("floats", bits + 4, 16, meshopt_decodeFilterExp);
    }
}

}  // namespace

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 3;
    for (int round = 1; round <= rounds; round++) {
        random_state = (uint32_t)round;
        printf("round %d\n", round);
        make_mesh();
        order();
        pack();
        encode_indices();
        encode_vertices("vertices", moved, sizeof(Vertex));
        encode_vertices("packed vertices", packed, sizeof(Packed));
        filters();
    }
    return 0;
}
