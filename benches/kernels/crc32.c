// CRC-32 by a table of 256 entries, n passes over 16 kB: dependent loads.
#include "kernel.h"

enum { LENGTH = 16384 };
static uint32_t table[256];
static uint8_t text[LENGTH];

uint64_t kernel(int n) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t remainder = byte;
        for (int bit = 0; bit < 8; bit++) remainder = remainder & 1 ? remainder >> 1 ^ 0xedb88320u : remainder >> 1;
        table[byte] = remainder;
    }
    uint64_t random = 43;
    for (int i = 0; i < LENGTH; i++) text[i] = (uint8_t)next_random(&random);
    uint32_t crc = 0xffffffffu;
    for (int turn = 0; turn < n; turn++) {
        for (int i = 0; i < LENGTH; i++) crc = table[(crc ^ text[i]) & 0xff] ^ crc >> 8;
    }
    return fold(0, ~crc);
}
