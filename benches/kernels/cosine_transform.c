// Discrete cosine transform of 8 by 8 blocks in single precision, quantized to integers and back; n
// thousand blocks.
#include "kernel.h"

// Half the cosines of (2 column + 1) row pi / 16, the first row by the square root of a half.
static const float basis[8][8] = {
    {0.35355339f, 0.35355339f, 0.35355339f, 0.35355339f, 0.35355339f, 0.35355339f, 0.35355339f, 0.35355339f},
    {0.49039264f, 0.41573481f, 0.27778512f, 0.09754516f, -0.09754516f, -0.27778512f, -0.41573481f, -0.49039264f},
    {0.46193977f, 0.19134172f, -0.19134172f, -0.46193977f, -0.46193977f, -0.19134172f, 0.19134172f, 0.46193977f},
    {0.41573481f, -0.09754516f, -0.49039264f, -0.27778512f, 0.27778512f, 0.49039264f, 0.09754516f, -0.41573481f},
    {0.35355339f, -0.35355339f, -0.35355339f, 0.35355339f, 0.35355339f, -0.35355339f, -0.35355339f, 0.35355339f},
    {0.27778512f, -0.49039264f, 0.09754516f, 0.41573481f, -0.41573481f, -0.09754516f, 0.49039264f, -0.27778512f},
    {0.19134172f, -0.46193977f, 0.46193977f, -0.19134172f, -0.19134172f, 0.46193977f, -0.46193977f, 0.19134172f},
    {0.09754516f, -0.27778512f, 0.41573481f, -0.49039264f, 0.49039264f, -0.41573481f, 0.27778512f, -0.09754516f},
};

static void transform(uint8_t pixels[64], int16_t levels[64]) {
    float rows[64];
    for (int i = 0; i < 8; i++) {
        for (int j = 0; j < 8; j++) {
            float sum = 0;
            for (int k = 0; k < 8; k++) sum += basis[j][k] * ((float)pixels[8 * i + k] - 128.0f);
            rows[8 * i + j] = sum;
        }
    }
    for (int j = 0; j < 8; j++) {
        for (int i = 0; i < 8; i++) {
            float sum = 0;
            for (int k = 0; k < 8; k++) sum += basis[i][k] * rows[8 * k + j];
            levels[8 * i + j] = (int16_t)(int)(sum / (float)(8 + 2 * (i + j)));
        }
    }
}

static void transform_back(int16_t levels[64], uint8_t pixels[64]) {
    float columns[64];
    for (int i = 0; i < 8; i++) {
        for (int j = 0; j < 8; j++) {
            float sum = 0;
            for (int k = 0; k < 8; k++) sum += basis[k][i] * (float)(levels[8 * k + j] * (8 + 2 * (k + j)));
            columns[8 * i + j] = sum;
        }
    }
    for (int i = 0; i < 8; i++) {
        for (int j = 0; j < 8; j++) {
            float sum = 128.0f;
            for (int k = 0; k < 8; k++) sum += columns[8 * i + k] * basis[k][j];
            pixels[8 * i + j] = sum < 0.0f ? 0 : sum > 255.0f ? 255 : (uint8_t)(unsigned)sum;
        }
    }
}

uint64_t kernel(int n) {
    uint64_t random = 113, sum = 0;
    uint8_t pixels[64];
    int16_t levels[64];
    for (int block = 0; block < n * 1000; block++) {
        for (int i = 0; i < 64; i++) pixels[i] = (uint8_t)(i * 3 + (int)(next_random(&random) % 32));
        transform(pixels, levels);
        transform_back(levels, pixels);
        sum = fold(sum, (uint64_t)(pixels[block % 64] + levels[0] * 256));
    }
    return sum;
}
